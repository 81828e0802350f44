"""Norms of values that are all equal, or nearly: the mean is theirs, to the last bit. Batch and instance norm are
better than PyTorch's own, which of 59 times 3333.3 is 0.017."""

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
    "instance_norm": F.instance_norm,
}


@pytest.mark.parametrize("plugin", PLUGINS)
@pytest.mark.parametrize("name", NORMS)
def test_equal_values(name: str, plugin: str) -> None:
    compiled = compile_for(plugin, NORMS[name], dynamic=False)
    for value in (0.1, 3333.3, 1e4 + 0.1, 123456.7, 3e9 + 7):
        x = torch.full((3, 6, 59), value)
        torch.testing.assert_close(compiled(x), torch.zeros_like(x), rtol=0, atol=1e-6)


@pytest.mark.parametrize("plugin", PLUGINS)
@pytest.mark.parametrize("name", NORMS)
def test_nearly_equal_values(name: str, plugin: str) -> None:
    compiled = compile_for(plugin, NORMS[name], dynamic=False)
    for value in (30.0, 3000.0):
        x = value + torch.randn(3, 6, 59)
        expected, allowed = NORMS[name](x.double()), 2e-7 * value + 1e-6
        torch.testing.assert_close(compiled(x).double(), expected, rtol=2e-5, atol=allowed)


def instance_norm(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return F.instance_norm(x, weight=w, bias=b, eps=0.0)


@pytest.mark.parametrize("plugin", PLUGINS)
def test_equal_values_without_an_epsilon(plugin: str) -> None:
    """PyTorch's batch statistics take nothing for the inverse of no deviation; group norm's do not."""
    compiled = compile_for(plugin, instance_norm, dynamic=False)
    w, b = torch.tensor([2.0, 3.0]), torch.tensor([0.5, -1.0])
    for x in (torch.ones(3, 2, 7), torch.ones(3, 2, 4, 8)):
        x[0, 1, 0] = 4
        given = [x.requires_grad_(), w.requires_grad_(), b.requires_grad_()]
        actual, expected = compiled(*given), instance_norm(*given)
        torch.testing.assert_close(actual, expected)
        slope = torch.linspace(-1, 1, x.numel()).view(x.shape)
        for one, other in zip(
            torch.autograd.grad((actual * slope).sum(), given),
            torch.autograd.grad((expected * slope).sum(), given),
            strict=True,
        ):
            torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("plugin", PLUGINS)
def test_groups_of_equal_values_without_an_epsilon(plugin: str) -> None:
    x = torch.ones(3, 2, 7)
    compiled = compile_for(plugin, lambda x: F.group_norm(x, 1, eps=0.0), dynamic=False)
    assert compiled(x).isnan().all()
