"""What is told and counted of the graphs that are compiled, at both doors."""

from __future__ import annotations

import dataclasses
import itertools
import logging
import os
import pathlib
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
import torch_backplane_names
from torch.utils.checkpoint import checkpoint

from torch_backplane import _C
from torch_backplane.errors import DATA_CLASSES, OUT_OF_MEMORY, BackplaneError, raise_error
from torch_backplane.options import Options

log = logging.getLogger("torch_backplane")
_graph_numbers = itertools.count()


@dataclasses.dataclass
class Totals:
    """Running totals of the process since the last reset."""

    graphs: int = 0
    eager_graphs: int = 0
    eager_calls: int = 0
    aot_graphs: int = 0
    recordings: int = 0
    record_ns: int = 0
    structures: int = 0
    class_splits: int = 0
    plugin_nodes: int = 0
    fallback_nodes: int = 0
    compile_ns: float = 0.0


class Living:
    """What is alive of all that was added. Without the callbacks of a WeakSet: Python drops what a
    signal's handler raises in one."""

    def __init__(self) -> None:
        self._lock = threading.RLock()  # the collector may come in between, and what it calls
        self._references: list[weakref.ref[Any]] = []
        self._room = 16

    def add(self, one: Any) -> None:
        with self._lock:
            if len(self._references) >= self._room:
                self._references = [kept for kept in self._references if kept() is not None]
                self._room = max(16, 2 * len(self._references))
            self._references.append(weakref.ref(one))

    def __iter__(self) -> Iterator[Any]:
        with self._lock:
            references = list(self._references)
        return (one for kept in references if (one := kept()) is not None)


class State:
    """Process-wide bookkeeping; every change under the lock."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.totals = Totals()
        self.functions = Living()
        self.second_at_reset = 0
        self.verified_at_reset = (0, 0)
        self.refused_at_reset = 0
        self.listeners: list[Callable[[dict[str, Any]], None]] = []
        self.searched = False
        self.searching = threading.RLock()
        self.is_child = False  # of fork()
        self.told_absent: set[str] = set()  # why plugins are

    def search_plugins(self) -> None:
        """Adds the package's own plugin folder and those of installed wheels, once. Who comes meanwhile
        waits; a search that is interrupted starts anew."""
        if self.searched:
            return
        with self.searching:
            if not self.searched:
                self._search()
                self.searched = True

    def _search(self) -> None:
        folder = pathlib.Path(_C.__file__).absolute().parent / "plugins"
        if folder.is_dir():
            _C.add_plugin_path(str(folder), "package")
        for wheel, brought in torch_backplane_names.wheel_folders():
            try:
                _C.add_plugin_path(brought, f"wheel {wheel}")
            except _C.StatusError as error:
                log.warning("the plugins of %s are left out: %s", wheel, error.args[1])


STATE = State()


def _begin_child() -> None:
    STATE.lock = threading.Lock()
    STATE.searching = threading.RLock()
    STATE.is_child, STATE.told_absent = True, set()


os.register_at_fork(after_in_child=_begin_child)  # the threads that held them are not in the child


def setup_logging() -> None:
    """One line per event on stderr, unless the application configured logging itself."""
    if log.handlers or logging.getLogger().handlers or os.environ.get("BACKPLANE_QUIET") == "1":
        return
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("backplane: %(message)s"))
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    log.propagate = False


def runs_again(error: _C.StatusError) -> bool:
    """Whether a failed call is one for PyTorch: a plugin refused what it was given to compute with, such
    as a bad index, or lost its device."""
    return error.args[0] in DATA_CLASSES


class FrameAccount:
    """Of one captured frame: its number, and what is told and counted of its graphs."""

    def __init__(self, plugin: str, options: Options) -> None:
        self.plugin = plugin
        self.options = options
        self.number = next(_graph_numbers)
        self.aot_reason = ""  # why the recorder does not trace this frame

    def accept(
        self,
        function: Any,
        role: str,
        cut: str = "",
        saved_bytes: int = 0,
        recompute_seconds: float = 0.0,
    ) -> None:
        """Takes a compiled graph into the totals. Raises BP-0107 where ``strict`` forbids it."""
        function.set_timing(self.options.timing)
        report = function.report()
        report.update(plugin=self.plugin, role=role, cut=cut, aot_reason=self.aot_reason)
        report.update(saved_bytes=saved_bytes, recompute_seconds=recompute_seconds)
        if self.options.strict and report["fallback_nodes"]:
            self._refuse(report)
        self._record(function, report)

    def _refuse(self, report: dict[str, Any]) -> None:
        lines = [
            f"\n    {node['op']} at {node['location'] or 'unknown line'}: "
            f"{node['reason'] or 'no plugin claimed it'}"
            for node in report["fallback"]
        ]
        raise BackplaneError(
            "BP-0107",
            f"{report['fallback_nodes']} of {report['nodes']} nodes cannot run on plugin "
            f"{self.plugin!r}:" + "".join(lines),
        )

    def note_eager(self, role: str, error: Any, is_told: bool = False) -> None:
        """Counts a graph that PyTorch itself runs, in each call; ``strict`` raises."""
        kind, message = error.args
        if self.options.strict or kind == OUT_OF_MEMORY:
            raise_error(_code_of(kind), error)
        with STATE.lock:
            STATE.totals.eager_graphs += 1
        if not is_told:
            log.warning(
                "%s: a whole %s graph runs with PyTorch itself: %s (%s)",
                self.plugin,
                role,
                message,
                kind,
            )
        report = {
            "plugin": self.plugin,
            "role": role,
            "name": f"graph_{self.number}_{role}",
            "eager": f"{message} ({kind})",
        }
        for listener in list(STATE.listeners):
            listener(report)

    def note_absent(self, role: str, reason: str) -> None:
        """As ``note_eager``, where no graph can run on the plugin in this process; told once."""
        with STATE.lock:
            is_told = reason in STATE.told_absent
            STATE.told_absent.add(reason)
        self.note_eager(role, _C.StatusError("unsupported", reason), is_told)

    def note_aot(self) -> None:
        """Counts a graph that PyTorch's AOTAutograd traces, because the recorder refused it."""
        with STATE.lock:
            STATE.totals.aot_graphs += 1
        if self.options.report:
            log.info("%s: AOTAutograd traces a graph: %s", self.plugin, self.aot_reason)

    def call_eagerly(self, graph_module: Any, arguments: tuple[Any, ...], error: Any) -> Any:
        """Runs one call with PyTorch: its sizes could not be recorded. Counted; ``strict`` raises.

        A program that PyTorch is expected to raise for raises its own error before that.
        """
        kind, message = error.args
        raised = kind == "program error"
        results = run_eagerly(graph_module, *arguments) if raised else None
        if self.options.strict or kind == OUT_OF_MEMORY:
            raise_error(_code_of(kind), error)
        with STATE.lock:
            STATE.totals.eager_calls += 1
        if kind != "device lost":  # which the runtime tells, once
            log.warning("%s: a call runs with PyTorch itself: %s (%s)", self.plugin, message, kind)
        report = {
            "plugin": self.plugin,
            "role": "call",
            "name": f"graph_{self.number}",
            "eager": f"{message} ({kind})",
        }
        for listener in list(STATE.listeners):
            listener(report)
        return results if raised else run_eagerly(graph_module, *arguments)

    def _record(self, function: Any, report: dict[str, Any]) -> None:
        with STATE.lock:
            STATE.totals.graphs += 1
            STATE.totals.plugin_nodes += report["plugin_nodes"]
            STATE.totals.fallback_nodes += report["fallback_nodes"]
            STATE.totals.compile_ns += report["compile_ns"]
            STATE.functions.add(function)
        report["function"] = function
        for listener in list(STATE.listeners):
            listener(report)
        if self.options.report:
            log.info("%s", coverage_line(report))


def run_eagerly(graph_module: Any, *arguments: Any) -> Any:
    """Runs the graph of a frame with PyTorch."""
    _mend_checkpoints(graph_module)
    if hasattr(graph_module, "real_recompile"):
        graph_module.real_recompile()  # else the first call prints what it raises
    grad = torch.is_grad_enabled()
    try:
        return graph_module.forward(*arguments)
    except BaseException:
        # The program's `with torch.no_grad()` are two calls in the graph.
        torch._C._set_grad_enabled(grad)
        raise


_mended: weakref.WeakSet[Any] = weakref.WeakSet()  # graphs whose checkpoints are the program's


def _mend_checkpoints(graph_module: Any) -> None:
    """TorchDynamo's operator for them leaves random numbers to a compiler: run as it is, it draws others
    where it computes its part again."""
    if graph_module in _mended:
        return
    _mended.add(graph_module)
    checkpoints = torch.ops.higher_order.tag_activation_checkpoint
    for module in graph_module.modules():
        if not isinstance(module, torch.fx.GraphModule):
            continue
        calls = module.graph.find_nodes(op="call_function", target=checkpoints)
        for node in calls:
            node.target = _checkpoint
        if calls:
            module.recompile()


def _checkpoint(body: Any, *arguments: Any, **options: Any) -> Any:
    """As the program calls it, less the reentrant kind, to which TorchDynamo's graphs do not fit."""
    context = body.meta.get("_checkpoint_context_fn")
    if context is not None:
        options["context_fn"] = context
    return checkpoint(body, *arguments, **{**options, "use_reentrant": False})


def _code_of(kind: str) -> str:
    return "BP-0105" if kind in ("unsupported", "eager only", "program error") else "BP-0106"


def coverage_line(report: Mapping[str, Any]) -> str:
    """One line when all is well; how many nodes run on the CPU, and why, when not."""
    count = len(report["partitions"])
    line = (
        f"{report['plugin']} compiled 1 {report['role']} graph: "
        f"{report['plugin_nodes']}/{report['nodes']} nodes in {count} "
        f"partition{'' if count == 1 else 's'}, {report['fallback_nodes']} fallbacks, "
        f"{report['compile_ns'] / 1e9:.2f} s"
    )
    if report["fallback"]:
        first = report["fallback"][0]
        reason = first["reason"] or "no plugin claimed it"
        line += f"; on the CPU: {first['op']} ({reason})"
        if report["fallback_nodes"] > 1:
            line += f" and {report['fallback_nodes'] - 1} more"
        line += ". torch_backplane.explain(model)(*args) shows all"
    return line
