"""Sums and products with a dtype are of elements that were converted to it first, one by one."""

from __future__ import annotations

import pytest
import torch
from compiling import compile_for

WHOLE = (torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64, torch.bool)
SOURCES = (torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.int8)


def numbers(dtype: torch.dtype) -> torch.Tensor:
    """Some that cancel, and some that only a wide type holds."""
    if not dtype.is_floating_point:
        return torch.tensor([1, -1, 100, -100, 3, -3, 0, 7]).to(dtype).repeat(5, 3)
    wide = 3000000005.0 if dtype == torch.float64 else 1e8
    return torch.tensor([1.7, -1.7, 300.7, -0.4, 0.4, wide, 2.5, -3.0], dtype=dtype).repeat(5, 3)


@pytest.mark.parametrize("plugin", ["cpu_onednn", "reference"])
@pytest.mark.parametrize("dtype", WHOLE, ids=str)
@pytest.mark.parametrize("source", SOURCES, ids=str)
def test_of_whole_numbers(source: torch.dtype, dtype: torch.dtype, plugin: str) -> None:
    a = numbers(source)
    if dtype == torch.uint8:
        a = a.clamp(max=1e8)  # beyond 32 bits eager's own kernels differ

    def program(a: torch.Tensor) -> list[torch.Tensor]:
        return [
            a.sum(dtype=dtype),
            a.sum(1, dtype=dtype),
            a.sum(0, dtype=dtype),
            a.t().sum(0, dtype=dtype),
            a.prod(dtype=dtype),
            a.prod(1, dtype=dtype),
            *([] if dtype == torch.bool else [a.cumsum(1, dtype=dtype), a.cumprod(0, dtype=dtype)]),
        ]

    got, expected = compile_for(plugin, program, "own")(a), program(a)
    for actual, wanted in zip(got, expected, strict=True):
        assert actual.dtype == wanted.dtype
        assert torch.equal(actual, wanted)


@pytest.mark.parametrize("plugin", ["cpu_onednn", "reference"])
def test_totals_beyond_float64_are_exact(plugin: str) -> None:
    def program(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> list[torch.Tensor]:
        return [
            a.sum(dtype=torch.int64),
            b.prod(dtype=torch.int64),
            c.sum(dtype=torch.int32),
        ]

    large = torch.cat([torch.tensor([2.0**53], dtype=torch.double), torch.ones(9).double()])
    operands = (large, torch.full((50,), 3.0), torch.full((50,), 1e8))
    for actual, expected in zip(
        compile_for(plugin, program, "own")(*operands), program(*operands), strict=True
    ):
        assert torch.equal(actual, expected)
