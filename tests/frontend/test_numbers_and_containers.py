"""Numbers of all kinds and containers of all kinds enter a captured program, and change."""

from __future__ import annotations

import array
import collections
import copy
import ctypes
import decimal
import fractions
import functools
import itertools
import operator
import types
from collections.abc import Callable
from typing import Any

import numpy
import pytest
import torch
from frontend.entering import (
    Bits,
    Indexed,
    Level,
    MyDict,
    MyFloat,
    MyInt,
    MyList,
    MyStr,
    X,
    compare,
    is_captured,
)
from frontend.helpers import assert_same, outcome
from torch_backplane import frontend


def number_uses() -> dict[str, Callable[..., Any]]:
    """What programs do with something like a whole number."""
    return {
        "slice": lambda x, n: x[:n],
        "item": lambda x, n: x[n],
        "own_list_item": lambda x, n: x * [1.0, 2.0, 3.0, 4.0][n],
        "range": lambda x, n: sum((x * i for i in range(n)), x),
        "float": lambda x, n: x * float(n),
        "int": lambda x, n: x * int(n),
        "truth": lambda x, n: x + 1 if n else x - 1,
        "not": lambda x, n: x + 1 if not n else x - 1,
        "compare": lambda x, n: x + 1 if n > 2 else x - 1,
        "equal": lambda x, n: x + 1 if n == 3 else x - 1,
        "contains": lambda x, n: x + 1 if n in (3, 7) else x - 1,
        "key": lambda x, n: x * {1: 2.0, 3: 5.0}.get(n, 9.0),
        "operator": lambda x, n: x * n,
        "reflected": lambda x, n: n * x,
        "arithmetic": lambda x, n: x * (n + 1) + (n - 1),
        "negative": lambda x, n: x * -n,
        "absolute": lambda x, n: x * abs(n),
        "new_ones": lambda x, n: x.new_ones(n, 2),
        "new_ones_list": lambda x, n: x.new_ones([n, 2]),
        "sum": lambda x, n: x * sum([n, n]),
        "max": lambda x, n: x * max(n, 2),
        "sum_generated": lambda x, n: x * sum(v for v in [n, n]),
        "mapped": lambda x, n: x * sum(map(float, [n])),
        "sorted": lambda x, n: x * float(sorted([n, 2])[0]),
        "text": lambda x, n: x * len(str(n)),
        "formatted": lambda x, n: (x, f"{n}"),
        "representation": lambda x, n: (x, f"{n!r}"),
        "percent": lambda x, n: (x, "%s" % (n,)),  # noqa: UP031
        "method": lambda x, n: (x, f"{n}"),
        "hash": lambda x, n: x * (hash(n) % 7),
        "set": lambda x, n: x * len({n, 3}),
        "isinstance": lambda x, n: x + 1 if isinstance(n, int) else x - 1,
        "torch_function": lambda x, n: torch.clamp(x, max=n),
        "reduce": lambda x, n: x * functools.reduce(operator.add, [n, n]),
        "partial": lambda x, n: functools.partial(torch.mul, x)(n),
        "repeat": lambda x, n: x * len([1] * n),
        "is_same": lambda x, n: x + 1 if n is None else x - 1,
        "tuple_equal": lambda x, n: x + 1 if (n, 1) == (3, 1) else x - 1,
        "copy": lambda x, n: x * float(copy.copy(n)),
    }


NUMBERS: dict[str, Callable[[int], Any]] = {
    "numpy_int64": numpy.int64,
    "numpy_int32": numpy.int32,
    "numpy_uint8": numpy.uint8,
    "numpy_float64": numpy.float64,
    "numpy_float32": numpy.float32,
    "numpy_float16": numpy.float16,
    "numpy_bool": lambda n: numpy.bool_(n > 1),
    "numpy_longdouble": numpy.longdouble,
    "numpy_array": numpy.array,
    "my_int": MyInt,
    "my_float": MyFloat,
    "my_str": lambda n: MyStr("a" * n),
    "int_enum": lambda n: Level.LOW if n == 1 else Level.HIGH,
    "int_flag": lambda n: Bits.ONE if n == 1 else Bits.TWO,
    "decimal": decimal.Decimal,
    "fraction": lambda n: fractions.Fraction(n, 2),
    "indexed": Indexed,
    "indexed_numpy": lambda n: Indexed(numpy.int64(n)),
    "ctypes": ctypes.c_int,
    "bool": lambda n: n > 1,
    "complex": lambda n: complex(n, -n),
    "tensor": torch.tensor,
}


@pytest.mark.parametrize("use", sorted(number_uses()))
@pytest.mark.parametrize("kind", sorted(NUMBERS))
def test_number(kind: str, use: str) -> None:
    make = NUMBERS[kind]
    compare(number_uses()[use], [(X, make(1)), (X, make(3)), (X, make(1)), (X, make(2))])


CAPTURED_NUMBERS = [
    (kind, use)
    for kind in ("numpy_int64", "my_int", "int_enum")
    for use in ("slice", "range", "float", "truth", "compare", "new_ones", "arithmetic", "key")
]


@pytest.mark.parametrize("kind, use", CAPTURED_NUMBERS)
def test_number_is_captured(kind: str, use: str) -> None:
    make = NUMBERS[kind]
    assert is_captured(compare(number_uses()[use], [(X, make(1)), (X, make(3))]))


CONTAINER_USES: dict[str, Callable[..., Any]] = {
    "len": lambda x, c: x * len(c),
    "truth": lambda x, c: x + 1 if c else x - 1,
    "sum": lambda x, c: x * sum(c),
    "list": lambda x, c: x * [*list(c), 1][0],
    "tuple": lambda x, c: x * tuple(c)[-1],
    "iterate": lambda x, c: sum((x * v for v in c), x),
    "contains": lambda x, c: x + 1 if 3 in c else x - 1,
    "item": lambda x, c: x * c[0],
    "last": lambda x, c: x * c[-1],
    "max": lambda x, c: x * max(c),
    "sorted": lambda x, c: x * sorted(c)[0],
    "any": lambda x, c: x + 1 if any(c) else x - 1,
    "equal": lambda x, c: x + 1 if c == type(c)([1, 2]) else x - 1,
    "zip": lambda x, c: sum((x * a + b for a, b in zip(c, c, strict=True)), x),
    "enumerate": lambda x, c: sum((x * a + b for a, b in enumerate(c)), x),
    "map": lambda x, c: x * sum(map(float, c)),
    "tensor": lambda x, c: x * torch.tensor(list(c)).sum(),
    "unpacked": lambda x, c: x * max(*c, 0, 0),
    "generated": lambda x, c: x * sum(v + 1 for v in c),
    "text": lambda x, c: (x, str(c)),
    "joined": lambda x, c: (x, ",".join(map(str, c))),
    "array": lambda x, c: (x, bytes(bytearray(c))),
    "reduce": lambda x, c: x * functools.reduce(operator.mul, c, 1),
    "chain": lambda x, c: x * sum(itertools.chain(c, c)),
    "copy": lambda x, c: x * sum(copy.copy(c)),
    "own": lambda x, c: x * sum(sum(inner) for inner in [c, c]),
    "nested": lambda x, c: (x, [c] == [type(c)([1, 2])]),
}


def change_sequence(c: Any) -> None:
    c[0] = 3


def change_deque(c: Any) -> None:
    c.append(5)


def change_set(c: Any) -> None:
    c.add(3)


CONTAINERS: dict[str, tuple[Callable[[], Any], Callable[[Any], None]]] = {
    "list": (lambda: [1, 2], change_sequence),
    "my_list": (lambda: MyList([1, 2]), change_sequence),
    "deque": (lambda: collections.deque([1, 2]), change_deque),
    "bounded_deque": (lambda: collections.deque([1, 2], 2), change_deque),
    "set": (lambda: {1, 2}, change_set),
    "array": (lambda: array.array("i", [1, 2]), change_sequence),
    "bytearray": (lambda: bytearray([1, 2]), change_sequence),
    "memoryview": (lambda: memoryview(bytearray([1, 2])), change_sequence),
    "numpy": (lambda: numpy.array([1, 2]), change_sequence),
    "user_list": (lambda: collections.UserList([1, 2]), change_sequence),
    "list_of_numpy": (lambda: [numpy.int64(1), numpy.int64(2)], change_sequence),
    "ctypes": (lambda: (ctypes.c_int * 2)(1, 2), change_sequence),
}


@pytest.mark.parametrize("use", sorted(CONTAINER_USES))
@pytest.mark.parametrize("kind", sorted(CONTAINERS))
def test_container(kind: str, use: str) -> None:
    make, change = CONTAINERS[kind]
    container, function = make(), CONTAINER_USES[use]
    compiled = frontend.compile(function, backend="eager")
    for _ in range(3):
        for _ in range(2):
            expected, actual = (
                outcome(function, (X, container), {}),
                outcome(compiled, (X, container), {}),
            )
            assert actual[0] == expected[0], (actual, expected)
            if expected[0] == "value":
                assert_same(actual[1], expected[1])
        change(container)


MAPPING_USES: dict[str, Callable[..., Any]] = {
    "len": lambda x, d: x * len(d),
    "truth": lambda x, d: x + 1 if d else x - 1,
    "item": lambda x, d: x * d["a"],
    "get": lambda x, d: x * d.get("b", 7.0),
    "contains": lambda x, d: x + 1 if "b" in d else x - 1,
    "iterate": lambda x, d: sum((x * d[k] for k in d), x),
    "items": lambda x, d: sum((x * v for _, v in d.items()), x),
    "sum": lambda x, d: x * sum(d.values()),
    "max_by_value": lambda x, d: (x, max(d, key=d.get)),
    "dict": lambda x, d: x * dict(d)["a"],
    "equal": lambda x, d: x + 1 if d == {"a": 1.0} else x - 1,
    "text": lambda x, d: (x, str(dict(d))),
    "format_map": lambda x, d: (x, "{a}".format_map(d)),
    "percent": lambda x, d: (x, "%(a)s" % d),  # noqa: UP031
    "sorted": lambda x, d: (x, sorted(d.items())),
    "list": lambda x, d: (x, list(d)),
    "keywords": lambda x, d: (lambda **k: x * sum(k.values()))(**d),
    "merged": lambda x, d: x * sum({**d, "z": 1.0}.values()),
}
MAPPINGS: dict[str, Callable[[dict[str, float]], Any]] = {
    "dict": lambda d: d,
    "my_dict": MyDict,
    "ordered": collections.OrderedDict,
    "default": lambda d: collections.defaultdict(float, d),
    "counter": collections.Counter,
    "chain_map": lambda d: collections.ChainMap({}, d),
    "proxy": types.MappingProxyType,
    "user_dict": collections.UserDict,
}


@pytest.mark.parametrize("use", sorted(MAPPING_USES))
@pytest.mark.parametrize("kind", sorted(MAPPINGS))
def test_mapping(kind: str, use: str) -> None:
    base = {"a": 1.0}
    made, function = MAPPINGS[kind](base), MAPPING_USES[use]
    changed = base if kind in ("proxy", "chain_map") else made
    compiled = frontend.compile(function, backend="eager")

    def step() -> None:
        for _ in range(2):
            expected, actual = outcome(function, (X, made), {}), outcome(compiled, (X, made), {})
            assert actual[0] == expected[0], (actual, expected)
            if expected[0] == "value":
                assert_same(actual[1], expected[1])

    step()
    changed["a"] = 4.0
    step()
    changed["b"] = 2.0
    step()
    del changed["a"]
    step()
