"""A plugin that does not keep its claims, and one whose device is full: what a program gets at each door.

Each program runs in an interpreter of its own with the scripted plugin, which misbehaves as
BACKPLANE_SCRIPTED says at each call (core/runtime/testing/scripted_plugin.cc).
"""

from __future__ import annotations

import os
import pathlib

import pytest
from compiling import run_python

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = ROOT / os.environ.get("BACKPLANE_BUILD", "build/dev")

HEAD = """
import os, sys, torch, torch_backplane
from torch_backplane import BackplaneError, BackplaneOutOfMemoryError

def script(words=""):
    os.environ["BACKPLANE_SCRIPTED"] = words

def compiled(function, **options):
    options = {"report": False, **options}
    if os.environ["DOOR"] == "own":
        return torch_backplane.compile(function, backend="scripted", options=options)
    return torch.compile(function, backend="plugin:scripted", options=options, dynamic=False)

def program(x):
    return (-(x * x).relu() + x).neg() * x

def error_of(call, *arguments):
    try:
        call(*arguments)
    except Exception as error:
        return error
    return None

torch.manual_seed(0)
x = torch.randn(4, 4)
"""

DOORS = ("torch.compile", "own")


def run(program: str, door: str = "torch.compile", words: str = "", **more: str) -> str:
    if door == "own":
        import torch_backplane

        torch_backplane.compile(lambda x: x, backend="eager")  # or this Python has no such door
    done = run_python(
        HEAD + program,
        {
            "BACKPLANE_PLUGIN_PATH": str(BUILD / "testing_plugins"),
            "BACKPLANE_SCRIPTED": words,
            "DOOR": door,
            **more,
        },
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stderr


@pytest.mark.parametrize("door", DOORS)
def test_one_node_that_does_not_compile_takes_no_other_along(door: str) -> None:
    run(
        """
for learns in (False, True):
    torch._dynamo.reset()
    a, b = (x.clone().requires_grad_(learns) for _ in range(2))
    with torch_backplane.record() as graphs:
        y = compiled(program)(a)
    expected = program(b)
    assert torch.equal(y, expected)
    forward = graphs[0]
    assert [node["op"] for node in forward["fallback"]] == ["aten.relu"], forward["fallback"]
    (reason,) = (node["reason"] for node in forward["fallback"])
    assert "compile failed" in reason and "relu is broken today" in reason, reason
    assert forward["plugin_nodes"] >= 5, forward
    if learns:
        y.sum().backward(), expected.sum().backward()
        torch.testing.assert_close(a.grad, b.grad)
""",
        door,
        "no_relu",
    )


@pytest.mark.parametrize("door", DOORS)
def test_a_refusal_at_execute_runs_on_the_cpu(door: str) -> None:
    told = run(
        """
for learns in (False, True):
    torch._dynamo.reset()
    torch_backplane.reset()
    f = compiled(program)
    def step(of):
        a = x.clone().requires_grad_(learns)
        y = of(a)
        if learns:
            y.sum().backward()
        return [y.detach(), a.grad] if learns else [y]
    with torch_backplane.record() as graphs:
        script("not_now")
        first = step(f)
        script()
        later = step(f)
    for found in (first, later):
        torch.testing.assert_close(found, step(program))
    counts = torch_backplane.stats()
    # Once for each partition, of which the backward has two; later calls know.
    assert counts["refused_calls"] == (3 if learns else 1), counts["refused_calls"]
    report = graphs[0]["function"].report()
    reasons = [node["reason"] for part in report["parts"] for node in part["fallback"]]
    assert any("refused at execute" in r and "not at these sizes" in r for r in reasons), reasons
    assert counts["plain_calls"] == counts["eager_calls"] == 0, counts
""",
        door,
    )
    assert "go back to the CPU" in told and "not at these sizes" in told, told


@pytest.mark.parametrize("door", DOORS)
def test_strict_makes_a_refusal_at_execute_an_error(door: str) -> None:
    run(
        """
f = compiled(program, strict=True)
f(x)
script("not_now")
error = error_of(f, x)
assert isinstance(error, BackplaneError) and error.code == "BP-0108", error
assert "not at these sizes" in str(error) and "scripted:0" in str(error), error
script()
assert torch.equal(f(x), program(x))
""",
        door,
    )


def test_a_refusal_at_execute_at_other_sizes_alone() -> None:
    run(
        """
f = torch.compile(program, backend="plugin:scripted", options={"report": False}, dynamic=True)
f(x), f(torch.randn(5, 5))
script("not_now")
z = torch.randn(6, 6)
assert torch.equal(f(z), program(z))
script()
for y in (x, z, torch.randn(7, 7)):
    assert torch.equal(f(y), program(y))
assert torch_backplane.stats()["refused_calls"] == 1
"""
    )


def test_a_refusal_at_execute_on_the_torch_device() -> None:
    run(
        """
there = x.to(torch_backplane.device("scripted"))
assert torch.equal((there + there).cpu(), x + x)
script("not_now")
assert torch.equal((there + there).cpu(), x + x)
((calls, reason),) = torch_backplane.stats()["eager_fallbacks"].values()
assert calls == 1 and "not at these sizes" in reason, (calls, reason)
y = compiled(program)(there)
assert y.device == there.device and torch.equal(y.cpu(), program(x))
script()
assert torch.equal(compiled(program)(there).cpu(), program(x))
"""
    )


OUT_OF_MEMORY = """
def check(error, *texts):
    assert type(error) is BackplaneOutOfMemoryError, repr(error)
    assert isinstance(error, torch.OutOfMemoryError) and isinstance(error, BackplaneError)
    assert isinstance(error, RuntimeError) and error.code == "BP-0115"
    for text in ("scripted:0", "bytes in use", *texts):
        assert text in str(error), (text, str(error))
"""


@pytest.mark.parametrize("learns", [False, True])
@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("door", DOORS)
def test_out_of_memory_is_one_error_at_both_doors(door: str, strict: bool, learns: bool) -> None:
    """At compile, at execute and of work that was queued; afterwards all goes on."""
    run(
        OUT_OF_MEMORY
        + f"strict, learns = {strict}, {learns}\n"
        + """
def program(x):
    return (-(x * x) + x).neg() * x
a = x.clone().requires_grad_(learns)
holder = torch.empty(4096, dtype=torch.uint8, device=torch_backplane.device("scripted"))
f = compiled(program, strict=strict)
script("full_compile")
check(error_of(f, a), "compile failed", "no room for code")
script()
assert torch.equal(f(a), program(a))
for words, text in (("full", "execute failed: the device is full"), ("no_room", "no room for the work")):
    script(words)
    check(error_of(f, a), text)
    script()
    assert torch.equal(f(a), program(a))
if learns:
    y = f(a).sum()
    script("full")
    check(error_of(y.backward), "the device is full")
    script()
    f(a).sum().backward()
    b = x.clone().requires_grad_()
    program(b).sum().backward()
    torch.testing.assert_close(a.grad, b.grad)
""",
        door,
    )


def test_out_of_memory_on_the_torch_device() -> None:
    run(
        OUT_OF_MEMORY
        + """
there = x.to(torch_backplane.device("scripted"))
holder = torch.empty(4096, dtype=torch.uint8, device=there.device)
error = error_of(lambda: torch.empty(1 << 62, dtype=torch.uint8, device=there.device))
check(error, str(1 << 62))
for words in ("full", "no_room"):
    script(words)
    check(error_of(lambda: (there + there).cpu()))
    script()
    assert torch.equal((there + there).cpu(), x + x)
try:
    torch.empty(1 << 62, dtype=torch.uint8, device=there.device)
except torch.OutOfMemoryError:
    pass
"""
    )
