"""Kernels of plugin:opencl under oclgrind: no access outside of a buffer, no two work-items at one place."""

from __future__ import annotations

import os
import pathlib
import sys

import pytest
from integration import opencl_kernels
from patience import run as run_patiently

# oclgrind cannot run what its compiler's optimiser makes of min, max and abs.
OCLGRIND = ["oclgrind", "--data-races", "--build-options", "-cl-opt-disable"]


@pytest.mark.parametrize("schedule", ["cpu", "gpu"])
def test_kernels_stay_inside_their_buffers(schedule: str, tmp_path: pathlib.Path) -> None:
    log = tmp_path / "oclgrind.log"
    done = run_patiently(
        [*OCLGRIND, "--log", str(log), sys.executable, opencl_kernels.__file__],
        env={
            **os.environ,
            "BACKPLANE_OPENCL_SCHEDULE": schedule,
            "BACKPLANE_CACHE": "0",
            "BACKPLANE_OPENCL_DEVICE": "Oclgrind",  # no other driver can run them
        },
    )
    assert log.read_text() == ""
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.splitlines() == [f"{name}: right" for name in opencl_kernels.PROGRAMS]


SIMULATION = """
{kernel}
beyond
4 1 1
2 1 1
<size=16 range=0:1:3 int>
"""


def test_oclgrind_sees_an_access_outside(tmp_path: pathlib.Path) -> None:
    """What the test above relies on: a kernel that writes one element too far is in the log."""
    kernel = tmp_path / "beyond.cl"
    kernel.write_text("kernel void beyond(global int *a) { a[get_global_id(0) + 1] = 7; }\n")
    simulation = tmp_path / "beyond.sim"
    simulation.write_text(SIMULATION.format(kernel=kernel).lstrip())
    done = run_patiently(["oclgrind-kernel", str(simulation)])
    assert "Invalid write of size 4" in done.stdout + done.stderr
