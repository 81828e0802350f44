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
