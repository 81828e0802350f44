"""Each operator of a chain rounds its result before the next one reads it, though one kernel runs them all."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from compiling import PLUGINS, compile_for

SPLITTER = {torch.float32: 4097.0, torch.float64: 134217729.0}


def equal_products(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return x * x - y * y, x * y - y * x, (x * 3 - y * 3).sign(), x.square() - y * y


def error_of_a_sum(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    small = y * 1e-3
    total = x + small
    rest = total - x
    return (x - (total - rest)) + (small - rest)


def error_of_a_product(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Dekker's, right only where nothing is fused."""

    def halves(v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        c = v * SPLITTER[v.dtype]
        high = c - (c - v)
        return high, v - high

    (a, b), (c, d) = halves(x), halves(y)
    return b * d - (((x * y - a * c) - b * c) - a * d)


def variance_of_equals(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return ((x * x + y * y) * 0.5 - x * y).clamp(max=0).sqrt()  # NaN below 0


@pytest.mark.parametrize("dtype", SPLITTER)
@pytest.mark.parametrize(
    "program", [equal_products, error_of_a_sum, error_of_a_product, variance_of_equals]
)
@pytest.mark.parametrize("plugin", PLUGINS)
def test_no_step_is_contracted(
    plugin: str, program: Callable[..., Any], dtype: torch.dtype
) -> None:
    x = torch.linspace(0.1, 5.3, 1031, dtype=dtype)
    for arguments in ((x, x.clone()), (x[:77], x[:77] * 1.5)):
        got, expected = compile_for(plugin, program, "own")(*arguments), program(*arguments)
        torch.testing.assert_close(got, expected, rtol=0, atol=0, equal_nan=True)
