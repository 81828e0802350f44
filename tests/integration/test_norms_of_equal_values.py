"""Norms of rows whose values are all equal, or nearly: the mean is theirs, to the last bit."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from compiling import PLUGINS, compile_for
from torch.nn import functional as F

NORMS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "layer_norm": lambda x: F.layer_norm(x, x.shape[1:]),
    "group_norm": lambda x: F.group_norm(x, 2),
    "batch_norm": lambda x: F.batch_norm(x, None, None, training=True),
    "instance_norm": lambda x: F.instance_norm(x, eps=1e-5),
    "running": lambda x: torch.stack(running(x)),
}


def running(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    mean, var = torch.zeros(x.shape[1]), torch.ones(x.shape[1])
    F.batch_norm(x, mean, var, training=True, momentum=1.0)
    return mean, var


def exact(name: str, x: torch.Tensor) -> torch.Tensor:
    """By float64: PyTorch's batch norm of 59 times 3333.3 is 0.017."""
    wide = x.double()
    if name == "running":
        return torch.stack((wide.mean((0, 2)), wide.var((0, 2))))
    return NORMS[name](wide)


@pytest.mark.parametrize("plugin", PLUGINS)
@pytest.mark.parametrize("name", NORMS)
def test_equal_values(name: str, plugin: str) -> None:
    compiled = compile_for(plugin, NORMS[name], dynamic=False)
    for value in (0.1, 3333.3, 1e4 + 0.1, 123456.7, 3e9 + 7):
        x = torch.full((3, 6, 59), value)
        expected = torch.zeros_like(x)
        if name == "running":
            expected = torch.tensor([[value] * 6, [0.0] * 6])
        torch.testing.assert_close(compiled(x), expected, rtol=2e-7, atol=1e-6)


@pytest.mark.parametrize("plugin", PLUGINS)
@pytest.mark.parametrize("name", NORMS)
def test_nearly_equal_values(name: str, plugin: str) -> None:
    compiled = compile_for(plugin, NORMS[name], dynamic=False)
    for value in (30.0, 3000.0):
        x = value + torch.randn(3, 6, 59)
        expected, allowed = exact(name, x), 2e-7 * value + 1e-6
        torch.testing.assert_close(compiled(x).double(), expected, rtol=2e-5, atol=allowed)
