"""Kernels of PoCL that other processes build before the first launch."""

from __future__ import annotations

import os
import pathlib
import shutil
import socket
import subprocess
import time

import pytest
import torch_backplane
from compiling import run_python

PLUGINS = pathlib.Path(torch_backplane.__file__).parent / "plugins"
BUILDER = "backplane-opencl-build"

# A dozen kernels that differ, and a second program whose kernels are few.
PROGRAM = """
import torch

torch.manual_seed(0)
x = torch.randn(7, 40)


def f(x):
    parts = [torch.softmax(x * (n + 1), 1).sum(n % 2).cumsum(0) for n in range(3)]
    parts += [x.sort(1).values[:, n].exp() for n in range(2)]
    parts += [(x[:, n : n + 20] @ x[:, :20].T).tanh().amax(1) for n in range(3)]
    return [*parts, x.reshape(10, 28).cumsum(1).flip(0), x.std(0), x.argmax(1)]


def g(x):
    return x.sin().cumsum(1)


for function in (f, g):
    compiled = torch.compile(function, backend="plugin:opencl", options={"report": False})
    theirs, ours = function(x), compiled(x)
    torch.testing.assert_close(ours, theirs)
print("done")
"""


def run(tmp_path: pathlib.Path, **more: str):
    places = {"POCL_CACHE_DIR": tmp_path / "pocl", "BACKPLANE_CACHE_DIR": tmp_path / "own"}
    for place in places.values():
        place.mkdir(mode=0o700, exist_ok=True)
    environment = {name: str(place) for name, place in places.items()}
    environment |= {"POCL_DEBUG": "general,llvm", "BACKPLANE_OPENCL_BUILDERS": "2", **more}
    ran = run_python(PROGRAM, environment)
    assert ran.returncode == 0 and ran.stdout.split()[-1:] == ["done"], ran.stderr[-2000:]
    return ran.stderr.count("Built a specialized WG function")


def kernels(tmp_path: pathlib.Path) -> list[pathlib.Path]:
    return sorted((tmp_path / "pocl").glob("*/*/*/*/*.so"))


def other_plugins(tmp_path: pathlib.Path, builder: str | None) -> dict[str, str]:
    """The plugin in a folder of its own, beside that builder."""
    folder = tmp_path / "plugins"
    folder.mkdir()
    shutil.copy(PLUGINS / "libbackplane_opencl.so", folder)
    if builder is not None:
        (folder / BUILDER).write_text("#!/bin/sh\n" + builder)
        (folder / BUILDER).chmod(0o755)
    return {"BACKPLANE_PLUGIN_PATH": str(folder)}


def test_all_kernels_are_built_by_other_processes(tmp_path: pathlib.Path) -> None:
    built_here = run(tmp_path)
    assert built_here == 0
    found = kernels(tmp_path)
    assert len(found) >= 8
    assert run(tmp_path) == 0 and kernels(tmp_path) == found


def test_without_them_the_kernels_are_the_same(tmp_path: pathlib.Path) -> None:
    assert run(tmp_path, BACKPLANE_OPENCL_BUILDERS="0") == len(kernels(tmp_path)) >= 8


def test_what_the_driver_lost_is_built_again(tmp_path: pathlib.Path) -> None:
    run(tmp_path)
    shutil.rmtree(tmp_path / "pocl")
    assert run(tmp_path) >= 8


@pytest.mark.parametrize(
    "builder",
    [None, "exit 1", "kill -9 $$", "sleep 0.2 & exit 0", "exec cat >/dev/null </dev/null"],
    ids=["none", "fails", "dies", "answers nothing", "reads nothing"],
)
def test_a_builder_that_fails_costs_nothing_but_time(
    tmp_path: pathlib.Path, builder: str | None
) -> None:
    assert run(tmp_path, **other_plugins(tmp_path, builder)) >= 8


def test_a_number_that_is_none(tmp_path: pathlib.Path) -> None:
    ran = run_python(PROGRAM, {"BACKPLANE_OPENCL_BUILDERS": "many"})
    assert "BACKPLANE_OPENCL_BUILDERS=many is no number of processes" in ran.stdout + ran.stderr


def test_they_end_with_the_process(tmp_path: pathlib.Path) -> None:
    run(tmp_path)
    deadline = time.monotonic() + 30
    while running(tmp_path) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not running(tmp_path)


def test_one_at_work_ends_with_the_process(tmp_path: pathlib.Path) -> None:
    lines = "\n".join(f"x = pow(x, y) + sin(x * {n}.5f); y += tan(x);" for n in range(6000))
    source = (
        "__kernel void f(__global float* out) {"
        f"float x = out[0], y = out[1];\n{lines}\nout[0] = x + y; }}"
    )
    text = f"\nf\n\n{source}".encode()
    ours, its = socket.socketpair()
    environment = {**os.environ, "POCL_CACHE_DIR": str(tmp_path)}
    with ours, its:
        subprocess.run([PLUGINS / BUILDER, "0"], stdin=its, env=environment, check=True)
        its.close()
        ours.sendall(len(text).to_bytes(8, "little") + text)
        time.sleep(1)
        assert running(tmp_path)
    deadline = time.monotonic() + 10
    while running(tmp_path) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not running(tmp_path)


def running(tmp_path: pathlib.Path) -> list[str]:
    """Builders with this test's environment."""
    found = []
    for process in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            is_builder = os.path.basename(os.readlink(process / "exe")) == BUILDER
            if is_builder and str(tmp_path).encode() in (process / "environ").read_bytes():
                found.append(process.name)
        except OSError:
            continue
    return found
