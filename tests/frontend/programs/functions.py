"""Functions: arguments, defaults, closures, decorators, and what of them changes between calls."""

from __future__ import annotations

import functools
import operator
from types import SimpleNamespace

import torch
from frontend.programs.catalog import attempt, program, scenario, x

FACTOR = 2.0
TABLE = {"add": torch.add, "mul": torch.mul}


def scaled(a, factor=2, *rest, shift=0, **more):
    return a * factor + shift + sum(rest) + sum(more.values())


@program((x(3),))
def argument_kinds(a):
    return (
        scaled(a),
        scaled(a, 3),
        scaled(a, 3, 4, 5),
        scaled(a, shift=1),
        scaled(a, factor=4, other=2),
        scaled(factor=1, a=a),
    )


def positional_only(a, b=1, /, c=2, *, d=3):
    return a * b + c * d


@program((x(3),))
def positional_and_keyword_only(a):
    return positional_only(a), positional_only(a, 2, c=5), positional_only(a, 1, 2, d=0)


@program((x(3),))
def wrong_arguments(a):
    return positional_only(a, b=2)


@program((x(3),))
def missing_argument_caught(a):
    try:
        positional_only()
    except TypeError as error:
        return a, str(error)


@program((x(3),))
def star_calls(a):
    args = (a, 2)
    more = {"shift": 1}
    return scaled(*args, **more), scaled(*args, *(1, 2), **more, **{"z": 4})


@program((x(3),))
def duplicate_keyword(a):
    return scaled(a, **{"shift": 1}, **{"shift": 2})


@program((x(3), 1, 2), (x(3),), (x(3), 5))
def star_arguments(a, *rest):
    return a + sum(rest), len(rest), rest


@scenario
def keyword_calls_program(compile):
    def function(a, *, scale=1, **rest):
        return a * scale, sorted(rest), rest.get("bias", 0)

    compiled = compile(function)
    yield compiled(x(3))
    yield compiled(x(3), scale=2)
    yield compiled(a=x(3), bias=4)
    yield compiled(x(3), bias=4, scale=3)
    yield attempt(compiled, x(3), a=1)


@scenario
def kwargs_popped_program(compile):
    def function(a, **kwargs):
        scale = kwargs.pop("scale", 1)
        kwargs.setdefault("extra", 5)
        kwargs.update(z=1)
        return a * scale, kwargs

    compiled = compile(function)
    yield compiled(x(3))
    yield compiled(x(3), scale=4)
    yield compiled(x(3), scale=4, other=None)


@scenario
def default_replaced_program(compile):
    def function(a, scale=2):
        return a * scale

    compiled = compile(function)
    yield compiled(x(3))
    function.__defaults__ = (5,)
    yield compiled(x(3))
    function.__defaults__ = None
    yield attempt(compiled, x(3))


@scenario
def default_of_callee_replaced_program(compile):
    def inner(a, scale=2):
        return a * scale

    compiled = compile(lambda a: inner(a) + 1)
    yield compiled(x(3))
    inner.__defaults__ = (5,)
    yield compiled(x(3))


@scenario
def keyword_default_changed_in_place_program(compile):
    def function(a, *, scale=2):
        return a * scale

    compiled = compile(function)
    yield compiled(x(3))
    function.__kwdefaults__["scale"] = 7
    yield compiled(x(3))


@scenario
def keyword_default_of_callee_changed_program(compile):
    def inner(a, *, scale=2):
        return a * scale

    compiled = compile(lambda a: inner(a) + 1)
    yield compiled(x(3))
    inner.__kwdefaults__["scale"] = 7
    yield compiled(x(3))


@scenario
def mutable_default_changed_program(compile):
    def function(a, sizes=[1, 2]):
        return a * sum(sizes)

    compiled = compile(function)
    yield compiled(x(3))
    function.__defaults__[0].append(4)
    yield compiled(x(3))


@scenario
def code_replaced_program(compile):
    def function(a):
        return a + 1

    def other(a):
        return a * 10

    compiled = compile(function)
    yield compiled(x(3))
    function.__code__ = other.__code__
    yield compiled(x(3))


@scenario
def code_of_callee_replaced_program(compile):
    def inner(a):
        return a + 1

    def other(a):
        return a * 10

    compiled = compile(lambda a: inner(a))
    yield compiled(x(3))
    inner.__code__ = other.__code__
    yield compiled(x(3))


@scenario
def closure_changed_program(compile):
    scale = 2

    def function(a):
        return a * scale

    compiled = compile(function)
    yield compiled(x(3))
    scale = 3
    yield compiled(x(3))
    scale = x(3)
    yield compiled(x(3))
    del scale
    yield attempt(compiled, x(3))
    scale = 2
    yield compiled(x(3))


@scenario
def closure_over_list_program(compile):
    parts = [1, 2]
    compiled = compile(lambda a: a * sum(parts) + len(parts))
    yield compiled(x(3))
    parts.append(5)
    yield compiled(x(3))
    parts[0] = 100
    yield compiled(x(3))


@scenario
def closure_over_dict_order_program(compile):
    parts = {"a": 1, "b": 2}
    compiled = compile(lambda a: (a + 1, list(parts)))
    yield compiled(x(3))
    parts["a"] = parts.pop("a")
    yield compiled(x(3))


@scenario
def global_changed_program(compile):
    space = {"scale": 2}
    exec("def function(a):\n    return a * scale", space)
    compiled = compile(space["function"])
    yield compiled(x(3))
    space["scale"] = 4
    yield compiled(x(3))
    space["scale"] = x(3)
    yield compiled(x(3))
    del space["scale"]
    yield attempt(compiled, x(3))


@scenario
def builtin_shadowed_program(compile):
    space = {}
    exec("def function(a):\n    return a * len([1, 2, 3])", space)
    compiled = compile(space["function"])
    yield compiled(x(3))
    space["len"] = lambda _: 10
    yield compiled(x(3))


@scenario
def global_function_replaced_program(compile):
    space = {"torch": torch}
    exec("def helper(a):\n    return a + 1\ndef function(a):\n    return helper(a) * 2", space)
    compiled = compile(space["function"])
    yield compiled(x(3))
    space["helper"] = torch.relu
    yield compiled(x(3))


@scenario
def nonlocal_counter_program(compile):
    def outer(a):
        count = 0

        def step(b):
            nonlocal count
            count += 1
            return b * count

        return step(step(step(a))), count

    compiled = compile(outer)
    yield compiled(x(3))
    yield compiled(x(4))


@program((x(3),))
def closure_made_and_called(a):
    def make(n):
        def inner(b):
            return b + a * n

        return inner

    functions = [make(i) for i in range(3)]
    return [f(a) for f in functions]


@scenario
def closure_returned_program(compile):
    def function(a, n):
        def inner(b):
            return b * n

        return inner(a), n

    compiled = compile(function)
    yield compiled(x(3), 2)
    yield compiled(x(3), 3)


@program((x(3),))
def lambdas(a):
    twice = lambda f: lambda b: f(f(b))
    return twice(lambda b: b * 2 + 1)(a)


@program((x(3), "add"), (x(3), "mul"))
def function_from_table(a, name):
    return TABLE[name](a, a), getattr(torch, name)(a, 2)


def logged(function):
    @functools.wraps(function)
    def wrapper(*args, **kwargs):
        return function(*args, **kwargs) * 2

    return wrapper


@logged
def decorated_inner(a, shift=0):
    return a + shift


@program((x(3),))
def decorated_callee(a):
    return decorated_inner(a), decorated_inner(a, shift=3), decorated_inner.__name__


@scenario
def decorated_target_program(compile):
    @logged
    def function(a, n=1):
        return a + n

    compiled = compile(function)
    yield compiled(x(3))
    yield compiled(x(3), n=4)


def with_options(scale=1):
    def decorate(function):
        @functools.wraps(function)
        def wrapper(self_or_a, *args):
            return function(self_or_a, *args) * scale

        wrapper.scale = scale
        return wrapper

    return decorate


@with_options(scale=3)
def optioned(a):
    return a + 1


@program((x(3),))
def decorator_with_options(a):
    return optioned(a), optioned.scale


@program((x(3),))
def function_attributes(a):
    def inner(b):
        return b + inner.step

    inner.step = 4
    return inner(a), inner.__name__, hasattr(inner, "none")


@scenario
def function_attribute_changed_program(compile):
    def inner(a):
        return a * inner.scale

    inner.scale = 2
    compiled = compile(lambda a: inner(a))
    yield compiled(x(3))
    inner.scale = 3
    yield compiled(x(3))


@program((x(3),))
def partials(a):
    half = functools.partial(torch.mul, other=0.5) if False else functools.partial(torch.mul, a)
    add = functools.partial(scaled, shift=2)
    return half(0.5), add(a), add(a, shift=5), functools.partial(add, factor=7)(a)


@scenario
def partial_target_program(compile):
    compiled = compile(functools.partial(scaled, factor=3))
    yield compiled(x(3))
    yield compiled(x(3), shift=2)


@scenario
def partial_argument_program(compile):
    compiled = compile(lambda f, a: f(a))
    yield compiled(functools.partial(scaled, factor=3), x(3))
    yield compiled(functools.partial(scaled, factor=4), x(3))
    yield compiled(scaled, x(3))


@scenario
def function_argument_program(compile):
    compiled = compile(lambda f, a: f(a) + 1)
    for function in (torch.relu, torch.sin, abs, lambda b: b * 2, scaled, torch.relu):
        yield compiled(function, x(3))


@scenario
def method_argument_program(compile):
    class Scale:
        def __init__(self, n):
            self.n = n

        def apply(self, a):
            return a * self.n

    one, two = Scale(2), Scale(3)
    compiled = compile(lambda f, a: f(a))
    yield compiled(one.apply, x(3))
    yield compiled(two.apply, x(3))
    one.n = 5
    yield compiled(one.apply, x(3))


@scenario
def method_target_program(compile):
    class Scale:
        def __init__(self, n):
            self.n = n

        def apply(self, a):
            return a * self.n

    scale = Scale(2)
    compiled = compile(scale.apply)
    yield compiled(x(3))
    scale.n = 4
    yield compiled(x(3))


@scenario
def compiled_as_method_program(compile):
    class Scale:
        def __init__(self, n):
            self.n = n

        def apply(self, a):
            return a * self.n

    Scale.apply = compile(Scale.apply)
    yield Scale(2).apply(x(3))
    yield Scale(3).apply(x(3))


@scenario
def compiled_inside_compiled_program(compile):
    inner = compile(lambda a: a * 2)
    outer = compile(lambda a: inner(a) + 1)
    yield outer(x(3))
    yield inner(x(3))


@program((x(3),))
def operators_as_functions(a):
    return operator.add(a, 1), operator.mul(a, 2), operator.neg(a), operator.getitem([1, 2], 1)


@program((x(3),))
def operator_getters(a):
    config = SimpleNamespace(scale=3, inner=SimpleNamespace(n=1))
    return (
        a * operator.attrgetter("scale")(config),
        operator.itemgetter(1)([1, 2, 3]),
        operator.attrgetter("inner.n")(config),
    )


@program((x(3),))
def reduce_over_tensors(a):
    return functools.reduce(operator.add, [a, a * 2, a * 3]), functools.reduce(max, [1, 3, 2], 0)


@functools.cache
def cached_size(n):
    return n * 2 + 1


@program((x(3), 2), (x(3), 3))
def cached_function(a, n):
    return a * cached_size(n)


@functools.singledispatch
def describe(value):
    return 0


@describe.register
def _(value: int):
    return value + 1


@describe.register
def _(value: str):
    return len(value)


@program((x(3), 3), (x(3), "four"), (x(3), None))
def single_dispatch(a, value):
    return a + describe(value)


@program((x(3),))
def argument_rebound(a):
    a = a + 1
    (a, b) = (a * 2, a)
    a, b = b, a
    return a, b


@program((x(3),))
def locals_and_dir(a):
    n = 3
    names = sorted(locals())
    return a + n, names


@program((x(3),))
def annotations(a):
    def inner(b: torch.Tensor, n: int = 2) -> torch.Tensor:
        return b * n

    return inner(a), sorted(inner.__annotations__)


@program((x(3),))
def callable_tests(a):
    return a + 1, callable(len), callable(a), callable(3), callable(lambda: 0)


@scenario
def recursive_closure_program(compile):
    def function(a):
        def factorial(n):
            return 1 if n < 2 else n * factorial(n - 1)

        return a * factorial(4)

    compiled = compile(function)
    yield compiled(x(3))


@scenario
def global_constant_program(compile):
    global FACTOR
    compiled = compile(lambda a: a * FACTOR)
    before = FACTOR
    try:
        yield compiled(x(3))
        FACTOR = 5.0
        yield compiled(x(3))
        FACTOR = 5
        yield compiled(x(3, 1))
    finally:
        FACTOR = before
