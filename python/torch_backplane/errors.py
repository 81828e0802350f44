"""Coded errors."""

from __future__ import annotations

import torch

from torch_backplane.error_codes import CODES


class BackplaneError(RuntimeError):
    """An error with a code of the registry. ``code`` is like ``"BP-0107"``."""

    def __init__(self, code: str, message: str) -> None:
        title, remedy = CODES[code]
        super().__init__(f"{code}: {title}: {message}\n  what to do: {remedy}")
        self.code = code


class BackplaneDeviceLostError(BackplaneError):
    """A device was lost while a call ran. Unless ``strict`` forbids it the call runs again with
    PyTorch, and so do later ones."""


class BackplaneOutOfMemoryError(BackplaneError, torch.OutOfMemoryError):
    """A device has no memory left, after everything that was kept for later was given up. The process
    goes on: tensors are what they were.

    A torch.OutOfMemoryError too, as PyTorch raises for its own devices.
    """


class BackplaneDataError(BackplaneError, IndexError):
    """A plugin refused the data of a call: mostly an index that is out of range.

    An IndexError too, as PyTorch raises for these.
    """
