"""What the tests of the torch device share."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
import torch_backplane

PLUGINS = ("cpu_onednn", "opencl", "cuda", "reference")


@contextlib.contextmanager
def counting() -> Iterator[dict[str, Any]]:
    """What happened inside, as ``stats()`` says it; filled in at the end."""
    torch_backplane.reset()
    found: dict[str, Any] = {}
    yield found
    found.update(torch_backplane.stats())


def close(actual: torch.Tensor, expected: torch.Tensor) -> None:
    """Of the device, and equal to what the CPU gives but for float32 rounding."""
    assert actual.device.type == "backplane"
    torch.testing.assert_close(actual.cpu(), expected, rtol=2e-5, atol=2e-6, equal_nan=True)
