"""A function whose guards have held for a while expects what it found: each change must still be seen."""

from __future__ import annotations

import collections
import functools
import random
import threading
import types
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from frontend.helpers import assert_same
from torch import nn
from torch_backplane import frontend

X = torch.linspace(-1, 1, 6)
SCALE = {"k": 2.0}


def shift(a, by=1.0, *, more=0.5):
    return a + by + more


def other_shift(a, by=1.0, *, more=0.5):
    return a - by * more


def decorate(function):
    @functools.wraps(function)
    def decorated(a, *, scale=1.5):
        return function(a) * scale

    return decorated


class Plain:
    def __init__(self, factor):
        self.factor = factor

    def apply(self, a):
        return a * self.factor


class Doubled(Plain):
    def apply(self, a):
        return a * self.factor * 2


class Slotted:
    __slots__ = ("rate",)

    def __init__(self, rate):
        self.rate = rate


class Layer(nn.Module):
    offset = 0.25

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.linspace(0, 1, 6))
        self.register_buffer("bias", torch.ones(6))
        self.power = 2

    def forward(self, a):
        return a * self.weight + self.bias * self.power + self.offset


class OtherLayer(Layer):
    def forward(self, a):
        return a - self.weight


def in_cell():
    function = shift

    def held(a):
        return function(a)

    return held


held = in_cell()


def put_in_cell(function: Any) -> None:
    held.__closure__[0].cell_contents = function


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([Layer(), Layer()])
        self.plain = Plain(3.0)
        self.slotted = Slotted(0.1)
        self.numbers = [1, 2]
        self.pair = (Plain(1.0), 4)
        self.table = {"a": 1.0, "b": 2.0}
        self.ordered = collections.OrderedDict(a=1, b=2)
        self.function = shift
        cell = 5.0

        def closure(a):
            return a * cell

        self.closure = closure

    def forward(self, a):
        for layer in self.layers:
            a = layer(a)
        a = self.plain.apply(a) * self.slotted.rate * SCALE["k"]
        a = self.pair[0].apply(a) + self.pair[1] + sum(self.numbers)
        for index, (_, value) in enumerate(self.table.items()):
            a = a + index * value
        for index, name in enumerate(self.ordered):
            a = a + index * (2 if name == "a" else 5)
        if hasattr(self, "extra"):
            a = a + self.extra
        return self.closure(held(self.function(a)))


def change_cell(model: Model) -> None:
    model.closure.__closure__[0].cell_contents += 1.0


def other_closure(model: Model) -> None:
    code, old = model.closure.__code__, model.closure
    value = old.__closure__[0].cell_contents + 2.0
    model.closure = types.FunctionType(
        code, old.__globals__, "closure", None, (types.CellType(value),)
    )


def hook(module: nn.Module) -> None:
    module.register_forward_hook(lambda module, args, out: out + 0.125)


def toggle(owner: Any, name: str) -> None:
    if hasattr(owner, name):
        delattr(owner, name)
    else:
        setattr(owner, name, 7.0)


def rotate(table: dict[str, Any]) -> None:
    first = next(iter(table))
    table[first] = table.pop(first)


def replace_dict(plain: Plain) -> None:
    plain.__dict__ = {"factor": plain.factor + 1}


def swap(obj: Any, a: type, b: type) -> None:
    obj.__class__ = b if type(obj) is a else a


def load(model: Model) -> None:
    model.load_state_dict({name: value * 1.25 for name, value in model.state_dict().items()})


def wrap(model: Model) -> None:
    inner = model.function
    model.function = inner.__wrapped__ if hasattr(inner, "__wrapped__") else decorate(inner)


def swap_code() -> None:
    shift.__code__, other_shift.__code__ = other_shift.__code__, shift.__code__


def set_default(value: float) -> None:
    shift.__defaults__ = (value,)


def keep_number(model: Model) -> None:
    model.numbers[0] = model.numbers[0] + 1000  # a new object each time, perhaps at an old address


CHANGES: dict[str, Callable[[Model, random.Random], Any]] = {
    "weight replaced": lambda m, r: setattr(m.layers[0], "weight", nn.Parameter(torch.rand(6))),
    "weight changed": lambda m, r: m.layers[1].weight.data.mul_(1.5),
    "data replaced": lambda m, r: setattr(m.layers[0].weight, "data", torch.rand(6)),
    "data in other strides": lambda m, r: setattr(m.layers[0].weight, "data", torch.rand(12)[::2]),
    "data of another type": lambda m, r: setattr(
        m.layers[1].bias, "data", torch.rand(6, dtype=r.choice([torch.float32, torch.float64]))
    ),
    "weights loaded": lambda m, r: load(m),
    "weights swapped": lambda m, r: torch.utils.swap_tensors(m.layers[0].bias, torch.rand(6)),
    "gradient wanted": lambda m, r: m.layers[1].weight.requires_grad_(
        not m.layers[1].weight.requires_grad
    ),
    "other type of data": lambda m, r: setattr(m.layers[0], "bias", m.layers[0].bias.double()),
    "back to float": lambda m, r: setattr(m.layers[0], "bias", m.layers[0].bias.float()),
    "module attribute": lambda m, r: setattr(m.layers[1], "power", r.randint(1, 3)),
    "class attribute": lambda m, r: setattr(Layer, "offset", r.choice([0.25, 0.5])),
    "class": lambda m, r: swap(m.layers[0], Layer, OtherLayer),
    "class of a plain object": lambda m, r: swap(m.plain, Plain, Doubled),
    "instance dict": lambda m, r: replace_dict(m.plain),
    "attribute": lambda m, r: setattr(m.plain, "factor", r.choice([3.0, 4.0])),
    "slot": lambda m, r: setattr(m.slotted, "rate", r.choice([0.1, 0.2])),
    "list": lambda m, r: keep_number(m),
    "pair's object": lambda m, r: setattr(m.pair[0], "factor", r.choice([1.0, 2.0])),
    "tuple": lambda m, r: setattr(m, "pair", (Plain(r.choice([1.0, 2.0])), 4)),
    "dict value": lambda m, r: m.table.__setitem__("a", r.choice([1.0, 3.0])),
    "dict order": lambda m, r: rotate(m.table),
    "order of an OrderedDict": lambda m, r: m.ordered.move_to_end(next(iter(m.ordered))),
    "attribute comes or goes": lambda m, r: toggle(m, "extra"),
    "default": lambda m, r: set_default(r.choice([1.0, 2.0])),
    "keyword default": lambda m, r: shift.__kwdefaults__.__setitem__("more", r.choice([0.5, 1.5])),
    "keyword defaults": lambda m, r: setattr(
        shift, "__kwdefaults__", {"more": r.choice([0.5, 1.5])}
    ),
    "decorator": lambda m, r: wrap(m),
    "function in a cell": lambda m, r: put_in_cell(r.choice([shift, other_shift])),
    "default behind a cell": lambda m, r: held.__closure__[0].cell_contents.__kwdefaults__.update(
        more=r.choice([0.5, 1.5])
    ),
    "code": lambda m, r: swap_code(),
    "cell": lambda m, r: change_cell(m),
    "closure": lambda m, r: other_closure(m),
    "global": lambda m, r: SCALE.__setitem__("k", r.choice([2.0, 4.0])),
    "hook": lambda m, r: hook(m.layers[r.randint(0, 1)]),
    "hooks gone": lambda m, r: m.layers[0]._forward_hooks.clear(),
    "layers swapped": lambda m, r: setattr(m, "layers", nn.ModuleList(list(m.layers)[::-1])),
    "one layer twice": lambda m, r: setattr(m, "layers", nn.ModuleList([m.layers[0]] * 2)),
    "two layers": lambda m, r: setattr(m, "layers", nn.ModuleList([m.layers[0], Layer()])),
}


@pytest.fixture(autouse=True)
def restore() -> Any:
    code, defaults, keywords = shift.__code__, shift.__defaults__, dict(shift.__kwdefaults__)
    other, other_keywords = other_shift.__code__, dict(other_shift.__kwdefaults__)
    offset, scale = Layer.offset, dict(SCALE)
    yield
    shift.__code__, shift.__defaults__, shift.__kwdefaults__ = code, defaults, keywords
    other_shift.__code__, other_shift.__kwdefaults__ = other, other_keywords
    Layer.offset = offset
    put_in_cell(shift)
    SCALE.update(scale)


def agree(compiled: Any, model: Model, count: int) -> None:
    for _ in range(count):
        assert_same(compiled(X), model(X))


@pytest.mark.parametrize("name", CHANGES)
def test_a_change_after_many_calls(name: str) -> None:
    model, generator = Model(), random.Random(5)
    compiled = frontend.compile(model, backend="eager")
    agree(compiled, model, 8)
    for _ in range(3):
        CHANGES[name](model, generator)
        agree(compiled, model, 4)


@pytest.mark.parametrize("seed", range(6))
def test_any_changes_in_any_order(seed: int) -> None:
    model, generator = Model(), random.Random(seed)
    backend = ("eager", "reference")[seed % 2]
    compiled = frontend.compile(model, backend=backend, entry_limit=32)
    names = list(CHANGES)
    for _ in range(150):
        for _ in range(generator.randint(1, 3)):
            CHANGES[generator.choice(names)](model, generator)
        agree(compiled, model, generator.randint(1, 6))


def test_a_dict_that_changes_with_each_call() -> None:
    class Counting(nn.Module):
        def __init__(self):
            super().__init__()
            self.calls = 0
            self.inner = Layer()

        def forward(self, a):
            return self.inner(a)

    model = Counting()
    compiled = frontend.compile(model, backend="eager")
    for _ in range(20):
        model.calls += 1
        assert_same(compiled(X), model(X))
    model.inner.power = 7
    assert_same(compiled(X), model(X))
    assert len(frontend.entries(compiled)) == 2


def test_one_function_for_many_objects() -> None:
    def program(layer, a):
        return layer(a)

    compiled = frontend.compile(program, backend="eager")
    layers = [Layer() for _ in range(3)]
    layers[1].power = 5
    for turn in range(30):
        layer = layers[turn % 3] if turn < 15 else layers[0]
        assert_same(compiled(layer, X), program(layer, X))
    for _ in range(20):  # objects at the addresses of those that are gone
        layer = Layer()
        layer.power = 3
        assert_same(compiled(layer, X), program(layer, X))
        del layer


class Negated(nn.Module):
    def forward(self, weight):
        return -weight


@pytest.mark.parametrize("backend", ["eager", "reference"])
def test_a_parametrization_comes_and_goes(backend: str) -> None:
    model = Layer()
    compiled = frontend.compile(model, backend=backend)
    with torch.no_grad():
        for _ in range(2):
            for _ in range(6):
                assert_same(compiled(X), model(X))
            nn.utils.parametrize.register_parametrization(model, "weight", Negated())
            for _ in range(6):
                assert_same(compiled(X), model(X))
            nn.utils.parametrize.remove_parametrizations(model, "weight", leave_parametrized=False)
    assert_same(compiled(X), model(X))


@pytest.mark.parametrize("backend", ["eager", "reference"])
def test_a_weight_that_was_replaced_is_freed(backend: str) -> None:
    model = Layer()
    compiled = frontend.compile(model, backend=backend)
    with torch.no_grad():
        for _ in range(8):
            compiled(X)
        weight = weakref.ref(model.weight)
        assert model.weight._use_count() == 1
        model.weight = nn.Parameter(torch.rand(6))
        assert weight() is None
        assert_same(compiled(X), model(X))
    assert frontend.counters(compiled)["plain_calls"] == 0


@pytest.mark.parametrize("backend", ["eager", "reference"])
def test_a_weight_is_replaced_while_another_thread_runs(backend: str) -> None:
    """The call that runs keeps what it was given."""

    class Scale(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.full((20000,), 1.0))

        def forward(self, a):
            return a * self.weight

    model, ones = Scale(), torch.ones(20000)
    compiled = frontend.compile(model, backend=backend)
    done, wrong = threading.Event(), []

    def run() -> None:
        with torch.no_grad():
            for _ in range(300):
                out = compiled(ones)
                if not (out[0] >= 1 and bool((out == out[0]).all())):
                    wrong.append(out)
        done.set()

    with torch.no_grad():
        compiled(ones)
    thread = threading.Thread(target=run)
    thread.start()
    count = 0
    while not done.is_set():
        count += 1
        model.weight = nn.Parameter(torch.full((20000,), float(count)))
    thread.join()
    assert not wrong
    assert count > 1
    assert frontend.counters(compiled)["plain_calls"] == 0
