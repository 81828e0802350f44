"""The catalogue of Python programs that front ends are compared on, and how one is run.

A program is either a function with the arguments of several calls, or a scenario: a generator that
is given ``compile``, changes what it likes between calls, and yields what is to be compared.
"""

from __future__ import annotations

import cmath
import contextlib
import copy
import dataclasses
import io
import math
import types
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

Compile = Callable[..., Any]
Scenario = Callable[[Compile], Iterator[Any]]

PROGRAMS: dict[str, Program] = {}


@dataclasses.dataclass(frozen=True)
class Program:
    name: str
    group: str
    run: Scenario


def x(*shape: int) -> torch.Tensor:
    """The same values for the same shape."""
    return torch.linspace(-1, 1, math.prod(shape)).reshape(shape)


def _add(function: Callable[..., Any], run: Scenario) -> None:
    name = function.__name__.removesuffix("_program")
    group = function.__module__.rpartition(".")[2]
    assert name not in PROGRAMS, f"two programs are called {name}"
    PROGRAMS[name] = Program(name, group, run)


def program(*calls: tuple[Any, ...]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Each call is made twice, on copies of its arguments, which are compared afterwards too."""

    def add(function: Callable[..., Any]) -> Callable[..., Any]:
        def run(compile: Compile) -> Iterator[Any]:
            compiled = compile(function)
            for call in calls:
                for _ in range(2):
                    arguments = copy.deepcopy(call)
                    torch.manual_seed(0)
                    yield attempt(compiled, *arguments), arguments

        _add(function, run)
        return function

    return add


def scenario(function: Scenario) -> Scenario:
    _add(function, function)
    return function


def attempt(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """What a call gave: its value, or class and text of its exception and those behind it."""
    try:
        return "value", function(*args, **kwargs)
    except Exception as error:
        chain: list[Any] = []
        found: BaseException | None = error
        while found is not None:
            chain.append((type(found), str(found)))
            found = found.__cause__ or (None if found.__suppress_context__ else found.__context__)
        return "error", chain


# --- comparing -----------------------------------------------------------------------------------


class _Values(list[Any]):
    """A tensor's content. Equal but for rounding: two kernels may add up in another order."""

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, _Values)
            and len(self) == len(other)
            and all(map(self._close, self, other))
        )

    __hash__ = None  # type: ignore[assignment]

    @staticmethod
    def _close(a: Any, b: Any) -> bool:
        if a == b or (a != a and b != b):
            return True
        return not isinstance(a, int) and cmath.isclose(a, b, rel_tol=1e-5, abs_tol=1e-6)


class _Freezer:
    """Turns a value into one that compares by content, with who shares memory with whom."""

    def __init__(self) -> None:
        self.seen: dict[int, int] = {}
        self.storages: dict[int, int] = {}
        self.alive: list[Any] = []

    def freeze(self, value: Any) -> Any:
        if value is None or type(value) in (bool, int, str, bytes):
            return (type(value).__qualname__, value)
        if isinstance(value, (float, complex)):
            return (type(value).__qualname__, repr(value))
        if id(value) in self.seen:
            return ("seen", self.seen[id(value)])
        if isinstance(value, (type, types.ModuleType, types.BuiltinFunctionType)):
            return ("fixed", getattr(value, "__qualname__", value.__name__))
        self.seen[id(value)] = len(self.seen)
        self.alive.append(value)
        return (type(value).__qualname__, self._content(value))

    def _content(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return self._tensor(value)
        if isinstance(value, (list, tuple, deque)):
            items = [self.freeze(item) for item in value]
            return items, self._attributes(value)
        if isinstance(value, (set, frozenset)):
            return sorted(repr(self.freeze(item)) for item in value)
        if isinstance(value, (dict, Mapping)):
            items = [(self.freeze(key), self.freeze(value[key])) for key in value]
            return items, self._attributes(value)
        if isinstance(value, (torch.device, torch.dtype, torch.layout, range, slice)):
            return repr(value)
        if isinstance(value, types.FunctionType):
            return value.__qualname__
        if isinstance(value, BaseException):
            return [self.freeze(item) for item in value.args], self._attributes(value)
        if isinstance(value, torch.nn.Module):
            return [self.freeze(item) for item in value.state_dict().items()]
        return self._attributes(value)

    def _attributes(self, value: Any) -> Any:
        found = dict(getattr(value, "__dict__", {}))
        for kind in type(value).__mro__:
            slots = kind.__dict__.get("__slots__", ())
            for name in (slots,) if isinstance(slots, str) else slots:
                if hasattr(value, name):
                    found[name] = getattr(value, name)
        return [(name, self.freeze(item)) for name, item in found.items()]

    def _tensor(self, value: torch.Tensor) -> Any:
        plain = value.detach()
        storage = plain.untyped_storage().data_ptr()
        alias = self.storages.setdefault(storage, len(self.storages)) if storage else -1
        gradient = value.grad if value.is_leaf else None
        return (
            str(value.dtype),
            tuple(value.shape),
            value.stride(),
            value.requires_grad,
            alias,
            _Values(plain.reshape(-1).tolist()),
            None if gradient is None else self.freeze(gradient),
        )


@dataclasses.dataclass
class Trace:
    """All that a program let see: what it yielded, printed and warned of."""

    steps: list[Any]
    printed: str
    warned: list[str]

    def difference(self, expected: Trace) -> str:
        """What differs first, or nothing."""
        for number, (is_now, was) in enumerate(zip(self.steps, expected.steps, strict=False)):
            if is_now != was:
                return f"step {number}: {_shortest(is_now, was)}"
        if len(self.steps) != len(expected.steps):
            return f"{len(self.steps)} steps instead of {len(expected.steps)}"
        if self.printed != expected.printed:
            return f"printed {self.printed!r}, expected {expected.printed!r}"
        if self.warned != expected.warned:
            return f"warned {self.warned}, expected {expected.warned}"
        return ""


def _shortest(is_now: Any, was: Any) -> str:
    """The innermost place where two frozen values differ."""
    if isinstance(is_now, (tuple, list)) and isinstance(was, (tuple, list)):
        if len(is_now) == len(was) and type(is_now) is type(was):
            for a, b in zip(is_now, was, strict=True):
                if a != b:
                    return _shortest(a, b)
    return f"{is_now!r}"[:160] + ", expected " + f"{was!r}"[:160]


def run(program: Program, compile: Compile) -> Trace:
    printed = io.StringIO()
    steps = []
    torch.manual_seed(0)
    with warnings.catch_warnings(record=True) as caught, contextlib.redirect_stdout(printed):
        warnings.simplefilter("always")
        for step in program.run(compile):
            steps.append(_Freezer().freeze(step))
    own = [str(w.message) for w in caught if w.filename.endswith(f"{program.group}.py")]
    return Trace(steps, printed.getvalue(), own)


def run_plainly(program: Program) -> Trace:
    return run(program, lambda function, **_: function)
