"""What a captured program has read from outside may change: the next call must see it."""

from __future__ import annotations

import collections
import types
from typing import Any

import pytest
import torch
from frontend.helpers import assert_same, captured, check
from threads import run_in_threads
from torch import nn
from torch_backplane import frontend


def same(compiled: Any, function: Any, *args: Any) -> None:
    assert_same(compiled(*args), function(*args))


X = torch.linspace(-1, 1, 6)
GLOBAL = 2.0
TABLE = {"k": 1}


def reads_global(a):
    return a * GLOBAL + TABLE["k"]


def test_global(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = check(reads_global, (X,))
    monkeypatch.setitem(globals(), "GLOBAL", 3.0)
    same(compiled, reads_global, X)
    monkeypatch.setitem(TABLE, "k", 5)
    same(compiled, reads_global, X)
    assert len(frontend.entries(compiled)) == 3 and captured(compiled)


def test_builtin_shadowed(monkeypatch: pytest.MonkeyPatch) -> None:
    def program(a):
        return a * len([1, 2])

    compiled = check(program, (X,))
    monkeypatch.setitem(globals(), "len", lambda v: 10)
    same(compiled, program, X)


def test_positional_defaults_replaced() -> None:
    def program(a, b=2):
        return a * b

    compiled = check(program, (X,))
    program.__defaults__ = (7,)
    same(compiled, program, X)


def test_keyword_defaults_changed_in_place() -> None:
    def inner(a, *, b=2):
        return a * b

    def program(a):
        return inner(a)

    compiled = check(program, (X,))
    inner.__kwdefaults__["b"] = 9
    same(compiled, program, X)


def test_mutable_default() -> None:
    def inner(a, items=[1, 2]):  # noqa: B006
        return a * sum(items)

    def program(a):
        return inner(a)

    compiled = check(program, (X,))
    inner.__defaults__[0].append(3)
    same(compiled, program, X)


def test_code_replaced() -> None:
    def inner(a):
        return a + 1

    def other(a):
        return a - 1

    def program(a):
        return inner(a)

    compiled = check(program, (X,))
    inner.__code__ = other.__code__
    same(compiled, program, X)


def test_cell_changed() -> None:
    scale = 2

    def program(a):
        return a * scale

    compiled = check(program, (X,))
    scale = 5
    same(compiled, program, X)


def test_method_code_replaced() -> None:
    class Thing:
        def run(self, a):
            return a + 1

    def program(a, thing):
        return thing.run(a)

    thing = Thing()
    compiled = frontend.compile(program)
    same(compiled, program, X, thing)
    Thing.run = lambda self, a: a * 10
    same(compiled, program, X, thing)
    thing.run = lambda a: a - 3
    same(compiled, program, X, thing)
    assert captured(compiled)


def test_class_attribute_appears_in_base() -> None:
    class Base:
        def get(self):
            return 1

    class Derived(Base):
        def get(self):
            return super().get() + 1

    class Between(Base):
        def get(self):
            return 100

    def program(a, thing):
        return a * thing.get()

    thing = Derived()
    compiled = frontend.compile(program)
    same(compiled, program, X, thing)
    Base.get = lambda self: 20
    same(compiled, program, X, thing)
    Derived.__bases__ = (Between,)
    same(compiled, program, X, thing)


def test_attribute_appears() -> None:
    class Thing:
        pass

    def program(a, thing):
        return a * getattr(thing, "scale", 1), hasattr(thing, "other")

    thing = Thing()
    compiled = frontend.compile(program)
    same(compiled, program, X, thing)
    thing.scale = 4
    same(compiled, program, X, thing)
    Thing.other = 1
    same(compiled, program, X, thing)


def test_descriptor_of_the_type_of_len() -> None:
    class Sized:
        def __len__(self):
            return 3

    def program(a, thing):
        return a * len(thing)

    thing = Sized()
    compiled = frontend.compile(program)
    same(compiled, program, X, thing)
    Sized.__len__ = lambda self: 8
    same(compiled, program, X, thing)


def test_dict_order_and_absence() -> None:
    def program(a, d):
        for value in d.values():
            a = a * 2 + value
        return a, "z" in d, d.get("q", 5)

    compiled = frontend.compile(program)
    d: dict[str, int] = {"a": 1, "b": 2}
    same(compiled, program, X, d)
    same(compiled, program, X, {"b": 2, "a": 1})
    same(compiled, program, X, {"a": 1, "b": 2, "z": 3})
    same(compiled, program, X, {"a": 1, "b": 2, "q": 3})
    o = collections.OrderedDict(a=1, b=2)
    same(compiled, program, X, o)
    o.move_to_end("a")
    same(compiled, program, X, o)
    assert captured(compiled)


def test_tensor_properties() -> None:
    def program(a):
        return a * 2, a.dtype, a.requires_grad, a.is_contiguous()

    compiled = frontend.compile(program)
    for a in (
        X,
        X.double(),
        X.reshape(2, 3),
        X.reshape(2, 3).t(),
        X.clone().requires_grad_(),
        torch.complex(X, X).conj(),
        nn.Parameter(X.clone()),
    ):
        same(compiled, program, a)


def test_tensor_subclass_is_left_alone() -> None:
    class Sub(torch.Tensor):
        pass

    def program(a):
        return a + 1

    compiled = frontend.compile(program)
    result = compiled(X.as_subclass(Sub))
    assert type(result) is Sub
    assert "class" in next(iter(frontend.counters(compiled)["plain_reasons"]))


def test_switches_of_the_thread() -> None:
    def program(a):
        return a * 2, torch.is_grad_enabled()

    w = X.clone().requires_grad_()
    compiled = frontend.compile(program)
    same(compiled, program, w)
    with torch.no_grad():
        same(compiled, program, w)
    with torch.inference_mode():
        assert compiled(w)[0].is_inference()


def test_autocast() -> None:
    def program(a):
        return a @ a

    a = torch.rand(3, 3)
    compiled = frontend.compile(program)
    same(compiled, program, a)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert compiled(a).dtype == torch.bfloat16
    assert compiled(a).dtype == torch.float32


def test_default_dtype() -> None:
    def program(a):
        return a, torch.zeros(2)

    compiled = frontend.compile(program)
    same(compiled, program, X)
    torch.set_default_dtype(torch.float64)
    try:
        assert compiled(X)[1].dtype == torch.float64
    finally:
        torch.set_default_dtype(torch.float32)


def test_aliased_arguments() -> None:
    def program(a, b):
        a.add_(1)
        return a * b

    compiled = frontend.compile(program)
    for pair in (lambda: (X.clone(), X.clone()), lambda: (X.clone(),) * 2):
        for _ in range(2):
            plain, ours = pair(), pair()
            assert_same(compiled(*ours), program(*plain))
            assert_same(ours, plain)
    base_plain, base_ours = torch.ones(4), torch.ones(4)
    assert_same(
        compiled(base_ours[:3], base_ours[1:]),
        program(base_plain[:3], base_plain[1:]),
    )
    assert_same(base_ours, base_plain)


def test_same_tensor_by_two_paths() -> None:
    def program(a, items):
        return a is items[0], a + items[0]

    other = X + 1
    compiled = frontend.compile(program)
    for items in ([X], [other], [X]):
        same(compiled, program, X, items)
    assert captured(compiled)


def test_closures_made_per_call_share_an_entry() -> None:
    def program(a, function):
        return function(a)

    def make(n):
        return lambda a: a * n

    compiled = frontend.compile(program)
    for n in (2, 2, 2, 3):
        same(compiled, program, X, make(n))
    assert len(frontend.entries(compiled)) == 2 and captured(compiled)


def test_shared_default_of_numbers() -> None:
    def program(a, n):
        return a * n

    compiled = frontend.compile(program)
    for n in (0.0, -0.0, 1, True, 1.0, float("nan")):
        same(compiled, program, X, n)


def test_entry_limit() -> None:
    def program(a, n):
        return a * n

    compiled = frontend.compile(program, entry_limit=3)
    for dtype in (
        torch.float32,
        torch.float64,
        torch.int32,
        torch.int64,
        torch.float16,
        torch.int8,
    ):
        same(compiled, program, X.to(dtype), 2)
    counters = frontend.counters(compiled)
    assert counters["entries"] == 3 and counters["plain_calls"] == 3
    assert list(counters["plain_reasons"]) == ["no more than 3 entries are kept"]


def test_effects_happen_once_per_call() -> None:
    log: list[int] = []

    class Thing:
        count = 0

    thing = Thing()

    def appends(a):
        log.append(1)
        return a

    def stores(a):
        thing.count += 1
        return a * thing.count

    def prints(a):
        print("hello")
        return a

    for program in (appends, stores, prints):
        compiled = frontend.compile(program)
        for _ in range(5):
            compiled(X)
        assert captured(compiled)
    assert log == [1] * 5 and thing.count == 5


def test_the_program_does_not_catch_a_break() -> None:
    def program(a):
        try:
            if a.sum() > 0:
                return a + 1
        except RuntimeError:
            return "hidden"
        return a - 1

    compiled = check(program, (X + 1,), (X - 1,))
    assert captured(compiled) and len(frontend.counters(compiled)["breaks"]) == 1


def test_strict_raises() -> None:
    compiled = frontend.compile(print, strict=True)
    with pytest.raises(RuntimeError, match="cannot be captured as a whole"):
        compiled(X)


def test_threads() -> None:
    def program(a, n):
        for _ in range(3):
            a = a * n + 1
        return a

    compiled = frontend.compile(program)

    def work(n: int) -> None:
        for k in range(100):
            same(compiled, program, X, (n + k) % 4)

    run_in_threads(work)


def test_depth_of_recursion_stays() -> None:
    def depth(n: int = 0) -> int:
        try:
            return depth(n + 1)
        except RecursionError:
            return n

    def endless(a):
        return endless(a)

    before = depth()
    compiled = frontend.compile(endless)
    with pytest.raises(RecursionError):
        compiled(X)
    assert abs(depth() - before) < 3


def test_python_getattribute_and_getattr() -> None:
    class Odd:
        def __init__(self):
            self.x = 3

        def __getattribute__(self, name):
            if name == "y":
                name = "x"
            return super().__getattribute__(name)

        def __getattr__(self, name):
            return len(name)

    def program(a, odd):
        return a * odd.y + odd.zz

    odd = Odd()
    compiled = frontend.compile(program)
    same(compiled, program, X, odd)
    odd.x = 4
    same(compiled, program, X, odd)
    assert captured(compiled)


def test_module_type() -> None:
    fake = types.ModuleType("fake")
    fake.scale = 2

    def program(a):
        return a * fake.scale

    compiled = check(program, (X,))
    fake.scale = 3
    same(compiled, program, X)


def test_attributes_of_tensor_objects() -> None:
    def program(a):
        return a + 1, hasattr(a, "extra"), getattr(a, "other", 3)

    a = X.clone()
    compiled = frontend.compile(program)
    same(compiled, program, a)
    assert captured(compiled)
    a.extra = 1
    same(compiled, program, a)
    a.other = 5
    same(compiled, program, a)


def test_address_of_an_object_from_outside() -> None:
    def program(a, thing):
        return a, id(thing) == id(thing), {id(thing): 1}[id(thing)]

    compiled = frontend.compile(program)
    for thing in (reads_global, same, reads_global):
        same(compiled, program, X, thing)
    assert len(frontend.entries(compiled)) == 2 and captured(compiled)
