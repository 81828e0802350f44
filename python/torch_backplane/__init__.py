"""Backplane: any vendor's device runs PyTorch programs through a plugin.

``torch.compile(model, backend="plugin:<name>")`` needs no import of this package; what is here
explains and counts what happened.
"""

from torch_backplane.errors import BackplaneError
from torch_backplane.options import Options
from torch_backplane.reports import explain, invalidate, plugins, record, reset, stats

__all__ = [
    "BackplaneError",
    "Options",
    "explain",
    "invalidate",
    "plugins",
    "record",
    "reset",
    "stats",
]
__version__ = "0.1.0"
