"""The table of what code in C may read: a test for each row."""

from __future__ import annotations

import array
import collections
import datetime
import decimal
import functools
import operator
import re
import types
import typing
import weakref
import zoneinfo
from typing import Any

import numpy
import pytest
import torch
from frontend.entering import (
    Holder,
    MyFloat,
    MyInt,
    MyStr,
    Pair,
    compare,
    is_captured,
    run_cases,
)
from frontend.helpers import outcome
from torch_backplane import _C, frontend


def row_values() -> dict[str, tuple[Any, Any]]:
    """For each row of the table: two objects that differ in what code in C can read."""
    day = datetime.datetime(2020, 1, 2, 3)
    out: dict[str, tuple[Any, Any]] = {
        "builtins.object": (object(), object()),
        "types.FunctionType": (compare, outcome),
        "builtins.int": (MyInt(1), MyInt(2)),
        "builtins.float": (MyFloat(1), MyFloat(2)),
        "builtins.complex": (type("C", (complex,), {})(1), type("C", (complex,), {})(2)),
        "builtins.str": (MyStr("a"), MyStr("b")),
        "builtins.bytes": (type("B", (bytes,), {})(b"a"), type("B", (bytes,), {})(b"b")),
        "builtins.bytearray": (bytearray(b"a"), bytearray(b"b")),
        "array.array": (array.array("i", [1]), array.array("i", [2])),
        "numpy.str_": (numpy.str_("a"), numpy.str_("b")),
        "numpy.bytes_": (numpy.bytes_(b"a"), numpy.bytes_(b"b")),
        "numpy.bool": (numpy.bool_(True), numpy.bool_(False)),
        "numpy.bool_": (numpy.bool_(True), numpy.bool_(False)),
        "numpy.datetime64": (numpy.datetime64("2020"), numpy.datetime64("2021")),
        "numpy.timedelta64": (numpy.timedelta64(1), numpy.timedelta64(2)),
        "numpy.dtype": (numpy.dtype("f4"), numpy.dtype("f8")),
        "decimal.Decimal": (decimal.Decimal(1), decimal.Decimal(2)),
        "datetime.date": (day.date(), datetime.date(2021, 1, 1)),
        "datetime.timedelta": (datetime.timedelta(1), datetime.timedelta(2)),
        "datetime.datetime": (day, day.replace(year=2021)),
        "datetime.time": (day.time(), datetime.time(7)),
        "datetime.timezone": (
            datetime.UTC,
            datetime.timezone(datetime.timedelta(hours=1)),
        ),
        "zoneinfo.ZoneInfo": (zoneinfo.ZoneInfo("UTC"), zoneinfo.ZoneInfo.no_cache("UTC")),
        "operator.itemgetter": (operator.itemgetter(0), operator.itemgetter(1)),
        "operator.attrgetter": (operator.attrgetter("a"), operator.attrgetter("b")),
        "operator.methodcaller": (operator.methodcaller("a"), operator.methodcaller("b")),
        "re.Pattern": (re.compile("a"), re.compile("b")),
        "re.Match": (re.match("a", "a"), re.match("b", "b")),
        "types.GenericAlias": (list[int], list[str]),
        "types.UnionType": (int | str, int | bytes),
        "builtins.property": (property(len), property(len)),
        "builtins.staticmethod": (staticmethod(len), staticmethod(len)),
        "builtins.classmethod": (classmethod(len), classmethod(len)),
        "torch.finfo": (torch.finfo(torch.float32), torch.finfo(torch.float64)),
        "torch.iinfo": (torch.iinfo(torch.int32), torch.iinfo(torch.int64)),
        "torch.qscheme": (torch.per_tensor_affine, torch.per_channel_affine),
        "builtins.list": ([1], [2]),
        "builtins.dict": ({1: 1}, {1: 2}),
        "builtins.set": ({1}, {2}),
        "builtins.frozenset": (frozenset([1]), frozenset([2])),
        "builtins.tuple": (Pair(1, 2), Pair(1, 3)),
        "collections.OrderedDict": (
            collections.OrderedDict(a=1, b=2),
            collections.OrderedDict(b=2, a=1),
        ),
        "collections.deque": (collections.deque([1]), collections.deque([2])),
        "collections.defaultdict": (
            collections.defaultdict(int, a=1),
            collections.defaultdict(int, a=2),
        ),
        "types.CellType": (types.CellType(1), types.CellType(2)),
        "types.MappingProxyType": (
            types.MappingProxyType({1: 1}),
            types.MappingProxyType({1: 2}),
        ),
        "types.MethodType": (types.MethodType(len, [1]), types.MethodType(len, [2])),
        "types.SimpleNamespace": (types.SimpleNamespace(a=1), types.SimpleNamespace(a=2)),
        "builtins.slice": (slice(1), slice(2)),
        "functools.partial": (functools.partial(max, 1), functools.partial(max, 2)),
        "weakref.ref": (weakref.ref(compare), weakref.ref(outcome)),
        "builtins.BaseException": (ValueError(1), ValueError(2)),
    }
    for name in [
        "int8",
        "int16",
        "int32",
        "int64",
        "uint8",
        "uint16",
        "uint32",
        "uint64",
        "intc",
        "uintc",
        "longlong",
        "ulonglong",
        "float16",
        "float32",
        "float64",
        "complex64",
        "complex128",
        "longdouble",
        "clongdouble",
    ]:
        kind = getattr(numpy, name)
        out["numpy." + name] = (kind(1), kind(2))
    for name in ("TypeVar", "ParamSpec", "TypeVarTuple"):
        kind = getattr(typing, name, None)
        if kind:
            out["typing." + name] = (kind("A"), kind("B"))
    return out


def test_every_row_has_its_values() -> None:
    assert set(row_values()) == set(_C.frontend.content_rows())


@pytest.mark.parametrize("row", sorted(row_values()))
def test_row(row: str) -> None:
    first, second = row_values()[row]
    holder = Holder(first)

    def program(x):
        return (x + 1, 2) if [holder.value] == [first] else (x - 1, 3)

    compiled = run_cases(
        program, lambda: setattr(holder, "value", second), lambda: setattr(holder, "value", first)
    )
    assert is_captured(compiled), frontend.counters(compiled)
