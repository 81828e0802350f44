"""Gradients lie as eager mode's do: at sizes of 1, where one program serves several sizes, and where
only some results are differentiated."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from compiling import DOORS, compile_for


def turned(x: torch.Tensor) -> Any:
    return x.t().contiguous().sin(), (x * 2).exp()


def sums(x: torch.Tensor) -> Any:
    return x.sum(1, keepdim=True).expand_as(x) * x, x.t().sin().t() + x


def turned_beside_straight(x: torch.Tensor) -> Any:
    y = x.sin()
    return y.t().contiguous().cos(), y * y, x.t().contiguous().exp()


def turned_at_the_end(x: torch.Tensor) -> Any:
    return (x.t() * torch.ones(x.shape[1], x.shape[0])).exp(), x.square()


PROGRAMS = (turned, sums, turned_beside_straight, turned_at_the_end)
SIZES = ((3, 4), (5, 6), (1, 4), (3, 1), (1, 1))


def laid(program: Callable[..., Any], size: tuple[int, int], ends: list[int]) -> list[Any]:
    x = torch.linspace(0.5, 1.5, size[0] * size[1]).view(size).requires_grad_()
    results = program(x)
    ends = [end for end in ends if end < len(results)]
    tangents = [torch.ones_like(results[end]) for end in ends]
    (gradient,) = torch.autograd.grad(
        [results[end] for end in ends], [x], tangents, retain_graph=True
    )
    torch.autograd.backward([results[end] for end in ends], tangents)
    return [gradient.stride(), x.grad.stride(), gradient]


@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize("door", DOORS)
def test_strides(program: Callable[..., Any], door: str) -> None:
    torch._dynamo.reset()
    compiled = compile_for("reference", program, door)
    for size in SIZES:
        for ends in ([0, 1, 2], [0], [1], [2, 0]):
            if ends[0] == 2 and program is not turned_beside_straight:
                continue
            # What an operator reads lies as the sum of all of it that there may be, and so does a
            # gradient that is recorded at a size of 1.
            if ends == [0] and (program is turned_beside_straight or 1 in size):
                continue
            eager, ours = laid(program, size, ends), laid(compiled, size, ends)
            assert ours[:2] == eager[:2], (size, ends)
            torch.testing.assert_close(ours[2], eager[2])
