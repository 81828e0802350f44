"""Bytes viewed as truth values: any but 0 is true, whoever reads it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from compiling import PLUGINS, compile_for

READERS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "float": lambda a: a.float(),
    "double": lambda a: a.double(),
    "int": lambda a: a.int(),
    "half": lambda a: a.half() * 2,
    "plus": lambda a: a + 0.5,
    "times": lambda a: a * torch.ones(6),
    "equal": lambda a: a == torch.tensor(True),
    "less": lambda a: a < a.flip(0),
    "and": lambda a: a & torch.tensor(True),
    "xor": lambda a: a ^ torch.tensor(True),
    "not": torch.logical_not,
    "where": lambda a: torch.where(a, 1.5, 2.5),
    "filled": lambda a: torch.ones(a.shape).masked_fill(a, 3.0),
    "sum": torch.sum,
    "rows": lambda a: a.sum(1),
    "columns": lambda a: a.sum(0, dtype=torch.float32),
    "largest": lambda a: a.int().amax(1),
    "any": lambda a: a.any(0),
    "all": lambda a: a.all(1),
    "running sum": lambda a: a.cumsum(0),
    "transposed": lambda a: a.t().float() + 1,
    "apart": lambda a: a[:, ::2].float() + 1,
    "repeated": lambda a: a[:, :1] * torch.ones(6),
    "one": lambda a: a[0, 0] * torch.ones(3),
    "attention": lambda a: F.scaled_dot_product_attention(
        torch.ones(1, 1, 7, 4), torch.ones(1, 1, 6, 4), torch.arange(24.0).view(1, 1, 6, 4), a
    ),
}


@pytest.mark.parametrize("plugin", PLUGINS)
@pytest.mark.parametrize("reader", READERS)
def test_any_byte_but_zero_is_true(reader: str, plugin: str) -> None:
    read = READERS[reader]
    # A column of true values leaves a key to each query.
    a = torch.tensor([2, 1, 0, 255, 128, 0] * 7, dtype=torch.uint8).view(7, 6).view(torch.bool)
    torch.testing.assert_close(compile_for(plugin, read, "own")(a), read(a), rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize("plugin", PLUGINS)
def test_scattered_truth_values_join_as_such(plugin: str) -> None:
    a = torch.tensor([2, 0, 4, 1], dtype=torch.uint8).view(torch.bool)
    places = torch.tensor([0, 0, 2, 3])

    def program(a: torch.Tensor) -> list[torch.Tensor]:
        return [
            torch.ones(4, dtype=torch.bool).scatter_reduce(0, places, a, how).int()
            for how in ("prod", "amin", "amax")
        ]

    for actual, expected in zip(compile_for(plugin, program, "own")(a), program(a), strict=True):
        assert torch.equal(actual, expected)


@pytest.mark.parametrize("plugin", PLUGINS)
def test_whole_vectors_of_bytes(plugin: str) -> None:
    a = (torch.arange(1003) % 5).mul(51).to(torch.uint8).view(torch.bool)

    def program(a: torch.Tensor) -> list[torch.Tensor]:
        return [a.float() + 1, a.int() * 3, a.half() + 1, torch.where(a, 1.0, 2.0), a[::2] + 0.5]

    for actual, expected in zip(compile_for(plugin, program, "own")(a), program(a), strict=True):
        assert torch.equal(actual, expected)
