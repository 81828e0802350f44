"""Floats that vary between calls, of operators that take them as numbers alone."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
import torch_backplane
from compiling import close, compile_for


def slope(x: torch.Tensor, number: float) -> torch.Tensor:
    return F.leaky_relu(x * 2, number)


def epsilon(x: torch.Tensor, number: float) -> torch.Tensor:
    return F.layer_norm(x, (4,), eps=number) + 1


@pytest.mark.parametrize("program", [slope, epsilon])
def test_they_stay_on_the_plugin(program) -> None:
    torch._dynamo.reset()
    torch_backplane.reset()
    compiled = compile_for("reference", program)
    for number in (0.1, 0.2, 0.3, 0.25):
        x = torch.randn(3, 4, requires_grad=True)
        y = x.detach().clone().requires_grad_()
        expected, actual = program(x, number), compiled(y, number)
        close(actual, expected)
        (expected**2).sum().backward()
        (actual**2).sum().backward()
        close(y.grad, x.grad)
    counted = torch_backplane.stats()
    assert counted["eager_graphs"] == 0
    assert counted["eager_calls"] == 0
