"""Coded errors."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import NoReturn, TypeVar

import torch

from torch_backplane.error_codes import CODES

OUT_OF_MEMORY = "out of memory"


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


DATA_CLASSES: dict[str, type[BackplaneError]] = {
    "invalid argument": BackplaneDataError,
    "device lost": BackplaneDeviceLostError,
}


def raise_error(code: str, error: BaseException) -> NoReturn:
    """Raises a failed call, an ``_C.StatusError``, as BackplaneError."""
    kind, message = error.args
    error_class = DATA_CLASSES.get(kind, BackplaneError) if code == "BP-0108" else BackplaneError
    if kind == OUT_OF_MEMORY:
        error_class, code = BackplaneOutOfMemoryError, "BP-0115"
    raise error_class(code, message if kind == "ok" else f"{message} ({kind})") from None


_Function = TypeVar("_Function", bound=Callable)


def public(code: str) -> Callable[[_Function], _Function]:
    """Of a function that users call: a failed call that nobody has told has that code."""

    def decorate(function: _Function) -> _Function:
        @functools.wraps(function)
        def call(*args, **kwargs):  # type: ignore[no-untyped-def]
            try:
                return function(*args, **kwargs)
            except RuntimeError as error:
                # By its name: the extension module may not be loaded yet.
                if type(error).__name__ != "StatusError" or len(error.args) != 2:
                    raise
                raise_error(code, error)

        return call  # type: ignore[return-value]

    return decorate
