"""One sample of every entry of PyTorch's operator database, on every plugin, against eager."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
# Shares of entries that pass, of those that can be compiled ahead of the values. Only upwards.
FLOORS = {"reference": 0.90, "cpu_onednn": 0.60, "opencl": 0.60}
LIMIT_SECONDS = 2400

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def outcome(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What scripts/opinfo.py says: in a process of its own, because it forks."""
    path = tmp_path_factory.mktemp("opinfo") / "opinfo.json"
    command = [sys.executable, str(ROOT / "scripts" / "opinfo.py"), "--plugin", ",".join(FLOORS)]
    done = subprocess.run(
        [*command, "--json", str(path)],
        capture_output=True,
        text=True,
        timeout=LIMIT_SECONDS,
        check=False,
    )
    assert path.exists(), done.stderr
    return json.loads(path.read_text())


@pytest.mark.parametrize("plugin", FLOORS)
def test_no_result_is_wrong_and_no_check_fails(outcome: dict[str, Any], plugin: str) -> None:
    found = [
        f"{r['status']}: {r['entry']} {r['column']} {r['dtype']}: {r['reason']}\n  {r['inputs']}"
        for r in outcome["results"]
        if r["plugin"] == plugin and r["status"] in ("wrong", "error")
    ]
    assert not found, "\n".join(found)


@pytest.mark.parametrize("plugin", FLOORS)
def test_enough_entries_pass(outcome: dict[str, Any], plugin: str) -> None:
    found = outcome["plugins"][plugin]
    assert found["entries"] > 600
    assert found["pass_share"] >= FLOORS[plugin], found["counts"]
