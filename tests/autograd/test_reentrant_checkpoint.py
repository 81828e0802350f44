"""A reentrant checkpoint gives gradients to what it is not given only where it is given something
that requires them, and warns where it is not."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from compiling import compile_for
from torch.utils.checkpoint import checkpoint

linear = torch.nn.Linear(3, 3)


def block(x: torch.Tensor) -> torch.Tensor:
    return linear(x).sin()


def program(x: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    return checkpoint(block, x, use_reentrant=True) * scale


def without_reentry(x: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    return checkpoint(block, x, use_reentrant=False) * scale


def outcome(run: Any, x: torch.Tensor) -> tuple[Any, ...]:
    scale = torch.full((3,), 2.0, requires_grad=True)
    linear.zero_grad()
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        result = run(x, scale)
        result.sum().backward()
    texts = [str(one.message) for one in told if "requires_grad=True" in str(one.message)]
    return result.detach(), scale.grad, linear.weight.grad, x.grad, texts


@pytest.mark.parametrize("function", (program, without_reentry))
def test_gradients_and_warnings(function: Any) -> None:
    compiled = compile_for("reference", function, "own")
    for requires in (False, True, False):
        x = torch.linspace(-1, 1, 6).view(2, 3)
        eager = outcome(function, x.clone().requires_grad_(requires))
        ours = outcome(compiled, x.clone().requires_grad_(requires))
        assert ours[4] == eager[4]
        for mine, its in zip(ours[:4], eager[:4], strict=True):
            assert (mine is None) == (its is None)
            torch.testing.assert_close(mine, its)
