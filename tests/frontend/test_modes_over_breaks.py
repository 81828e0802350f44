"""Modes of the thread whose block has a break inside: they hold behind it, and end with the block."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch_backplane import frontend

X = torch.linspace(-1, 1, 6)


def facts_of_thread(x: torch.Tensor) -> list[Any]:
    """What the modes make of operands that say nothing of them."""
    y = x.detach().requires_grad_() * 2
    return [
        torch.is_grad_enabled(),
        torch.is_inference_mode_enabled(),
        y.requires_grad,
        torch.is_autocast_enabled("cpu"),
        torch.get_autocast_dtype("cpu"),
        torch.is_autocast_cache_enabled(),
        x[None].sin() @ x[:, None].exp(),
        torch.are_deterministic_algorithms_enabled(),
        torch.get_default_dtype(),
    ]


def is_same(actual: Any, expected: Any) -> bool:
    if isinstance(expected, torch.Tensor):
        return actual.dtype == expected.dtype and torch.equal(actual, expected)
    return actual == expected


MODES: dict[str, Callable[[], Any]] = {
    "no_grad": torch.no_grad,
    "enable_grad": torch.enable_grad,
    "inference_mode": torch.inference_mode,
    "autocast": lambda: torch.autocast("cpu", dtype=torch.bfloat16),
    "autocast of halves": lambda: torch.autocast("cpu", dtype=torch.float16),
    "autocast off": lambda: torch.autocast("cpu", enabled=False),
    "autocast without a cache": lambda: torch.autocast("cpu", cache_enabled=False),
    "amp": lambda: torch.amp.autocast(device_type="cpu", dtype=torch.bfloat16),
}


@pytest.mark.parametrize("outer", [None, "no_grad", "autocast", "autocast off"])
@pytest.mark.parametrize("name", MODES)
@pytest.mark.parametrize("way", ["through", "return", "raise", "two breaks", "no graph", "nested"])
def test_a_mode_holds_behind_a_break(name: str, outer: str | None, way: str) -> None:
    """Behind the break inside, and behind the block: in what operators make, too."""
    mode = MODES[name]

    def inner(x):
        with mode():
            n = x.sum().item()
            return [n, *facts_of_thread(x)]

    def f(x):
        y = x + 1
        facts = []
        try:
            with mode():
                if way != "no graph":
                    y = y * 2
                n = int((y if way != "no graph" else x).sum().item())
                facts += facts_of_thread(x)
                if way == "two breaks":
                    facts += facts_of_thread(x * int(y.sum().item()))
                if way == "nested":
                    facts += inner(x)
                if way == "return":
                    return y + n, facts
                if way == "raise":
                    raise ValueError("inside")
                facts += facts_of_thread(x)
        except ValueError:
            facts += facts_of_thread(x)
        return y + x.sum().item(), facts + facts_of_thread(x)

    with contextlib.nullcontext() if outer is None else MODES[outer]():
        expected, before = f(X), facts_of_thread(X)
        compiled = frontend.compile(f)
        for _ in range(3):
            results = compiled(X)
            assert len(results[1]) == len(expected[1])
            assert all(map(is_same, results[1], expected[1]))
            assert torch.equal(results[0], expected[0])
            assert all(map(is_same, facts_of_thread(X), before))


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "plugin:reference"])
@pytest.mark.parametrize("name", MODES)
def test_operators_behind_a_mode(name: str, backend: str) -> None:
    """Their graph runs before the frame leaves the mode, and is not under it."""
    weight = torch.randn(3, 6)

    def f(x, log):
        with MODES[name]():
            log.append(str(x.sum().item()))
        return torch.nn.functional.linear(x, weight), x.bernoulli()

    compiled = frontend.compile(f, backend=backend)
    for _ in range(3):
        torch.manual_seed(0)
        expected = f(X.sigmoid(), [])
        torch.manual_seed(0)
        torch.testing.assert_close(compiled(X.sigmoid(), []), expected)
