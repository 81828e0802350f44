"""Special methods behind decorators, whose wrappers take all arguments as one tuple."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
import torch_backplane
from torch_backplane import frontend

FACTOR = 2.0


def scaled(method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def inner(*args: Any, **kwargs: Any) -> Any:
        return method(*args, **kwargs) * FACTOR

    return inner


class Table:
    def __init__(self, scale: float) -> None:
        self.scale = scale

    @scaled
    def __getitem__(self, index: int) -> float:
        return self.scale + index

    @scaled
    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.scale

    @scaled
    def __add__(self, x: torch.Tensor) -> torch.Tensor:
        return x - self.scale


def test_they_are_captured_and_guarded() -> None:
    table = Table(1.0)

    def program(x: torch.Tensor) -> torch.Tensor:
        return table(x) * table[3] + (table + x)

    compiled = torch_backplane.compile(program, backend="cpu_onednn")
    x = torch.randn(4)
    torch.testing.assert_close(compiled(x), program(x))
    table.scale = 3.0
    torch.testing.assert_close(compiled(x), program(x))
    kept = Table.__getitem__
    try:
        Table.__getitem__ = scaled(lambda self, index: 10.0)  # type: ignore[method-assign]
        torch.testing.assert_close(compiled(x), program(x))
    finally:
        Table.__getitem__ = kept  # type: ignore[method-assign]
    torch.testing.assert_close(compiled(x), program(x))
    counters = frontend.counters(compiled)
    assert counters["plain_calls"] == 0 and not counters["breaks"], counters
