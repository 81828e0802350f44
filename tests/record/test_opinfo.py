"""Samples of PyTorch's operator database, recorded and replayed, forward and gradients."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
FLOOR = 0.97
LIMIT_SECONDS = 600


@pytest.fixture(scope="module")
def outcome(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """In a process of its own, because it forks."""
    path = tmp_path_factory.mktemp("opinfo") / "record.json"
    script = ROOT / "scripts" / "opinfo_record.py"
    command = [sys.executable, str(script), "--samples", "2", "--json", str(path)]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=LIMIT_SECONDS, check=False
    )
    assert path.exists(), done.stderr
    return json.loads(path.read_text())


def test_no_result_is_wrong_and_no_check_fails(outcome: dict[str, Any]) -> None:
    found = [
        f"{c['status']}: {c['entry']} sample {c['sample']}: {c['reason']}"
        for c in outcome["checks"]
        if c["status"] in ("wrong", "error")
    ]
    assert not found, "\n".join(found)


def test_enough_samples_are_served(outcome: dict[str, Any]) -> None:
    assert sum(outcome["counts"].values()) > 1000
    assert outcome["share"] >= FLOOR, outcome["reasons"]
