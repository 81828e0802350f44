"""A program that enters a mode of its own does what the modes around it ask for, however often it was called without."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch_backplane
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode


class Tenfold(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        return result * 10 if func is torch.sin else result


class Plus(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        return result + 1 if func is torch.sin else result


class Counting(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.seen = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen += 1
        return func(*args, **(kwargs or {}))


def within(x: torch.Tensor) -> torch.Tensor:
    with Tenfold():
        return torch.sin(x)


def counted(x: torch.Tensor) -> torch.Tensor:
    with Counting() as mode:
        y = torch.sin(x)
    return y + mode.seen


@pytest.mark.parametrize("program", [within, counted])
def test_modes_around(program: Any) -> None:
    compiled = torch_backplane.compile(program, backend="plugin:cpu_onednn")
    x = torch.ones(2)
    torch.testing.assert_close(compiled(x), program(x))
    for around in (Tenfold, Plus, Counting, Plus, Tenfold):
        with around():
            expected = program(x)
        with around():
            torch.testing.assert_close(compiled(x), expected)
        with around(), Plus():
            expected = program(x)
        with around(), Plus():
            torch.testing.assert_close(compiled(x), expected)
        torch.testing.assert_close(compiled(x), program(x))
