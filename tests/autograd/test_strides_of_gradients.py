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


def added(a: torch.Tensor, b: torch.Tensor) -> Any:
    return (a + b,)


def added_to_constant(a: torch.Tensor, b: torch.Tensor) -> Any:
    return (a.detach() + b,)


def added_beside_a_square(a: torch.Tensor, b: torch.Tensor) -> Any:
    return a + b, a * a


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize(
    "program", (added, added_to_constant, added_beside_a_square), ids=lambda p: p.__name__
)
def test_a_gradient_that_is_the_tangent_of_a_sum(program: Callable[..., Any], door: str) -> None:
    torch._dynamo.reset()
    compiled = compile_for("reference", program, door)
    for size in ((3, 4), (5, 6)):
        outcomes = []
        for called in (program, compiled):
            leaves = [torch.linspace(0, 1, size[0] * size[1]).view(size) for _ in range(2)]
            for leaf in leaves:
                leaf.requires_grad_()
            loss = called(*leaves)[0].sum()
            gradients = torch.autograd.grad(loss, leaves, allow_unused=True, retain_graph=True)
            loss.backward()
            for leaf in leaves:
                if leaf.grad is not None:
                    leaf.grad.mul_(2)  # is no other's
            gradients += tuple(leaf.grad for leaf in leaves)
            outcomes.append(gradients)
        for ours, its in zip(outcomes[1], outcomes[0], strict=True):
            assert (ours is None) == (its is None)
            if its is not None:
                assert ours.stride() == its.stride()
                torch.testing.assert_close(ours, its)


@pytest.mark.parametrize("door", DOORS)
def test_a_gradient_that_is_a_tangent_that_lies_otherwise(door: str) -> None:
    torch._dynamo.reset()
    compiled = compile_for("reference", lambda x: x + 1, door)
    for size in ((1, 3), (3, 1), (1, 1), (2, 3)):
        x = torch.rand(size, requires_grad=True)
        for tangent in (
            torch.rand(size[::-1]).t(),
            torch.rand(()).expand(size),
            torch.rand(size[0], 2 * size[1])[:, ::2],
        ):
            (ours,) = torch.autograd.grad(compiled(x), x, tangent)
            (its,) = torch.autograd.grad(x + 1, x, tangent)
            assert ours.stride() == its.stride(), (size, tangent.stride())
            torch.testing.assert_close(ours, its)
