"""Whole numbers beside 16-bit floats are rounded to them first, but for factors and divisors of one
element."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from compiling import PLUGINS, compile_for

Step = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
STEPS: dict[str, Step] = {
    "add": torch.add,
    "add twice": lambda a, b: torch.add(a, b, alpha=2),
    "sub": torch.sub,
    "rsub": torch.rsub,
    "mul": torch.mul,
    "div": torch.div,
    "floor": lambda a, b: torch.div(a, b, rounding_mode="floor"),
    "trunc": lambda a, b: torch.div(a, b, rounding_mode="trunc"),
    "floor_divide": torch.floor_divide,
    "fmod": torch.fmod,
    "remainder": torch.remainder,
    "maximum": torch.maximum,
    "eq": torch.eq,
    "ne": torch.ne,
    "lt": torch.lt,
    "ge": torch.ge,
}


def agrees(actual: torch.Tensor, expected: torch.Tensor) -> None:
    assert actual.dtype == expected.dtype
    rtol = torch.finfo(expected.dtype).eps if expected.is_floating_point() else 0
    torch.testing.assert_close(actual, expected, rtol=rtol, atol=0, equal_nan=True)


def tensors(dtype: torch.dtype, whole: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    numbers = [255, 254, 3] * 3 if whole == torch.uint8 else [2049, 70000, 257, 259, 4099, 5, 255]
    halves = torch.tensor([2048, torch.inf, 3, 1.5, 7, 5, 256], dtype=dtype)
    return torch.tensor(numbers[:7], dtype=whole), halves


def check(plugin: str, program: Callable[..., list[torch.Tensor]], *operands: torch.Tensor) -> None:
    got, expected = compile_for(plugin, program, "own")(*operands), program(*operands)
    for actual, wanted in zip(got, expected, strict=True):
        agrees(actual, wanted)


@pytest.mark.parametrize("whole", [torch.int64, torch.int32, torch.uint8], ids=str)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_tensors(dtype: torch.dtype, whole: torch.dtype) -> None:
    def program(a: torch.Tensor, h: torch.Tensor) -> list[torch.Tensor]:
        pairs = ((a, h), (h, a), (a, h[2]), (h[2], a))
        of_one = ((a[0], h), (h, a[0]), (h, a[:1]), (a[:1], h))
        return [f(x, y) for f in STEPS.values() for x, y in (*pairs, *of_one)]

    check("cpu_onednn", program, *tensors(dtype, whole))


@pytest.mark.parametrize("plugin", PLUGINS)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_in_one_kernel(dtype: torch.dtype, plugin: str) -> None:
    def program(a: torch.Tensor, h: torch.Tensor) -> list[torch.Tensor]:
        whole = a + 1 - 1
        return [a - h, a == h, h < a, torch.fmod(a, h), whole * h, whole == h, torch.fmod(whole, h)]

    check(plugin, program, *tensors(dtype, torch.int64))


@pytest.mark.parametrize("plugin", PLUGINS)
def test_a_factor_of_one_element_keeps_its_digits(plugin: str) -> None:
    def program(a: torch.Tensor, h: torch.Tensor) -> list[torch.Tensor]:
        return [h * a, h / a, h - a]

    check(plugin, program, torch.tensor(2049), tensors(torch.float16, torch.int64)[1])
