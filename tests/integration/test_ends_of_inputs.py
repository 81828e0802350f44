"""Kernels read no element behind their inputs: each input ends where the next page may not be read."""

from __future__ import annotations

import ctypes
import mmap
import os
import pathlib
from collections.abc import Callable

import pytest
import torch
from compiling import compile_for, run_python
from torch.nn import functional as F


def rand(*dims: int) -> torch.Tensor:
    return torch.randn(*dims, generator=torch.Generator().manual_seed(0))


def whole(high: int, *dims: int) -> torch.Tensor:
    return torch.randint(high, dims, generator=torch.Generator().manual_seed(0))


# Images of one batch that lie beside each other as columns of one product end within a panel.
PROGRAMS: dict[str, tuple[Callable[..., torch.Tensor], tuple[torch.Tensor, ...]]] = {
    "mm": (torch.mm, (rand(16, 24), rand(24, 16))),
    "mm of tails": (torch.mm, (rand(7, 64), rand(64, 37))),
    "mm transposed": (lambda x, y: x.t() @ y.t(), (rand(64, 9), rand(33, 64))),
    "mm of halves": (torch.mm, (rand(16, 32).bfloat16(), rand(32, 48).bfloat16())),
    "mm of few rows": (torch.mm, (rand(2, 64), rand(64, 40))),
    "bmm": (torch.bmm, (rand(3, 16, 32), rand(3, 32, 20))),
    "linear": (F.linear, (rand(5, 64), rand(48, 64), rand(48))),
    "mv": (torch.mv, (rand(17, 64), rand(64))),
    "conv": (lambda x, w: F.conv2d(x, w, padding=1), (rand(2, 16, 5, 7), rand(9, 16, 3, 3))),
    "conv 1x1": (F.conv2d, (rand(3, 64, 4, 9), rand(16, 64, 1, 1))),
    "conv 1x1, odd": (F.conv2d, (rand(5, 64, 5, 7), rand(16, 64, 1, 1))),
    "conv by channel": (lambda x, w: F.conv2d(x, w, groups=16), (rand(2, 16, 8, 9), rand(16, 1, 3, 3))),
    "conv strided": (lambda x, w: F.conv2d(x, w, stride=2), (rand(2, 16, 9, 8), rand(8, 16, 3, 3))),
    "max pool": (lambda x: F.max_pool2d(x, 3, 2, 1), (rand(2, 16, 7, 9),)),
    "mean pool": (lambda x: F.avg_pool2d(x, 2), (rand(2, 16, 6, 10),)),
    "softmax": (lambda x: x.softmax(-1), (rand(64, 33),)),
    "layer norm": (lambda x, w: F.layer_norm(x, (48,), w), (rand(16, 48), rand(48))),
    "sum": (lambda x: x.sum(0), (rand(64, 37),)),
    "gather": (lambda x, i: x.gather(1, i), (rand(16, 9), whole(9, 16, 4))),
    "index": (lambda x, i: x[i], (rand(16, 9), whole(16, 48))),
    "embedding": (lambda w, i: F.embedding(i, w), (rand(16, 17), whole(16, 32))),
}  # fmt: skip
PROTECT_NONE = 0
TESTS = str(pathlib.Path(__file__).resolve().parents[1])


def at_end(tensor: torch.Tensor) -> torch.Tensor:
    """A copy that ends where memory that may not be read begins."""
    size = tensor.numel() * tensor.element_size()
    before = -(-size // mmap.PAGESIZE) * mmap.PAGESIZE
    pages = mmap.mmap(-1, before + mmap.PAGESIZE)
    place = ctypes.addressof(ctypes.c_char.from_buffer(pages))
    libc = ctypes.CDLL(None, use_errno=True)
    protected = ctypes.c_void_p(place + before), ctypes.c_size_t(mmap.PAGESIZE)
    assert libc.mprotect(*protected, PROTECT_NONE) == 0, ctypes.get_errno()
    flat = torch.frombuffer(pages, dtype=tensor.dtype, count=tensor.numel(), offset=before - size)
    return flat.view(tensor.shape).copy_(tensor)


def main(plugin: str) -> None:
    for name, (function, inputs) in PROGRAMS.items():
        print(f"{name}: ", end="", flush=True)
        result = compile_for(plugin, function, "own", dynamic=False)(*map(at_end, inputs))
        tolerance = 2e-2 if result.dtype == torch.bfloat16 else 1e-4
        torch.testing.assert_close(result, function(*inputs), rtol=tolerance, atol=tolerance)
        print("right", flush=True)


@pytest.mark.parametrize("plugin", ["cpu_onednn", "opencl"])
def test_nothing_is_read_behind_an_input(plugin: str) -> None:
    code = f"from integration import test_ends_of_inputs as ends; ends.main({plugin!r})"
    paths = os.pathsep.join([TESTS, *filter(None, [os.environ.get("PYTHONPATH")])])
    done = run_python(code, {"PYTHONPATH": paths})
    assert done.stdout.splitlines() == [f"{name}: right" for name in PROGRAMS], done.stderr[-2000:]
    assert done.returncode == 0
