"""docs/front_end_coverage.md says what our front end captures, and no less than was agreed."""

from __future__ import annotations

import pathlib
import re

import pytest
from frontend.programs import report
from frontend.programs.catalog import PROGRAMS

PAGE = pathlib.Path(__file__).parents[2] / "docs" / "front_end_coverage.md"
# Of the programs that TorchDynamo makes whole graphs of: whole, or as many operators, in ours.
LEAST_SHARE = 0.95
ROW = re.compile(r"^\| (\w+) \| (.*) \| (\d+) \| (.*) \| (\d+) \|$", re.MULTILINE)


@pytest.fixture(scope="module")
def rows() -> dict[str, tuple[str, int, str, int]]:
    found = ROW.findall(PAGE.read_text(encoding="utf-8"))
    return {name: (own, int(n), other, int(m)) for name, own, n, other, m in found}


def test_every_program_has_its_row(rows) -> None:
    assert set(rows) == set(PROGRAMS)
    assert len(rows) >= 250


def test_share_of_torchdynamo(rows) -> None:
    graphs = {name: row for name, row in rows.items() if row[2] == "whole"}
    less = [n for n, (own, ours, _, theirs) in graphs.items() if own != "whole" and ours < theirs]
    assert len(less) <= (1 - LEAST_SHARE) * len(graphs), less


@pytest.mark.parametrize("name", sorted(PROGRAMS))
def test_program(name: str, rows) -> None:
    result = report.run_ours(PROGRAMS[name])
    assert not result.wrong, result.wrong
    own, operators, _, _ = rows[name]
    assert (result.whole, result.operators) == (own == "whole", operators), result.reasons


# TorchDynamo's column takes minutes to measure: a part of it, the same one each time.
SAMPLE = sorted(PROGRAMS)[::12]


@pytest.mark.parametrize("name", SAMPLE)
def test_torchdynamo_s_column(name: str, rows) -> None:
    result = report.run_dynamo(PROGRAMS[name])
    _, _, other, operators = rows[name]
    assert (result.whole, result.operators) == (other == "whole", operators), result.reasons
