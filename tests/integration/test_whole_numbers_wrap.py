"""Whole numbers that overflow inside a kernel are what they would be in memory, for whoever reads them there."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from compiling import PLUGINS, compile_for

Step = Callable[[torch.Tensor], torch.Tensor]
OVERFLOWING: dict[str, Step] = {
    "square": lambda a: a * a,
    "twice": lambda a: a + a,
    "more": lambda a: a + 100,
    "less": lambda a: a - 100,
    "times": lambda a: a * 5,
    "negative": lambda a: -a,
    "absolute": torch.abs,
    "shifted": lambda a: a << 3,
    "difference": lambda a: (a - 3) - (-a),
    "cube": lambda a: a**3,
}
READERS: dict[str, Step] = {
    "positive": lambda v: v > 0,
    "not negative": lambda v: v >= 0,
    "above a half": lambda v: v > 0.5,
    "third": lambda v: v // 3,
    "rest": lambda v: v % 7,
    "double": lambda v: v.double(),
    "sign": torch.sign,
    "largest": lambda v: v.clamp(min=0),
    "halved": lambda v: v >> 1,
    "absolute": torch.abs,
    "equal": lambda v: v == v.abs(),
}


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64])
@pytest.mark.parametrize("plugin", PLUGINS)
def test_what_is_read_is_what_memory_holds(plugin: str, dtype: torch.dtype) -> None:
    limits = torch.iinfo(dtype)
    values = [limits.max, limits.max - 1, limits.min, limits.min + 1, limits.max // 3, 1, 0, 77]
    a = torch.tensor(values * 5, dtype=dtype)

    def program(a: torch.Tensor) -> list[torch.Tensor]:
        signed = dtype != torch.uint8
        return [
            read(step(a))
            for name, step in OVERFLOWING.items()
            for read in READERS.values()
            if signed or name != "negative"
        ]

    got, expected = compile_for(plugin, program, "own")(a), program(a)
    for actual, wanted in zip(got, expected, strict=True):
        assert torch.equal(actual, wanted)


@pytest.mark.parametrize("plugin", PLUGINS)
def test_sums_and_products(plugin: str) -> None:
    def program(a: torch.Tensor) -> tuple[torch.Tensor, ...]:
        total, product = a.sum(-1), (a * a).prod(-1)
        return total > 0, total // 3, product > 0, product % 5, (a * a).sum(-1) >= 0

    a = torch.tensor([[2**62, 2**62, 5], [-(2**62), -(2**62) - 1, 3], [2**31 + 1, 2**33, 7]])
    got, expected = compile_for(plugin, program, "own")(a), program(a)
    for actual, wanted in zip(got, expected, strict=True):
        assert torch.equal(actual, wanted)


@pytest.mark.parametrize("dtype", [torch.int8, torch.int16, torch.int32, torch.int64])
@pytest.mark.parametrize("plugin", PLUGINS)
def test_the_least_number_over_minus_one(plugin: str, dtype: torch.dtype) -> None:
    """Processors trap where a quotient has no room."""
    least = torch.iinfo(dtype).min
    a = torch.tensor([least, least + 1, 7, least] * 9, dtype=dtype)
    b = torch.tensor([-1, -1, -1, 3] * 9, dtype=dtype)

    def program(a: torch.Tensor, b: torch.Tensor) -> list[torch.Tensor]:
        return [a // b, a % b, torch.fmod(a, b), torch.gcd(a, b), a // -1, a % -1]

    got, expected = compile_for(plugin, program, "own")(a, b), program(a, b)
    for actual, wanted in zip(got, expected, strict=True):
        assert torch.equal(actual, wanted)
