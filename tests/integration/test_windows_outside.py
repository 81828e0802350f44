"""Windows of pooling that lie between their dilated taps: no element is inside. Eager gives the least number there
is, and as index where the window begins, which no element of the input has."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from compiling import PLUGINS, compile_for
from torch.nn import functional as F

WINDOWS: dict[str, tuple[tuple[int, ...], tuple[Any, ...]]] = {
    "both dims": ((2, 3, 4, 4), (2, 1, 1, 5)),
    "rows": ((1, 2, 4, 6), ((2, 1), 1, (1, 0), (5, 1))),
    "columns": ((1, 2, 4, 4), ((1, 2), 1, (0, 1), (1, 5))),
    "some of many": ((1, 2, 3, 9), ((2, 3), 2, 1, (4, 2))),
    "many taps": ((1, 2, 2, 6), ((2, 5), 1, (1, 2), (3, 1))),
    "volumes": ((1, 2, 3, 4, 4), (2, 1, 1, (4, 5, 5))),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("is_last", [False, True])
@pytest.mark.parametrize("name", WINDOWS)
@pytest.mark.parametrize("plugin", [p for p in PLUGINS if p != "cuda"])
def test_windows_without_elements(
    plugin: str, name: str, is_last: bool, dtype: torch.dtype
) -> None:
    shape, window = WINDOWS[name]
    pool = F.max_pool3d if len(shape) == 5 else F.max_pool2d

    def program(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return pool(x, *window, return_indices=True)

    x = torch.randn(shape, generator=torch.Generator().manual_seed(0)).to(dtype)
    if is_last:
        last = torch.channels_last_3d if len(shape) == 5 else torch.channels_last
        x = x.to(memory_format=last)
    values, indices = program(x)
    assert (values == -torch.inf).any()
    actual = compile_for(plugin, program, "own")(x)
    assert torch.equal(actual[0], values)
    if not (is_last and name == "volumes"):  # eager's kernel for these has other numbers there
        assert torch.equal(actual[1], indices)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int32, torch.int64], ids=str)
@pytest.mark.parametrize("plugin", PLUGINS)
def test_windows_without_whole_numbers(plugin: str, dtype: torch.dtype) -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        return F.max_pool2d(x, 2, 1, 1, 5)

    x = torch.arange(1, 17).view(1, 1, 4, 4).to(dtype)
    assert torch.equal(compile_for(plugin, program, "own")(x), program(x))
