"""Many calls, many captures, many threads, and TorchDynamo beside us."""

from __future__ import annotations

import gc
import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from frontend.helpers import captured
from frontend.programs.catalog import x
from threads import run_in_threads
from torch import nn
from torch_backplane import frontend

CALLS = 100_000


class Config:
    scale = 2.0
    names = ("a", "b")


def mixed(a: torch.Tensor, config: Config, *rest: int, **more: Any) -> Any:
    """Reads and returns values of many kinds."""
    total = sum(rest) + len(more)
    return {"out": a * config.scale + total, "names": [*config.names, None]}, (a, True, 1.5, rest)


def counts_of(objects: list[Any]) -> list[int]:
    return [sys.getrefcount(one) for one in objects]


def growth(work: Callable[[], Any], watched: list[Any]) -> tuple[int, list[int]]:
    """Blocks of memory and references to `watched` that remain after the work."""
    gc.collect()
    before, blocks = counts_of(watched), sys.getallocatedblocks()
    work()
    gc.collect()
    more = sys.getallocatedblocks() - blocks
    return more, [now - was for now, was in zip(counts_of(watched), before, strict=True)]


def test_calls_leak_nothing() -> None:
    compiled = frontend.compile(mixed)
    a, config = x(3), Config()

    def work() -> None:
        for _ in range(CALLS):
            compiled(a, config, 1, 2, key=None)

    with torch.no_grad():
        work()
        blocks, references = growth(
            work, [a, config, config.names, None, True, mixed, "out", Config]
        )
    assert captured(compiled), frontend.counters(compiled)
    assert frontend.entries(compiled)[0]["hits"] == 2 * CALLS
    assert blocks < 200
    assert max(references) < 20, references


def test_failing_guards_leak_nothing() -> None:
    compiled = frontend.compile(lambda a, n: a * n, entry_limit=1)
    a = x(3)
    compiled(a, 1)

    def work() -> None:
        for n in range(10_000):
            compiled(a, 2 + n % 3)

    work()
    blocks, references = growth(work, [a, None, True])
    assert blocks < 200
    assert max(references) < 20, references


def test_captures_leak_nothing() -> None:
    module = nn.Sequential(nn.Linear(3, 3), nn.ReLU())
    a, config = x(2, 3), Config()

    def capture() -> None:
        for target, args in ((module, (a,)), (mixed, (a, config, 1)), (print, (1,))):
            compiled = frontend.compile(target)
            if target is not print:
                compiled(*args)

    def work() -> None:
        for _ in range(50):
            capture()

    work()
    blocks, references = growth(work, [a, config, module[0].weight, None, mixed, Config, nn.Linear])
    assert blocks < 500
    assert max(references) < 20, references


def test_plain_calls_leak_nothing() -> None:
    compiled = frontend.compile(lambda a: a if a.sum() > 0 else -a)
    a = x(3)

    def work() -> None:
        for _ in range(5_000):
            compiled(a)

    work()
    blocks, references = growth(work, [a, None, True])
    assert blocks < 200
    assert max(references) < 20, references


class Chooser(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, a: torch.Tensor, mode: str) -> torch.Tensor:
        return self.layer(a).relu() if mode == "relu" else self.layer(a) * a.shape[0]


def test_threads_with_other_modes_and_sizes() -> None:
    module = Chooser()
    compiled = frontend.compile(module, entry_limit=64)

    def work(number: int) -> None:
        generator = torch.Generator().manual_seed(number)
        for i in range(300):
            a = torch.rand(1 + (i + number) % 3, 4, generator=generator)
            mode = ("relu", "scale")[i % 2]
            with torch.set_grad_enabled(number % 2 == 0):
                out, expected = compiled(a, mode), module(a, mode)
                assert torch.equal(out, expected)
                assert out.requires_grad == expected.requires_grad == (number % 2 == 0)
                if out.requires_grad:
                    out.sum().backward()

    run_in_threads(work)


def test_threads_that_capture_and_drop() -> None:
    def work(number: int) -> None:
        for i in range(40):
            compiled = frontend.compile(lambda a, n=i: a * n + number)
            assert torch.equal(compiled(x(3)), x(3) * i + number)
            frontend.forget(compiled)
            assert torch.equal(compiled(x(2)), x(2) * i + number)

    run_in_threads(work)


def dynamo(function: Callable[..., Any]) -> Callable[..., Any]:
    return torch.compile(function, backend="eager")


@pytest.mark.parametrize("outer", [frontend.compile, dynamo])
@pytest.mark.parametrize("inner", [frontend.compile, dynamo])
def test_one_inside_of_the_other(outer, inner) -> None:
    step = inner(lambda a, n: a.sin() * n)
    whole = outer(lambda a, n: step(a + 1, n) + step(a, n + 1))
    for n in (1, 2, 1):
        for size in (3, 4):
            a = x(size).requires_grad_()
            out = whole(a, n)
            torch.testing.assert_close(out, (a + 1).sin() * n + a.sin() * (n + 1))
            out.sum().backward()
            torch.testing.assert_close(a.grad, (x(size) + 1).cos() * n + x(size).cos() * (n + 1))


def test_captures_after_torchdynamo() -> None:
    assert torch.equal(dynamo(lambda a: a + 1)(x(3)), x(3) + 1)
    compiled = frontend.compile(lambda a: a * 2)
    assert torch.equal(compiled(x(3)), x(3) * 2)
    assert captured(compiled), frontend.counters(compiled)


def test_captures_after_torchdynamo_failed() -> None:
    def function(a, b):
        return a + b

    with pytest.raises(Exception, match="size"):  # leaves its frame hook behind
        dynamo(function)(x(3), x(4))
    compiled = frontend.compile(function)
    for _ in range(2):
        assert torch.equal(compiled(x(3), x(3)), x(3) * 2)
    assert captured(compiled), frontend.counters(compiled)
    assert torch.equal(dynamo(lambda a: a + 1)(x(3)), x(3) + 1)


def test_threads_with_torchdynamo() -> None:
    module = Chooser()
    ours, theirs = frontend.compile(module, entry_limit=64), dynamo(module)

    def work(number: int) -> None:
        one = (ours, theirs)[number % 2]
        for i in range(60):
            a = x(1 + i % 3, 4) * number
            mode = ("relu", "scale")[i % 2]
            torch.testing.assert_close(one(a, mode), module(a, mode))

    run_in_threads(work)


def test_a_returned_object_is_held_while_the_graph_runs() -> None:
    """Another thread may let go of it meanwhile."""

    class Token:
        pass

    class Box:
        token = Token()

    def program(a: torch.Tensor, box: Any) -> tuple[torch.Tensor, Any]:
        for _ in range(6):
            a = a @ a
        return a, box.token

    compiled, box, a = frontend.compile(program), Box(), torch.zeros(1200, 1200)
    compiled(a, box)
    assert captured(compiled)
    alone = sys.getrefcount(Box.token)
    thread = threading.Thread(target=compiled, args=(a, box))
    thread.start()
    most = 0
    while thread.is_alive():
        most = max(most, sys.getrefcount(Box.token))
    assert most > alone
