"""Plugins that end a process, or do not come back: what users see of it. The whole table of entries
and ways is tools/sabotage_test.cpp."""

from __future__ import annotations

import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import time

import pytest
from patience import run as run_patiently

BUILD = pathlib.Path(os.environ.get("BACKPLANE_BUILD", "build/dev")).absolute()
SABOTAGE = BUILD / "testing_plugins" / "libbackplane_sabotage.so"
COMPILED = {
    "torch.compile": 'torch.compile(f, backend="plugin:sabotage")',
    "own": 'torch_backplane.compile(f, backend="sabotage")',
}
PROGRAM = """
import faulthandler, torch, torch_backplane
f = lambda x: (x * 2).relu()
compiled = {compiled}
print(compiled(torch.ones(3)).shape, flush=True)
"""


class Place:
    """A user with a folder of plugins, and what is kept between the processes."""

    def __init__(self, folder: pathlib.Path) -> None:
        self.folder = folder
        (folder / "plugins").mkdir()
        shutil.copy(SABOTAGE, folder / "plugins")

    def environment(self, sabotage: str = "", **more: str) -> dict[str, str]:
        return {
            **os.environ,
            "BACKPLANE_PLUGIN_PATH": str(self.folder / "plugins"),
            "BACKPLANE_STATE_DIR": str(self.folder / "state"),
            "BACKPLANE_QUARANTINE": "on",
            "BACKPLANE_SABOTAGE": sabotage,
            **more,
        }

    def run(
        self, *command: str, sabotage: str = "", **more: str
    ) -> subprocess.CompletedProcess[str]:
        return run_patiently(
            [sys.executable, *command], env=self.environment(sabotage, **more), cwd=self.folder
        )

    def backplane(self, *words: str, **more: str) -> subprocess.CompletedProcess[str]:
        return self.run("-c", "from torch_backplane.cli import main; exit(main())", *words, **more)


@pytest.fixture
def place(tmp_path: pathlib.Path) -> Place:
    return Place(tmp_path)


@pytest.mark.parametrize(
    "door",
    [
        "torch.compile",
        pytest.param(
            "own",
            marks=pytest.mark.skipif(sys.version_info >= (3, 13), reason="no front end here"),
        ),
    ],
)
def test_a_crash_is_told_the_plugin_left_out_and_let_in_again(place: Place, door: str) -> None:
    program = PROGRAM.format(compiled=COMPILED[door])
    crashed = place.run("-c", program, sabotage="execute segv")
    assert crashed.returncode == -signal.SIGSEGV
    said = "SIGSEGV inside of plugin sabotage:0: execute (aten.mul.Tensor, aten.relu)"
    assert said in crashed.stderr
    # The next one says it, and why the plugin is not used.
    after = place.run("-c", program)
    assert after.returncode == 1
    assert "ended by SIGSEGV inside of sabotage:0: execute" in after.stderr
    assert "BP-0103" in after.stderr and "backplane doctor --release sabotage" in after.stderr
    doctor = place.backplane("doctor", "--json")
    findings = json.loads(doctor.stdout)["findings"]
    assert any(f["topic"] == "left out" and "SIGSEGV" in f["text"] for f in findings), findings
    assert place.backplane("doctor", "--release", "sabotage").returncode == 0
    again = place.run("-c", program)
    assert again.returncode == 0, again.stderr
    nobody = place.backplane("doctor", "--release", "sabotage")
    assert nobody.returncode == 2 and "there are: none" in nobody.stderr


def test_a_crash_in_the_plugin_s_own_thread_names_the_nodes(place: Place) -> None:
    program = PROGRAM.format(compiled=COMPILED["torch.compile"])
    crashed = place.run("-c", program, sabotage="execute thread")
    assert crashed.returncode == -signal.SIGSEGV
    said = "SIGSEGV inside of plugin sabotage: a thread of its own (aten.mul.Tensor, aten.relu)"
    assert said in crashed.stderr, crashed.stderr


def test_another_build_of_it_is_let_in(place: Place) -> None:
    program = PROGRAM.format(compiled=COMPILED["torch.compile"])
    assert place.run("-c", program, sabotage="compile abort").returncode == -signal.SIGABRT
    assert place.run("-c", program).returncode == 1
    with (place.folder / "plugins" / SABOTAGE.name).open("ab") as file:
        file.write(b"another build")
    done = place.run("-c", program)
    assert done.returncode == 0, done.stderr


def test_python_tells_its_stack_as_before(place: Place) -> None:
    program = "import faulthandler; faulthandler.enable()" + PROGRAM
    done = place.run(
        "-c", program.format(compiled=COMPILED["torch.compile"]), sabotage="execute segv"
    )
    assert done.returncode == -signal.SIGSEGV
    assert "SIGSEGV inside of plugin sabotage:0" in done.stderr
    assert "Fatal Python error: Segmentation fault" in done.stderr


def test_a_crash_of_somebody_else_says_nothing(place: Place) -> None:
    program = PROGRAM.format(compiled=COMPILED["torch.compile"]) + "import ctypes, os\n"
    for end in ("ctypes.string_at(0)", "os.kill(os.getpid(), 9)", "os.abort()"):
        done = place.run("-c", program + end)
        assert done.returncode < 0
        assert "inside of plugin" not in done.stderr
    done = place.run("-c", program)
    assert done.returncode == 0 and "ended by" not in done.stderr


@pytest.mark.parametrize("command", ["doctor", "plugins"])
def test_a_library_that_crashes_on_load_costs_a_line(place: Place, command: str) -> None:
    done = place.backplane(command, sabotage="load segv")
    assert "SIGSEGV inside of plugin sabotage: load" in done.stdout, done.stderr
    others = [line for line in done.stdout.splitlines() if "reference" in line]
    assert others and "refused" not in others[0]
    again = place.backplane(command)
    assert "is refused" in again.stdout or "was refused" in again.stdout


def test_a_device_that_does_not_open_is_no_ok(place: Place) -> None:
    done = place.backplane("plugins", sabotage="device_open error")
    (line,) = [x for x in done.stdout.splitlines() if x.startswith("sabotage")]
    assert "refused: sabotage:0: device_open" in line and "asked to fail" in line


def test_a_call_that_takes_long_is_told(place: Place) -> None:
    program = PROGRAM.format(compiled=COMPILED["torch.compile"])
    began = time.monotonic()
    process = subprocess.Popen(
        [sys.executable, "-c", program],
        env=place.environment("execute hang", BACKPLANE_PATIENCE="1"),
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    try:
        for line in process.stderr:
            if "still waiting" in line:
                assert "sabotage:0: execute (aten.mul.Tensor, aten.relu), " in line
                break
            assert time.monotonic() - began < 120
    finally:
        process.kill()
        process.wait()
