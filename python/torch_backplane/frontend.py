"""Our own front end: ``torch_backplane.compile`` without TorchDynamo. The stages are C++."""

from __future__ import annotations

import collections
import copy
import dataclasses
import functools
import itertools
import operator
import os
import pathlib
import sys
import tempfile
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from torch_backplane import _C
from torch_backplane.account import FrameAccount, Living, setup_logging
from torch_backplane.compare import Comparison
from torch_backplane.errors import BackplaneError, public
from torch_backplane.options import Options
from torch_backplane.rungs import Backend, find_compiler

_numbers = itertools.count()
_compiled = Living()
_NOTHING: dict[str, Any] = {
    "entries": 0,
    "hits": 0,
    "plain_calls": 0,
    "plain_reasons": {},
    "breaks": {},
    "static_sizes": {},
}

__all__ = [
    "compile",
    "counters",
    "disable",
    "entries",
    "forget",
    "is_compiled",
    "mark_dynamic",
    "mark_static",
    "maybe_mark_dynamic",
    "original",
    "reset_totals",
    "totals",
]
_DEBUG = ("", "compare")


def _check_version() -> None:
    if not hasattr(_C, "frontend"):
        version = ".".join(map(str, sys.version_info[:2]))
        raise BackplaneError(
            "BP-0114",
            f"torch_backplane.compile knows the frames of Python 3.11 and 3.12, and this is {version}",
        )


def _compile_callable(
    target: Any, backend: Backend, limit: int, dynamic: bool | None, dump: str, options: Options
) -> Any:
    _check_version()
    setup_logging()
    name = getattr(target, "__qualname__", type(target).__name__)
    compiler = find_compiler(backend, options.isolation, options.device)
    account = FrameAccount(compiler.plugin, options)
    if compiler.absent:
        account.note_absent("function's", compiler.absent)
    compiled = _C.frontend.compile(
        target,
        f"__compiled_fn_{next(_numbers)}_{name}",
        "" if compiler.absent else compiler.plugin,
        options.device,
        options.strict,
        limit,
        dynamic,
        options.memory_budget,
        float(options.verify),
        options.pack_weights is not False,
        options.pack_weights is True,
        account.accept,
        compiler.foreign,
        dump,
    )
    if not isinstance(target, torch.nn.Module):
        functools.update_wrapper(compiled, target, updated=())
    compiled._backplane_backend = backend
    compiled._backplane_dynamic = dynamic
    compiled._backplane_options = options
    _compiled.add(compiled)
    return compiled


def _compile_module(
    module: torch.nn.Module, compiled: Any, again: Callable[..., Any]
) -> torch.nn.Module:
    """A second object over the module's own state, whose call is the compiled one.

    Parameters, buffers, hooks, ``training`` and every attribute are shared: both objects have one
    ``__dict__``. A copy is compiled with ``again``; pickled is the module itself.
    """
    kind = type(module)
    find = object.__getattribute__  # past a class's own

    def compiled_of(self: Any) -> Any:
        """None where somebody made another object of the wrapper's class."""
        try:
            return find(self, "_backplane_compiled")
        except AttributeError:
            return None

    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            own = find(self, "_backplane_compiled")
        except AttributeError:
            own = functools.partial(kind.__call__, self)
        return own(*args, **kwargs)

    def copied(self: Any, state: dict[str, Any]) -> Any:
        made = base.__new__(type(self))
        made.__dict__.update(state)
        return made

    def copy_of(self: Any) -> Any:
        return again(copy.copy(module)) if compiled_of(self) else copied(self, self.__dict__)

    def deep_copy_of(self: Any, memo: dict[int, Any]) -> Any:
        if compiled_of(self):
            return again(copy.deepcopy(module, memo))
        return copied(self, copy.deepcopy(self.__dict__, memo))

    def reduced(self: Any, protocol: Any) -> Any:
        # pickle wants what it makes anew to be of the object's own class; this makes nothing.
        if compiled_of(self):
            return operator.itemgetter(0), ((module,),)
        return kind.__reduce_ex__(self, protocol)

    # As its base written in C does: the class's own __new__ may want arguments, or make another.
    heap_type = 1 << 9
    base = next(one for one in kind.__mro__ if not one.__flags__ & heap_type)
    wrapper_kind = type(
        kind.__name__,
        (kind,),
        {
            "__slots__": ("_backplane_compiled",),
            "__module__": kind.__module__,
            "__qualname__": kind.__qualname__,
            "__call__": call,
            "__copy__": copy_of,
            "__deepcopy__": deep_copy_of,
            "__reduce_ex__": reduced,
        },
    )
    wrapper = base.__new__(wrapper_kind)
    object.__setattr__(wrapper, "__dict__", module.__dict__)
    object.__setattr__(wrapper, "_backplane_compiled", compiled)
    return wrapper


@public("BP-0104")
def compile(
    target: Callable[..., Any] | None = None,
    *,
    backend: Backend = "eager",
    strict: bool = False,
    dynamic: bool | None = None,
    debug: str | None = None,
    dump: str | os.PathLike[str] | None = None,
    device: int = 0,
    entry_limit: int = 8,
    options: Mapping[str, Any] | None = None,
) -> Any:
    """Captures ``target`` (a function, a method or a module) when it is called, and runs the graph.

    A call with other types, sizes, globals, attributes or switches than any entry was captured with
    is captured again, up to ``entry_limit`` compiled programs; sizes of one structure share one. What
    cannot be captured as a whole breaks: graphs before and behind run, and Python in between. What
    cannot break runs as plain Python. Both are counted with their reasons in ``counters(compiled)``
    and ``stats()``; with ``strict`` they raise instead. Usable as a decorator, with arguments too.

    Args:
        backend: the name of a plugin, with or without ``plugin:``, compiles the captured graph for
            it. ``"eager"`` or ``"aot_eager"``: PyTorch runs it, and a backward graph of ours. Else
            the name of one of TorchDynamo's back ends, or a function like those: it is given the
            graph of each size. Graphs with gradients run as with ``"eager"`` there, with a warning.
        strict: also an error: an operator that the plugin does not take.
        dynamic: ``None``: the first sizes are compiled as they are, the second generalise. ``True``:
            sizes and integers that are arguments generalise from the first call on; one that cannot
            is counted under ``static_sizes``. ``False``: each size has a program of its own. Marks
            of ``mark_dynamic`` and its like win over all three.
        debug: ``"compare"`` runs every call as plain Python too, on copies of its arguments and of
            what else it may change, and raises BP-0112 where results, effects or exceptions differ.
            The environment variable ``BACKPLANE_DEBUG`` says it for all.
        dump: a folder for readable files about each entry: guards, graph, bytecode, breaks and
            recompiles. ``BACKPLANE_DUMP`` says it for all.
        device: index of the plugin's device.
        options: as those of ``torch.compile(..., backend="plugin:<name>", options=...)``.
    """
    again = functools.partial(
        compile,
        backend=backend,
        strict=strict,
        dynamic=dynamic,
        debug=debug,
        dump=dump,
        device=device,
        entry_limit=entry_limit,
        options=options,
    )
    if target is None:
        return again
    if not callable(target):
        raise BackplaneError("BP-0102", f"compile takes a callable, got {type(target).__name__}")
    if dynamic not in (None, True, False):
        raise BackplaneError("BP-0102", f"dynamic takes None, True or False, got {dynamic!r}")
    debug = os.environ.get("BACKPLANE_DEBUG", "") if debug is None else debug
    if debug not in _DEBUG:
        raise BackplaneError("BP-0102", f"debug takes None or 'compare', got {debug!r}")
    given = Options.parse({"strict": strict, "device": device, **(options or {})})
    folder = _dump_folder(os.environ.get("BACKPLANE_DUMP", "") if dump is None else dump)
    compiled = _compile_callable(target, backend, entry_limit, dynamic, folder, given)
    compiled._backplane_again = again
    if debug:
        compiled = _compared(target, compiled)
    if isinstance(target, torch.nn.Module):
        return _compile_module(target, compiled, again)
    return compiled


def copied(compiled: Any) -> Any:
    """``copy.copy`` of a compiled object: as of what was compiled, which is itself for a function."""
    target = compiled.target
    if isinstance(target, types.MethodType):
        return compiled
    made = copy.copy(target)
    return compiled if made is target else compiled._backplane_again(made)


def copied_deep(compiled: Any, memo: dict[int, Any]) -> Any:
    made = copy.deepcopy(compiled.target, memo)
    if made is compiled.target:
        return compiled
    # The object of a method may hold the compiled method.
    return memo.get(id(compiled)) or compiled._backplane_again(made)


def reduced(compiled: Any, _protocol: int) -> Any:
    """For pickle: the name where that leads to the compiled object, as for a function; else what was
    compiled, to be compiled anew."""
    name = getattr(compiled, "__qualname__", "")
    found: Any = sys.modules.get(getattr(compiled, "__module__", None) or "")
    for part in name.split("."):
        found = getattr(found, part, None)
    if found is compiled:
        return name
    again = compiled._backplane_again
    return _compile_again, (compiled.target, again.keywords)


def _compile_again(target: Any, how: dict[str, Any]) -> Any:
    return compile(target, **how)


def _dump_folder(given: str | os.PathLike[str]) -> str:
    """An absolute path that exists; empty where no files are wanted."""
    if given == "":
        return ""
    try:
        folder = pathlib.Path(given).absolute()
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return str(folder)
    except (OSError, TypeError) as error:
        raise BackplaneError("BP-0102", f"dump takes a folder to write to: {error}") from None


def _compared(target: Any, compiled: Any) -> Callable[..., Any]:
    comparison = Comparison(
        target, compiled, getattr(target, "__qualname__", type(target).__name__)
    )

    @disable
    def compared(*args: Any, **kwargs: Any) -> Any:
        return comparison(*args, **kwargs)

    if not isinstance(target, torch.nn.Module):
        functools.update_wrapper(compared, target, updated=())
    compared._backplane_compiled = compiled  # type: ignore[attr-defined]
    compared._backplane_comparison = comparison  # type: ignore[attr-defined]
    return compared


def mark_dynamic(
    tensor: torch.Tensor,
    dim: int | Sequence[int],
    *,
    min: int | None = None,
    max: int | None = None,
) -> None:
    """Says that these sizes of an argument change: they are generalised when it is first seen, with
    sizes from ``min`` to ``max``. A program that takes one size only is error BP-0111.

    The mark is PyTorch's own, as ``torch._dynamo.mark_dynamic`` leaves it: both front ends see it.
    """
    torch._dynamo.mark_dynamic(tensor, dim, min=min, max=max)


def maybe_mark_dynamic(tensor: torch.Tensor, dim: int | Sequence[int]) -> None:
    """As ``mark_dynamic``; a size that cannot change is counted under ``static_sizes``."""
    torch._dynamo.maybe_mark_dynamic(tensor, dim)


def mark_static(tensor: torch.Tensor, dim: int | Sequence[int] | None = None) -> None:
    """Says that each of these sizes gets a program of its own; without ``dim``, all of them."""
    torch._dynamo.mark_static(tensor, dim)


def disable(function: Callable[..., Any]) -> Callable[..., Any]:
    """Marks a Python function that is never captured, nor what it calls: whoever calls it goes on
    behind a break.

    Usable as a decorator. The function itself stays as it is.
    """
    if not isinstance(function, types.FunctionType):
        raise BackplaneError(
            "BP-0102", f"disable takes a Python function, got {type(function).__name__}"
        )
    function._backplane_disabled = True  # type: ignore[attr-defined]
    return function


def is_compiled(target: Any) -> bool:
    """Whether ``compile`` gave it."""
    return hasattr(_handle(target), "_backplane_backend")


def original(compiled: Any) -> tuple[Any, dict[str, Any]]:
    """What was compiled, and the arguments of ``compile`` that say how."""
    handle = _handle(compiled)
    return handle.target, {
        "backend": handle._backplane_backend,
        "dynamic": handle._backplane_dynamic,
        "options": dataclasses.asdict(handle._backplane_options),
    }


def _handle(compiled: Any) -> Any:
    while (inner := getattr(compiled, "_backplane_compiled", None)) is not None:
        compiled = inner
    return compiled


def entries(compiled: Any) -> list[dict[str, Any]]:
    """The entries of a compiled function: ``guards`` and ``graph`` as text, ``nodes``, ``hits``,
    ``program`` (equal where a compiled program is shared), the bytecode instructions and frames it
    took to capture, and the time; ``is_foreign``: whether a back end of TorchDynamo runs it. Of a
    function that breaks also ``frame``, its ``code``, the code that runs in its place (``modified``)
    and why it breaks (``break``)."""
    return _C.frontend.entries(_handle(compiled))


def counters(compiled: Any) -> dict[str, Any]:
    """``entries``, the ``programs`` they share, ``hits``, ``breaks`` with their counts, ``plain_calls``
    (of the function, of frames and of resume functions) and for those ``plain_reasons``;
    ``static_sizes``: why sizes that were to change do not."""
    return _C.frontend.counters(_handle(compiled))


def forget(compiled: Any) -> None:
    """Drops the entries and what was counted."""
    handle = _handle(compiled)
    _C.frontend.reset(handle)
    vars(handle).pop("_backplane_at_reset", None)


def totals() -> dict[str, Any]:
    """Sums over all compiled functions that are alive, since the last ``reset_totals``."""
    out: dict[str, Any] = {"captured_entries": 0, "captured_calls": 0, "plain_calls": 0}
    counts = {key: collections.Counter() for key in ("plain_reasons", "breaks", "static_sizes")}
    for one in list(_compiled):
        now = _C.frontend.counters(one)
        before = vars(one).get("_backplane_at_reset", _NOTHING)
        out["captured_entries"] += now["entries"]
        # The call that an entry was captured with ran it too.
        for key in ("hits", "entries"):
            out["captured_calls"] += now[key] - before[key]
        out["plain_calls"] += now["plain_calls"] - before["plain_calls"]
        for key, reasons in counts.items():
            reasons.update(now[key])
            reasons.subtract(before[key])
    out.update({key: dict(+reasons) for key, reasons in counts.items()})
    return out


def reset_totals() -> None:
    """Counts from zero. Entries stay."""
    for one in list(_compiled):
        one._backplane_at_reset = _C.frontend.counters(one)
