"""The OpenCL plugin where something is missing or too small."""

from __future__ import annotations

import pathlib

import pytest
import torch
import torch_backplane
from integration.helpers import close, run_python

TESTS = pathlib.Path(__file__).resolve().parents[1]

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


INDEXED = {
    "embedding": lambda x, i: torch.nn.functional.embedding(i, x),
    "index_select": lambda x, i: x.index_select(0, i),
    "gather": lambda x, i: x.gather(0, i[:, None]),
    "index": lambda x, i: x[i],
    "take": lambda x, i: x.take(i),
    "index_put": lambda x, i: x.index_put((i,), torch.ones(6)),
    "scatter": lambda x, i: x.scatter(0, i[:, None], torch.ones(2, 1)),
    "scatter_add": lambda x, i: x.scatter_add(0, i[:, None], torch.ones(2, 1)),
    "nll_loss": lambda x, i: torch.nn.functional.nll_loss(x[:2], i),
}


@pytest.mark.parametrize("name", INDEXED)
def test_an_index_out_of_range_is_an_error(name: str) -> None:
    compiled = torch.compile(
        INDEXED[name], backend="plugin:opencl", options={"report": False}, dynamic=False
    )
    x = torch.randn(4, 6)
    good = torch.tensor([1, 2])
    close(compiled(x, good), INDEXED[name](x, good))
    for bad in (torch.tensor([1, 24]), torch.tensor([-25, 2])):
        with pytest.raises((IndexError, RuntimeError)):
            INDEXED[name](x, bad)
        with pytest.raises(torch_backplane.BackplaneError, match="index is out of range"):
            compiled(x, bad)
        close(compiled(x, good), INDEXED[name](x, good))  # the next call is not affected


def test_an_index_out_of_range_is_seen_without_zero_copy() -> None:
    program = """
import torch, torch_backplane
f = torch.compile(lambda x, i: x[i] * 2, backend="plugin:opencl", options={"report": False})
x = torch.arange(4.0)
print(f(x, torch.tensor([-1, 0])).tolist())
try:
    f(x, torch.tensor([1, 4]))
except torch_backplane.BackplaneError as error:
    print("index is out of range" in str(error))
print(f(x, torch.tensor([2, 3])).tolist())
"""
    done = run_python(program, {"BACKPLANE_OPENCL_ZERO_COPY": "0"})
    assert done.stdout.split("\n")[:3] == ["[6.0, 0.0]", "True", "[4.0, 6.0]"], done.stderr


SIZES_PROGRAM = """
import os, sys
import torch, torch_backplane
sys.path.insert(0, os.environ["TESTS"])
from models import zoo

name, seq = os.environ["MODEL"].split()
case = zoo.case(name)
model = case.build()
compiled = torch.compile(model, backend="plugin:opencl", options={"report": False}, dynamic=True)

def files() -> int:
    return sum(len(found) for _, _, found in os.walk(os.environ["BACKPLANE_CACHE_DIR"]))

def run(batch: int) -> None:
    inputs = case.inputs(batch=batch, seq=int(seq))
    with torch.no_grad():
        torch.testing.assert_close(
            zoo.main_output(compiled(**inputs)), zoo.main_output(model(**inputs)),
            rtol=1e-4, atol=1e-4)

for batch in (*range(2, 11), 16, 17, 18, 32, 33, 34):
    run(batch)
before = files()
for batch in (13, 21, 25, 30, 35, 41, 59):
    run(batch)
print("kept", before, "new", files() - before)
"""


@pytest.mark.parametrize("model", ["bert 8", "resnet 16"])
def test_new_batch_sizes_build_no_kernels(model: str, tmp_path: pathlib.Path) -> None:
    """Kernels take what changes with the batch as arguments; every build leaves a file."""
    done = run_python(
        SIZES_PROGRAM,
        {"MODEL": model, "TESTS": str(TESTS), "BACKPLANE_CACHE_DIR": str(tmp_path)},
    )
    words = done.stdout.split()
    assert words[:1] == ["kept"] and int(words[1]) > 0, done.stderr
    assert words[2:] == ["new", "0"], done.stdout
