"""Models and operators under BACKPLANE_CHECK=memory: no plan and no plugin harms memory."""

from __future__ import annotations

import json
import os
import pathlib
import sys

import pytest
from compiling import PLUGINS, run_python
from patience import run as run_patiently

pytestmark = pytest.mark.slow

TESTS = pathlib.Path(__file__).resolve().parents[1]
CHECKED = {"BACKPLANE_CHECK": "memory"}
# A transformer, a convolutional network and recurrent modules; forward and backward.
MODELS = "test_inference and (bert or resnet) or test_gradients and (bert or resnet)"


def run_tests(*arguments: str) -> None:
    done = run_patiently(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments],
        cwd=TESTS,
        env={**os.environ, **CHECKED},
    )
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]


def test_models() -> None:
    run_tests("models/test_models.py", "-k", MODELS)


@pytest.mark.parametrize("plugin", PLUGINS)
def test_recurrent_modules(plugin: str) -> None:
    run_tests("integration/test_recurrent.py", "-k", plugin)


def test_operators(tmp_path: pathlib.Path) -> None:
    """Every operator once, forward, through compiled graphs."""
    outcome = tmp_path / "outcome.json"
    command = [sys.executable, "-m", "torch_backplane.cli", "opinfo", "--plugin", "cpu_onednn"]
    command += ["--json", str(outcome)]
    done = run_patiently(
        [*command, "--dtype", "float32", "--no-backward"], env={**os.environ, **CHECKED}
    )
    assert outcome.exists(), done.stderr
    results = json.loads(outcome.read_text())["results"]
    faults = [r for r in results if r["status"] in ("wrong", "error")]
    assert len(results) > 500 and not faults, faults
    assert "BACKPLANE_CHECK" not in outcome.read_text()


def test_an_unknown_word_is_refused() -> None:
    code = """
import torch, torch_backplane
torch.compile(lambda x: x + 1, backend="plugin:reference")(torch.ones(2))
"""
    done = run_python(code, {"BACKPLANE_CHECK": "memroy"})
    assert "BACKPLANE_CHECK is 'memroy'; it must be 'memory' or empty" in done.stderr
