"""Every row of the op table is called by some graph, or it is said why none calls it."""

from __future__ import annotations

import random
import sys
from pathlib import Path

import pytest
import torch
from patience import run as run_patiently

from fuzz import graph_rules_more
from fuzz.graph_fuzzer import operators
from fuzz.graphs import SIZES, Graph, Refused

ROOT = Path(__file__).resolve().parents[2]
TRIES = 150
# In a process of its own: PyTorch's kernels may die of what they are given.
PROGRAM = """
import sys
sys.path.insert(0, sys.argv[1])
from fuzz.test_graph_rules import find_uncalled
print(*find_uncalled())
"""


def is_called(op: str) -> bool:
    for number in range(TRIES):
        torch.manual_seed(number)
        graph = Graph(random.Random(f"{op}:{number}"), [op])
        graph.input(tuple(SIZES.values()))
        try:
            graph.call(op)
        except Refused:
            continue
        return True
    return False


def find_uncalled() -> list[str]:
    return [op for op in operators() if not is_called(op)]


def test_each_row_is_called():
    done = run_patiently([sys.executable, "-c", PROGRAM, str(ROOT / "tests")])
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == []


def test_a_row_that_nothing_calls_is_noticed():
    assert not is_called("aten._fused_dropout")


def test_each_reason_belongs_to_a_row():
    from torch_backplane import _C

    rows = [row["name"] for row in _C.op_table()]
    reasons = {graph_rules_more.never(row) for row in rows}
    assert set(graph_rules_more.NOT_MADE.values()) <= reasons
    called = operators()
    assert len(called) > 600
    assert not [row for row in called if graph_rules_more.never(row)]


@pytest.mark.parametrize("seed", ["1:1", "1:2"])
def test_the_same_seed_makes_the_same_graph(seed):
    from fuzz.graphs import make_graph

    ops = list(operators())
    assert make_graph(seed, ops, "reference") == make_graph(seed, ops, "reference")
