"""Two paths that were two objects become one: what is written through one is read by the other."""

from __future__ import annotations

import datetime
import decimal
import fractions
from collections.abc import Callable
from typing import Any

import numpy
import pytest
import torch
import torch_backplane
from frontend.helpers import assert_same
from torch_backplane import frontend

X = torch.linspace(-1, 1, 6)


class Box:
    def __init__(self, value: Any) -> None:
        self.value = value


class Slotted:
    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value


def list_item(x, a, b):
    a[0] = 5.0
    return x * b[0]


def list_append(x, a, b):
    a.append(7.0)
    return x * len(b)


def list_broken(x, a, b):
    a[0] = 5.0
    print(end="")
    return x * b[0] + a[0]


def list_read_first(x, a, b):
    y = x * b[0]
    a[0] = 9.0
    return y + b[0]


def dict_item(x, a, b):
    a["k"] = 5.0
    return x * b["k"]


def dict_removed(x, a, b):
    del a["k"]
    return x * b.get("k", 3.0)


def attribute(x, a, b):
    a.value = 5.0
    return x * b.value


def attribute_twice(x, a, b):
    a.value = a.value + 1
    b.value = b.value * 2
    return x * a.value


def attribute_broken(x, a, b):
    a.value = 5.0
    print(end="")
    b.value += 1
    return x * a.value


def instance_dict(x, a, b):
    a.value = 5.0
    return x * (b["value"] if isinstance(b, dict) else b.value)


def lists() -> list[Any]:
    return [1.0, 2.0]


def dicts() -> dict[str, Any]:
    return {"k": 1.0}


CASES: dict[str, tuple[Callable[..., Any], Callable[[], Any]]] = {
    "list_item": (list_item, lists),
    "list_append": (list_append, lists),
    "list_broken": (list_broken, lists),
    "list_read_first": (list_read_first, lists),
    "dict_item": (dict_item, dicts),
    "dict_removed": (dict_removed, dicts),
    "attribute": (attribute, lambda: Box(1.0)),
    "attribute_twice": (attribute_twice, lambda: Box(1.0)),
    "attribute_broken": (attribute_broken, lambda: Box(1.0)),
    "slot": (attribute, lambda: Slotted(1.0)),
    "slot_twice": (attribute_twice, lambda: Slotted(1.0)),
}


def content(value: Any) -> Any:
    return value if isinstance(value, (list, dict)) else value.value


@pytest.mark.parametrize("order", ["two_then_one", "one_then_two"])
@pytest.mark.parametrize("name", sorted(CASES))
def test_one_object_twice(name: str, order: str) -> None:
    function, make = CASES[name]
    compiled = frontend.compile(function, backend="eager")
    kinds = [False, True] if order == "two_then_one" else [True, False]
    for same in [*kinds, *kinds]:
        a, c = make(), make()
        b, d = (a, c) if same else (make(), make())
        assert_same(compiled(X, a, b), function(X, c, d))
        assert_same([content(a), content(b)], [content(c), content(d)])


def test_dict_of_an_instance() -> None:
    compiled = frontend.compile(instance_dict, backend="eager")
    for kind in ("own", "other", "own"):
        box = Box(1.0)
        other = vars(box) if kind == "own" else {"value": 2.0}
        expected = 5.0 if kind == "own" else 2.0
        assert torch.equal(compiled(X, box, other), X * expected)


def test_closures() -> None:
    def make(value: float) -> tuple[Callable[[], None], Callable[[], float]]:
        def write() -> None:
            nonlocal value
            value += 1

        return write, lambda: value

    def program(x, write, read):
        write()
        return x * read()

    compiled = frontend.compile(program, backend="eager")
    first, second = make(1.0), make(10.0)
    assert torch.equal(compiled(X, first[0], second[1]), X * 10)
    assert torch.equal(compiled(X, second[0], second[1]), X * 11)
    assert torch.equal(compiled(X, first[0], second[1]), X * 11)


def test_tensors() -> None:
    def program(x, a, b):
        a.add_(1)
        return x * b

    compiled = frontend.compile(program, backend="eager")
    for same in (False, True, False):
        a, c = X.clone(), X.clone()
        b, d = (a, c) if same else (X.clone(), X.clone())
        assert_same(compiled(X, a, b), program(X, c, d))
        assert_same([a, b], [c, d])


def test_item_of_a_changed_list_keeps_its_identity() -> None:
    def program(x, a):
        a.append(1.0)
        a[0].append(2.0)
        return x * len(a[0])

    compiled = frontend.compile(program, backend="eager")
    inner: list[float] = []
    outer: list[Any] = [inner]
    for count in (1, 2, 3):
        assert torch.equal(compiled(X, outer), X * count)
        assert outer[0] is inner and len(inner) == count and len(outer) == count + 1


@pytest.mark.parametrize(
    "make",
    (
        lambda: range(1, 300),
        lambda: slice(1, 300),
        lambda: decimal.Decimal("1.5"),
        lambda: fractions.Fraction(1, 3),
        lambda: datetime.timedelta(seconds=5),
        lambda: torch.device("cpu", 0),
        lambda: numpy.float64(1.5),
        lambda: (1, range(300)),
    ),
)
def test_equal_values_come_back_as_themselves(make: Callable[[], Any]) -> None:
    def program(x: torch.Tensor, value: Any) -> Any:
        return x + 1, value, [value]

    compiled = torch_backplane.compile(program, backend="eager")
    for value in (make(), make(), make()):
        _, again, (inside,) = compiled(torch.ones(2), value)
        assert again is value
        assert inside is value


@pytest.mark.parametrize("make", (slice, lambda n: slice(n, "b"), range, lambda n: (n, [n])))
def test_what_a_program_makes_is_new_in_each_call(make: Callable[[int], Any]) -> None:
    def program(x: torch.Tensor, store: list[Any]) -> Any:
        value = make(3)
        store.append(value)
        return x + 1, value

    compiled = torch_backplane.compile(program, backend="eager")
    store: list[Any] = []
    given = [compiled(torch.ones(2), store)[1] for _ in range(3)]
    assert given == store == [make(3)] * 3
    assert all(a is b for a, b in zip(given, store, strict=True))
    assert len({id(value) for value in given}) == 3


@pytest.mark.parametrize("kind", ("keyword", "positional"))
def test_default_that_is_an_argument_too(kind: str) -> None:
    """What is read of the one is not known of the other in a later call."""
    given = (1, 2, 3)
    if kind == "keyword":

        def program(x: torch.Tensor, a: Any, *, k: Any = given) -> Any:
            return x, type(k), a is k, k == a

        def outer(x: torch.Tensor, a: Any) -> Any:
            return program(x, a), program(x, a, k=a)

    else:

        def program(x: torch.Tensor, a: Any, k: Any = given) -> Any:
            return x, type(k), a is k, k == a

        def outer(x: torch.Tensor, a: Any) -> Any:
            return program(x, a), program(x, a, a)

    for function in (program, outer):
        compiled = torch_backplane.compile(function, backend="eager")
        for default in (given, 5, (*given[:2], 3), given, [1], None):
            if kind == "keyword":
                assert program.__kwdefaults__ is not None
                program.__kwdefaults__["k"] = default
            else:
                program.__defaults__ = (default,)
            assert_same(compiled(X, given), function(X, given))
