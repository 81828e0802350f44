"""Tensors with storages of their own over the same bytes, as NumPy, DLPack and buffers make them: a
write to one shows in the other.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
import torch_backplane
from torch_backplane import frontend

DOORS = {
    "own": lambda f: torch_backplane.compile(f, backend="cpu_onednn"),
    "own, eager": lambda f: torch_backplane.compile(f, backend="eager"),
    "torch": lambda f: torch.compile(f, backend="plugin:cpu_onednn"),
}
TWINS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "numpy": lambda x: torch.from_numpy(x.numpy()),
    "asarray": lambda x: torch.as_tensor(np.asarray(x)),
    "dlpack": lambda x: torch.from_dlpack(x.numpy()),
    "buffer": lambda x: torch.frombuffer(x.numpy().data, dtype=x.dtype),
    "part": lambda x: torch.from_numpy(x.numpy()[1:]),
    "view": lambda x: torch.from_numpy(x.numpy()).view(-1)[1:],
}


def write(x: torch.Tensor, twin: torch.Tensor) -> torch.Tensor:
    twin.mul_(2)
    return x * 1


def read(x: torch.Tensor, twin: torch.Tensor) -> torch.Tensor:
    y = twin + 1
    x.add_(1)
    return y * twin.sum()


@pytest.mark.parametrize("twin", TWINS)
@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("program", [write, read])
def test_arguments(program: Callable[..., torch.Tensor], door: str, twin: str) -> None:
    """First apart, then over the same bytes, then apart again."""
    torch._dynamo.reset()
    compiled = DOORS[door](program)
    for shares in (False, True, False, True):
        results = []
        for f in (compiled, program):
            x = torch.arange(1.0, 5.0)
            other = TWINS[twin](x)
            results.append([f(x, other if shares else other.clone()), x, other])
        for actual, expected in zip(*results, strict=True):
            assert torch.equal(actual, expected), (shares, actual, expected)


@pytest.mark.parametrize("twin", TWINS)
@pytest.mark.parametrize("door", ["own", "own, eager"])  # TorchDynamo traces NumPy itself
def test_made_inside(door: str, twin: str) -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        y = x + 0
        t = TWINS[twin](y)
        t.mul_(2)
        u = TWINS[twin](x)
        u.add_(3)
        return y * 1 + x

    compiled = DOORS[door](program)
    for _ in range(3):
        x = torch.arange(1.0, 5.0)
        expected = program(x.clone())
        assert torch.equal(compiled(x), expected)


def test_neighbours_are_apart() -> None:
    """Parts of one array that do not meet are no reason to leave the graph."""
    whole = torch.zeros(8).numpy()
    a, b = torch.from_numpy(whole[:4]), torch.from_numpy(whole[4:])
    compiled = torch_backplane.compile(write, backend="reference")
    for twin in (b, b + 1):
        assert torch.equal(compiled(a, twin), torch.zeros(4))
    assert frontend.counters(compiled)["plain_calls"] == 0
    compiled(a, torch.from_numpy(whole[3:]))
    assert frontend.counters(compiled)["plain_calls"] == 1
