"""Corners of Python's object model that CPython's own tests look into: as in plain Python."""

from __future__ import annotations

import builtins
import collections
import contextlib
import copy
import importlib
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch_backplane


def another_functools() -> types.ModuleType:
    """With classes of the usual names that are not the usual ones."""
    names = ("functools", "_functools")
    kept = {name: sys.modules.pop(name) for name in names}
    try:
        return importlib.import_module("functools")
    finally:
        sys.modules.update(kept)


def add(a: int, b: int) -> int:
    return a + b


PARTIAL = another_functools().partial(add, 1)


class OwnModule(types.ModuleType):
    pass


class Order(type):
    def mro(cls) -> list[type]:
        if cls.__mro__ is None:
            try:
                return list(super(cls, cls).missing)  # type: ignore[misc]
            except AttributeError:
                return type.mro(cls)
        return [cls]


def text_of_another_partial(out: list[Any]) -> None:
    out.append("add" in repr(PARTIAL))
    print(end="")
    out.append(PARTIAL(2))


def readonly_member(out: list[Any]) -> None:
    module = OwnModule("name")
    print(end="")
    try:
        module.__dict__ = {}  # type: ignore[misc]
    except (AttributeError, TypeError):
        out.append("refused")


def super_of_a_class_in_the_making(out: list[Any]) -> None:
    made = Order("Made", (), {})
    out.append([base.__name__ for base in made.__mro__])


def items_taken_by_the_base(out: list[Any]) -> None:
    table = collections.OrderedDict()
    table["a"] = 1
    table["b"] = 2
    dict.pop(table, "a")
    print(end="")
    try:
        out.append(repr(table))
    except KeyError:
        out.append("refused")


def line_behind_a_with(out: list[Any]) -> None:
    class Quiet:
        def __enter__(self) -> None:
            pass

        def __exit__(self, *error: Any) -> None:
            pass

    def fails() -> None:
        with Quiet():
            [].pop()

    print(end="")
    try:
        fails()
    except IndexError as error:
        trace = error.__traceback__
        while trace.tb_next:
            trace = trace.tb_next
        out.append(trace.tb_frame.f_lineno - trace.tb_frame.f_code.co_firstlineno)


def memo_of_the_program(out: list[Any]) -> None:
    memo: dict[Any, Any] = {}
    data: list[Any] = []
    copied = copy.deepcopy(data, memo)
    out.append((memo[id(memo)][0] is data, copied is data))


@contextlib.contextmanager
def replaced_builtin(new: Any) -> Iterator[None]:
    old = builtins.len
    builtins.len = new
    try:
        yield
    finally:
        builtins.len = old


def changed_builtin(out: list[Any]) -> None:
    def change() -> None:
        builtins.len = lambda x: 4

    with replaced_builtin(len):
        out.append(len(range(7)))
        change()
        out.append(len(range(7)))


class Finds(type):
    asked = 0

    def __getattribute__(cls, name: str) -> Any:
        if name == "value":
            Finds.asked += 1
        return super().__getattribute__(name)


class Found(metaclass=Finds):
    value = 3


def metaclass_finds_attributes(out: list[Any]) -> None:
    before = Finds.asked
    out.append((Found.value, Finds.asked - before))


class OddLength:
    def __init__(self) -> None:
        self.asked = 0

    def __len__(self) -> int:
        self.asked += 1
        return 10

    def __getitem__(self, at: int) -> int:
        return at


def reversed_once(out: list[Any]) -> None:
    odd = OddLength()
    backwards = reversed(odd)
    print(end="")
    out.append((odd.asked, next(backwards)))


def no_annotations_yet(out: list[Any]) -> None:
    made = type("Made", (), {})
    out.append("__annotations__" in made.__dict__)
    out.append(made.__annotations__)
    out.append("__annotations__" in made.__dict__)


def no_annotations_of_a_class_of_c(out: list[Any]) -> None:
    for kind in (int, type(len), types.SimpleNamespace):
        try:
            out.append(kind.__annotations__)
        except AttributeError as error:
            out.append(str(error))


def class_variable_deleted(out: list[Any]) -> None:
    class Own:
        def method(self) -> None:
            nonlocal __class__  # type: ignore[misc]
            del __class__
            super()

    try:
        Own().method()
    except RuntimeError as error:
        out.append(str(error))


@pytest.mark.parametrize(
    "program",
    [
        text_of_another_partial,
        readonly_member,
        super_of_a_class_in_the_making,
        items_taken_by_the_base,
        line_behind_a_with,
        memo_of_the_program,
        changed_builtin,
        metaclass_finds_attributes,
        reversed_once,
        no_annotations_yet,
        no_annotations_of_a_class_of_c,
        class_variable_deleted,
    ],
)
def test_as_in_plain_python(program: Callable[[list[Any]], None]) -> None:
    plain: list[Any] = []
    program(plain)
    compiled = torch_backplane.compile(program, backend="eager")
    for _ in range(2):
        out: list[Any] = []
        compiled(out)
        assert out == plain
