"""Every operator of PyTorch's database on tensors of the device: no wrong result, all counted."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from patience import run as run_patiently

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "op_db_device.py"
# Shares of the calls that the plugin runs itself. Only upwards.
FLOORS = {"reference": 0.90, "cpu_onednn": 0.70, "opencl": 0.75}

pytestmark = pytest.mark.slow
# Samples of an operator, and the types beside float32.
SAMPLES = (1, pytest.param(3, marks=pytest.mark.long))
TYPES = (
    "bfloat16",
    pytest.param("int64,float64,bool,float16", marks=pytest.mark.long),
)


def run(path: Path, *options: str) -> dict[str, Any]:
    """The outcome, none of it wrong."""
    command = [sys.executable, str(SCRIPT), "--json", str(path), *options]
    done = run_patiently(command)
    assert path.exists(), done.stderr
    outcome = json.loads(path.read_text())
    assert not outcome["failed"], done.stdout
    return outcome


@pytest.mark.parametrize("samples", SAMPLES)
@pytest.mark.parametrize(
    "plugin", [pytest.param(p, marks=[pytest.mark.long] * (p == "opencl")) for p in FLOORS]
)
def test_no_result_is_wrong(
    plugin: str, samples: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CI", "true")  # PyTorch's test runner must not behave otherwise there
    outcome = run(tmp_path / "outcome.json", "--plugin", plugin, "--samples", str(samples))
    assert outcome["passed"] > 550
    on_plugin, on_cpu = outcome["plugin_calls"], outcome["fallback_calls"]
    assert on_cpu == sum(outcome["fallbacks"].values())
    assert on_plugin / (on_plugin + on_cpu) >= FLOORS[plugin], outcome["fallbacks"]


@pytest.mark.parametrize("types", TYPES)
def test_other_types_are_right(types: str, tmp_path: Path) -> None:
    outcome = run(
        tmp_path / "outcome.json",
        *("--plugin", "cpu_onednn", "--samples", "1"),
        *("--dtypes", types),
    )
    assert outcome["passed"] > 450 * len(types.split(","))
