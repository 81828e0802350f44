"""Shifts of integers: each plugin gives PyTorch's bits, for counts that are none as well."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import pytest
import torch
from compiling import PLUGINS, compile_for

DTYPES = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
SHIFTS: dict[str, Callable[[Any, Any], torch.Tensor]] = {
    "lshift": operator.lshift,
    "rshift": operator.rshift,
    "left": torch.bitwise_left_shift,
    "right": torch.bitwise_right_shift,
}


def numbers(dtype: torch.dtype) -> list[int]:
    info = torch.iinfo(dtype)
    found = {info.min, info.min + 1, info.max // 3, info.max - 1, info.max, 0, 1, 2, 85}
    return sorted(found | ({-1, -2, -85} if info.min else set()))


def counts(dtype: torch.dtype) -> list[int]:
    info = torch.iinfo(dtype)
    around = {
        0,
        1,
        2,
        3,
        info.bits - 2,
        info.bits - 1,
        info.bits,
        info.bits + 1,
        63,
        64,
        65,
        info.max,
    }
    return sorted(around | ({-1, -info.bits, -64, info.min} if info.min else set()))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", SHIFTS)
@pytest.mark.parametrize("plugin", PLUGINS)
def test_shifts_of_tensors(plugin: str, name: str, dtype: torch.dtype) -> None:
    shift = SHIFTS[name]
    a = torch.tensor(numbers(dtype), dtype=dtype).unsqueeze(1)
    b = torch.tensor(counts(dtype), dtype=dtype)

    def program(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return shift(a, b)

    compiled = compile_for(plugin, program, options={"strict": True})
    assert torch.equal(compiled(a, b), program(a, b))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("plugin", PLUGINS)
def test_shifts_by_numbers_and_of_numbers(plugin: str, dtype: torch.dtype) -> None:
    bits = torch.iinfo(dtype).bits
    a = torch.tensor(numbers(dtype), dtype=dtype)
    b = torch.tensor(counts(dtype), dtype=dtype)
    fitting = [n for n in (0, 1, bits - 1, bits, bits + 1, 64, -1) if n >= 0 or dtype.is_signed]

    def program(a: torch.Tensor, b: torch.Tensor) -> list[torch.Tensor]:
        return [shift(a, n) for shift in SHIFTS.values() for n in fitting] + [
            shift(n, b)
            for shift in (torch.bitwise_left_shift, torch.bitwise_right_shift)
            for n in (0, 1, 5, 77)
        ]

    compiled = compile_for(plugin, program, options={"strict": True})
    for found, expected in zip(compiled(a, b), program(a, b), strict=True):
        assert found.dtype == expected.dtype and torch.equal(found, expected)


@pytest.mark.parametrize("plugin", PLUGINS)
def test_shifts_of_two_types_and_in_place(plugin: str) -> None:
    a = torch.tensor([1, -3, 100, -128], dtype=torch.int8)
    b = torch.tensor([0, 9, 31, 200], dtype=torch.uint8)
    c = torch.arange(4, dtype=torch.int64)

    def program(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> list[torch.Tensor]:
        d = c.clone()
        d <<= 3
        d >>= 1
        return [a << b, b >> a, a << c, c >> b, d]

    compiled = compile_for(plugin, program, options={"strict": True})
    for found, expected in zip(compiled(a, b, c), program(a, b, c), strict=True):
        assert found.dtype == expected.dtype and torch.equal(found, expected)
