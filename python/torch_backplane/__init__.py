"""Backplane: any vendor's device runs PyTorch programs through a plugin.

``torch.compile(model, backend="plugin:<name>")`` needs no import of this package. ``compile`` is the
front end of its own, without TorchDynamo; what else is here explains and counts what happened.
"""

from __future__ import annotations

import importlib
from typing import Any

import torch_backplane_names

from torch_backplane.errors import (
    BackplaneDataError,
    BackplaneDeviceLostError,
    BackplaneError,
    BackplaneOutOfMemoryError,
)
from torch_backplane.options import Options
from torch_backplane.plugin_search import plugins
from torch_backplane.reports import explain, invalidate, record, reset, stats
from torch_backplane.torch_device import device, init_device, init_from_environment

__all__ = [
    "BackplaneDataError",
    "BackplaneDeviceLostError",
    "BackplaneError",
    "BackplaneOutOfMemoryError",
    "Options",
    "compile",
    "counters",
    "device",
    "disable",
    "entries",
    "explain",
    "init_device",
    "invalidate",
    "ladder",
    "mark_dynamic",
    "mark_static",
    "maybe_mark_dynamic",
    "plugins",
    "record",
    "reset",
    "stats",
]
__version__ = "0.1.0"

# The front end loads the extension module, which importing the package alone must not.
_FRONT_END = (
    "compile",
    "counters",
    "disable",
    "entries",
    "mark_dynamic",
    "mark_static",
    "maybe_mark_dynamic",
)


def __getattr__(name: str) -> Any:
    if name == "ladder":
        from torch_backplane.rung_ladder import ladder

        return ladder
    if name in ("frontend", "memory"):
        return importlib.import_module(f"{__name__}.{name}")
    if name not in _FRONT_END:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from torch_backplane import frontend

    return getattr(frontend, name)


init_from_environment()
torch_backplane_names.register()  # also where PyTorch's loading of back ends is off
