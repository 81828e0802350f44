"""Programs that cannot be captured as a whole, each compared with plain Python."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import pytest
import torch
from frontend.helpers import check
from torch_backplane import frontend

X = torch.linspace(-1, 1, 6)
PROGRAMS: dict[str, tuple[Callable[..., Any], list[tuple[Any, ...]]]] = {}


def program(*calls: tuple[Any, ...]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def add(function: Callable[..., Any]) -> Callable[..., Any]:
        assert function.__name__ not in PROGRAMS
        PROGRAMS[function.__name__] = (function, list(calls))
        return function

    return add


@program((X, X + 1), (X, X - 1), (X, X + 2))
def branch(a, b):
    x = a / (torch.abs(a) + 1)
    if b.sum() < 0:
        b = b * -1
    return x * b


@program((X,), (-X - 1,))
def branch_with_pending_values(a):
    return torch.add(a * 2, a + 1 if a.sum() > 0 else a - 1), max(1, 2 if a.sum() > 0 else 3)


@program((X,))
def item(a):
    n = (a + 1).sum().item()
    return a * n, n


@program((X, 3), (X - 2, 3))
def conditions(a, k):
    flag = a.sum() > 0 and k > 2
    other = a.max() > 5 or a.min() < -1
    return (a + 1 if flag else a - 1), bool(other), not a.sum() > 0


@program((X + 1,), (X - 9,))
def while_loop(a):
    n = 0
    while a.sum() < 20 and n < 30:
        a = a + 1
        n += 1
    return a, n


@program((X,), (X + 50,))
def for_loop(a):
    total = []
    for i in range(6):
        a = a + i
        if a.sum() > 60:
            break
        total.append(a * 2)
    else:
        return a, total
    return a - 1, total


@program((X,))
def loop_over_many(a):
    n = 0
    for i, (key, value) in enumerate({"a": 1, "b": 2, "c": 3}.items()):
        a = a + value
        if a.sum().item() > 1e9:
            return key
        n += i
    for left, right in zip([1, 2, 3], (4, 5, 6), strict=True):
        a = a * left
        n += int(a.sum() > 0) + right
    return a, n


@program((X,))
def nested_calls(a):
    def inner(x):
        y = x * 2
        if y.sum() > 0:
            y = y + 1
        return y - 1

    return inner(a) + inner(a + 1)


@program((X,), (X + 1,))
def nothing_but_a_call(a):
    return branch(a, a)


@program((X,))
def closure(a):
    count = 0

    def add(x):
        nonlocal count
        count += 1
        return x + count

    b = add(a)
    if b.sum() > -100:
        b = add(b)
    return add(b), count


@program((X,))
def recursive_closure(a):
    def power(x, n):
        return x if n == 0 else power(x * 2, n - 1)

    scale = power(a, 2)
    n = int(scale.numel() + scale.sum().item())
    return power(a, 3), n


@program((X,))
def no_grad(a):
    w = a.clone().requires_grad_()
    with torch.no_grad():
        b = w * 2
        n = float(b.sum())
        c = b + n
    d = w * 3
    return b, c, d, torch.is_grad_enabled()


@contextlib.contextmanager
def scaled(log):
    log.append("in")
    try:
        yield 2
    finally:
        log.append("out")


class Manager:
    def __init__(self, log, swallows):
        self.log, self.swallows = log, swallows

    def __enter__(self):
        self.log.append("enter")
        return self

    def __exit__(self, kind, value, trace):
        self.log.append(kind.__name__ if kind else None)
        return self.swallows


@program((X, True, True), (X, True, False), (X, False, True), (X, False, False))
def with_block(a, fails, swallows):
    log = []
    with Manager(log, swallows):
        b = a * 2
        n = (b + 1).sum().item()
        if fails:
            raise ValueError(f"sum {n:.2f}")
        b = b + n
    return b, log


@program((X, 0), (X, 1))
def with_generator(a, k):
    log = []
    with scaled(log) as factor:
        b = a * factor
        if b.sum() > k:
            b = b + 1
    return b, log


@program((X, 0), (X, 1))
def try_block(a, divisor):
    log = []
    try:
        b = a * 2
        log.append(int(b.sum() > 0))
        n = len(log) // divisor
        b = b + n
    except ZeroDivisionError as error:
        log.append(str(error))
        b = a
    else:
        log.append("else")
    finally:
        log.append("finally")
    return b, log


@program((X,))
def in_handler(a):
    try:
        raise KeyError("x")
    except KeyError as error:
        n = a.sum().item()
        return a + n, error.args


@program((X,))
def raises(a):
    b = a + 1
    raise ValueError(f"{b.sum().item():.3f}")


@program((X,))
def error_in_the_rest(a):
    n = int(a.sum())
    return (a + n)[100]


@program((X, 1), (X, 1, 2, 3))
def rest(a, *others, **named):
    n = int(a.sum()) + len(others)
    return a + n, others, named


@program((X,))
def keywords(a, *, k=3):
    named = {"dim": 0}
    n = int(a.sum(**named))
    return torch.sum(a * n, **named), {"k": k, "n": n}


@program((X,))
def deleted(a):
    b = a + 1
    del a
    n = int(b.sum())
    try:
        return a, n  # noqa: F821
    except UnboundLocalError:
        return b, n


class Base:
    scale = 2

    def run(self, a):
        return a * self.scale


class Derived(Base):
    def run(self, a):
        n = int(a.sum() > 0)
        return super().run(a) + n

    def run_in_closure(self, a):
        n = int(a.sum() > 0)
        return (lambda x: super(Derived, self).run(x) + n)(a)


@program((X,), (X + 1,))
def super_behind_a_break(a):
    return Derived().run(a), Derived().run_in_closure(a)


@program((X,))
def slices(a):
    n = int(a.sum() > -5)
    a = a.clone()
    a[n:] = a[n:] + int(a[0] < 5)
    part = a[int(a[1] < 5) :]
    return a, part, f"{int(a[2] > 0)}-{n}"


@program((X,))
def unpacked(a):
    first, *others = a.tolist()
    return first, others, a * first


@program((X,))
def in_place(a):
    a.add_(1)
    n = int(a.sum())
    a.mul_(n)
    return a, n


@program((X,))
def views(a):
    b = a.view(2, 3)
    n = int(b.sum() > -3)
    b.add_(n)
    return a, b


@program((X,))
def comprehension(a):
    return [int((a + i).sum() > 0) for i in range(4)], {i: a * i for i in range(int(a.numel() / 3))}


@program((X,))
def conditional_import(a):
    import math

    if a.sum() > -1:
        return a * math.pi
    return a


@program((X,))
def looks_at_its_frame(a):
    b = a + int(a.sum() > 0)
    return sorted(locals()), b


@program((X,))
def chained_comparison(a):
    return -5 < a.sum() < 5, a + 1


@program((X,), (X + 100,))
def assertion(a):
    if not a.sum() < 100:
        raise AssertionError("too large")
    return a + 1


@program((X,))
def walrus(a):
    if (n := a.sum().item()) < 3:
        return a + n
    return a


@program((X,))
def aliased_results(a):
    out = [a + 1]
    same = out
    n = int(out[0].sum())
    same.append(a + n)
    return out is same, out, same


@program((X,), (X - 2,))
def comprehension_that_hides_a_variable(a):
    i = a + 1
    values = [i + a.sum().item() for i in range(3)]
    return i, values, {i: n for i in "ab" for n in values if a.sum() > 0}


@program((X,))
def comprehension_with_a_cell(a):
    functions = [lambda: (n, a * n) for n in (1, 2) if a.sum() < 9]  # noqa: B023  # the last n
    return [f() for f in functions]


@program((X, [1, 2, 3]))
def slices_of_lists(a, items):
    low = int(a.sum()) + 1
    copied = items[:]
    copied[low:] = items[:low]
    return copied, a[low:], items[-low:]


class Scaled:
    scale = 3

    def forward(self, a):
        return a * self.scale

    @classmethod
    def made(cls, n):
        return cls.__name__, n


class ScaledTwice(Scaled):
    def forward(self, a):
        a = super().forward(a)
        if a.sum() > 0:
            a = super().forward(a) + super().scale
        return [super(ScaledTwice, self).forward(a) for _ in range(2)], super().made(int(a.sum()))


@program((X,), (X + 1,))
def super_across_a_break(a):
    return ScaledTwice().forward(a)


def inner_generator(a):
    try:
        got = yield a + 1
        yield a + got
    except ValueError as error:
        yield a * len(str(error))
    return a * 5


def outer_generator(a):
    result = yield from inner_generator(a)
    yield result + 1


@program((X,))
def thrown_into_a_generator(a):
    a = a + int(a.sum())
    generator = outer_generator(a)
    values = [next(generator), generator.throw(ValueError("four")), next(generator)]
    other = outer_generator(a)
    values += [next(other), other.send(3)]
    other.close()
    return values, next(other, None)


@program((X,), (X - 9,))
def variable_that_may_be_unbound(a):
    if a.sum() > -1:
        n = a + 1
    del a
    try:
        return n
    except UnboundLocalError as error:
        return str(error)


# Frames that cannot go on behind their break, each for a reason that is counted.
WHOLLY_PLAIN = {"looks_at_its_frame", "in_handler", "with_generator", "deleted"}
# Where resume functions run as plain Python: numbers that change are entries of their own, and a
# program that raises is not captured.
PARTLY_PLAIN = {
    "while_loop": "no more than 8 entries",
    "for_loop": "no more than 8 entries",
    "with_block": "Running the program for capture failed: sum",
    "try_block": "Running the program for capture failed",
    "assertion": "too large",
    "raises": "Running the program for capture failed",
    "with_generator": "a generator or coroutine",
    "error_in_the_rest": "Running the program for capture failed: index 100",
    "slices": "shares memory with",
    "views": "shares memory with",
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_program(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    function, calls = PROGRAMS[name]
    compiled = check(function, *calls)
    counters = frontend.counters(compiled)
    assert counters["breaks"] or name in WHOLLY_PLAIN, counters
    unexpected = [r for r in counters["plain_reasons"] if PARTLY_PLAIN.get(name, "-") not in r]
    assert not unexpected or name in WHOLLY_PLAIN, unexpected
