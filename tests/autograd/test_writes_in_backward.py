"""Writes that a backward makes to what outlives it: they are there when it has run, each time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from compiling import DOORS, compile_for

T = torch.Tensor
Program = Callable[[T, T], Any]


class WritesWhatItHolds(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: T, held: T) -> T:
        ctx.held = held
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: T) -> Any:
        ctx.held.add_(1)
        return gradient * 2, None


class WritesWhatItSaved(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: T, saved: T) -> T:
        ctx.save_for_backward(saved)
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: T) -> Any:
        ctx.saved_tensors[0].mul_(3)
        return gradient * 2, None


class WritesItsGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: T) -> T:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: T) -> T:
        return gradient.clone().mul_(2)


def hooked(x: T, seen: T) -> T:
    y = x * 2
    y.register_hook(lambda gradient: seen.add_(gradient) * 1)
    return y.sin()


def shown_and_written(x: T, held: T) -> Any:
    shown = held + 1
    return WritesWhatItHolds.apply(x, shown), shown


@pytest.fixture
def writing_operator() -> Iterator[Program]:
    @torch.library.custom_op("written_in_backward::clone", mutates_args=())
    def clone(x: T, held: T) -> T:
        return x.clone()

    def backward(ctx: Any, gradient: T) -> Any:
        with torch.no_grad():
            ctx.held.zero_()
        return gradient * 2, None

    def setup(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.held = inputs[1]

    clone.register_fake(lambda x, _: torch.empty_like(x))
    clone.register_autograd(backward, setup_context=setup)
    yield clone


def outcome(run: Program) -> Any:
    x, held = torch.ones(3, requires_grad=True), torch.full((3,), 2.0)
    results = run(x, held)
    first, *shown = results if isinstance(results, tuple) else (results,)
    first.sum().backward()
    return x.grad, held, held._version, shown


def check(program: Program, door: str) -> None:
    compiled = compile_for("reference", program, door)
    for _ in range(2):
        torch.testing.assert_close(outcome(compiled), outcome(program))


PROGRAMS: dict[str, Program] = {
    "held": WritesWhatItHolds.apply,
    "saved": WritesWhatItSaved.apply,
    "hook": hooked,
    "result": shown_and_written,
    "its own": lambda x, _: WritesItsGradient.apply(x * 3),
}


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("door", DOORS)
def test_by_a_function(name: str, door: str) -> None:
    check(PROGRAMS[name], door)


@pytest.mark.parametrize("door", DOORS)
def test_by_a_registered_operator(writing_operator: Program, door: str) -> None:
    check(lambda x, held: writing_operator(x, held) + 0, door)
