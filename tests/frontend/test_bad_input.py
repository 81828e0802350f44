"""What a program may do to a compiled function from outside, and what must come of it."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from frontend.helpers import assert_same, captured
from patience import run as run_patiently
from threads import run_in_threads
from torch_backplane import frontend


def branches(x: torch.Tensor) -> torch.Tensor:
    y = x * 2
    if y.sum() > 0:
        y = y + 1
    return y


def straight(x: torch.Tensor) -> torch.Tensor:
    return (x * 2).sin()


WATCHES = "a debugger, profiler or coverage tool watches the program"


@pytest.mark.parametrize("watch", [sys.settrace, sys.setprofile])
@pytest.mark.parametrize("function", [straight, branches])
def test_a_debugger_comes_and_goes(
    watch: Callable[[Any], None], function: Callable[..., torch.Tensor]
) -> None:
    compiled, seen = frontend.compile(function), []

    def tracer(frame: Any, event: str, arg: Any) -> Any:
        if frame.f_code is function.__code__:
            seen.append(event)
        return tracer

    before = sys.gettrace(), sys.getprofile()
    for _ in range(5):
        watch(tracer)
        try:
            result = compiled(torch.ones(3))
        finally:
            watch(None)
        assert torch.equal(result, function(torch.ones(3)))
    assert seen.count("call") == seen.count("return") == 5
    counters = frontend.counters(compiled)
    assert counters["plain_calls"] == 5 and counters["entries"] == 0
    assert list(counters["plain_reasons"]) == [WATCHES]
    for _ in range(2):
        assert torch.equal(compiled(torch.ones(3)), function(torch.ones(3)))
    assert frontend.counters(compiled)["plain_calls"] == 5
    assert frontend.entries(compiled)
    watch(tracer)  # beside entries that hold
    try:
        result = compiled(torch.ones(3))
    finally:
        watch(None)
    assert torch.equal(result, function(torch.ones(3)))
    sys.settrace(before[0])
    sys.setprofile(before[1])


def test_a_debugger_in_a_resumed_frame() -> None:
    def function(x: torch.Tensor, watch: bool) -> torch.Tensor:
        y = x * 2
        if watch:
            sys.settrace(lambda *_: None)
        if y.sum() > 0:
            y = y + 1
        sys.settrace(None)
        return y * 3

    compiled = frontend.compile(function)
    for watch in (False, True, True, False):
        assert torch.equal(compiled(torch.ones(2), watch), torch.full((2,), 9.0))
    assert sys.gettrace() is None


@pytest.mark.parametrize(("first", "second"), [(straight, branches), (branches, straight)])
def test_the_code_is_replaced_while_it_is_cached(first: Any, second: Any) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return x

    compiled = frontend.compile(function)
    for one in (first, second, first):
        function.__code__ = one.__code__
        for sign in (1, -1, 1):
            x = sign * torch.ones(3)
            assert torch.equal(compiled(x), one(x))
    assert captured(compiled), frontend.counters(compiled)


def test_the_code_is_replaced_by_its_own_call() -> None:
    def later(x: torch.Tensor) -> torch.Tensor:
        return x - 1

    def function(x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        if y.sum() > 0:
            function.__code__ = replacement
        return y + 1

    replacement = later.__code__
    compiled = frontend.compile(function)
    assert torch.equal(compiled(-torch.ones(2)), torch.full((2,), -1.0))
    first = function.__code__
    replacement = later.__code__.replace(co_freevars=first.co_freevars)
    assert torch.equal(compiled(torch.ones(2)), torch.full((2,), 3.0))
    assert function.__code__ is replacement
    assert torch.equal(compiled(torch.ones(2)), torch.zeros(2))


def numbers(log: list[str]) -> Iterator[int]:
    try:
        yield from range(5)
    finally:
        log.append("closed")


def test_generators_left_half_consumed() -> None:
    def own(x: torch.Tensor, log: list[str]) -> torch.Tensor:
        source = numbers(log)
        x = x * (next(source) + 1) + next(source)
        if x.sum() > 0:
            x = x + next(source)
        return x

    compiled = frontend.compile(own)
    for sign in (1, -1, 1):
        ours, plain = [], []
        out, expected = compiled(sign * torch.ones(2), ours), own(sign * torch.ones(2), plain)
        gc.collect()
        assert_same(out, expected)
        assert ours == plain == ["closed"]


def test_finalizers_run_as_often_as_in_plain_python() -> None:
    log: list[str] = []

    class Noted:
        def __init__(self, x: torch.Tensor) -> None:
            self.x = x

        def __del__(self) -> None:
            log.append("gone")

    def function(x: torch.Tensor) -> torch.Tensor:
        return Noted(x + 1).x * 2

    compiled = frontend.compile(function)
    for n in range(1, 4):
        assert torch.equal(compiled(torch.ones(2)), torch.full((2,), 4.0))
        gc.collect()
        assert log == ["gone"] * n


def test_a_generator_that_is_left_closes_as_a_part_of_the_call() -> None:
    class Mode:
        value = 0

    def switched(mode: Mode) -> Iterator[int]:
        before, mode.value = mode.value, 5
        try:
            yield mode.value
        finally:
            mode.value = before + 1

    def function(x: torch.Tensor, mode: Mode) -> torch.Tensor:
        source = switched(mode)
        return x * next(source)

    compiled, mode = frontend.compile(function), Mode()
    for n in range(1, 4):
        assert torch.equal(compiled(torch.ones(2), mode), torch.full((2,), 5.0))
        assert mode.value == n


def test_generators_without_handlers_are_captured() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        source = (n + x for n in (1, 2, 3))
        return next(source) + next(source)

    compiled = frontend.compile(function)
    for _ in range(2):
        assert torch.equal(compiled(torch.ones(2)), torch.full((2,), 5.0))
    assert captured(compiled) and not frontend.counters(compiled)["breaks"]


def test_a_generator_from_outside_is_consumed_once() -> None:
    def function(x: torch.Tensor, source: Iterator[int]) -> torch.Tensor:
        return x * next(source)

    compiled, log = frontend.compile(function), []
    source = numbers(log)
    for n in range(4):
        assert torch.equal(compiled(torch.ones(2), source), torch.full((2,), float(n)))
    del source
    gc.collect()
    assert log == ["closed"]


@pytest.mark.parametrize("error", [SystemExit, GeneratorExit, BaseException])
def test_errors_that_are_no_exceptions_keep_their_effects(error: type[BaseException]) -> None:
    def function(x: torch.Tensor, log: list[Any]) -> None:
        log.append(x.shape[0])
        raise error(3)

    compiled, log = frontend.compile(function), []
    for _ in range(2):
        with pytest.raises(error) as caught:
            compiled(torch.ones(2), log)
        assert caught.value.args == (3,)
    assert log == [2, 2]


def test_threads_with_other_grad_modes_and_breaks() -> None:
    weight = torch.ones(3, requires_grad=True)

    def function(x: torch.Tensor) -> torch.Tensor:
        y = x * weight
        if y.sum() > 0:
            y = y * 2
        return y + 1

    compiled = frontend.compile(function, entry_limit=16)

    def work(number: int) -> None:
        for i in range(60):
            x = torch.full((3,), 1.0 if i % 3 else -1.0)
            inference = number == 3
            with torch.inference_mode(inference), torch.set_grad_enabled(number % 2 == 0):
                out, expected = compiled(x), function(x)
                assert torch.equal(out, expected)
                assert out.requires_grad == expected.requires_grad
                assert out.is_inference() == expected.is_inference()

    run_in_threads(work)
    reasons = frontend.counters(compiled)["plain_reasons"]
    assert all(reason.endswith("called while it is being captured") for reason in reasons), reasons


SHUTDOWN = """
import atexit, sys, threading, time
import torch, torch_backplane
from torch_backplane import frontend

def branches(x):
    y = x * 2
    if y.sum() > 0:
        y = y + 1
    return y

def backend(graph, examples):
    return graph.forward

kept = [frontend.compile(branches), frontend.compile(lambda x: x + 1, backend="reference"),
        frontend.compile(lambda x: x * 3, backend=backend),
        frontend.compile(torch.nn.Linear(3, 3), debug="compare")]
x = torch.ones(3)

def call():
    return [one(x).sum().item() for one in kept]

class Last:
    def __del__(self):
        self.call()

Last.call = staticmethod(call)
expected = call()
last = Last()
cycle = [last]
cycle.append(cycle)
sys.kept = last
with_history = kept[3](x)
atexit.register(lambda: print("at exit", call() == expected))

ready = threading.Event()

def run():
    kept.append(frontend.compile(branches))
    call()
    expected.append(call()[-1])
    ready.set()
    threading.Event().wait()  # while the interpreter ends

threading.Thread(target=run, daemon=True).start()
ready.wait()
print("done")
"""


def test_the_interpreter_ends_with_entries() -> None:
    done = run_patiently([sys.executable, "-c", SHUTDOWN])
    assert done.stdout == "done\nat exit True\n", done
    assert done.returncode == 0, done
    assert "Fatal" not in done.stderr and "Segmentation" not in done.stderr, done.stderr


def test_a_deep_stack_is_plain_python_s_error() -> None:
    def deep(x: torch.Tensor, n: int) -> torch.Tensor:
        if n == 0:
            return x if x.sum() > 0 else -x
        return deep(x, n - 1) + 1

    compiled = frontend.compile(deep)
    assert torch.equal(compiled(torch.ones(2), 40), torch.full((2,), 41.0))
    for _ in range(2):
        with pytest.raises(RecursionError):
            compiled(torch.ones(2), 100_000)
    assert torch.equal(compiled(torch.ones(2), 3), torch.full((2,), 4.0))


DEEP = """
import sys
import torch
from torch_backplane import frontend

sys.setrecursionlimit(1_000_000)


def deep(x, n):
    if n == 0:
        return x if x.sum() > 0 else -x
    return deep(x, n - 1) + 1


compiled = frontend.compile(deep, backend="eager")
try:
    compiled(torch.ones(2), 500_000)
except RecursionError:
    print("too deep")
print(compiled(torch.ones(2), 3).tolist(), compiled(torch.ones(2), 1000).tolist())
print(*frontend.counters(compiled)["breaks"])
"""


def test_a_stack_that_is_allowed_to_outgrow_the_threads_own() -> None:
    done = run_patiently([sys.executable, "-c", DEEP])
    assert done.returncode == 0, done
    assert done.stdout.startswith("too deep\n[4.0, 4.0] [1001.0, 1001.0]\n"), done.stdout
    assert "too deep for the C stack" in done.stdout


WARNS_ONCE = """
import torch
from torch_backplane import frontend

compiled = frontend.compile(lambda x: x + float(x.sum()), backend="eager")
for _ in range(3):
    compiled(torch.ones(2, requires_grad=True))
"""


def test_what_pytorch_warns_of_once_is_shown() -> None:
    """The warning comes while the capture gives up at float()."""
    done = run_patiently([sys.executable, "-c", WARNS_ONCE])
    assert done.returncode == 0, done
    assert done.stderr.count("UserWarning: Converting a tensor") == 1, done.stderr
    assert "RuntimeError" not in done.stderr


def test_warnings_of_c_code_come_with_every_call() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return x + torch.range(1, 2)

    compiled = frontend.compile(f, backend="eager")
    for _ in range(3):
        with pytest.warns(UserWarning, match="torch.range is deprecated"):
            assert torch.equal(compiled(torch.ones(2)), torch.tensor([2.0, 3.0]))
    assert "the program warns" in next(iter(frontend.counters(compiled)["breaks"]))
