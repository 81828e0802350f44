"""Our own front end: ``torch_backplane.compile`` without TorchDynamo. The stages are C++."""

from __future__ import annotations

import functools
import itertools
import weakref
from collections.abc import Callable
from typing import Any

import torch

from torch_backplane import _C
from torch_backplane.errors import BackplaneError

_numbers = itertools.count()
_compiled: weakref.WeakSet[Any] = weakref.WeakSet()

# Backends that run the captured graph with ATen, to find out which stage is at fault.
_BY_ATEN = ("eager",)


def _plugin_of(backend: str) -> str:
    if backend in _BY_ATEN:
        return ""
    from torch_backplane.backend import find_plugin

    name = backend.removeprefix("plugin:")
    find_plugin(name)
    return name


def _compile_callable(target: Any, backend: str, strict: bool, device: int, limit: int) -> Any:
    name = getattr(target, "__qualname__", type(target).__name__)
    compiled = _C.frontend.compile(
        target, f"__compiled_fn_{next(_numbers)}_{name}", _plugin_of(backend), device, strict, limit
    )
    if not isinstance(target, torch.nn.Module):
        functools.update_wrapper(compiled, target, updated=())
    _compiled.add(compiled)
    return compiled


def _compile_module(module: torch.nn.Module, compiled: Any) -> torch.nn.Module:
    """A second object over the module's own state, whose call is the compiled one.

    Parameters, buffers, hooks, ``training`` and every attribute are shared: both objects have one
    ``__dict__``.
    """
    kind = type(module)
    wrapper_kind = type(
        kind.__name__,
        (kind,),
        {
            "__slots__": ("_backplane_compiled",),
            "__module__": kind.__module__,
            "__qualname__": kind.__qualname__,
            "__call__": lambda self, *args, **kwargs: self._backplane_compiled(*args, **kwargs),
        },
    )
    wrapper = wrapper_kind.__new__(wrapper_kind)
    object.__setattr__(wrapper, "__dict__", module.__dict__)
    object.__setattr__(wrapper, "_backplane_compiled", compiled)
    return wrapper


def compile(
    target: Callable[..., Any] | None = None,
    *,
    backend: str = "eager",
    strict: bool = False,
    device: int = 0,
    entry_limit: int = 8,
) -> Any:
    """Captures ``target`` (a function, a method or a module) when it is called, and runs the graph.

    A call with other types, sizes, globals, attributes or switches than any entry was captured with
    is captured again, up to ``entry_limit`` compiled programs; sizes of one structure share one. What
    cannot be captured as a whole breaks: graphs before and behind run, and Python in between. What
    cannot break runs as plain Python. Both are counted with their reasons in ``counters(compiled)``;
    with ``strict`` they raise instead.
    Usable as a decorator, with arguments too.

    Args:
        backend: ``"eager"`` runs the captured graph with ATen; the name of a plugin, with or without
            ``plugin:``, compiles it for that plugin.
        device: index of the plugin's device.
    """
    if target is None:
        return functools.partial(
            compile, backend=backend, strict=strict, device=device, entry_limit=entry_limit
        )
    if not callable(target):
        raise BackplaneError("BP-0102", f"compile takes a callable, got {type(target).__name__}")
    compiled = _compile_callable(target, backend, strict, device, entry_limit)
    if isinstance(target, torch.nn.Module):
        return _compile_module(target, compiled)
    return compiled


def _handle(compiled: Any) -> Any:
    return getattr(compiled, "_backplane_compiled", compiled)


def entries(compiled: Any) -> list[dict[str, Any]]:
    """The entries of a compiled function: ``guards`` and ``graph`` as text, ``nodes``, ``hits``,
    ``program`` (equal where a compiled program is shared), the bytecode instructions and frames it
    took to capture, and the time. Of a function that breaks also ``frame``, its ``code``, the code
    that runs in its place (``modified``) and why it breaks (``break``)."""
    return _C.frontend.entries(_handle(compiled))


def counters(compiled: Any) -> dict[str, Any]:
    """``entries``, the ``programs`` they share, ``hits``, ``breaks`` with their counts, ``plain_calls``
    (of the function, of frames and of resume functions) and for those ``plain_reasons``."""
    return _C.frontend.counters(_handle(compiled))


def forget(compiled: Any) -> None:
    """Drops the entries and what was counted."""
    _C.frontend.reset(_handle(compiled))


def totals() -> dict[str, int]:
    """Sums over all compiled functions that are alive."""
    counted = [_C.frontend.counters(one) for one in list(_compiled)]
    return {
        "captured_entries": sum(one["entries"] for one in counted),
        "captured_calls": sum(one["hits"] for one in counted),
        "plain_calls": sum(one["plain_calls"] for one in counted),
    }
