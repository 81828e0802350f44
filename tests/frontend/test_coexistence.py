"""Our front end and TorchDynamo inside of each other, with frames that break, also in threads."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from threads import run_in_threads
from torch import nn
from torch_backplane import frontend

Function = Callable[..., Any]


def dynamo(function: Function) -> Function:
    return torch.compile(function, backend="eager")


def ours(function: Function) -> Function:
    return frontend.compile(function, entry_limit=64)


class Inner(nn.Module):
    """Breaks in the middle, on a value."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.calls: list[int] = []

    def forward(self, x: torch.Tensor, n: int) -> torch.Tensor:
        y = self.layer(x).sin() * n
        self.calls.append(n)
        if y.sum() > 0:
            y = y + 1
        return y - x.shape[0]


class Outer(nn.Module):
    """Breaks around a call of what is compiled by the other, inside of a `with` and a loop."""

    def __init__(self, inner: Function) -> None:
        super().__init__()
        self.inner = [inner]  # no submodule: it is compiled already

    def forward(self, x: torch.Tensor, n: int) -> torch.Tensor:
        total = x * 0
        for i in range(n):
            with torch.set_grad_enabled(torch.is_grad_enabled()):
                total = total + self.inner[0](x + i, n)
            if total.sum() > i:
                total = total * 0.5
        return total


def made() -> tuple[Inner, Outer]:
    torch.manual_seed(0)
    inner = Inner()
    return inner, Outer(inner)


PAIRS = [(ours, dynamo), (dynamo, ours), (ours, ours), (dynamo, dynamo)]


@pytest.mark.parametrize(("outer", "inner"), PAIRS)
def test_breaks_on_both_sides(outer: Function, inner: Function) -> None:
    torch._dynamo.reset()
    plain_inner, plain = made()
    module, whole = made()
    whole.inner = [inner(module)]
    compiled = outer(whole)
    for n in (1, 2, 1, 3):
        for rows in (2, 5):
            x = torch.linspace(-1, 2, rows * 4).reshape(rows, 4)
            leaves = [x.clone().requires_grad_() for _ in range(2)]
            out, expected = compiled(leaves[0], n), plain(leaves[1], n)
            torch.testing.assert_close(out, expected)
            out.square().sum().backward()
            expected.square().sum().backward()
            torch.testing.assert_close(leaves[0].grad, leaves[1].grad)
            with torch.no_grad():
                torch.testing.assert_close(compiled(x, n), plain(x, n))
    assert module.calls == plain_inner.calls
    torch.testing.assert_close(module.layer.weight.grad, plain_inner.layer.weight.grad)


@pytest.mark.parametrize(("outer", "inner"), PAIRS[:2])
def test_errors_cross_both(outer: Function, inner: Function) -> None:
    torch._dynamo.reset()

    def fails(x: torch.Tensor, n: int) -> torch.Tensor:
        if x.sum() > n:
            raise ValueError(f"more than {n}")
        return x * n

    step = inner(fails)

    def function(x: torch.Tensor, n: int) -> Any:
        try:
            return step(x, n) + 1
        except ValueError as error:
            return str(error)

    compiled = outer(function)
    for value in (0.0, 2.0, 0.0, 2.0):
        result = compiled(torch.full((2,), value), 3)
        if value:
            assert result == "more than 3"
        else:
            assert torch.equal(result, torch.ones(2))


def test_stress_in_threads() -> None:
    torch._dynamo.reset()
    modules = [made() for _ in range(4)]
    compiled: list[Function] = []
    for number, (inner, outer) in enumerate(modules):
        first, second = PAIRS[number]
        outer.inner = [second(inner)]
        compiled.append(first(outer))
    _, reference = made()
    reference.inner[0].calls = None  # type: ignore[assignment]
    start = threading.Barrier(8)

    def plain(x: torch.Tensor, n: int) -> torch.Tensor:
        inner, total = reference.inner[0], x * 0
        for i in range(n):
            y = inner.layer(x + i).sin() * n
            total = total + (y + 1 if y.sum() > 0 else y) - x.shape[0]
            if total.sum() > i:
                total = total * 0.5
        return total

    def work(number: int) -> None:
        start.wait()
        for i in range(30):
            rows, n = 2 + (i + number) % 3, 1 + i % 2
            x = torch.linspace(-1, number, rows * 4).reshape(rows, 4)
            with torch.set_grad_enabled(bool((i // 2 + number) % 2)):
                out, expected = compiled[number % 4](x, n), plain(x, n)
            torch.testing.assert_close(out, expected)
            assert out.requires_grad == expected.requires_grad
            if i % 10 == 9:
                mine = frontend.compile(lambda x, k=i: x * k if x.sum() > 0 else x + k)
                assert torch.equal(mine(torch.ones(2)), torch.full((2,), float(i)))

    run_in_threads(work, range(8))


def test_the_other_is_reset_between_calls() -> None:
    inner, outer = made()
    outer.inner = [dynamo(inner)]
    compiled = ours(outer)
    plain_inner, plain = made()
    x = torch.linspace(-1, 2, 8).reshape(2, 4)
    for i in range(6):
        if i % 2:
            torch._dynamo.reset()
        if i % 3 == 2:
            frontend.forget(compiled)
        torch.testing.assert_close(compiled(x, 2), plain(x, 2))
    assert inner.calls == plain_inner.calls
