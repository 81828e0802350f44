"""What PyTorch refuses, a compiled function refuses: the error inputs of its operator database."""

from __future__ import annotations

import copy
import itertools
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch_backplane
from device.agreement import assert_refused_alike, name_of, outcome
from patience import run as run_patiently
from torch.testing._internal.common_methods_invocations import op_db

TESTS = Path(__file__).resolve().parents[1]
# What is written, and what the other operands are.
WRITTEN = (
    (torch.int64, torch.float32),
    (torch.bool, torch.int64),
    (torch.float32, torch.complex64),
)


# Of a library of operators, which recordings do not run; and of a kernel that has a dtype where
# the one that PyTorch runs without gradients lacks it.
TAKEN = ("nn.functional.linear_cross_entropy.chunked", "nn.functional.max_pool1d")


Given = tuple[Any, Any, Any]


class Comparison:
    """Calls of operators, plainly and compiled, of which plain PyTorch refuses some."""

    def __init__(self, backend: str) -> None:
        self.backend = backend
        self.wrong: list[str] = []
        self.refused = 0

    def add(self, name: str, function: Callable[..., Any], given: Given) -> None:
        def program(given: Given) -> Any:
            return function(given[0], *given[1], **given[2])

        copied = copy.deepcopy(given)
        _, expected = outcome(lambda: program(given))
        if expected is None:
            return
        self.refused += 1
        compiled = torch_backplane.compile(program, backend=self.backend)
        _, actual = outcome(lambda: compiled(copied))
        try:
            assert_refused_alike(actual, expected)
        except AssertionError as error:
            self.wrong.append(f"{name}: {error}")

    def check(self, least: int) -> None:
        assert not self.wrong, f"{len(self.wrong)} of {self.refused}:\n" + "\n".join(self.wrong)
        assert self.refused > least


@pytest.mark.slow
@pytest.mark.parametrize(
    "backend",
    (*(pytest.param(b, marks=pytest.mark.long) for b in ("eager", "reference")), "cpu_onednn"),
)
def test_error_inputs(backend: str) -> None:
    warnings.simplefilter("ignore")
    comparison = Comparison(backend)
    for op in op_db:
        if op.error_inputs_func is None:
            continue
        for case in op.error_inputs("cpu"):
            sample = case.sample_input
            comparison.add(name_of(op), op.op, (sample.input, sample.args, sample.kwargs))
    comparison.check(500)


def converted(given: Any, dtype: torch.dtype) -> Any:
    return torch.utils._pytree.tree_map_only(torch.Tensor, lambda t: t.detach().to(dtype), given)


@pytest.mark.slow
def test_results_that_do_not_fit_what_is_written() -> None:
    warnings.simplefilter("ignore")
    comparison = Comparison("eager")
    for op in op_db:
        if op.inplace_variant is None or not op.supports_dtype(torch.float32, "cpu"):
            continue
        for written, others in WRITTEN:
            for sample in itertools.islice(op.sample_inputs("cpu", torch.float32), 3):
                if not isinstance(sample.input, torch.Tensor):
                    continue
                given = (
                    converted(sample.input, written),
                    converted(sample.args, others),
                    converted(sample.kwargs, others),
                )
                comparison.add(f"{name_of(op)} into {written}", op.inplace_variant, given)
    comparison.check(200)


@pytest.mark.slow
@pytest.mark.parametrize(
    "backend",
    ("eager", *(pytest.param(b, marks=pytest.mark.long) for b in ("reference", "opencl"))),
)
def test_operands_of_several_dtypes(backend: str) -> None:
    """Shape functions let through what kernels refuse: also where the result is not used."""
    warnings.simplefilter("ignore")
    comparison = Comparison(backend)
    for op in op_db:
        if not op.supports_dtype(torch.float32, "cpu") or name_of(op).startswith(TAKEN):
            continue
        for sample in itertools.islice(op.sample_inputs("cpu", torch.float32), 2):
            leaves, spec = torch.utils._pytree.tree_flatten(
                (sample.input, sample.args, sample.kwargs)
            )
            tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
            if any(tensor.layout != torch.strided for tensor in tensors):
                continue
            for i, leaf in enumerate(leaves):
                if not isinstance(leaf, torch.Tensor) or not leaf.is_floating_point():
                    continue
                for dtype in (torch.float64, torch.int64):
                    changed = [*leaves[:i], leaf.detach().to(dtype), *leaves[i + 1 :]]
                    given = torch.utils._pytree.tree_unflatten(changed, spec)
                    comparison.add(f"{name_of(op)}, operand {i} of {dtype}", unused(op.op), given)
    comparison.check(500)


def unused(function: Callable[..., Any]) -> Callable[..., Any]:
    def program(*args: Any, **kwargs: Any) -> int:
        function(*args, **kwargs)
        return 1

    return program


@pytest.mark.parametrize("backend", ["reference", "cpu_onednn", "opencl"])
def test_integers_divided_by_zero(backend: str) -> None:
    """Kernels give anything; PyTorch says so. Numbers other than 0 stay with the plugin."""
    comparison = Comparison(backend)
    for dtype in (torch.uint8, torch.int32, torch.int64):
        one, other = torch.tensor([5, 7, 0], dtype=dtype), torch.tensor([0, 2, 0], dtype=dtype)
        for function in (torch.remainder, torch.fmod, torch.floor_divide):
            comparison.add(function.__name__, function, (one, (other,), {}))
            comparison.add(f"{function.__name__} of a number", function, (one, (0,), {}))
        comparison.add("div", torch.div, (one, (other,), {"rounding_mode": "trunc"}))
        comparison.add("remainder of 1", lambda other: torch.remainder(1, other), (other, (), {}))
    comparison.check(20)
    compiled = torch_backplane.compile(lambda x: x // 2 + x % 3, backend=backend, strict=True)
    assert compiled(torch.tensor([7, -7])).tolist() == [4, -2]


@pytest.mark.slow
@pytest.mark.parametrize(
    "backend",
    ("reference", *(pytest.param(b, marks=pytest.mark.long) for b in ("cpu_onednn", "opencl"))),
)
def test_indices_out_of_range(backend: str) -> None:
    command = [sys.executable, "-m", "opinfo.indices_suite", backend]
    done = run_patiently(command, cwd=TESTS)
    assert done.returncode == 0, done.stdout + done.stderr


ZERO_DIM = {
    "gather": lambda x, i: torch.gather(x, 0, i),
    "index_select": lambda x, i: torch.index_select(x, 0, i),
    "scatter": lambda x, i: torch.scatter(x, 0, i, 2.0),
    "index_fill": lambda x, i: torch.index_fill(x, 0, i, 2.0),
    "take": torch.take,
}


@pytest.mark.parametrize("backend", ("reference", "cpu_onednn", "opencl"))
@pytest.mark.parametrize("name", ZERO_DIM)
@pytest.mark.parametrize("rank", (0, 1))
def test_indices_of_one_element(backend: str, name: str, rank: int) -> None:
    program = ZERO_DIM[name]
    for x in (torch.tensor(3.0), torch.tensor([3.0])):
        for index in (0, 5):
            given = torch.tensor(index).reshape((1,) * rank)
            expected, refused = outcome(lambda: program(x, given))  # noqa: B023
            compiled = torch_backplane.compile(program, backend=backend)
            actual, error = outcome(lambda: compiled(x, given))  # noqa: B023
            if refused is not None:
                assert_refused_alike(error, refused)
            else:
                torch.testing.assert_close(actual, expected)
