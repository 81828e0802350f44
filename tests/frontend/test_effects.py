"""What captured programs write outside: attributes, globals, lists, dicts, cells."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch_backplane
from frontend.helpers import assert_same, captured, check
from torch_backplane import frontend

X = torch.linspace(-1, 1, 6)
COUNT = 0


class Thing:
    def __init__(self) -> None:
        self.last = None
        self.names = ["a"]
        self.table: dict[str, Any] = {"k": 1}


class Slotted:
    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value = 0


class Careful(Thing):
    @property
    def doubled(self):
        return self.last

    @doubled.setter
    def doubled(self, value):
        self.last = value * 2

    def __setattr__(self, name, value):
        super().__setattr__(name, value)
        if name != "writes":
            super().__setattr__("writes", getattr(self, "writes", 0) + 1)


def is_whole(compiled: Any) -> bool:
    return captured(compiled) and not frontend.counters(compiled)["breaks"]


def test_attributes() -> None:
    def program(a, thing):
        thing.last = a + 1
        thing.new = thing.last * 2
        thing.last = thing.last - 1
        return thing.last + thing.new

    assert is_whole(check(program, (X, Thing())))


def test_attributes_of_classes_that_set_them_their_own_way() -> None:
    def program(a, thing):
        thing.last = a
        thing.doubled = a + 1
        return thing.doubled * thing.writes

    assert is_whole(check(program, (X, Careful())))


def test_slots_and_deletion() -> None:
    def program(a, slotted, thing):
        slotted.value = a * 2
        slotted.value = slotted.value + 1
        del thing.last
        return slotted.value, hasattr(thing, "last")

    slotted, thing = Slotted(), Thing()
    compiled = frontend.compile(program)
    result = compiled(X, slotted, thing)
    assert torch.equal(slotted.value, X * 2 + 1) and result[0] is slotted.value
    assert not hasattr(thing, "last") and result[1] is False
    assert is_whole(compiled)


def test_lists() -> None:
    def program(a, thing, names):
        thing.names.append(a + 1)
        thing.names[0] = "b"
        names += [len(names), len(thing.names)]
        del names[0]
        return thing.names, [n * 2 for n in names if n], "b" in thing.names, bool(names)

    compiled = check(program, (X, Thing(), [5]))
    assert is_whole(compiled)


def test_dicts() -> None:
    def program(a, thing):
        thing.table["new"] = a * 2
        thing.table["k"] = 3
        out = thing.table["new"] + thing.table["k"]
        del thing.table["k"]
        thing.table["k"] = 4
        return out, "new" in thing.table, "missing" in thing.table, thing.table.get("k")

    thing = Thing()
    compiled = frontend.compile(program)
    compiled(X, thing)
    assert list(thing.table) == ["new", "k"] and thing.table["k"] == 4
    assert is_whole(check(program, (X, Thing()), compiled=compiled))


def test_items_taken_out_of_a_dict() -> None:
    def program(a, options):
        scale = options.pop("scale", 3)
        shift = options.pop("shift")
        twice = options.pop("scale", 5)
        options["shift"] = scale
        return a * scale + shift, twice, "scale" in options

    def options(**more):
        return {"first": X, "scale": 2, "shift": X, "last": 1, **more}

    compiled = frontend.compile(program)
    for given in (options, options, lambda: {"shift": X + 1}, options):
        ours, plain = given(), given()
        assert_same(compiled(X, ours), program(X, plain))
        assert list(ours) == list(plain)
    assert is_whole(compiled)
    with pytest.raises(KeyError, match="shift"):
        compiled(X, {"scale": 2})


def test_globals() -> None:
    def program(a):
        global COUNT, NEW_GLOBAL
        COUNT = COUNT + 1
        NEW_GLOBAL = a + COUNT
        return NEW_GLOBAL * COUNT

    global COUNT
    compiled = frontend.compile(program)
    for _ in range(3):
        COUNT = 4
        ours = compiled(X), COUNT, NEW_GLOBAL
        COUNT = 4
        assert_same(ours, (program(X), COUNT, NEW_GLOBAL))
    assert is_whole(compiled)


def test_cells() -> None:
    def make():
        state = X

        def step(a):
            nonlocal state
            state = state * 2 + a
            return state + 1

        return step, lambda: state

    ours, ours_state = make()
    plain, plain_state = make()
    compiled = frontend.compile(ours)
    for _ in range(3):
        assert_same(compiled(X), plain(X))
        assert_same(ours_state(), plain_state())
    assert is_whole(compiled)


def test_effects_before_and_behind_a_break() -> None:
    def program(a, thing):
        thing.last = a + 1
        thing.names.append(int(thing.last.sum()))
        thing.names.append("x")
        thing.table["sum"] = thing.last.sum()
        if thing.last.sum() > 0:
            thing.last = thing.last * 2
        return len(thing.names), thing.last

    compiled = check(program, (X, Thing()))
    assert captured(compiled) and frontend.counters(compiled)["breaks"]


def test_a_changed_object_that_c_code_looks_at() -> None:
    def program(a, thing):
        thing.names.append(3)
        thing.table["b"] = 2
        return a + 1, sorted(thing.table), len(thing.table), str(thing.names)

    compiled = check(program, (X, Thing()))
    assert captured(compiled)


def test_a_list_that_grows_while_it_is_iterated() -> None:
    def program(a, names):
        for name in names:
            if len(names) < 4:
                names.append(name)
        return a + len(names)

    check(program, (X, [1]))


def test_nothing_is_done_where_the_program_fails() -> None:
    def program(a, thing):
        thing.last = a
        raise ValueError("after a write")

    check(program, (X, Thing()))


def test_an_object_that_is_stored_is_the_one_that_is_returned() -> None:
    def program(a, thing):
        made = [a + 1]
        thing.last = made
        thing.table["made"] = made
        return made

    thing = Thing()
    compiled = frontend.compile(program)
    for _ in range(2):
        made = compiled(X, thing)
        assert made is thing.last and made is thing.table["made"]
    assert is_whole(compiled)


def test_module_state() -> None:
    class Counter(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = torch.nn.Linear(6, 6)
            self.norm = torch.nn.BatchNorm1d(6)
            self.register_buffer("mean", torch.zeros(6))
            self.calls = 0
            self.last = None

        def forward(self, x):
            y = self.norm(self.linear(x))
            self.mean = self.mean * 0.9 + y.mean(0).detach() * 0.1
            self.last = y.detach()
            self.calls = min(self.calls + 1, 2)
            return y + self.mean

    torch.manual_seed(0)
    ours = Counter()
    plain = copy.deepcopy(ours)
    compiled = frontend.compile(ours)
    for i in range(5):
        x = torch.randn(4, 6, generator=torch.Generator().manual_seed(i))
        assert torch.equal(compiled(x), plain(x))
        assert torch.equal(ours.last, plain.last) and ours.calls == plain.calls
        assert_same(dict(ours.state_dict()), dict(plain.state_dict()))
    assert is_whole(compiled._backplane_compiled)


class Assign(torch.autograd.Function):
    """As torchdiffeq's: a write that autograd does not see."""

    @staticmethod
    def forward(ctx, scratch, value, index):
        ctx.index = index
        scratch.data[index] = value
        return scratch

    @staticmethod
    def backward(ctx, gradient):
        return gradient, gradient[ctx.index], None


def test_writes_past_autograd_with_reads_between() -> None:
    def f(x):
        scratch = torch.zeros(*x.shape, 4)
        seen = []
        for i in range(4):
            scratch = Assign.apply(scratch, x * (i + 1) + scratch.sum(), (..., i))
            seen.append(scratch[..., : i + 1].sum())
        return seen, scratch * 1

    for grad in (False, True):
        check(f, (X.clone().requires_grad_(grad),), (X + 1,))


def test_keys_from_outside() -> None:
    """What a key holds decides which item it is: another tuple is another."""

    def read(x, key):
        return x.view(2, 3)[key] * 2

    def write(x, key, value):
        y = x.view(2, 3) * 1
        y[key] = value
        return y

    def write_outside(x, key):
        x.view(2, 3)[key] = 7
        return x + 1

    def in_own_dict(x, key):
        table = {(0, 1): 2, (1, 0): 3}
        table[key] = table[key] + 1
        return x * sum(table.values()) + table[key]

    keys = [(0, 1), (1, 0), (..., 0), (..., 1), (slice(0, 1), 2), (slice(1, 2), 2)]
    keys += [([0, 1], [1, 2]), ([1, 0], [1, 2]), (torch.tensor([0, 1]), torch.tensor([2, 0]))]
    check(read, *((X, key) for key in keys))
    check(write_outside, *((X.clone(), key) for key in keys))
    check(write, *((X, key, 5) for key in keys))
    check(write, (X, (0,), [1.0, 2.0, 3.0]), (X, (0,), [4.0, 2.0, 3.0]))
    check(in_own_dict, (X, (0, 1)), (X, (1, 0)))


def write_data(w: torch.Tensor) -> torch.Tensor:
    w.data.mul_(2.0)
    return w + 1


def write_detached(w: torch.Tensor) -> torch.Tensor:
    w.detach().mul_(2.0)
    return w + 1


@pytest.mark.parametrize("program", (write_data, write_detached))
def test_versions_move_as_in_plain_pytorch(program: Callable[..., torch.Tensor]) -> None:
    """What was saved before a write through ``.data`` is differentiated with what it holds then."""

    def run(function: Callable[..., torch.Tensor]) -> Any:
        w = torch.ones(3, requires_grad=True)
        loss = (w * w).sum()
        function(w)
        try:
            loss.backward()
        except RuntimeError as error:
            return w._version, type(error)
        return w._version, w.grad, w.detach()

    assert_same(run(torch_backplane.compile(program, backend="eager")), run(program))


def test_a_weight_that_is_written_through_data_is_packed_anew() -> None:
    linear = torch.nn.Linear(256, 256).eval()  # 256 kB: its content is not compared at each call
    model = torch_backplane.compile(linear, backend="cpu_onednn")
    double = torch_backplane.compile(lambda w: w.data.mul_(2.0), backend="cpu_onednn")
    x = torch.randn(4, 256)
    with torch.no_grad():
        model(x)
        double(linear.weight)
        expected = torch.nn.functional.linear(x, linear.weight, linear.bias)
        torch.testing.assert_close(model(x), expected, rtol=1e-4, atol=1e-4)
