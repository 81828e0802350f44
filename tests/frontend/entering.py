"""What programs get from outside in the tests of what enters, and how calls are compared."""

from __future__ import annotations

import collections
import dataclasses
import enum
from collections.abc import Callable
from typing import Any

import torch
from frontend.helpers import assert_same, outcome
from torch_backplane import frontend

X = torch.linspace(-2, 2, 12)


class MyInt(int):
    pass


class MyFloat(float):
    pass


class MyStr(str):
    pass


class MyList(list):
    pass


class MyDict(dict):
    pass


class Act(str, enum.Enum):  # noqa: UP042
    RELU = "relu"
    TANH = "tanh"


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 5


class Plain(enum.Enum):
    A = 1
    B = 2


class Bits(enum.IntFlag):
    ONE = 1
    TWO = 2


class Indexed:
    def __init__(self, value: Any) -> None:
        self.value = value

    def __index__(self) -> Any:
        return self.value

    def __float__(self) -> Any:
        return float(self.value)

    def __bool__(self) -> Any:
        return bool(self.value)

    def __len__(self) -> Any:
        return self.value


class Slotted:
    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value


@dataclasses.dataclass
class Data:
    value: Any


@dataclasses.dataclass(frozen=True)
class Frozen:
    value: Any


Pair = collections.namedtuple("Pair", "first second")


class Holder:
    def __init__(self, value: Any) -> None:
        self.value = value


def compare(function: Callable[..., Any], calls: list[tuple[Any, ...]]) -> Any:
    """Each call twice, in turn, compiled and plain."""
    compiled = frontend.compile(function, backend="eager")
    for args in [*calls, *calls]:
        expected, actual = outcome(function, args, {}), outcome(compiled, args, {})
        assert actual[0] == expected[0], (actual, expected)
        if expected[0] == "value":
            assert_same(actual[1], expected[1])
        else:
            assert actual[1][0] is expected[1][0], (actual, expected)
    return compiled


def is_captured(compiled: Any) -> bool:
    counters = frontend.counters(compiled)
    return counters["plain_calls"] == 0 and not counters["breaks"]


def run_cases(function: Callable[..., Any], *changes: Callable[[], None]) -> Any:
    """Calls the function without arguments but X, twice between changes."""
    compiled = frontend.compile(function, backend="eager")
    for change in (lambda: None, *changes):
        change()
        for _ in range(2):
            expected, actual = outcome(function, (X,), {}), outcome(compiled, (X,), {})
            assert actual[0] == expected[0], (actual, expected)
            if expected[0] == "value":
                assert_same(actual[1], expected[1])
    return compiled
