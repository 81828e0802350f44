"""Backplane: any vendor's device runs PyTorch programs through a plugin.

``torch.compile(model, backend="plugin:<name>")`` needs no import of this package; what is here
explains and counts what happened.
"""

from torch_backplane.errors import BackplaneError
from torch_backplane.options import Options
from torch_backplane.reports import explain, invalidate, plugins, record, reset, stats
from torch_backplane.torch_device import device, init_device, init_from_environment

__all__ = [
    "BackplaneError",
    "Options",
    "device",
    "explain",
    "init_device",
    "invalidate",
    "plugins",
    "record",
    "reset",
    "stats",
]
__version__ = "0.1.0"

init_from_environment()
