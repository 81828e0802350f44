"""One sample of every entry of PyTorch's operator database, on every plugin, against eager."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from patience import run as run_patiently

ROOT = Path(__file__).resolve().parents[2]
# Shares of entries that pass, of those that can be compiled ahead of the values. Only upwards.
FLOORS = {"reference": 0.90, "cpu_onednn": 0.66}
# A driver compiles each kernel: of these plugins a part is run here, and the whole table with
# `./dev opinfo --plugin opencl`, or `cuda`.
PART = ("a*", "cum*", "index*", "nn.functional.s*", "scatter*", "so*", "sum*", "t*")
PART_FLOOR = 0.60

pytestmark = pytest.mark.slow


def run(folder: Path, plugins: str, *options: str) -> dict[str, Any]:
    """What `backplane opinfo` says: in a process of its own, because it forks."""
    path = folder / "opinfo.json"
    command = [sys.executable, "-m", "torch_backplane.cli", "opinfo", "--plugin", plugins, *options]
    done = run_patiently([*command, "--json", str(path)])
    assert path.exists(), done.stderr
    return json.loads(path.read_text())


def faults(outcome: dict[str, Any], plugin: str) -> list[str]:
    return [
        f"{r['status']}: {r['entry']} {r['column']} {r['dtype']}: {r['reason']}\n  {r['inputs']}"
        for r in outcome["results"]
        if r["plugin"] == plugin and r["status"] in ("wrong", "error")
    ]


@pytest.fixture(scope="module")
def outcome(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return run(tmp_path_factory.mktemp("opinfo"), ",".join(FLOORS))


@pytest.mark.parametrize("plugin", FLOORS)
def test_no_result_is_wrong_and_no_check_fails(outcome: dict[str, Any], plugin: str) -> None:
    found = faults(outcome, plugin)
    assert not found, "\n".join(found)


@pytest.mark.parametrize("plugin", FLOORS)
def test_enough_entries_pass(outcome: dict[str, Any], plugin: str) -> None:
    found = outcome["plugins"][plugin]
    assert found["entries"] > 600
    assert found["pass_share"] >= FLOORS[plugin], found["counts"]


@pytest.mark.parametrize("plugin", ["opencl", "cuda"])
def test_part_on_drivers(plugin: str, tmp_path: Path) -> None:
    patterns = [option for pattern in PART for option in ("--op", pattern)]
    outcome = run(tmp_path, plugin, *patterns)
    found = faults(outcome, plugin)
    assert not found, "\n".join(found)
    counts = outcome["plugins"][plugin]
    assert counts["entries"] > 80
    assert counts["pass_share"] >= PART_FLOOR, counts["counts"]
