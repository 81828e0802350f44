"""What a captured program reads of objects from outside may change between its calls."""

from __future__ import annotations

import abc
import array
import collections
import contextvars
import copy
import datetime
import decimal
import functools
import itertools
import operator
import pathlib
import re
import threading
import types
import uuid
import weakref
from collections.abc import Callable
from typing import Any

import numpy
import pytest
import torch
from frontend.entering import (
    Act,
    Bits,
    Data,
    Frozen,
    Holder,
    Level,
    Pair,
    Plain,
    Slotted,
    X,
    compare,
    run_cases,
)
from torch_backplane import frontend


def test_array_changed_in_place() -> None:
    value = numpy.array(2.0)
    run_cases(lambda x: x * value, lambda: value.fill(3.0))
    run_cases(lambda x: x * float(value), lambda: value.fill(4.0))
    run_cases(lambda x: x + 1 if value > 3.5 else x, lambda: value.fill(1.0))


def test_structured_array() -> None:
    value = numpy.zeros(1, dtype=[("a", "f4"), ("b", "i4")])
    run_cases(lambda x: x * float(value["a"][0]), lambda: value["a"].fill(3.0))
    record = value[0]
    run_cases(lambda x: x * float(record["a"]), lambda: value["a"].fill(5.0))
    run_cases(lambda x: (x, str(record)), lambda: value["b"].fill(5))


@pytest.mark.parametrize(
    "use",
    [
        lambda x, a: x.relu() if a == "relu" else x.tanh(),
        lambda x, a: {"relu": torch.relu, "tanh": torch.tanh}[a](x),
        lambda x, a: x.relu() if a in ("relu", "gelu") else x.tanh(),
        lambda x, a: getattr(torch, a.value)(x),
        lambda x, a: x * len(a),
        lambda x, a: x.relu() if a.startswith("r") else x.tanh(),
        lambda x, a: (x, a + "_"),
        lambda x, a: (x, f"{a}", str(a), repr(a)),
        lambda x, a: x.relu() if a is Act.RELU else x.tanh(),
        lambda x, a: {Act.RELU: torch.relu, Act.TANH: torch.tanh}[a](x),
        lambda x, a: TABLE[a](x),
    ],
    ids=[
        "equal",
        "key",
        "in",
        "value",
        "len",
        "startswith",
        "add",
        "text",
        "is",
        "own_key",
        "table",
    ],
)
def test_str_enum(use: Callable[..., Any]) -> None:
    compare(use, [(X, Act.RELU), (X, Act.TANH)])


TABLE = {Act.RELU: torch.relu, Act.TANH: torch.tanh}


@pytest.mark.parametrize("value", ["plain", "level", "bits"])
def test_enum(value: str) -> None:
    a, b = {
        "plain": (Plain.A, Plain.B),
        "level": (Level.LOW, Level.HIGH),
        "bits": (Bits.ONE, Bits.TWO),
    }[value]
    compare(lambda x, e: x + 1 if e == a else x - 1, [(X, a), (X, b)])
    compare(lambda x, e: x * {a: 1.0, b: 2.0}[e], [(X, a), (X, b)])
    compare(lambda x, e: x * e.value, [(X, a), (X, b)])
    compare(lambda x, e: (x, e.name, str(e)), [(X, a), (X, b)])
    compare(lambda x, e: x * list(type(e)).index(e), [(X, a), (X, b)])


def test_views_that_are_kept() -> None:
    d = {"a": 1.0}
    keys, values, items = d.keys(), d.values(), d.items()
    run_cases(
        lambda x: x * len(keys),
        lambda: d.update(b=2.0),
        lambda: d.update(c=2.0),
    )
    run_cases(lambda x: x * sum(values), lambda: d.update(a=9.0))
    run_cases(lambda x: x * sum(v for _, v in items), lambda: d.update(a=10.0))
    run_cases(lambda x: x + 1 if "z" in keys else x - 1, lambda: d.update(z=1.0))
    run_cases(lambda x: (x, list(keys)), lambda: d.pop("b"))


def test_class_registered_later() -> None:
    class Shape(abc.ABC):  # noqa: B024
        pass

    class Square:
        pass

    square = Square()
    run_cases(
        lambda x: x + 1 if isinstance(square, Shape) else x - 1, lambda: Shape.register(Square)
    )

    class Other:
        pass

    run_cases(
        lambda x: x + 1 if issubclass(Other, (int, Shape)) else x - 1,
        lambda: Shape.register(Other),
    )


def test_bases_changed() -> None:
    class A:
        pass

    class B:
        pass

    class C(A):
        pass

    value = C()

    def change() -> None:
        C.__bases__ = (B,)

    run_cases(lambda x: x + 1 if isinstance(value, A) else x - 1, change)


def test_name_of_class_changed() -> None:
    class Named:
        pass

    value = Named()

    def change() -> None:
        Named.__name__ = "Renamed"
        Named.__qualname__ = "Renamed"

    run_cases(lambda x: x * len(type(value).__name__), change)
    Named.__name__ = Named.__qualname__ = "Named"
    run_cases(lambda x: (x, Named.__qualname__, str(Named)), change)


def test_special_methods_added() -> None:
    class Bare:
        pass

    value = Bare()

    def add_truth() -> None:
        Bare.__bool__ = lambda self: False

    def add_equality() -> None:
        Bare.__eq__ = lambda self, other: True

    run_cases(lambda x: x + 1 if value else x - 1, add_truth)
    run_cases(lambda x: x + 1 if value == 3 else x - 1, add_equality)


def values_that_change() -> dict[str, tuple[Any, Callable[[Any], Any]]]:
    """A value for Holder.value, and what comes in its place."""
    now = datetime.datetime(2020, 1, 2)
    return {
        "decimal": (decimal.Decimal("1.0"), lambda v: v + 1),
        "decimal_digits": (decimal.Decimal("1.0"), lambda v: decimal.Decimal("1.00")),
        "date": (now.date(), lambda v: v + datetime.timedelta(1)),
        "datetime": (now, lambda v: v + datetime.timedelta(1)),
        "time": (now.time(), lambda v: datetime.time(3)),
        "timedelta": (datetime.timedelta(1), lambda v: v * 2),
        "path": (pathlib.PurePosixPath("/a"), lambda v: v / "b"),
        "uuid": (uuid.UUID(int=1), lambda v: uuid.UUID(int=2)),
        "datetime64": (numpy.datetime64("2020-01-01"), lambda v: v + 1),
        "dtype": (numpy.dtype("f4"), lambda v: numpy.dtype("f8")),
        "torch_dtype": (torch.float32, lambda v: torch.float64),
        "device": (torch.device("cpu"), lambda v: torch.device("cpu", 0)),
        "size": (torch.Size([1, 2]), lambda v: torch.Size([3, 4])),
        "pattern": (re.compile("a"), lambda v: re.compile("b")),
        "match": (re.match("a", "ab"), lambda v: re.match("b", "bb")),
        "namespace": (types.SimpleNamespace(a=1), lambda v: types.SimpleNamespace(a=2)),
        "data": (Data(1), lambda v: Data(2)),
        "frozen": (Frozen(1), lambda v: Frozen(2)),
        "slotted": (Slotted(1), lambda v: Slotted(2)),
        "named": (Pair(1, 2), lambda v: Pair(1, 3)),
        "frozenset": (frozenset([1]), lambda v: frozenset([1, 2])),
        "slice": (slice(1, 3), lambda v: slice(2, 5)),
        "range": (range(3), lambda v: range(4)),
        "bytes": (b"a", lambda v: b"bb"),
        "str_enum": (Act.RELU, lambda v: Act.TANH),
        "generic": (list[int], lambda v: list[float]),
        "union": (int | str, lambda v: int | bytes),
        "exception": (ValueError("a"), lambda v: ValueError("bb")),
        "object": (object(), lambda v: object()),
        "numpy_str": (numpy.str_("a"), lambda v: numpy.str_("bb")),
        "numpy_bytes": (numpy.bytes_(b"a"), lambda v: numpy.bytes_(b"bb")),
        "nan": (float("nan"), lambda v: 1.0),
        "numpy_nan": (numpy.float64("nan"), lambda v: numpy.float64(1)),
        "negative_zero": (numpy.float64(0.0), lambda v: numpy.float64(-0.0)),
        "generator": (torch.Generator().manual_seed(1), lambda v: torch.Generator()),
    }


VALUE_USES: dict[str, Callable[..., Any]] = {
    "text": lambda x, h: (x, str(h.value)),
    "representation": lambda x, h: (x, repr(h.value)),
    "formatted": lambda x, h: (x, f"{h.value}"),
    "list_text": lambda x, h: (x, str([h.value])),
    "truth": lambda x, h: x + 1 if h.value else x - 1,
    "hash": lambda x, h: x * (hash(h.value) % 5),
    "equal": lambda x, h: (x, h.value == h.value, [h.value] == [1]),
    "key": lambda x, h: (x, len({h.value: 1, 1: 2})),
    "float": lambda x, h: x * float(h.value),
    "len": lambda x, h: x * len(h.value),
    "list": lambda x, h: (x, list(h.value)),
    "value": lambda x, h: x * float(h.value.value),
    "index": lambda x, h: x[h.value],
    "item": lambda x, h: x * h.value[0],
    "add": lambda x, h: (x, str(h.value + h.value)),
    "copy": lambda x, h: (x, type(copy.copy(h.value)).__name__),
    "vars": lambda x, h: (x, sorted(vars(h.value).items())),
    "isinstance": lambda x, h: (x, isinstance(1, h.value)),
    "multiply": lambda x, h: x * h.value,
    "to": lambda x, h: x.to(h.value),
    "full": lambda x, h: torch.full((2,), h.value),
}


@pytest.mark.parametrize("use", sorted(VALUE_USES))
@pytest.mark.parametrize("kind", sorted(values_that_change()))
def test_value(kind: str, use: str) -> None:
    first, change = values_that_change()[kind]
    second = change(first)
    holder, function = Holder(first), VALUE_USES[use]

    def replace(value: Any) -> Callable[[], None]:
        return lambda: setattr(holder, "value", value)

    run_cases(lambda x: function(x, holder), replace(second), replace(first), replace(second))


def test_own_containers_of_what_is_outside() -> None:
    n, d, q = [numpy.int64(2)], {"a": 1.0}, collections.deque([1])

    def change() -> None:
        n[0] = numpy.int64(5)
        d["a"] += 1
        q.append(4)

    run_cases(lambda x: x * sum([n[0], n[0]]), change)
    run_cases(lambda x: x.new_ones([n[0], 2]), change)
    run_cases(lambda x: x[: n[0]], change)
    run_cases(lambda x: x * len([*q]), change)
    run_cases(lambda x: (x, str([d, q])), change)
    run_cases(lambda x: (x, [d] == [{"a": 5.0}]), change)
    run_cases(lambda x: x * max(d, key=d.get).count("a"), change)
    run_cases(lambda x: x * sum(map(d.get, ["a", "a"])), change)
    run_cases(lambda x: x * sum(v for v in n), change)
    run_cases(lambda x: x * float(next(iter(n))), change)


def test_partial() -> None:
    keywords = {"alpha": 2}
    held = functools.partial(torch.add, X, alpha=2)
    scaled = functools.partial(operator.mul, 3)
    run_cases(lambda x: held(x) + 0, lambda: held.keywords.update(alpha=5))
    run_cases(
        lambda x: x * sum(map(scaled, [1, 2])),
        lambda: scaled.__setstate__((operator.mul, (7,), {}, {})),
    )
    run_cases(
        lambda x: functools.partial(torch.add, x, **keywords)(x), lambda: keywords.update(alpha=7)
    )
    run_cases(lambda x: functools.partial(held)(x) + 0, lambda: held.keywords.update(alpha=9))
    first = functools.partial(operator.mul, 3)
    run_cases(
        lambda x: functools.partial(first, 2)() * x,
        lambda: first.__setstate__((operator.mul, (7,), {}, {})),
    )


def test_writers_handed_to_c() -> None:
    out: list[Any] = []

    def program(x):
        any(map(out.append, [1, 2]))
        return x + len(out)

    compiled = frontend.compile(program, backend="eager")
    for expected in (2, 4, 6):
        assert torch.equal(compiled(X), X + expected) and len(out) == expected
    state = Holder(1)

    def sets(x):
        list(map(setattr, [state], ["value"], [state.value + 1]))
        return x * state.value

    compiled = frontend.compile(sets, backend="eager")
    for expected in (2, 3, 4):
        assert torch.equal(compiled(X), X * expected)
    reads = Holder(1.0)
    run_cases(
        lambda x: x * sum(map(getattr, [reads], ["value"])), lambda: setattr(reads, "value", 3.0)
    )
    getter = operator.attrgetter("value")
    run_cases(
        lambda x: x * sorted([reads], key=getter)[0].value, lambda: setattr(reads, "value", 4.0)
    )
    run_cases(lambda x: (x, f"{reads.value}"), lambda: setattr(reads, "value", 5.0))


def test_copies_of_state() -> None:
    slotted, data = Slotted(1.0), Data(1.0)
    run_cases(lambda x: x * copy.copy(slotted).value, lambda: setattr(slotted, "value", 3.0))
    run_cases(lambda x: x * copy.copy(data).value, lambda: setattr(data, "value", 3.0))
    run_cases(lambda x: x * copy.deepcopy(data).value, lambda: setattr(data, "value", 4.0))


def test_functions() -> None:
    def helper(x, y=2.0, *, z=3.0):
        return x * y + z

    def change_defaults() -> None:
        helper.__defaults__ = (5.0,)

    def change_keywords() -> None:
        helper.__kwdefaults__["z"] = 7.0

    def program(x):
        return helper(x)

    run_cases(program, change_defaults, change_keywords)
    run_cases(
        lambda x: x * sum(map(lambda v: helper(v) + 0, [1.0])),  # noqa: C417
        lambda: helper.__kwdefaults__.update(z=11.0),
    )
    run_cases(lambda x: x * helper.__kwdefaults__["z"], lambda: helper.__kwdefaults__.update(z=2.0))
    run_cases(lambda x: x * helper.__defaults__[0], lambda: setattr(helper, "__defaults__", (1.0,)))
    run_cases(lambda x: x * len(helper.__name__), lambda: setattr(helper, "__name__", "h"))


def own_keyword(x, *, scale=2.0):
    return x * scale


def test_keyword_default_of_the_function_itself() -> None:
    try:
        run_cases(own_keyword, lambda: own_keyword.__kwdefaults__.update(scale=3.0))
    finally:
        own_keyword.__kwdefaults__["scale"] = 2.0


def test_references() -> None:
    class Target:
        value = 1.0

    target = Target()
    reference, proxy = weakref.ref(target), weakref.proxy(target)
    run_cases(lambda x: x * reference().value, lambda: setattr(target, "value", 3.0))
    run_cases(lambda x: x * proxy.value, lambda: setattr(target, "value", 4.0))
    table = weakref.WeakValueDictionary(a=target)
    run_cases(lambda x: x * table["a"].value, lambda: setattr(target, "value", 5.0))


def test_state_of_threads_and_contexts() -> None:
    local = threading.local()
    local.value = 1.0
    run_cases(lambda x: x * local.value, lambda: setattr(local, "value", 3.0))
    variable = contextvars.ContextVar("variable", default=1.0)
    unset = contextvars.ContextVar("unset", default=1.0)
    run_cases(lambda x: x * unset.get(2.0), lambda: unset.set(4.0))
    run_cases(lambda x: x * variable.get(), lambda: variable.set(4.0))

    def sets(x):
        variable.set(5.0)
        return x * variable.get()

    compiled = frontend.compile(sets, backend="eager")
    for before in (5.0, 5.0, 4.0):
        variable.set(before)
        assert torch.equal(compiled(X), X * 5) and variable.get() == 5.0

    def sets_and_resets(x):
        token = variable.set(5.0)
        y = x * variable.get()
        variable.reset(token)
        return y + variable.get()

    run_cases(sets_and_resets, lambda: variable.set(6.0))


def test_iterators_from_outside() -> None:
    counter, numbers = itertools.count(1), iter([1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0])
    compiled = frontend.compile(lambda x: x * next(counter), backend="eager")
    for expected in (1, 2, 3):
        assert torch.equal(compiled(X), X * expected)
    compiled = frontend.compile(lambda x: x * next(numbers), backend="eager")
    for expected in (1.0, 2.0, 3.0):
        assert torch.equal(compiled(X), X * expected)


def test_formats() -> None:
    pair, text = (1, 2), "a"
    run_cases(lambda x: (x, f"{pair!r}", f"{text!r}", f"{pair!s}", f"{text!a}", f"{[text]!r:>9}"))


def test_in_place_on_what_is_outside() -> None:
    q, b, a = collections.deque([1]), bytearray(b"a"), array.array("i", [1])

    def program(x):
        nonlocal q, b, a
        q += [2]
        b += b"b"
        a += a
        return x * len(q) + len(b) + len(a)

    compiled = frontend.compile(program, backend="eager")
    for calls in (1, 2, 3):
        assert torch.equal(compiled(X), X * (calls + 1) + (calls + 1) + 2**calls)
