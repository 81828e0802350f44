"""Tensors without dims beside others: where PyTorch makes floats of whole numbers, each is taken as it
is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from compiling import DOORS, compile_for

PIXELS = torch.tensor([0, 100, 255], dtype=torch.uint8)
PROGRAMS: dict[str, Callable[..., Any]] = {
    "div": lambda a, b: a / b,
    "div by": lambda a, b: b / a,
    "atan2": torch.atan2,
    "xlogy": torch.xlogy,
    "sum": lambda a, b: a / torch.full((300,), 1).sum() + b,
}


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("plugin", ["cpu_onednn", "opencl", "reference"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_number_keeps_its_digits(plugin: str, door: str, name: str) -> None:
    program = PROGRAMS[name]
    compiled = compile_for(plugin, program, door)
    for elements, number in (
        (PIXELS, torch.tensor(256)),
        (PIXELS, torch.tensor(-3)),
        (PIXELS.int(), torch.tensor(2**32)),
        (PIXELS.bool(), torch.tensor(300, dtype=torch.int16)),
    ):
        torch.testing.assert_close(
            compiled(elements, number), program(elements, number), equal_nan=True
        )


HALVES: dict[str, Callable[..., Any]] = {
    "floor_divide": lambda z, h: z // h,
    "floor_divide by": lambda z, h: h // z,
    "rsub": lambda z, h: torch.rsub(h, z),
    "addcdiv": lambda z, h: torch.addcdiv(h, z, h),
    "addcmul": lambda z, h: torch.addcmul(z, z, h, value=2),
}


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("plugin", ["cpu_onednn", "opencl", "reference"])
@pytest.mark.parametrize("name", HALVES)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_a_float_beside_halves_has_their_digits(
    plugin: str, door: str, name: str, dtype: torch.dtype
) -> None:
    program = HALVES[name]
    halves = torch.tensor([1.5, -2.25], dtype=dtype)
    compiled = compile_for(plugin, program, door)
    for number in (torch.tensor(70000.0), torch.tensor(3.14159)):
        expected = program(number, halves)
        torch.testing.assert_close(
            compiled(number, halves), expected, rtol=0, atol=0, equal_nan=True
        )


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("plugin", ["cpu_onednn", "opencl", "reference"])
def test_what_is_too_large_to_fill_with(plugin: str, door: str) -> None:
    def program(x: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        return x.masked_fill(x > 1, value)

    compiled = compile_for(plugin, program, door)
    for x, value in (
        (torch.ones(3).half() * 2, torch.tensor(-1e9)),
        (torch.ones(3) * 2, torch.tensor(1e300, dtype=torch.float64)),
    ):
        for run in (program, compiled):
            with pytest.raises(RuntimeError, match="cannot be converted"):
                run(x, value)
        fits = torch.tensor(-5.0, dtype=value.dtype)
        torch.testing.assert_close(compiled(x, fits), program(x, fits))
