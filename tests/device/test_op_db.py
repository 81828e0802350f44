"""Every operator of PyTorch's database on tensors of the device: no wrong result, all counted."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "op_db_device.py"
LIMIT_SECONDS = 600
# Shares of the calls that the plugin runs itself. Only upwards.
FLOORS = {"reference": 0.90, "cpu_onednn": 0.70}

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("plugin", FLOORS)
def test_no_result_is_wrong(plugin: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CI", "true")  # PyTorch's test runner must not behave otherwise there
    path = tmp_path / "outcome.json"
    command = [sys.executable, str(SCRIPT), "--plugin", plugin, "--json", str(path)]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=LIMIT_SECONDS, check=False
    )
    assert path.exists(), done.stderr
    outcome = json.loads(path.read_text())
    assert not outcome["failed"], done.stdout
    assert outcome["passed"] > 550, done.stdout
    on_plugin, on_cpu = outcome["plugin_calls"], outcome["fallback_calls"]
    assert on_cpu == sum(outcome["fallbacks"].values())
    assert on_plugin / (on_plugin + on_cpu) >= FLOORS[plugin], outcome["fallbacks"]
