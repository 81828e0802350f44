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


STORM = """
import signal, torch, torch_backplane
class Told({error}): pass
def handler(number, frame):
    global raised
    raised = True
    raise Told
signal.signal(signal.SIGALRM, handler)
def whole():
    return torch.nn.Linear(4, 4)
def in_frames():
    def program(x):
        x = x + 1
        print(end="")
        return x.softmax(0)
    return program
def with_a_back_end():
    return lambda x: x.sin()
back_ends = dict(with_a_back_end=lambda module, examples: module.forward)
back_end = back_ends.get("{program}", "cpu_onednn")
def run():
    torch_backplane.compile({program}(), backend=back_end)(torch.ones(2, 4))
run()
lost = caught = 0
for i in range(100):
    raised = False
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.0004 + i * 0.0002)
        for _ in range(5000):
            if raised:
                lost += 1
                break
            run()
    except Told:
        caught += 1
print(caught, lost)
"""


@pytest.mark.parametrize("error", ["KeyboardInterrupt", "TimeoutError"])
@pytest.mark.parametrize("program", ["whole", "in_frames", "with_a_back_end"])
def test_none_is_lost(program: str, error: str) -> None:
    """Wherever in a compile the signal comes."""
    quiet = {"BACKPLANE_QUIET": "1", "BACKPLANE_QUARANTINE": "off"}
    done = run_python(STORM.format(program=program, error=error), quiet)
    caught, lost = map(int, done.stdout.split())
    assert caught + lost == 100
    # PyTorch's tables of weak references, which Python drops exceptions in.
    dropped = done.stderr.count("Exception ignored") if program == "with_a_back_end" else 0
    assert lost <= dropped, done


HANDLERS = """
import signal, torch, torch_backplane
calls = []
def first(number, frame):
    calls.append("first")
signal.signal(signal.SIGALRM, first)
signal.siginterrupt(signal.SIGALRM, False)
signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in what a shell runs behind it
def program(x):
    signal.raise_signal(signal.SIGALRM)
    return x + len(calls)
compiled = torch_backplane.compile(program, backend="eager")
print([compiled(torch.zeros(1)).item() for _ in range(3)], calls)
print(signal.getsignal(signal.SIGALRM) is first)
print(signal.getsignal(signal.SIGINT) is signal.default_int_handler)
"""


def test_handlers_stay_what_they_are() -> None:
    done = run_python(HANDLERS)
    assert done.stdout == "[1.0, 2.0, 3.0] ['first', 'first', 'first']\nTrue\nTrue\n", done


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
