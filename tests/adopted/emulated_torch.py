"""PyTorch's device ``cuda`` where this build of PyTorch has none: over the emulated driver, its
operators on the CPU (core/torch/testing). With BACKPLANE_TEST_GPU=1 it is the machine's own.

    python tests/adopted/emulated_torch.py suite.py …    pytest, with the device
"""

from __future__ import annotations

import ctypes
import importlib
import os
import pathlib
import sys


def load() -> None:
    """Before PyTorch is imported, which looks once for what it has."""
    if os.environ.get("BACKPLANE_TEST_GPU"):
        return
    assert "torch" not in sys.modules
    driver = pathlib.Path(os.environ["BACKPLANE_CUDA_DRIVER"])
    ctypes.CDLL(str(driver.with_name("libbackplane_emulated_torch_cuda.so")))
    import torch

    # Python's part of the device asks for a build with CUDA.
    cuda = torch.cuda
    cuda._lazy_init = lambda: None
    cuda.is_initialized = lambda: True
    cuda.device_count = lambda: 1
    cuda.current_device = lambda: 0
    cuda.is_bf16_supported = lambda including_emulation=True: True
    cuda.amp.common.amp_definitely_not_available = lambda: False


if __name__ == "__main__":
    importlib.import_module("conftest")  # names the emulated driver
    load()
    import pytest

    sys.exit(pytest.main(sys.argv[1:]))
