"""Products scaled by alpha beside a matrix scaled by beta, at their ends."""

from __future__ import annotations

import math

import pytest
import torch
from compiling import PLUGINS, compile_for


@pytest.mark.parametrize("plugin", PLUGINS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_of_alpha_zero_the_product_is_not_read(dtype: torch.dtype, plugin: str) -> None:
    def program(m: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> list[torch.Tensor]:
        return [
            torch.addmm(m, a, b, alpha=0),
            torch.addmm(m[0], a, b, alpha=0, beta=2),
            torch.addmv(m[:, 0], a, b[:, 0], alpha=0),
        ]

    operands = (torch.ones(2, 2), torch.full((2, 3), math.nan), torch.full((3, 2), math.inf))
    operands = tuple(t.to(dtype) for t in operands)
    got, expected = compile_for(plugin, program, "own")(*operands), program(*operands)
    for actual, wanted in zip(got, expected, strict=True):
        assert torch.equal(actual, wanted)


@pytest.mark.parametrize("plugin", ["cpu_onednn", "reference"])
def test_ratios_of_alpha_and_beta_do_not_overflow(plugin: str) -> None:
    def program(m: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> list[torch.Tensor]:
        return [
            torch.addmm(m, a, b, beta=1e-39),
            torch.baddbmm(m[None], a[None], b[None], beta=1e-20, alpha=1e20),
            torch.addmm(m, a, b, beta=1e20, alpha=1e-20),
        ]

    operands = (torch.ones(2, 2), torch.ones(2, 3), torch.ones(3, 2))
    got, expected = compile_for(plugin, program, "own")(*operands), program(*operands)
    for actual, wanted in zip(got, expected, strict=True):
        torch.testing.assert_close(actual, wanted)
