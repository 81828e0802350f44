"""What the program makes and holds over a break is made again with all that hangs on it."""

from __future__ import annotations

import copy
import functools
import sys
from collections import OrderedDict, namedtuple
from collections.abc import Callable
from typing import Any

import numpy
import pytest
import torch
import torch_backplane


class Hidden:
    """Keeps in its __dict__ what a property of the same name shows."""

    def __init__(self, value: int) -> None:
        self.__dict__["value"] = value

    @property
    def value(self) -> int:
        return self.__dict__["value"] + 1


class Set:
    def __get__(self, owner: Any, type: Any = None) -> Any:
        return owner.__dict__["field"]

    def __set__(self, owner: Any, value: Any) -> None:
        owner.__dict__["field"] = value * 10


class Described:
    field = Set()


class Pair(namedtuple("Pair", ["a", "b"])):
    pass


def property_over_dict(x: torch.Tensor) -> Any:
    made = Hidden(3)
    sys.stdout.flush()
    return made.value


def descriptor_that_changes(x: torch.Tensor) -> Any:
    made = Described()
    made.field = 2
    sys.stdout.flush()
    return made.field


def named_tuple(x: torch.Tensor) -> Any:
    pair = Pair(x + 1, x + 2)
    pair.c = "more"
    sys.stdout.flush()
    return len(pair.c), pair.a


def ordered(x: torch.Tensor) -> Any:
    made: Any = OrderedDict(a=x + 1)
    made.z = 1
    return copy.copy(made).z, copy.deepcopy(made).z, made["a"]


@pytest.mark.parametrize(
    "program", [property_over_dict, descriptor_that_changes, named_tuple, ordered]
)
def test_attributes(program: Callable[[torch.Tensor], Any]) -> None:
    compiled = torch_backplane.compile(program, backend="reference")
    for _ in range(2):
        torch.testing.assert_close(compiled(torch.ones(2)), program(torch.ones(2)))


def test_named_tuple_that_is_returned() -> None:
    def program(x: torch.Tensor) -> Pair:
        pair = Pair(x + 1, x + 2)
        pair.c = "more"
        return pair

    found = torch_backplane.compile(program, backend="reference")(torch.ones(2))
    assert type(found) is Pair and found.__dict__ == {"c": "more"}


class Array(numpy.ndarray):
    @property
    def shape(self) -> Any:  # type: ignore[override]
        return super().shape


class Base:
    @property
    def held(self) -> Any:
        return self.v  # type: ignore[attr-defined]


class Derived(Base):
    def __init__(self, v: Any) -> None:
        self.v = v

    @property
    def held(self) -> Any:
        return super().held


@pytest.mark.parametrize("kind", ["property", "c"])
def test_super_is_asked_of_each_object(kind: str) -> None:
    def program(owner: Any) -> Any:
        return owner.held if kind == "property" else owner.shape

    compiled = torch_backplane.compile(program, backend="reference")
    for shape in ((3, 4), (2, 4), (3, 4)):
        owner = Derived(shape) if kind == "property" else numpy.zeros(shape).view(Array)
        assert compiled(owner) == shape


def other(x: Any) -> Any:
    return x * 100


@functools.wraps(other)
@torch._disable_dynamo
def without_dynamo(x: Any) -> Any:
    return x + 1


@functools.wraps(other)
@functools.lru_cache
def cached(x: Any) -> Any:
    return x + 1


def test_a_wrapper_under_another_name_runs_what_it_wraps() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        return without_dynamo(x) * cached(3)

    compiled = torch_backplane.compile(program, backend="reference")
    torch.testing.assert_close(compiled(torch.ones(2)), program(torch.ones(2)))


@torch_backplane.disable
def never_captured(x: torch.Tensor) -> torch.Tensor:
    return inner(x) + 1


def inner(x: torch.Tensor) -> torch.Tensor:
    return x * 2


def test_a_disabled_function_is_not_captured_behind_its_break() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        return never_captured(x) * 2

    compiled = torch_backplane.compile(program, backend="reference")
    torch.testing.assert_close(compiled(torch.ones(2)), program(torch.ones(2)))
    frames = {entry["frame"] for entry in torch_backplane.entries(compiled)}
    assert not {"never_captured", "inner"} & frames


@pytest.mark.parametrize("several", [False, True])
def test_jit_trace_inside(several: bool) -> None:
    def traced(x: torch.Tensor) -> Any:
        return torch.nonzero(x, as_tuple=True) if several else x.sin() + 1

    def program(x: torch.Tensor) -> Any:
        return torch.jit.trace(traced, x)(x)

    compiled = torch_backplane.compile(program, backend="reference")
    torch.testing.assert_close(compiled(torch.ones(2)), program(torch.ones(2)))


G = 0


@torch.library.custom_op("backplane_tests::reads_global", mutates_args=())
def reads_global(x: torch.Tensor) -> torch.Tensor:
    return x * G


@reads_global.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


def test_an_operator_of_the_program_sees_what_it_has_written() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        global G
        G += 5
        return reads_global(x)

    compiled = torch_backplane.compile(program, backend="reference")
    global G
    G = 0
    torch.testing.assert_close(compiled(torch.ones(2)), torch.full((2,), 5.0))
    torch.testing.assert_close(compiled(torch.ones(2)), torch.full((2,), 10.0))
