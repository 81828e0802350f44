"""Python makes one object of equal constants in a file, so an argument, a default, an attribute or
a global may be the very object that the program's code holds. Another object there, in a later
call, is none of the program's constants."""

from __future__ import annotations

from collections import deque
from types import SimpleNamespace
from typing import Any

import numpy
import pytest
import torch
import torch_backplane

steps = deque(range(1000))
pair = (2, 1)
several = frozenset({4, 5})
holder = SimpleNamespace(pair=(2, 1), nested=((2, 1), 3))


def overwritten(x: torch.Tensor, a: Any = (2, 1)) -> torch.Tensor:
    a = (2, 1)
    steps.popleft()
    return x * sum(a)


def beside_the_argument(x: torch.Tensor, a: Any = (2, 1)) -> torch.Tensor:
    b = (2, 1)
    steps.popleft()
    return x * sum(b) + len(a)


def constant_first(x: torch.Tensor, a: Any = (2, 1)) -> torch.Tensor:
    b = (2, 1)
    y = x * b[0]
    steps.popleft()
    return y + sum(a)


def of_an_attribute(x: torch.Tensor, a: Any = (2, 1)) -> torch.Tensor:
    b = (2, 1)
    y = x * b[0] + sum(holder.pair)
    steps.popleft()
    return y * sum(holder.pair) + b[0] + len(a)


def of_a_global(x: torch.Tensor, a: Any = (2, 1)) -> torch.Tensor:
    b = (2, 1)
    steps.popleft()
    return x * sum(b) + sum(pair) + len(a)


def nested(x: torch.Tensor, a: Any = (2, 1)) -> torch.Tensor:
    total = x
    for b in ((2, 1), (7, 8, 9)):
        steps.popleft()
        total = total * sum(b)
    return total + sum(a)


def inside_of_an_attribute(x: torch.Tensor, a: Any = (2, 1)) -> torch.Tensor:
    b = (2, 1)
    c = holder.nested[0]
    steps.popleft()
    return x * sum(b) + sum(c) + len(a)


def compared(x: torch.Tensor, a: Any = (2, 1)) -> torch.Tensor:
    b = (2, 1)
    steps.popleft()
    return x + 1 if a is b else x - sum(a)


def of_a_set(x: torch.Tensor, a: Any = (2, 1)) -> torch.Tensor:
    steps.popleft()
    return x + 1 if len(a) in {4, 5} else x - int(4 in several)


PROGRAMS = [
    overwritten,
    beside_the_argument,
    constant_first,
    of_an_attribute,
    of_a_global,
    nested,
    inside_of_an_attribute,
    compared,
    of_a_set,
]


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_an_equal_constant_is_not_the_argument(
    program: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled = torch_backplane.compile(program, backend="eager")
    x = torch.arange(4.0)
    other = tuple(range(2, 0, -1))  # equal, and another object
    for a in ((2, 1), (2, 1), other, (1, 2, 3), (5,), (2, 1)):
        torch.testing.assert_close(compiled(x, a), program(x, a), rtol=0, atol=0)
    torch.testing.assert_close(compiled(x), program(x), rtol=0, atol=0)
    for value in ((1, 2, 3), other, (9, 9), (2, 1)):
        monkeypatch.setattr(holder, "pair", value)
        monkeypatch.setattr(holder, "nested", (value, 3))
        monkeypatch.setitem(globals(), "pair", value)
        torch.testing.assert_close(compiled(x), program(x), rtol=0, atol=0)


# C code gives the one empty tuple, or one of the two booleans of NumPy; so may the caller.
SINGLETONS = {
    "tuple": lambda x, a: (x, tuple(iter(x.shape[:0]))),
    "slice": lambda x, a: (x, (1, 2)[:0]),
    "frozenset": lambda x, a: (x, frozenset([])),
    "compared": lambda x, a: (x, numpy.float64(1.0) == 2, numpy.float64(2.0) == 2),
    "read behind": lambda x, a: (x, (1, 2)[:0], a, type(a)),
    "read before": lambda x, a: (x, type(a), (1, 2)[:0], a),
}
VALUES = ((), (1,), (), frozenset(), frozenset([1]), numpy.False_, numpy.True_, numpy.False_)


@pytest.mark.parametrize("name", SINGLETONS)
def test_singleton_beside_an_argument(name: str) -> None:
    program = SINGLETONS[name]
    for values in (VALUES, VALUES[::-1]):
        compiled = torch_backplane.compile(program, backend="eager")
        x = torch.ones(2)
        for value in values:
            assert repr(compiled(x, value)) == repr(program(x, value))


def test_singleton_over_a_break() -> None:
    def program(x: torch.Tensor, a: list[Any]) -> Any:
        a[1] = numpy.bool_(True)
        return x, a[1] == 2

    compiled = torch_backplane.compile(program, backend="eager")
    a, b = [0, numpy.bool_(False)], [0, numpy.bool_(False)]
    for _ in range(3):
        assert repr(compiled(torch.ones(2), a)) == repr(program(torch.ones(2), b))
        assert a == b
