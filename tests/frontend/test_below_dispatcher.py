"""Compiled functions that the ``__torch_dispatch__`` of a mode or a class calls: operators do not come
to a recorder there. They run as plain Python, once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch_backplane
from torch.utils._python_dispatch import TorchDispatchMode
from torch_backplane import frontend

DOORS: dict[str, Callable[..., Any]] = {
    "own": lambda f: torch_backplane.compile(f, backend="cpu_onednn"),
    "torch": lambda f: torch.compile(f, backend="plugin:cpu_onednn"),
}


class Mode(TorchDispatchMode):
    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return self.function(func(*args, **(kwargs or {})))


def wrapper(function: Callable[..., Any]) -> type[torch.Tensor]:
    class Wrapper(torch.Tensor):
        held: torch.Tensor

        @staticmethod
        def __new__(cls, held: torch.Tensor) -> Wrapper:
            made = torch.Tensor._make_wrapper_subclass(cls, held.shape, dtype=held.dtype)
            made.held = held
            return made

        @classmethod
        def __torch_dispatch__(
            cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            plain = [a.held if isinstance(a, Wrapper) else a for a in args]
            return function(func(*plain, **(kwargs or {})))

    return Wrapper


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.mark.parametrize("kind", ["mode", "class"])
@pytest.mark.parametrize("door", DOORS)
def test_effects_happen_once(door: str, kind: str) -> None:
    log: list[int] = []

    def inner(x: torch.Tensor) -> torch.Tensor:
        log.append(len(log))
        return x + 1

    compiled = DOORS[door](inner)
    x = torch.ones(3)

    def call() -> torch.Tensor:
        if kind == "class":
            return wrapper(compiled)(x) * 2
        with Mode(compiled):
            return x * 2

    for expected in (1, 2, 3):
        assert torch.equal(call(), torch.full((3,), 3.0))
        assert len(log) == expected, log
    # Elsewhere it is compiled as before.
    log.clear()
    for _ in range(2):
        assert torch.equal(compiled(x), torch.full((3,), 2.0))
    assert len(log) == 2
    if door == "own":
        counters = frontend.counters(compiled)
        assert counters["plain_calls"] == 3 and counters["entries"] > 0, counters
        assert any("__torch_dispatch__" in reason for reason in counters["plain_reasons"])


def test_strict_says_so() -> None:
    compiled = torch_backplane.compile(lambda x: x + 1, backend="cpu_onednn", strict=True)
    with Mode(compiled), pytest.raises(torch_backplane.BackplaneError, match="__torch_dispatch__"):
        torch.ones(2) * 2


@pytest.mark.parametrize("door", DOORS)
def test_what_a_compiled_program_reaches_through_it(door: str) -> None:
    """The program breaks at the class; the Python of the class is not captured in pieces."""
    log: list[str] = []

    class Registry:
        def __getattr__(self, name: str) -> int:
            if name in installed:
                raise AttributeError(name)
            log.append(name)
            installed.add(name)
            setattr(type(self), name, len(log))
            return len(log)

    installed: set[str] = set()
    registry = Registry()

    def inner(x: torch.Tensor) -> torch.Tensor:
        return x + registry.one + registry.two + len({registry.one, registry.two})

    kind = wrapper(inner)
    compiled = DOORS[door](lambda x: (x * 2) * 1)
    for _ in range(2):
        assert torch.equal(compiled(kind(torch.ones(3))), torch.full((3,), 7.0))
    assert log == ["one", "two"]


def test_a_trace_of_torchscript_sees_the_operators() -> None:
    compiled = torch_backplane.compile(lambda x: x.sin() + 1, backend="cpu_onednn")
    x = torch.randn(3)
    compiled(x)
    traced = torch.jit.trace(lambda x: compiled(x) * 2, (x,))
    y = torch.randn(3)
    torch.testing.assert_close(traced(y), (y.sin() + 1) * 2)
