"""What a signal's handler raises while a program is captured, and programs too long to be captured."""

from __future__ import annotations

import pytest
import torch
import torch_backplane
from compiling import run_python
from torch_backplane import frontend

PROGRAM = """
import signal, sys, torch, torch_backplane
def handler(number, frame):
    calls.append(number)
    raise {error}("told")
calls = []
signal.signal(signal.{signal}, handler)
def operators(x):
    while True:
        x = x.sin()
def instructions(x):
    i = 0
    while True:
        i += 1
def catches(x):
    try:
        return instructions(x)
    except BaseException:
        return x
compiled = torch_backplane.compile({program}, backend="cpu_onednn")
x = torch.ones(2)
signal.setitimer(signal.{timer}, 0.3)
try:
    compiled(x)
except {error} as error:
    assert str(error) == "told"
    print("raised", len(calls))
"""


@pytest.mark.parametrize("error", ["TimeoutError", "SystemExit"])
@pytest.mark.parametrize("program", ["operators", "instructions", "catches"])
def test_it_reaches_the_caller(program: str, error: str) -> None:
    text = PROGRAM.format(program=program, error=error, signal="SIGALRM", timer="ITIMER_REAL")
    done = run_python(text)
    assert done.stdout == "raised 1\n", done


def test_a_long_program_is_not_captured_to_its_end() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        for _ in range(60_000):
            x = x + 1
        return x

    compiled = torch_backplane.compile(program, backend="eager")
    assert torch.equal(compiled(torch.zeros(2)), torch.full((2,), 60_000.0))
    counters = frontend.counters(compiled)
    assert any("too many operators" in reason for reason in counters["breaks"]), counters


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit, GeneratorExit])
def test_what_a_program_raises_itself_leaves_its_effects(kind: type[BaseException]) -> None:
    """KeyboardInterrupt is a signal's only where the program has not raised it."""

    def program(x: torch.Tensor, told: list[str]) -> torch.Tensor:
        x.add_(1)
        told.append("before")
        try:
            raise kind("told")
        finally:
            told.append("after")

    compiled = torch_backplane.compile(program, backend="eager")
    for _ in range(2):
        x, told = torch.zeros(2), list[str]()
        with pytest.raises(kind, match="told"):
            compiled(x, told)
        assert told == ["before", "after"]
        assert torch.equal(x, torch.ones(2))
