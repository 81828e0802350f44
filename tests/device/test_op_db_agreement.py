"""Agreement at large: PyTorch's operator database (what the CPU refuses, what is written in place or
to out=), and a device with memory of its own."""

from __future__ import annotations

import copy
import itertools
import os
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch_backplane
from device.agreement import Mover, Watch, assert_refused_alike, name_of, outcome
from patience import run as run_patiently
from torch.testing._internal.common_methods_invocations import op_db

pytestmark = pytest.mark.slow

# One sample each of an out= over an argument is taken, where the CPU refuses: for cat an empty one,
# which shares memory once it is resized.
NOT_YET = ("gather", "cat")
# Their results are drawn, or memory that nobody has written.
NO_VALUES = (
    *("empty", "normal", "uniform", "rand", "bernoulli", "dropout", "exponential", "geometric"),
    *("cauchy", "multinomial"),
)
SAMPLES = (
    {torch.float32: 1},
    pytest.param({torch.float32: 5, torch.int64: 2, torch.complex64: 2}, marks=pytest.mark.long),
)
Samples = dict[torch.dtype, int]


@pytest.fixture(params=("reference", pytest.param("opencl", marks=pytest.mark.long)))
def npu(request: pytest.FixtureRequest) -> torch.device:
    return torch_backplane.device(request.param, 0)


def is_for_the_device(sample: Any) -> bool:
    """All of its tensors are strided ones of the CPU."""
    leaves = torch.utils._pytree.tree_leaves((sample.input, sample.args, sample.kwargs))
    return all(
        leaf.device.type == "cpu" and leaf.layout == torch.strided and not leaf.is_quantized
        for leaf in leaves
        if isinstance(leaf, torch.Tensor)
    )


def call(op: Any, sample: Any) -> Any:
    return lambda: op(sample[0], *sample[1], **sample[2])


def test_errors_are_the_cpus(npu: torch.device) -> None:
    wrong, compared = [], 0
    warnings.simplefilter("ignore")
    for op in op_db:
        if op.error_inputs_func is None or op.name in NOT_YET:
            continue
        for case in op.error_inputs("cpu"):
            sample = case.sample_input
            if not is_for_the_device(sample):
                continue
            given = (sample.input, sample.args, sample.kwargs)
            moved = Mover(npu)(given)
            _, expected = outcome(call(op, copy.deepcopy(given)))
            if expected is None:
                continue
            compared += 1
            _, actual = outcome(call(op, moved))
            try:
                assert_refused_alike(actual, expected)
            except AssertionError as error:
                wrong.append(f"{name_of(op)}: {error}")
    assert not wrong, f"{len(wrong)} of {compared}:\n" + "\n".join(wrong)
    assert compared > 500


def samples_of(op: Any, samples: Samples) -> Iterator[tuple[Any, Any, Any]]:
    for dtype, count in samples.items():
        if not op.supports_dtype(dtype, "cpu"):
            continue
        chosen = (
            (sample.input, sample.args, sample.kwargs)
            for sample in op.sample_inputs("cpu", dtype)
            if isinstance(sample.input, torch.Tensor)
            and is_for_the_device(sample)
            and sample.input.numel() != 0
            and not sample.broadcasts_input
        )
        yield from itertools.islice(chosen, count)


def is_drawn(op: Any) -> bool:
    return any(word in op.name for word in NO_VALUES)


@pytest.mark.parametrize("samples", SAMPLES)
def test_addresses_stay_in_place(npu: torch.device, samples: Samples) -> None:
    wrong, compared = [], 0
    warnings.simplefilter("ignore")
    for op in op_db:
        variant = op.inplace_variant
        if variant is None:
            continue
        if op.name in ("resize_", "resize_as_"):  # they are about the address
            continue
        for given in samples_of(op, samples):
            expected, refused = outcome(call(variant, copy.deepcopy(given)))
            if refused is not None:
                continue
            moved = Mover(npu)(given)
            watch = Watch(moved[0].detach())
            actual, failure = outcome(call(variant, moved))
            compared += 1
            try:
                assert failure is None, repr(failure)
                watch.check()
                if not is_drawn(op):
                    torch.testing.assert_close(
                        actual, expected, rtol=1e-3, atol=1e-4, equal_nan=True
                    )
            except AssertionError as error:
                wrong.append(f"{name_of(op)}: {error}")
    assert not wrong, f"{len(wrong)} of {compared}:\n" + "\n".join(wrong)
    assert compared > 150


@pytest.mark.parametrize("samples", SAMPLES)
def test_addresses_stay_of_out(npu: torch.device, samples: Samples) -> None:
    wrong, compared = [], 0
    warnings.simplefilter("ignore")
    for op in op_db:
        if not op.supports_out:
            continue
        for sample in samples_of(op, samples):
            given = (sample[0].detach(), sample[1], sample[2])
            if "out" in given[2]:
                continue
            with torch.no_grad():
                expected, refused = outcome(call(op, given))
                if refused is not None or not isinstance(expected, torch.Tensor):
                    continue
                out = torch.zeros_like(expected, device=npu)
                watch = Watch(out)
                moved = Mover(npu)(given)
                if "device" in moved[2]:
                    moved[2]["device"] = npu
                # With out= it may be another computation.
                expected = op(given[0], *given[1], out=torch.zeros_like(expected), **given[2])
                _, failure = outcome(call(op, (moved[0], moved[1], {**moved[2], "out": out})))
            compared += 1
            try:
                assert failure is None, repr(failure)
                watch.check()
                if not is_drawn(op):
                    torch.testing.assert_close(
                        out.cpu(), expected, rtol=1e-3, atol=1e-3, equal_nan=True
                    )
            except AssertionError as error:
                wrong.append(f"{name_of(op)}: {error}")
    assert not wrong, f"{len(wrong)} of {compared}:\n" + "\n".join(wrong)
    assert compared > 250


def test_a_device_with_memory_of_its_own_agrees() -> None:
    """OpenCL on the CPU shares the host's memory, and works in place, unless it is told not to."""
    tests = Path(__file__).with_name("test_agreement.py")
    done = run_patiently(
        [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-p",
            "no:cacheprovider",
            str(tests),
            "-k",
            "opencl",
        ],
        env={**os.environ, "BACKPLANE_OPENCL_ZERO_COPY": "0"},
    )
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr
