"""Enumerations, data classes and named tuples."""

from __future__ import annotations

import collections
import dataclasses
import enum
import typing

import torch
from frontend.programs.catalog import program, x


class Color(enum.Enum):
    RED = 1
    GREEN = 2

    @property
    def double(self):
        return self.value * 2


class Mode(enum.IntFlag):
    READ = 1
    WRITE = 2


class Kind(str, enum.Enum):
    SUM = "sum"
    MEAN = "mean"


@program((x(3), Color.RED), (x(3), Color.GREEN))
def enums(a, color):
    if color is Color.RED:
        a = a + 1
    return a * color.value, color.name, color.double, color == Color.GREEN, Color["RED"] is color


@program((x(3), Kind.SUM), (x(3), Kind.MEAN), (x(3), "sum"))
def string_enums(a, kind):
    if kind == Kind.SUM:
        return a.sum()
    return getattr(a, Kind(kind).value)()


@program((x(3), Mode.READ), (x(3), Mode.READ | Mode.WRITE))
def flags(a, mode):
    if mode & Mode.WRITE:
        a = a * 2
    return a, bool(mode & Mode.READ), int(mode)


@program((x(3),))
def enum_iteration(a):
    return a, [c.name for c in Color], len(Color), Color(2) is Color.GREEN


@dataclasses.dataclass
class Layer:
    size: int
    scale: float = 1.0
    tags: list[str] = dataclasses.field(default_factory=list)

    def __post_init__(self):
        self.total = self.size * self.scale


@dataclasses.dataclass(frozen=True)
class Frozen:
    n: int
    inner: Layer | None = None


@dataclasses.dataclass(slots=True)
class Compact:
    n: int
    t: torch.Tensor


@program((x(3), 2), (x(3), 3))
def dataclass_of_own(a, n):
    layer = Layer(n, tags=["t"])
    other = dataclasses.replace(layer, scale=2.0)
    return a * layer.total, other.total, layer == Layer(n, tags=["t"]), layer


@program((x(3), Frozen(2)), (x(3), Frozen(2, Layer(3))), (x(3), Frozen(4, Layer(3, 2.0, ["u"]))))
def frozen_dataclass(a, frozen):
    if frozen.inner:
        a = a * frozen.inner.total
    return a + frozen.n


@program((x(3),))
def frozen_dataclass_refuses(a):
    frozen = Frozen(1)
    try:
        frozen.n = 2
    except dataclasses.FrozenInstanceError as error:
        return a, str(error)


@program((x(3),))
def dataclass_tools(a):
    layer = Layer(2)
    return a, [f.name for f in dataclasses.fields(layer)], dataclasses.is_dataclass(layer)


@program((x(3),))
def dataclass_as_dict(a):
    return a + 1, dataclasses.asdict(Layer(2, tags=["k"]))


@program((x(3), Compact(2, x(3))))
def dataclass_with_slots(a, compact):
    return a * compact.n + compact.t


class Pair(typing.NamedTuple):
    first: torch.Tensor
    second: int = 3


Triple = collections.namedtuple("Triple", "p q r", defaults=(9,))


@program((x(3), Pair(x(3))), (x(3), Pair(x(3), 5)))
def named_tuples(a, pair):
    first, second = pair
    made = Triple(1, a)
    return a + first * second, pair.second, made, made.r, made._asdict(), Triple._fields


@program((x(3),))
def named_tuple_replaced(a):
    pair = Pair(a, 1)._replace(second=4)
    return pair, pair[0], len(pair), isinstance(pair, tuple)


class Named(Pair):
    def scaled(self):
        return self.first * self.second


@program((x(3),))
def named_tuple_subclass(a):
    named = Named(a, 2)
    return named.scaled(), named
