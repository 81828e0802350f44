"""Whole numbers beside the tensors of an operator keep all their digits, beyond those of int32 and of float64."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from compiling import PLUGINS, compile_for
from torch.nn import functional as F

ODD = 2**53 + 1  # no float64
FIRST = torch.tensor([0, 1])
NUMBERS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "scatter": lambda x: x.scatter(0, FIRST, ODD),
    "pad": lambda x: torch.constant_pad_nd(x, [1, 1], 2**60 + 1),
    "index_add": lambda x: x.index_add(0, FIRST, x[:2], alpha=ODD),
    "addmm": lambda x: torch.addmm(x[:2], x.view(2, 2), x.view(2, 2), alpha=ODD, beta=ODD + 2),
    "addmm of a column": lambda x: torch.addmm(x[:1], x.view(2, 2), x[:2, None], alpha=ODD),
    "addmv": lambda x: torch.addmv(x[:2], x.view(2, 2), x[:2], alpha=ODD, beta=ODD + 2),
    "baddbmm": lambda x: torch.baddbmm(x[:2], x.view(1, 2, 2), x.view(1, 2, 2), beta=2**62 + 1),
    "hardtanh": lambda x: F.hardtanh(x * 2**60, -ODD, ODD),
    "threshold": lambda x: F.threshold(x + ODD, ODD, -ODD),
    "clamp": lambda x: (x * 2**60).clamp(-ODD, ODD),
    "masked_fill": lambda x: x.masked_fill(x > 1, ODD),
    "add": lambda x: torch.add(x, x, alpha=ODD),
    "full": lambda x: torch.full_like(x, ODD),
}
FAR = (2**31, 2**32, 2**40)
DISTANCES: dict[str, Callable[[torch.Tensor, int], torch.Tensor]] = {
    "triu": torch.triu,
    "triu, farthest": lambda x, far: torch.triu(x, 2**63 - 1),
    "tril, farthest": lambda x, far: torch.tril(x, 2**63 - 1),
    "triu below": lambda x, far: torch.triu(x, -far),
    "tril": torch.tril,
    "tril below": lambda x, far: torch.tril(x, -far),
    "every": lambda x, far: torch.slice_scatter(x, x[:1] * 5, 0, 0, 9, far),
    "every but the first": lambda x, far: torch.slice_scatter(x, x[:1] * 5, 0, 1, 9, far),
}


@pytest.mark.parametrize("plugin", PLUGINS)
@pytest.mark.parametrize("name", NUMBERS)
def test_numbers_that_no_float_holds(name: str, plugin: str) -> None:
    program, x = NUMBERS[name], torch.tensor([1, -3, 2, 5])
    assert torch.equal(compile_for(plugin, program, "own")(x), program(x))


@pytest.mark.parametrize("plugin", PLUGINS)
@pytest.mark.parametrize("name", DISTANCES)
def test_distances_beyond_int32(name: str, plugin: str) -> None:
    x = torch.arange(1.0, 7).view(2, 3)
    for far in FAR:

        def program(x: torch.Tensor, far: int = far) -> torch.Tensor:
            return DISTANCES[name](x, far)

        assert torch.equal(compile_for(plugin, program, "own")(x), program(x)), far


NEXT = 2**31 - 1  # the farthest that eager mode takes
WINDOWS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "max": lambda x: F.max_pool2d(x, 2, NEXT),
    "max and where": lambda x: F.max_pool2d(x, 2, NEXT, 1, return_indices=True)[1],
    "max of one": lambda x: F.max_pool2d(x, 1, 1, 0, NEXT),
    "mean": lambda x: F.avg_pool2d(x, 2, NEXT),
}


@pytest.mark.parametrize("plugin", PLUGINS)
@pytest.mark.parametrize("name", WINDOWS)
def test_a_single_window_may_lie_at_any_distance(name: str, plugin: str) -> None:
    """No memory is asked for to reach the next window, or the next tap, of which there is none."""
    program, x = WINDOWS[name], torch.randn(1, 2, 9, 9)
    torch.testing.assert_close(compile_for(plugin, program, "own")(x), program(x))
