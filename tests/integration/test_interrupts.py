"""What ends a call, a device and the process, in order: Ctrl-C while a plugin compiles, a device that is
lost, plugins at exit."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest
from compiling import run_python

DOORS = {
    "torch.compile": "torch.compile(f, backend='plugin:reference', options={'report': False})",
    "own": "torch_backplane.compile(f, backend='reference', options={'report': False})",
}
TORCH_DEVICE = {"torch device": "lambda x: f(x.to(torch_backplane.device('reference')))"}
# As conftest.py skips tests in this process.
no_own_door = pytest.mark.skipif(
    sys.version_info >= (3, 13), reason="this Python has no front end of its own"
)
each_door = pytest.mark.parametrize(
    "door", ["torch.compile", pytest.param("own", marks=no_own_door)]
)
# A shell's background jobs, and what they start, ignore Ctrl-C.
HEED_CTRL_C = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)"
PROGRAM = f"""
{HEED_CTRL_C}
import torch, torch_backplane
f = lambda x: (x * 2).relu()
compiled = {{door}}
print("begins", flush=True)
try:
    compiled(torch.ones(3))
except KeyboardInterrupt:
    print("interrupted", flush=True)
"""


@pytest.mark.parametrize("door", [*each_door.args[1], *TORCH_DEVICE])
def test_ctrl_c_reaches_a_plugin_that_compiles(door: str) -> None:
    program = subprocess.Popen(
        [sys.executable, "-c", PROGRAM.format(door=(DOORS | TORCH_DEVICE)[door])],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "BACKPLANE_REFERENCE_COMPILE_NS": "1e12", "BACKPLANE_CACHE": "0"},
    )
    try:
        assert program.stdout is not None
        assert program.stdout.readline() == "begins\n"
        time.sleep(4)  # long enough for the capture: what follows is the compile of 1000 seconds
        program.send_signal(signal.SIGINT)
        out, err = program.communicate(timeout=60)
    finally:
        program.kill()
    assert out == "interrupted\n", err
    assert program.returncode == 0, err


LOSING = """
import torch, torch_backplane
model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
x = torch.randn(3, 4)
f = model
compiled = {door}
with torch.no_grad():
    for _ in range(5):
        torch.testing.assert_close(compiled(x), model(x))
stats = torch_backplane.stats()
print(stats["transfers"]["reference:0"]["health"], stats["eager_calls"], stats["plain_calls"])
"""


@each_door
def test_a_lost_device_is_told_once_and_the_program_goes_on(door: str) -> None:
    lost = {"BACKPLANE_REFERENCE_LOST_AFTER": "2"}
    done = run_python(LOSING.format(door=DOORS[door]), lost)
    assert done.returncode == 0, done.stderr
    health, eager, plain = done.stdout.split()
    assert health == "lost"
    assert int(plain if door == "own" else eager) > 0, done.stdout
    told = [line for line in done.stderr.splitlines() if "was lost" in line]
    assert len(told) == 1 and "the simulated link broke" in told[0], done.stderr
    strict = DOORS[door].replace("'report': False", "'report': False, 'strict': True")
    done = run_python(LOSING.format(door=strict), lost)
    assert "BackplaneDeviceLostError: BP-0108" in done.stderr, done.stderr
    assert "the simulated link broke" in done.stderr


def test_plugins_are_shut_down_when_nothing_of_them_is_alive() -> None:
    """What is alive at the end keeps its plugin; a program that let go of all ends as quietly."""
    program = """
import torch, torch_backplane
f = torch_backplane.compile(lambda x: x * 2, backend="reference")
assert f(torch.ones(3)).sum() == 6
{end}
"""
    for end, is_free in (("del f; torch_backplane.reset()", True), ("", False)):
        done = run_python(program.format(end=end), {"BACKPLANE_LOG": "plugins"})
        assert done.returncode == 0, done.stderr
        assert "in use" not in done.stderr, done.stderr
        assert ("'reference' was shut down" in done.stderr) == is_free, done.stderr


def test_a_child_of_fork_gets_its_report() -> None:
    """Its parent's device cannot be asked there."""
    program = """
import os, torch, torch_backplane
f = torch.compile(lambda x: x * 2, backend="plugin:reference")
f(torch.ones(3))
if child := os.fork():
    raise SystemExit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
reports = torch_backplane.stats()["transfers"]
assert reports.get("reference:0", {"health": "unknown"})["health"] == "unknown", reports
os._exit(0)
"""
    done = run_python(program)
    assert done.returncode == 0, done.stderr


HANGING = f"""
{HEED_CTRL_C}
import time, torch, torch_backplane
f = lambda x: (x * 2).relu()
compiled = {{door}}
x = torch.randn(3)
began = time.monotonic()
try:
    print(torch.equal(compiled(x), f(x)), flush=True)
except KeyboardInterrupt:
    print("interrupted", flush=True)
assert time.monotonic() - began < 60
print(torch.equal(compiled(x), f(x)), torch_backplane.stats()["transfers"]["reference:0"]["health"])
"""


@each_door
def test_work_that_does_not_end_is_given_up_after_the_deadline(door: str) -> None:
    hangs = {"BACKPLANE_REFERENCE_HANGS_AT": "1", "BACKPLANE_DEADLINE": "1"}
    done = run_python(HANGING.format(door=DOORS[door]), hangs)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["True", "True unknown"], done.stderr
    (told,) = [line for line in done.stderr.splitlines() if "is given up" in line]
    assert "reference:0: event_wait did not end within 1 s (BACKPLANE_DEADLINE)" in told
    strict = DOORS[door].replace("'report': False", "'report': False, 'strict': True")
    done = run_python(HANGING.format(door=strict), hangs)
    assert "BackplaneDeviceLostError: BP-0108" in done.stderr, done.stderr


@each_door
def test_ctrl_c_ends_a_wait_for_a_device(door: str) -> None:
    program = subprocess.Popen(
        [sys.executable, "-c", HANGING.format(door=DOORS[door])],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={
            **os.environ,
            "BACKPLANE_REFERENCE_HANGS_AT": "1",
            "BACKPLANE_PATIENCE": "0.5",
        },
    )
    assert program.stderr is not None
    try:
        for line in program.stderr:
            if "still waiting for reference:0: event_wait" in line:
                break
        program.send_signal(signal.SIGINT)
        out, err = program.communicate(timeout=60)
    finally:
        program.kill()
    assert out.splitlines() == ["interrupted", "True unknown"], err
    assert program.returncode == 0, err


def test_what_was_written_by_work_that_failed_is_never_read() -> None:
    """A device's failure is told of its queue: the first read that waits hears it, whatever it reads. The
    failed result, and what was computed of it or beside it, tell it at each read until they are written
    anew."""
    program = """
import torch, torch_backplane

npu = torch_backplane.device("reference", 0)
weight = torch.nn.Parameter(torch.ones(3).to(npu))
sound = torch.full((3,), 2.0).to(npu)
assert (sound * 2).tolist() == [4.0, 4.0, 4.0]

failed = sound.tanh()  # the second launch
with torch.no_grad():
    weight.add_(failed)
wrong = 0
for read in (failed.cpu, weight.cpu, failed.tolist, weight.detach().sum):
    try:
        read()
    except RuntimeError as error:
        assert "a simulated parity error" in str(error), error
        wrong += 1
assert wrong == 4, wrong
failed.resize_(2000)  # into other memory
compiled = torch.compile(lambda x: x * 2, backend="plugin:reference")
for use in (lambda: failed + 1, lambda: compiled(failed)):
    try:
        use().cpu()
    except RuntimeError as error:
        assert "compute it anew" in str(error), error
    else:
        raise AssertionError("computed with what was never written")
assert sound.tolist() == [2.0, 2.0, 2.0]
assert torch.allclose(sound.exp().cpu(), torch.full((3,), 2.0).exp())
weight.data.copy_(torch.ones(3))
assert weight.tolist() == [1.0, 1.0, 1.0]
print("done")
"""
    done = run_python(program, {"BACKPLANE_REFERENCE_FAILS_AT": "2"})
    assert done.returncode == 0, done.stderr
    assert "done" in done.stdout
