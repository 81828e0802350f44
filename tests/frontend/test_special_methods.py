"""Which special methods a class has decides what operators, built-in functions and PyTorch do: they
may come and go between calls. So may what else C code asks by itself: names of builtins, the
exception that is handled, settings of libraries for arithmetic."""

from __future__ import annotations

import abc
import builtins
import decimal
import inspect
import operator
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy
import pytest
import torch
import torch_backplane

if TYPE_CHECKING:
    A_NAME_OF_NOBODY = 7  # comes and goes among the builtins

X = torch.ones(2)
Compile = Callable[[Callable[..., Any]], Callable[..., Any]]


def outcome(function: Callable[[], Any]) -> Any:
    try:
        value = function()
    except Exception as error:
        return type(error).__name__
    return value.tolist() if isinstance(value, torch.Tensor) else value


# What is done with an object `v` of a class, and the methods that the class is given then.
OPERATIONS: dict[str, tuple[Callable[..., Any], dict[str, Any]]] = {
    "in": (lambda x, v: x * (1 in v), {"__contains__": lambda s, o: True}),
    "sum": (lambda x, v: x * sum(v), {"__iter__": lambda s: iter([1, 2])}),
    "add": (lambda x, v: x * (v + 1), {"__add__": lambda s, o: 5}),
    "reflected add": (lambda x, v: x * (1 + v), {"__radd__": lambda s, o: 5}),
    "item": (lambda x, v: x * v[0], {"__getitem__": lambda s, i: 6}),
    "less": (lambda x, v: x * (v < 3), {"__lt__": lambda s, o: True}),
    "negative": (lambda x, v: x * -v, {"__neg__": lambda s: 3}),
    "int": (lambda x, v: x * int(v), {"__int__": lambda s: 4}),
    "int of index": (lambda x, v: x * int(v), {"__index__": lambda s: 4}),
    "float": (lambda x, v: x * float(v), {"__float__": lambda s: 0.5}),
    "abs": (lambda x, v: x * abs(v), {"__abs__": lambda s: 4}),
    "round": (lambda x, v: x * round(v), {"__round__": lambda s: 4}),
    "reversed": (lambda x, v: x * sum(reversed(v)), {"__reversed__": lambda s: iter([3])}),
    "length hint": (
        lambda x, v: x * operator.length_hint(v, 7),
        {"__length_hint__": lambda s: 3},
    ),
    "callable": (lambda x, v: x * callable(v), {"__call__": lambda s: 1}),
    "hash": (lambda x, v: x * (hash(v) == 7), {"__hash__": lambda s: 7}),
    "text": (lambda x, v: (x.shape[0], str(v)[:1]), {"__str__": lambda s: "S"}),
    "format": (lambda x, v: (x.shape[0], f"{v}"[:1]), {"__format__": lambda s, f: "F"}),
    "tensor": (
        lambda x, v: x + v,
        {"__torch_function__": classmethod(lambda cls, f, t, a=(), k=None: "TF")},
    ),
    "attribute": (lambda x, v: x * v.k, {"__getattribute__": lambda s, n: 30}),
    "missing attribute": (lambda x, v: x * v.other, {"__getattr__": lambda s, n: 30}),
}


def enter(x: torch.Tensor, v: Any) -> torch.Tensor:
    with v as k:
        return x * k


OPERATIONS["with"] = (enter, {"__enter__": lambda s: 5, "__exit__": lambda s, *a: None})


def came_and_went(base: type, name: str, compile_: Compile) -> list[Any]:
    operation, methods = OPERATIONS[name]
    cls = type("V", (base,), {"k": 1})
    v = cls()
    compiled = compile_(lambda x: operation(x, v))
    seen = [outcome(lambda: compiled(X))]
    for method, function in methods.items():
        setattr(cls, method, function)
    seen.append(outcome(lambda: compiled(X)))
    for method in methods:
        delattr(cls, method)
    return [*seen, outcome(lambda: compiled(X))]


def own(function: Callable[..., Any]) -> Callable[..., Any]:
    return torch_backplane.compile(function, backend="eager")


@pytest.mark.parametrize("base", [object, int, dict, list])
@pytest.mark.parametrize("name", OPERATIONS)
def test_methods_come_and_go(name: str, base: type) -> None:
    if name in ("text", "format", "hash") and base is object:
        expected = came_and_went(base, name, lambda f: f)
        assert came_and_went(base, name, own)[1] == expected[1]
        return
    assert came_and_went(base, name, own) == came_and_went(base, name, lambda f: f)


def of_metaclass(compile_: Compile) -> list[Any]:
    class Meta(type):
        pass

    class C(metaclass=Meta):
        k = 2

    calls = [
        compile_(lambda x: x * C.k),
        compile_(lambda x: (x.shape[0], str(C)[:3], f"{C}"[:3])),
        compile_(lambda x: x * (hash(C) == 7)),
    ]
    seen = [outcome(lambda c=c: c(X)) for c in calls]
    Meta.__hash__ = lambda s: 7
    Meta.__str__ = lambda s: "STR"
    Meta.__getattribute__ = lambda s, n: 40
    return [*seen, *(outcome(lambda c=c: c(X)) for c in calls)]


def of_descriptor(compile_: Compile) -> list[Any]:
    class D:
        v = 3

    class A:
        n = D()

    a, b = A(), A()
    a.__dict__["n"] = 100
    calls = [compile_(lambda x: x * a.n), compile_(lambda x: x * b.n.v)]
    seen = [outcome(lambda c=c: c(X)) for c in calls]

    class Other:
        v = 8

    D.__get__ = lambda s, o, t: 7 if o is a else Other()
    D.__set__ = lambda s, o, v: None
    seen += [outcome(lambda c=c: c(X)) for c in calls]
    del D.__set__
    return [*seen, *(outcome(lambda c=c: c(X)) for c in calls)]


def of_abstract_class(compile_: Compile) -> list[Any]:
    class A(abc.ABC):
        k = 2

        @abc.abstractmethod
        def go(self):
            pass

    compiled = compile_(lambda x: x * A().k)
    seen = [outcome(lambda: compiled(X))]
    A.go = lambda s: 1
    abc.update_abstractmethods(A)
    return [*seen, outcome(lambda: compiled(X))]


def of_missing_key(compile_: Compile) -> list[Any]:
    class D(dict):
        pass

    d = D(a=1)
    compiled = compile_(lambda x: x * d["other"])
    seen = [outcome(lambda: compiled(X))]
    D.__missing__ = lambda s, k: 4
    return [*seen, outcome(lambda: compiled(X))]


def of_builtin_name(compile_: Compile) -> list[Any]:
    compiled = compile_(lambda x: x * A_NAME_OF_NOBODY)
    seen = [outcome(lambda: compiled(X))]
    builtins.A_NAME_OF_NOBODY = 7
    try:
        seen.append(outcome(lambda: compiled(X)))
    finally:
        del builtins.A_NAME_OF_NOBODY
    return [*seen, outcome(lambda: compiled(X))]


def of_handled_exception(compile_: Compile) -> list[Any]:
    compiled = compile_(lambda x: x * (1 if sys.exc_info()[1] is None else 2))
    seen = [outcome(lambda: compiled(X))]
    try:
        raise OSError("disk")
    except OSError:
        seen.append(outcome(lambda: compiled(X)))
    return [*seen, outcome(lambda: compiled(X))]


def of_decimal_context(compile_: Compile) -> list[Any]:
    one, three, zero = map(decimal.Decimal, (1, 3, 0))
    third = compile_(lambda x: (x.shape[0], str(one / three), str(-(one / three))))
    by_zero = compile_(lambda x: x * float(one / zero))
    seen = [outcome(lambda: third(X)), outcome(lambda: by_zero(X))]
    with decimal.localcontext() as context:
        context.prec = 2
        context.traps[decimal.DivisionByZero] = False
        seen += [outcome(lambda: third(X)), outcome(lambda: by_zero(X))]
    return seen


def of_numpy_settings(compile_: Compile) -> list[Any]:
    one, zero = numpy.float64(1), numpy.float64(0)
    compiled = compile_(lambda x: x * float(one / zero))
    seen = []
    for mode in ("ignore", "raise", "ignore"):
        with numpy.errstate(all=mode):
            seen.append(outcome(lambda: compiled(X)))
    return seen


OTHERS = [
    of_metaclass, of_descriptor, of_abstract_class, of_missing_key, of_builtin_name,
    of_handled_exception, of_decimal_context, of_numpy_settings,
]  # fmt: skip


@pytest.mark.parametrize("program", OTHERS)
def test_what_c_code_asks_by_itself(program: Callable[[Compile], list[Any]]) -> None:
    assert program(own) == program(lambda f: f)


def test_a_class_that_changes_elsewhere_is_captured_once() -> None:
    class Counted:
        calls = 0

        def __add__(self, other: int) -> int:
            return 5

    c = Counted()
    compiled = own(lambda x: x * (c + 1))
    for _ in range(4):
        Counted.calls += 1
        assert compiled(X).tolist() == [5, 5]
    assert torch_backplane.counters(compiled)["programs"] == 1


def test_what_is_asked_of_a_compiled_function_is_the_functions_own() -> None:
    def function(x: torch.Tensor, a: int = 1, *, b: int = 2) -> torch.Tensor:
        return x * a * b

    function.custom = 5
    compiled = own(function)
    assert compiled.custom == 5
    assert compiled.__defaults__ == (1,)
    assert compiled.__kwdefaults__ == {"b": 2}
    assert compiled.__code__ is function.__code__
    assert inspect.getfullargspec(compiled).args == ["x", "a"]
    with pytest.raises(AttributeError, match="other"):
        operator.attrgetter("other")(compiled)


@pytest.mark.parametrize("owner", [torch.Tensor, torch.nn.Parameter])
@pytest.mark.parametrize("name", ["__add__", "__lt__", "__getitem__", "__rpow__", "__len__", "abs"])
def test_classes_of_tensors_may_be_given_others(
    monkeypatch: pytest.MonkeyPatch, owner: type[torch.Tensor], name: str
) -> None:
    def program(x: torch.Tensor) -> tuple[Any, ...]:
        return x + 1, x < 2, x[0], 2**x, len(x), x.abs()

    x = X.clone() if owner is torch.Tensor else torch.nn.Parameter(X.clone())
    compiled = torch_backplane.compile(program, backend="plugin:reference")

    def both() -> tuple[list[Any], list[Any]]:
        return tuple(
            [v.tolist() if isinstance(v, torch.Tensor) else v for v in f(x)]
            for f in (compiled, program)
        )

    before, expected = both()
    assert before == expected
    with monkeypatch.context() as patch:
        if name == "__len__":
            patch.setattr(owner, name, lambda s: 7)
        else:
            patch.setattr(owner, name, lambda s, *a: torch.Tensor.neg(s) * 5)
        changed, expected = both()
        assert expected != before
        assert changed == expected
    assert both() == (before, before)
