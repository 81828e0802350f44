"""What a frame that is cut at breaks keeps as it was: order, gradients, tracebacks, lifetimes, names."""

from __future__ import annotations

import copy
import gc
import sys
from typing import Any

import pytest
import torch
from frontend.helpers import assert_same, captured, check
from threads import run_in_threads
from torch_backplane import frontend

X = torch.linspace(-1, 1, 6)


def breaks(compiled: Any) -> dict[str, int]:
    return frontend.counters(compiled)["breaks"]


def branch(a, b):
    x = a / (torch.abs(a) + 1)
    if b.sum() < 0:
        b = b * -1
    return x * b


def test_output_keeps_its_order(capsys: pytest.CaptureFixture[str]) -> None:
    def prints(a):
        print("first", a.shape)
        b = a + 1
        print("second", float(b.sum()))
        return b * 2

    compiled = frontend.compile(prints)
    assert_same(compiled(X), prints(X))
    assert_same(compiled(X), prints(X))
    lines = capsys.readouterr().out.splitlines()
    assert lines == lines[:2] * 4
    assert captured(compiled) and len(breaks(compiled)) == 3


def test_gradients_cross_a_break() -> None:
    def function(a, w):
        y = (a * w).relu()
        if y.mean() > 0.1:
            y = y * 2
        with torch.no_grad():
            n = y.sum().item()
        return (y * w).sum() * n

    compiled = frontend.compile(function)
    for scale in (1.0, 5.0, 1.0):
        ours, plain = X.clone().requires_grad_(), X.clone().requires_grad_()
        compiled(X * scale, ours).backward()
        function(X * scale, plain).backward()
        assert torch.equal(ours.grad, plain.grad)
    assert captured(compiled)


def test_random_numbers_keep_their_order() -> None:
    def function(a):
        b = a + torch.rand(6)
        if b.sum() > -100:
            b = b * torch.rand(6)
        return b + torch.rand(6)

    compiled = frontend.compile(function)
    for _ in range(3):
        torch.manual_seed(3)
        expected = function(X)
        torch.manual_seed(3)
        assert torch.equal(compiled(X), expected)
    assert captured(compiled)


def test_a_long_loop_grows_no_stack() -> None:
    def function(a):
        n = 0
        while a.sum() < 3000:
            a = a + 1
            n += 1
            n = n % 2
        return a, len_of_stack()

    def len_of_stack():
        depth, frame = 0, sys._getframe()
        while frame:
            depth, frame = depth + 1, frame.f_back
        return depth

    compiled = frontend.compile(function)
    assert_same(compiled(X), function(X))
    assert len(breaks(compiled)) >= 1


def test_traceback_names_the_line() -> None:
    def function(a):
        n = int(a.sum())
        b = a + n
        return b.view(100)

    compiled = frontend.compile(function)
    seen = []
    for callee in (function, compiled, compiled):
        with pytest.raises(RuntimeError) as caught:
            callee(X)
        trace = caught.value.__traceback__
        while trace.tb_next:
            trace = trace.tb_next
        seen.append((str(caught.value), trace.tb_lineno))
    assert seen[0] == seen[1] == seen[2]


def test_strict_says_where() -> None:
    def function(a):
        return a + int(a.sum())

    with pytest.raises(RuntimeError, match=r"test_kept_over_breaks\.py:\d+"):
        frontend.compile(function, strict=True)(X)


def test_no_references_are_kept() -> None:
    def function(a, thing):
        n = int(a.sum())
        return a + n, thing

    compiled = frontend.compile(function)
    thing = object()
    for _ in range(3):
        compiled(X, thing)
    gc.collect()
    before = sys.getrefcount(thing)
    for _ in range(200):
        compiled(X, thing)
    gc.collect()
    assert sys.getrefcount(thing) == before


def test_reset_while_running() -> None:
    def function(a):
        b = a + 1
        frontend.forget(holder[0])
        return b * int(b.sum())

    holder = [frontend.compile(function)]
    for _ in range(3):
        assert_same(holder[0](X), X.add(1) * int(X.add(1).sum()))


def test_threads() -> None:
    compiled = frontend.compile(branch)

    def work(sign: int) -> None:
        for i in range(30):
            b = X * sign + sign * i
            assert torch.equal(compiled(X, b), branch(X, b))

    run_in_threads(work, (1, -1, 1, -1))


def test_finalizer_that_calls_a_compiled_function() -> None:
    results = []

    class Holder:
        def __del__(self):
            results.append(compiled(X, X - 1))

    compiled = frontend.compile(branch)

    def function(a):
        holder = Holder()
        b = a + int(a.sum())
        del holder
        return b * 2

    outer = frontend.compile(function)
    for _ in range(3):
        assert torch.equal(outer(X), function(X))
    for result in results:
        assert torch.equal(result, branch(X, X - 1))


def test_module_with_a_break_inside() -> None:
    class Block(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = torch.nn.Linear(6, 6)

        def forward(self, x):
            y = self.linear(x)
            if y.mean() > 0:
                y = y * 2
            return torch.relu(y) + x

    torch.manual_seed(0)
    net = torch.nn.Sequential(Block(), torch.nn.Linear(6, 6), Block())
    plain = copy.deepcopy(net)
    compiled = frontend.compile(net)
    for i in range(4):
        x = torch.randn(2, 6, generator=torch.Generator().manual_seed(i))
        assert torch.equal(compiled(x), plain(x))
        compiled(x).sum().backward()
        plain(x).sum().backward()
    for ours, theirs in zip(net.parameters(), plain.parameters(), strict=True):
        assert torch.equal(ours.grad, theirs.grad)
    assert captured(compiled._backplane_compiled)


def test_depth_of_recursion_across_frames() -> None:
    """As deep as plain Python: a frame hook costs a level of C for each call."""

    def depth(a, n):
        if n == 0:
            return float(a.sum())
        return depth(a, n - 1)

    compiled = frontend.compile(depth, backend="eager")
    assert compiled(X, 800) == depth(X, 800)


def comprehension_that_fails(a):
    n = 5
    try:
        return [a[n] + float(a.sum()) for n in (0, 1, 9)]
    except (IndexError, TypeError) as error:
        return n, str(error)


def stop_iteration_in_a_generator(a):
    a = a + int(a.sum())

    def broken():
        yield a + 1
        next(iter(()))

    try:
        return list(broken())
    except RuntimeError as error:
        return str(error), type(error.__cause__).__name__


# What is captured of them differs by the version of Python.
def test_exceptions_that_versions_treat_differently() -> None:
    check(comprehension_that_fails, (X,), (None,))
    check(stop_iteration_in_a_generator, (X,))


def callers_names() -> tuple[str, str]:
    code = sys._getframe(1).f_code
    return code.co_name, code.co_qualname


def asks_for_its_name(a):
    if a.sum() > 0:
        a = a + 1
    return a, callers_names()


def test_frames_behind_a_break_have_the_functions_name() -> None:
    compiled = frontend.compile(asks_for_its_name)
    a, names = compiled(X + 1)
    assert breaks(compiled)
    assert torch.equal(a, X + 2)
    assert names == ("asks_for_its_name", "asks_for_its_name")
