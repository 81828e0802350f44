"""The OpenCL plugin where something is missing or too small."""

from __future__ import annotations

import pytest
import torch
import torch_backplane
from integration.helpers import close, run_python

PROGRAM = """
import torch
f = torch.compile(lambda x: (x * 2).relu(), backend="plugin:opencl", options={"report": False})
print(f(torch.tensor([1.0, -1.0])).tolist())
"""


def test_without_a_driver_the_error_says_what_to_install() -> None:
    done = run_python(PROGRAM, {"OCL_ICD_VENDORS": "/nonexistent"})
    assert "no OpenCL platform" in done.stderr
    assert "pocl-opencl-icd" in done.stderr


def test_a_device_that_is_not_there_is_named() -> None:
    done = run_python(PROGRAM, {"BACKPLANE_OPENCL_DEVICE": "no such device"})
    assert "no such device" in done.stderr


def test_results_stay_right_without_zero_copy() -> None:
    done = run_python(PROGRAM, {"BACKPLANE_OPENCL_ZERO_COPY": "0"})
    assert "[2.0, 0.0]" in done.stdout, done.stderr


@pytest.mark.parametrize("elements", [0, 1, 15, 16, 17, 4097])
def test_sizes_around_vectors(elements: int) -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.gelu(x * 2 + 1)

    x = torch.randn(elements)
    with torch_backplane.record() as graphs:
        actual = torch.compile(f, backend="plugin:opencl", options={"report": False})(x)
    close(actual, f(x))
    assert all(not g["fallback"] for g in graphs)
