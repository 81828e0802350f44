"""Numbers beside elements whose dtype cannot hold them: wrapped, widened or refused, as in PyTorch."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import torch_backplane
from device.agreement import outcome

INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.bool)
DTYPES = (*INTEGERS, torch.float16, torch.bfloat16, torch.float32, torch.complex64)
NUMBERS = (
    *(-1, 2, 200, 300, -129, 70000, 2**31, 2**40, -(2**40), 2**63 - 1, True),
    *(0.5, 2.5, -0.7, 1e5, 1e39, -1e39, 1e-46, float("inf"), float("nan"), 1j),
)
Program = Callable[[torch.Tensor, Any], torch.Tensor]


def written(x: torch.Tensor, number: Any) -> torch.Tensor:
    y = x.clone()
    y[0] = number
    return y


BY_NAME = (
    *("add", "sub", "mul", "div", "floor_divide", "remainder", "fmod", "pow", "float_power"),
    *("eq", "ne", "lt", "ge", "clamp_min", "rsub", "xlogy", "full_like"),
)
PROGRAMS: dict[str, Program] = {
    **{name: lambda x, n, name=name: getattr(torch, name)(x, n) for name in BY_NAME},
    "added to": lambda x, n: n + x,
    "divided by": lambda x, n: n / x,
    "to the power": lambda x, n: torch.pow(n, x),
    "add_": lambda x, n: x.clone().add_(n),
    "mul_": lambda x, n: x.clone().mul_(n),
    "fill_": lambda x, n: x.clone().fill_(n),
    "setitem": written,
    "masked_fill": lambda x, n: x.masked_fill(x == 1, n),
    "index_fill": lambda x, n: x.index_fill(0, torch.tensor([0]), n),
    "scatter": lambda x, n: x.scatter(0, torch.tensor([1]), n),
    "where": lambda x, n: torch.where(x == 1, x, n),
    "clamp": lambda x, n: x.clamp(0, n),
    "clamp max": lambda x, n: torch.clamp(x, max=n),
    "new_full": lambda x, n: x.new_full((2,), n),
    "full": lambda x, n: torch.full((3,), n, dtype=x.dtype),
    "full beside": lambda x, n: torch.full((3,), n) + x,
    "tensor": lambda x, n: x + torch.tensor(n),
    "pad": lambda x, n: F.pad(x, (1, 1), value=n),
    "threshold": lambda x, n: F.threshold(x, 1, n),
    "leaky_relu": F.leaky_relu,
    "alpha": lambda x, n: torch.add(x, x, alpha=n),
    "addcmul": lambda x, n: torch.addcmul(x, x, x, value=n),
    "lerp": lambda x, n: torch.lerp(x, x + 1, n),
    "linspace": lambda x, n: torch.linspace(0, n, 3, dtype=x.dtype),
}


def agree(actual: torch.Tensor, expected: torch.Tensor) -> bool:
    if actual.dtype != expected.dtype or actual.shape != expected.shape:
        return False
    short = expected.dtype in (torch.float16, torch.bfloat16)
    wide = torch.complex128 if expected.is_complex() else torch.float64
    if not expected.is_floating_point() and not expected.is_complex():
        return torch.equal(actual, expected)
    return torch.allclose(
        actual.to(wide), expected.to(wide), rtol=2e-2 if short else 1e-4, equal_nan=True
    )


def assert_right(run: Callable[[Program, Any, torch.Tensor], Any]) -> None:
    """What PyTorch refuses, where its kernel lacks a dtype, may run."""
    warnings.simplefilter("ignore")
    count, wrong = 0, []
    for (name, program), dtype, number in itertools.product(PROGRAMS.items(), DTYPES, NUMBERS):
        if name == "to the power" and dtype.is_complex:  # of infinities, C's functions disagree
            continue
        x = torch.tensor([0, 1, 3]).to(dtype)
        expected, refused = outcome(lambda p=program, x=x, n=number: p(x, n))
        actual, failed = outcome(lambda p=program, x=x, n=number: run(p, n, x.clone()))
        count += 1
        who = f"{name} of {dtype} and {number}"
        if refused is not None:
            if failed is None and "overflow" in str(refused):
                wrong.append(f"{who}: takes what PyTorch refuses: {refused}")
        elif failed is not None or not agree(actual, expected):
            wrong.append(f"{who}: {failed or actual!r}, PyTorch gives {expected}")
    assert not wrong, f"{len(wrong)} of {count}:\n" + "\n".join(wrong)
    assert count > 8000


@pytest.mark.slow
@pytest.mark.parametrize("backend", ("reference", "cpu_onednn"))
def test_in_a_graph(backend: str) -> None:
    def run(program: Program, number: Any, x: torch.Tensor) -> Any:
        return torch_backplane.compile(lambda x: program(x, number), backend=backend)(x)

    assert_right(run)


@pytest.mark.slow
def test_on_a_device() -> None:
    npu = torch_backplane.device("reference", 0)

    def run(program: Program, number: Any, x: torch.Tensor) -> Any:
        with npu:
            return program(x.to(npu), number).cpu()

    assert_right(run)


@pytest.mark.parametrize("backend", ["reference", "cpu_onednn"])
def test_numbers_take_the_default_dtype(backend: str) -> None:
    def program(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return x * 0.1, x / 3, 0.1 - x, torch.where(x > 1, 0.1, 0.2), x + 0.1j

    x = torch.arange(5)
    compiled = torch_backplane.compile(program, backend=backend)
    compiled(x)
    torch.set_default_dtype(torch.float64)
    try:
        for actual, expected in zip(compiled(x), program(x), strict=True):
            torch.testing.assert_close(actual, expected, rtol=1e-15, atol=0)
    finally:
        torch.set_default_dtype(torch.float32)
