"""PyTorch's own CUDA tensors in programs compiled for plugin:cuda; what is tried stands in suite.py, run
in a process of its own: PyTorch gets a device there that it keeps."""

from __future__ import annotations

import os
import pathlib
import sys

import pytest
import torch
from patience import run

HERE = pathlib.Path(__file__).parent


@pytest.mark.skipif(
    torch.version.cuda is not None and "BACKPLANE_TEST_GPU" not in os.environ,
    reason="this build of PyTorch has hooks of its own for CUDA, which nothing can replace",
)
def test_tensors_of_pytorchs_own_device_stay_where_they_are() -> None:
    program = [sys.executable, str(HERE / "emulated_torch.py"), str(HERE / "suite.py")]
    done = run(
        [*program, "-q", "-p", "no:cacheprovider"],
        env={**os.environ, "PYTHONPATH": str(HERE.parent)},
    )
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
