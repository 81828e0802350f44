"""How tests compile for a plugin, compare, count, and run programs in processes of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch_backplane
from patience import run as run_patiently
from torch import nn

PLUGINS = ("cpu_onednn", "opencl", "cuda", "reference")


def moved(device: str = "reference:0") -> dict[str, int]:
    """Bytes copied so far, by way and cause, where not zero."""
    counters = torch_backplane.stats()["transfers"][device]
    return {
        f"{way} {cause}": amount
        for way in ("host_to_device", "device_to_host")
        for cause, (amount, _) in counters[way].items()
        if amount
    }


DOORS = ("torch", "own")


def compile_for(
    plugin: str, target: Callable[..., Any], door: str = "torch", **settings: Any
) -> Any:
    """A program compiled for a plugin by one of both doors, without the coverage line. ``options`` go
    to the plugin."""
    options = {"report": False, **settings.pop("options", {})}
    compile = {"torch": torch.compile, "own": torch_backplane.compile}[door]
    return compile(target, backend=f"plugin:{plugin}", options=options, **settings)


def backplane_error(error: BaseException | None) -> torch_backplane.BackplaneError:
    """The coded error behind what torch.compile raised."""
    seen = error
    while seen is not None:
        if isinstance(seen, torch_backplane.BackplaneError):
            return seen
        seen = getattr(seen, "inner_exception", None) or seen.__cause__ or seen.__context__
    raise AssertionError(f"no BackplaneError behind {error!r}")


def mlp(inputs: int = 16, hidden: int = 32, outputs: int = 8) -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(inputs, hidden), nn.GELU(), nn.LayerNorm(hidden), nn.Linear(hidden, outputs)
    )


def close(actual: Any, expected: Any) -> None:
    """Equal but for float32 rounding; shape, dtype and strides are equal."""
    torch.testing.assert_close(actual, expected, rtol=2e-5, atol=2e-6, equal_nan=True)


def run_python(
    code: str, environment: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Runs code in a fresh interpreter."""
    return run_patiently([sys.executable, "-c", code], env={**os.environ, **(environment or {})})
