"""Models and operators under BACKPLANE_CHECK=memory: no plan and no plugin harms memory."""

from __future__ import annotations

import os
import pathlib
import sys

import pytest
from integration.helpers import PLUGINS, run_python
from patience import run as run_patiently

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


def test_operators() -> None:
    """Every operator once, through compiled graphs."""
    script = TESTS.parent / "scripts" / "opinfo.py"
    done = run_patiently(
        [sys.executable, str(script), "--plugin", "cpu_onednn", "--samples", "1"],
        env={**os.environ, **CHECKED},
    )
    assert "BACKPLANE_CHECK" not in done.stdout + done.stderr, done.stdout[-8000:]


def test_an_unknown_word_is_refused() -> None:
    code = """
import torch, torch_backplane
torch_backplane.compile(lambda x: x + 1, backend="reference")(torch.ones(2))
"""
    done = run_python(code, {"BACKPLANE_CHECK": "memroy"})
    assert "BACKPLANE_CHECK is 'memroy'; it must be 'memory' or empty" in done.stderr
