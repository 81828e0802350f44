"""Exceptions of Python in the middle of a call: of operators that the program registers, of hooks, of
handlers of signals. What the program wrote before stays written, once."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import Any

import pytest
import torch
from compiling import DOORS, compile_for
from torch.autograd.graph import saved_tensors_hooks


class Stopped(Exception):
    pass


def written_twice_or_not(x: torch.Tensor, count: torch.Tensor) -> Any:
    count.add_(1)
    return x.exp(), x.sin()


def stop(*_: object) -> None:
    raise Stopped


def kill(tensor: torch.Tensor) -> torch.Tensor:
    os.kill(os.getpid(), signal.SIGUSR1)
    return tensor


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize(
    ("pack", "error"),
    [(torch.linalg.cholesky, RuntimeError), (kill, Stopped), (stop, Stopped)],
    ids=["in C", "a signal", "in Python"],
)
def test_a_hook_that_raises(door: str, pack: Callable[..., Any], error: type[Exception]) -> None:
    compiled = compile_for("cpu_onednn", written_twice_or_not, door)
    compiled(torch.ones(3, requires_grad=True), torch.zeros(2))
    before = signal.signal(signal.SIGUSR1, stop)
    try:
        for run in (written_twice_or_not, compiled):
            count = torch.zeros(2)
            with pytest.raises(error), saved_tensors_hooks(pack, lambda tensor: tensor):
                run(torch.ones(3, requires_grad=True), count)
            assert count.tolist() == [1, 1]
    finally:
        signal.signal(signal.SIGUSR1, before)


@torch.library.custom_op("backplane_tests::refuses_negative", mutates_args=())
def refuses_negative(x: torch.Tensor) -> torch.Tensor:
    if x.flatten()[0] < 0:
        raise ValueError("negative")
    return x * 2


@refuses_negative.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


def test_an_operator_of_the_program_that_raises() -> None:
    def program(x: torch.Tensor, count: torch.Tensor) -> torch.Tensor:
        count.add_(1)
        try:
            return refuses_negative(x)
        except ValueError:
            return x - 100

    compiled = compile_for("cpu_onednn", program, "own")
    for x in (torch.ones(3), -torch.ones(3), torch.ones(3)):
        counts = torch.zeros(2), torch.zeros(2)
        torch.testing.assert_close(compiled(x, counts[0]), program(x, counts[1]))
        assert counts[0].tolist() == counts[1].tolist() == [1, 1]


@pytest.mark.parametrize("door", DOORS)
def test_an_operator_that_raises_where_nobody_catches(door: str) -> None:
    def program(x: torch.Tensor, count: torch.Tensor) -> torch.Tensor:
        count.add_(1)
        return refuses_negative(x)

    compiled = compile_for("cpu_onednn", program, door)
    compiled(torch.ones(3), torch.zeros(2))
    count = torch.zeros(2)
    with pytest.raises(ValueError, match="negative"):
        compiled(-torch.ones(3), count)
    assert count.tolist() == [1, 1]


@pytest.mark.parametrize("door", DOORS)
def test_a_hook_that_differentiates_the_same_program(door: str) -> None:
    def program(x: torch.Tensor, w: torch.Tensor) -> Any:
        return torch.exp(x), torch.sigmoid(w) * torch.sigmoid(w), torch.exp(x) * torch.sigmoid(w)

    def gradients(run: Callable[..., Any]) -> list[torch.Tensor]:
        x, w = (torch.ones(3, requires_grad=True) for _ in range(2))
        inner: list[torch.Tensor] = []
        results: list[torch.Tensor] = []

        def unpack(tensor: torch.Tensor) -> torch.Tensor:
            if not inner:
                inner.append(w)
                with torch.enable_grad():
                    inner[0] = torch.autograd.grad(results[1].sum(), w, retain_graph=True)[0]
            return tensor

        with saved_tensors_hooks(lambda tensor: tensor, unpack):
            results.extend(run(x, w))
        return [*torch.autograd.grad(results[0].sum(), x, retain_graph=True), *inner]

    compiled = compile_for("cpu_onednn", program, door)
    torch.testing.assert_close(gradients(compiled), gradients(program))
