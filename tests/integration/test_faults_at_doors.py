"""What a plugin's faults are at each door: the sabotage plugin, which computes nothing, does in one entry
what BACKPLANE_SABOTAGE says (core/runtime/testing/sabotage_plugin.cc)."""

from __future__ import annotations

import os
import pathlib

import pytest
from compiling import run_python

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = ROOT / os.environ.get("BACKPLANE_BUILD", "build/dev")

HEAD = """
import os, torch, torch_backplane
from torch_backplane import BackplaneError

def compiled(function, **options):
    options = {"report": False, **options}
    if os.environ["DOOR"] == "own":
        return torch_backplane.compile(function, backend="sabotage", options=options)
    return torch.compile(function, backend="plugin:sabotage", options=options, dynamic=False)

def error_of(call, *arguments):
    try:
        call(*arguments)
    except Exception as error:
        return getattr(error, "inner_exception", error)  # TorchDynamo wraps what a back end raises
    return None

def program(x):
    return x.relu() + 1

x = torch.randn(4, 4)
"""
DOORS = ("torch.compile", "own")


def run(program: str, sabotage: str, door: str, tmp_path: pathlib.Path, **more: str) -> str:
    if door == "own":
        import torch_backplane

        torch_backplane.compile(lambda x: x, backend="eager")  # or this Python has no such door
    done = run_python(
        HEAD + program,
        {
            "BACKPLANE_PLUGIN_PATH": str(BUILD / "testing_plugins"),
            "BACKPLANE_STATE_DIR": str(tmp_path),
            "BACKPLANE_SABOTAGE": sabotage,
            "DOOR": door,
            **more,
        },
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stderr


@pytest.mark.parametrize("isolation", ["", "process"])
@pytest.mark.parametrize("entry", ["claims", "compile"])
@pytest.mark.parametrize("door", DOORS)
def test_what_nobody_cancelled_is_a_failure(
    door: str, entry: str, isolation: str, tmp_path: pathlib.Path
) -> None:
    told = run(
        """
f = compiled(program)
for _ in range(2):
    assert torch.equal(f(x), program(x))
""",
        f"{entry} cancelled",
        door,
        tmp_path,
        BACKPLANE_ISOLATION=isolation,
    )
    assert f"{entry} " in told and "asked to be cancelled" in told, told
    assert "nobody asked for that" in told, told


@pytest.mark.parametrize("entry", ["execute", "claims", "compile", "buffer_create", "copy"])
@pytest.mark.parametrize("door", DOORS)
def test_an_error_of_python_that_is_left_is_told(
    door: str, entry: str, tmp_path: pathlib.Path
) -> None:
    told = run(
        """
f = compiled(program)
for _ in range(2):
    f(x)
assert error_of(f, x) is None
""",
        f"{entry} python",
        door,
        tmp_path,
    )
    assert "sabotage:0: " + entry in told and "left an error of Python set" in told, told
    assert "ValueError: left by the vendor" in told, told


@pytest.mark.parametrize("door", DOORS)
def test_a_plugin_without_devices(door: str, tmp_path: pathlib.Path) -> None:
    run(
        """
error = error_of(lambda: compiled(program)(x))
assert isinstance(error, BackplaneError) and error.code == "BP-0104", repr(error)
assert "'sabotage' has 0 devices" in str(error), error
error = error_of(torch_backplane.device, "sabotage")
assert isinstance(error, BackplaneError) and error.code == "BP-0104", repr(error)
torch_backplane.stats(), torch_backplane.reset(), torch_backplane.plugins()
""",
        "device_count null",
        door,
        tmp_path,
    )


@pytest.mark.parametrize("entry", ["device_describe", "device_open", "device_count"])
@pytest.mark.parametrize("action", ["throw", "error", "lost", "cancelled", "null"])
def test_what_the_package_raises_is_its_own(
    entry: str, action: str, tmp_path: pathlib.Path
) -> None:
    run(
        """
calls = [
    lambda: torch_backplane.compile(program, backend="sabotage")(x),
    lambda: torch_backplane.device("sabotage", 0),
    lambda: torch_backplane.explain(program, "sabotage")(x),
    lambda: torch_backplane.ladder(program, "sabotage")(x),
    torch_backplane.stats,
    torch_backplane.reset,
    torch_backplane.plugins,
    torch_backplane.invalidate,
]
for call in calls:
    error = error_of(call)
    assert error is None or isinstance(error, BackplaneError), repr(error)
""",
        f"{entry} {action}",
        "own",
        tmp_path,
    )
