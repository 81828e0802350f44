"""PyTorch's operator database: what the CPU refuses, and what is written in place or to out=."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch_backplane
from device.agreement import Mover, Watch, assert_refused_alike, outcome
from torch.testing._internal.common_methods_invocations import op_db

pytestmark = pytest.mark.slow

# Errors that are of other devices or layouts, or that no device but the CPU gives.
NO_REFUSALS: dict[str, str] = {}
# Their results are drawn, or memory that nobody has written.
NO_VALUES = (
    "empty",
    "normal",
    "uniform",
    "rand",
    "bernoulli",
    "dropout",
    "exponential",
    "geometric",
)
SAMPLES = 3


@pytest.fixture(params=("reference", "opencl"))
def npu(request: pytest.FixtureRequest) -> torch.device:
    return torch_backplane.device(request.param, 0)


def name_of(op: Any) -> str:
    return f"{op.name}.{op.variant_test_name}" if op.variant_test_name else op.name


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
        if op.error_inputs_func is None or name_of(op) in NO_REFUSALS:
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


def samples_of(op: Any) -> Iterator[tuple[Any, Any, Any]]:
    found = 0
    for sample in op.sample_inputs("cpu", torch.float32):
        if not isinstance(sample.input, torch.Tensor) or not is_for_the_device(sample):
            continue
        if sample.input.numel() == 0 or sample.broadcasts_input:
            continue
        yield sample.input, sample.args, sample.kwargs
        found += 1
        if found == SAMPLES:
            return


def is_drawn(op: Any) -> bool:
    return any(word in op.name for word in NO_VALUES)


def test_addresses_stay_in_place(npu: torch.device) -> None:
    wrong, compared = [], 0
    warnings.simplefilter("ignore")
    for op in op_db:
        variant = op.inplace_variant
        if variant is None or not op.supports_dtype(torch.float32, "cpu"):
            continue
        if op.name in ("resize_", "resize_as_"):  # they are about the address
            continue
        for given in samples_of(op):
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
    assert compared > 250


def test_addresses_stay_of_out(npu: torch.device) -> None:
    wrong, compared = [], 0
    warnings.simplefilter("ignore")
    for op in op_db:
        if not op.supports_out or not op.supports_dtype(torch.float32, "cpu"):
            continue
        for sample in samples_of(op):
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
                _, failure = outcome(lambda m=moved, o=out: op(m[0], *m[1], out=o, **m[2]))
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
    assert compared > 500
