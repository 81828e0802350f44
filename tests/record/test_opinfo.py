"""Samples of PyTorch's operator database, recorded and replayed, forward and gradients."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from patience import run as run_patiently

ROOT = Path(__file__).resolve().parents[2]
FLOOR = 0.97


def run(folder: Path, *options: str) -> dict[str, Any]:
    """In a process of its own, because it forks."""
    path = folder / "record.json"
    script = ROOT / "scripts" / "opinfo_record.py"
    command = [sys.executable, str(script), *options, "--json", str(path)]
    done = run_patiently(command)
    assert path.exists(), done.stderr
    return json.loads(path.read_text())


def faults(outcome: dict[str, Any]) -> list[str]:
    return [
        f"{c['status']}: {c['entry']} sample {c['sample']}: {c['reason']}"
        for c in outcome["checks"]
        if c["status"] in ("wrong", "error")
    ]


def test_recorded_and_replayed(tmp_path: Path) -> None:
    outcome = run(tmp_path, "--samples", "2")
    assert not faults(outcome), "\n".join(faults(outcome))
    assert sum(outcome["counts"].values()) > 1000
    assert outcome["share"] >= FLOOR, outcome["reasons"]


@pytest.mark.parametrize("plugin", ["aten", "reference", "cpu_onednn"])
def test_as_a_users_call(tmp_path: Path, plugin: str) -> None:
    """Recorded, cut, compiled and run under autograd."""
    outcome = run(tmp_path, "--samples", "1", "--plugin", plugin)
    assert not faults(outcome), "\n".join(faults(outcome))
    assert outcome["share"] >= FLOOR, outcome["reasons"]
    assert plugin == "aten" or sum(c["on_plugin"] for c in outcome["checks"]) > 500
