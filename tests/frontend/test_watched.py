"""Programs under a debugger, a profiler or a coverage tool, and beside audit hooks."""

from __future__ import annotations

import contextlib
import gc
import pickle
import sys
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
from frontend.helpers import captured, check
from torch_backplane import frontend

X = torch.linspace(-1, 1, 6)


def tracer(add: Callable[[str], None]) -> contextlib.AbstractContextManager[None]:
    @contextlib.contextmanager
    def active() -> Any:
        sys.settrace(lambda frame, event, argument: add(frame.f_code.co_name))
        try:
            yield
        finally:
            sys.settrace(None)

    return active()


def monitor(
    add: Callable[[str], None], code: Any = None
) -> contextlib.AbstractContextManager[None]:
    monitoring = sys.monitoring
    tool, event = monitoring.COVERAGE_ID, monitoring.events.PY_START

    @contextlib.contextmanager
    def active() -> Any:
        monitoring.use_tool_id(tool, "test")
        monitoring.register_callback(tool, event, lambda code, offset: add(code.co_name))
        if code:
            monitoring.set_local_events(tool, code, event)
        else:
            monitoring.set_events(tool, event)
        try:
            yield
        finally:
            if code:
                monitoring.set_local_events(tool, code, 0)
            monitoring.set_events(tool, 0)
            monitoring.free_tool_id(tool)

    return active()


def watched_inside(a):
    return a * 2


def watched(a):
    return watched_inside(a) + 1


WATCHERS = {"settrace": tracer}
if hasattr(sys, "monitoring"):  # from Python 3.12 on
    WATCHERS |= {"all code": monitor}
    WATCHERS |= {"one function": lambda add: monitor(add, watched_inside.__code__)}


@pytest.mark.parametrize("kind", WATCHERS)
def test_watched_programs_run_as_plain_python(kind: str) -> None:
    names: list[str] = []
    compiled = frontend.compile(watched, backend="eager")
    with WATCHERS[kind](names.append):
        result = compiled(X)
    assert torch.equal(result, X * 2 + 1)
    assert "watched_inside" in names
    counters = frontend.counters(compiled)
    reasons = [*counters["plain_reasons"], *counters["breaks"]]
    assert any("a debugger, profiler or coverage tool watches" in reason for reason in reasons)
    frontend.forget(compiled)
    assert torch.equal(compiled(X), X * 2 + 1)
    assert captured(compiled) and frontend.counters(compiled)["entries"] == 1


def test_audit_hooks_are_none_of_the_program() -> None:
    seen: list[str] = []
    active = True

    def hook(event: str, _arguments: Any) -> None:
        if active:
            seen.append(event)

    def program(a):
        sys.audit("backplane.test")
        return a + int(a.sum())

    sys.addaudithook(hook)  # for as long as the process lives
    try:
        check(program, (X,))
        assert "backplane.test" in seen

        def reads_a_code(a):
            return a * 2, (lambda: 1).__code__.co_argcount

        assert captured(check(reads_a_code, (X,)))
    finally:
        active = False


def test_callbacks_of_the_collector_are_none_of_the_program() -> None:
    seen: list[float] = []

    def inner() -> float:
        return time.perf_counter()

    def callback(_phase: str, _info: dict[str, int]) -> None:
        seen.append(inner())

    lists = pickle.dumps([[i] for i in range(100)])

    def program(a):
        kept = pickle.loads(lists)  # a break, in which the collector counts lists
        return a + len(kept)

    compiled = frontend.compile(program, backend="eager")
    gc.callbacks.append(callback)
    threshold = gc.get_threshold()
    gc.set_threshold(5)
    try:
        for _ in range(3):
            assert torch.equal(compiled(X), X + 100)
    finally:
        gc.set_threshold(*threshold)
        gc.callbacks.remove(callback)
    assert seen
    counters = frontend.counters(compiled)
    assert (counters["programs"], len(counters["breaks"])) == (2, 1), counters
