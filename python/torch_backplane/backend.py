"""From a TorchDynamo graph to compiled functions of a plugin. The stages are C++; this wires them."""

from __future__ import annotations

import dataclasses
import itertools
import logging
import os
import pathlib
import threading
import weakref
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.autograd import forward_ad

from torch_backplane import _C, decompositions, torch_device, written_views
from torch_backplane.errors import BackplaneDataError, BackplaneError
from torch_backplane.options import Options

# Of one captured frame; what differs further runs with PyTorch.
MAX_STRUCTURES = 64
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


class State:
    """Process-wide bookkeeping; every change under the lock."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.totals = Totals()
        self.functions: weakref.WeakSet[Any] = weakref.WeakSet()
        self.second_at_reset = 0
        self.listeners: list[Callable[[dict[str, Any]], None]] = []
        self.searched = False

    def search_plugins(self) -> None:
        """Adds the package's own plugin folder, once."""
        with self.lock:
            if self.searched:
                return
            self.searched = True
        folder = pathlib.Path(_C.__file__).absolute().parent / "plugins"
        if folder.is_dir():
            _C.add_plugin_path(str(folder), "package")


STATE = State()


def setup_logging() -> None:
    """One line per event on stderr, unless the application configured logging itself."""
    if log.handlers or logging.getLogger().handlers or os.environ.get("BACKPLANE_QUIET") == "1":
        return
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("backplane: %(message)s"))
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    log.propagate = False


def forget() -> None:
    _C.clear_packs()


def _raise(code: str, error: _C.StatusError) -> None:
    kind, message = error.args
    refused = code == "BP-0108" and _refuses_data(error)
    error_class = BackplaneDataError if refused else BackplaneError
    raise error_class(code, message if kind == "ok" else f"{message} ({kind})") from None


def _refuses_data(error: _C.StatusError) -> bool:
    """Whether a plugin refused what it was given to compute with, such as a bad index."""
    return error.args[0] == "invalid argument"


def find_plugin(plugin: str) -> dict[str, Any]:
    """Loads a plugin. Raises BP-0103 with what was found and the nearest names."""
    STATE.search_plugins()
    try:
        return _C.plugin_info(plugin)
    except _C.StatusError as error:
        _raise("BP-0103", error)
        raise AssertionError from error


class Compiled:
    """The boxed callable that AOTAutograd keeps: takes a list of arguments and empties it."""

    _boxed_call = True

    def __init__(self, function: Any) -> None:
        self.function = function

    def __call__(self, arguments: list[Any]) -> list[Any]:
        try:
            return self.function(arguments)
        except _C.StatusError as error:
            _raise("BP-0108", error)
            raise AssertionError from error


torch._dynamo.decorators.skip_code(Compiled.__call__.__code__)


class FrameCompiler:
    """Compiles the graphs of one captured frame: inference, or a forward and its backward."""

    def __init__(self, plugin: str, options: Options) -> None:
        self.plugin = plugin
        self.options = options
        self.number = next(_graph_numbers)
        self.static_names: list[str] = []
        self.aot_reason = ""  # why the recorder does not trace this frame

    def inference(self, graph_module: Any, inputs: list[Any]) -> Callable[..., Any]:
        self.static_names = self._static_placeholders(graph_module)
        return self._compile(graph_module, "inference")

    def forward(self, graph_module: Any, inputs: list[Any]) -> Callable[..., Any]:
        self.static_names = self._static_placeholders(graph_module)
        return self._compile(graph_module, "forward")

    def backward(self, graph_module: Any, inputs: list[Any]) -> Callable[..., Any]:
        return self._compile(graph_module, "backward")

    @staticmethod
    def _static_placeholders(graph_module: Any) -> list[str]:
        context = torch._guards.TracingContext.try_get()
        metadata = context.fw_metadata if context is not None else None
        indices = metadata.static_input_indices if metadata is not None else []
        names = [n.name for n in graph_module.graph.nodes if n.op == "placeholder"]
        return [names[i] for i in indices if i < len(names)]

    def device_index(self, placeholders: list[Any], values: list[Any]) -> int:
        """Of the plugin's device: where the tensors are, else what the options say."""
        index = self.options.device
        for node, value in zip(placeholders, values, strict=True):
            if not isinstance(value, torch.Tensor):
                continue
            there = torch_device.find_plugin_device(value.device)
            if there is None:
                continue
            if there[0] != self.plugin:
                raise BackplaneError(
                    "BP-0110",
                    f"argument {node.name!r} is on {value.device}, which is {there[0]}:{there[1]}, "
                    f"and the graph is compiled for plugin {self.plugin!r}",
                )
            index = there[1]
        return index

    def _compile(self, graph_module: Any, role: str) -> Callable[..., Any]:
        pack = self.options.pack_weights
        name = f"graph_{self.number}_{role}"
        placeholders = graph_module.graph.find_nodes(op="placeholder")
        device = self.device_index(placeholders, [node.meta.get("val") for node in placeholders])
        try:
            function = _C.compile_fx(
                graph_module,
                [(self.plugin, device)],
                name,
                role,
                self.static_names,
                role == "inference" if pack is None else pack,
            )
        except _C.StatusError as error:
            from torch._functorch.aot_autograd import make_boxed_func

            if error.args[0] == "eager only":  # not the graph that AOTAutograd made either
                raise
            self.note_eager(role, error)
            return make_boxed_func(graph_module.forward)
        self.accept(function, role)
        return Compiled(function)

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

    def note_eager(self, role: str, error: Any) -> None:
        """Counts a graph that PyTorch itself runs, in each call; ``strict`` raises."""
        kind, message = error.args
        if self.options.strict:
            _raise(_code_of(kind), error)
        with STATE.lock:
            STATE.totals.eager_graphs += 1
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
        results = graph_module.forward(*arguments) if raised else None
        if self.options.strict:
            _raise(_code_of(kind), error)
        with STATE.lock:
            STATE.totals.eager_calls += 1
        log.warning("%s: a call runs with PyTorch itself: %s (%s)", self.plugin, message, kind)
        report = {
            "plugin": self.plugin,
            "role": "call",
            "name": f"graph_{self.number}",
            "eager": f"{message} ({kind})",
        }
        for listener in list(STATE.listeners):
            listener(report)
        return results if raised else graph_module.forward(*arguments)

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


def _code_of(kind: str) -> str:
    return "BP-0105" if kind in ("unsupported", "eager only", "program error") else "BP-0106"


class RecordedFrame:
    """A captured frame that our recorder differentiates: callable with the frame's graph inputs.

    Sizes that were not seen yet are recorded, compiled where their structure is new, then run.
    """

    def __init__(self, compiler: FrameCompiler, graph_module: Any, examples: list[Any]) -> None:
        """Raises StatusError, with the reason, where the graph cannot be recorded."""
        self.compiler = compiler
        self.graph_module = graph_module
        self.stages: list[Any] = []  # seen by stats() while they live
        self.counts: dict[str, int] = {}
        options = compiler.options
        placeholders = graph_module.graph.find_nodes(op="placeholder")
        pack = options.pack_weights
        self.function = _C.RecordedGraph(
            graph_module,
            len(placeholders),
            [(compiler.plugin, compiler.device_index(placeholders, examples))],
            f"graph_{compiler.number}",
            pack is not False,
            pack is True,
            options.memory_budget,
            [node.name for node in placeholders],
            [i for i, node in enumerate(placeholders) if _is_static(node, examples[i])],
            _dynamic_sizes(placeholders),
            _numbers(placeholders),
        )
        try:
            self._add([e.node.hint if isinstance(e, torch.SymInt) else e for e in examples])
        except _C.StatusError as error:
            # The call itself is to raise, and the next one may be better.
            if error.args[0] != "program error":
                raise

    def _add(self, arguments: list[Any] | tuple[Any, ...]) -> None:
        try:
            stages = self.function.add(*arguments)
        finally:
            self._count()
        for role, function, cut, saved_bytes, recompute_seconds in stages:
            self.stages.append(function)
            try:
                self.compiler.accept(
                    function,
                    role,
                    cut=cut,
                    saved_bytes=saved_bytes,
                    recompute_seconds=recompute_seconds,
                )
            except BackplaneError as refusal:
                self.function = _Refused(refusal)
                raise

    def _count(self) -> None:
        before, self.counts = self.counts, self.function.counts()
        with STATE.lock:
            for key, name in (
                ("recordings", "recordings"),
                ("record_ns", "record_ns"),
                ("structures", "structures"),
                ("splits", "class_splits"),
            ):
                more = self.counts[key] - before.get(key, 0)
                setattr(STATE.totals, name, getattr(STATE.totals, name) + more)

    def __call__(self, *arguments: Any) -> Any:
        try:
            results = self.function(*arguments)
        except _C.StatusError as error:
            if _refuses_data(error) and not self.compiler.options.strict:
                # Nothing was changed yet, and PyTorch says better what is wrong with the data.
                return self.compiler.call_eagerly(self.graph_module, arguments, error)
            _raise("BP-0108", error)
        return self._call_new(arguments) if results is None else results

    def _call_new(self, arguments: tuple[Any, ...]) -> Any:
        try:
            if self.counts["structures"] >= MAX_STRUCTURES:
                raise _C.StatusError("exhausted", f"{MAX_STRUCTURES} programs of it are compiled")
            self._add(arguments)
        except _C.StatusError as error:
            return self.compiler.call_eagerly(self.graph_module, arguments, error)
        return self(*arguments)


class TracedFrame:
    """A captured frame that AOTAutograd traces. Its functions lose the tangents of forward-mode AD
    and read the memory of every tensor: a call that brings dual tensors or tensors without memory
    runs with PyTorch."""

    def __init__(self, compiler: FrameCompiler, graph_module: Any, compiled: Any) -> None:
        self.compiler = compiler
        self.graph_module = graph_module
        self.compiled = compiled

    def __call__(self, *arguments: Any) -> Any:
        may_be_dual = forward_ad._current_level >= 0
        for argument in arguments:
            if isinstance(argument, torch.Tensor) and (
                argument._is_zerotensor()
                or (may_be_dual and forward_ad.unpack_dual(argument).tangent is not None)
            ):
                what = "a tensor of zeros without memory or a dual tensor of forward-mode AD"
                reason = _C.StatusError("unsupported", f"an argument is {what}")
                return self.compiler.call_eagerly(self.graph_module, arguments, reason)
        try:
            return self.compiled(*arguments)
        except BackplaneDataError as error:
            if self.compiler.options.strict:
                raise
            refusal = _C.StatusError("invalid argument", str(error))
            return self.compiler.call_eagerly(self.graph_module, arguments, refusal)


class _Refused:
    """Stands for a function that ``strict`` forbids: every call raises."""

    def __init__(self, refusal: BackplaneError) -> None:
        self.refusal = refusal

    def __call__(self, *_: Any) -> Any:
        raise self.refusal


def _dynamic_sizes(placeholders: list[Any]) -> list[tuple[int, int, int]]:
    """(argument, dim, symbol) of the sizes that change; dim -1 is the argument itself, an integer.

    None where a size is more than a symbol: such sizes cannot be invented one by one.
    """
    symbols: dict[Any, int] = {}
    found: list[tuple[int, int, int]] = []
    for i, node in enumerate(placeholders):
        example = node.meta.get("example_value")
        if isinstance(example, torch.Tensor):
            sizes = list(enumerate(example.shape))
        else:
            sizes = [(-1, example)]
        for dim, size in sizes:
            if not isinstance(size, torch.SymInt):
                continue
            expression = size.node.expr
            if expression.is_Integer:
                continue
            if not expression.is_Symbol:
                return []
            found.append((i, dim, symbols.setdefault(expression, len(symbols))))
    return found


def _numbers(placeholders: list[Any]) -> list[int]:
    """Arguments that are floats in a tensor, which the graph reads at once with ``item()``.

    A float that is known to vary is left to AOTAutograd, which computes with it as a tensor; here
    each value is a program of its own.
    """
    compilation = torch._guards.CompileContext.current_compile_id()
    if compilation is None or getattr(compilation, "frame_compile_id", 1) != 0:
        return []
    return [
        i
        for i, node in enumerate(placeholders)
        if isinstance(node.meta.get("example_value"), torch.Tensor)
        and node.meta["example_value"].dim() == 0
        and node.users
        and all(u.op == "call_method" and u.target == "item" for u in node.users)
    ]


def _is_static(placeholder: Any, example: Any) -> bool:
    """A weight or buffer: TorchDynamo guards which tensor it is."""
    if isinstance(example, torch.nn.Parameter):
        return True
    return bool(placeholder.meta.get("tensor_dict", {}).get("_dynamo_static_input_type"))


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


def compile_frame(
    plugin: str,
    graph_module: Any,
    example_inputs: list[Any],
    *,
    options: Mapping[str, Any] | None = None,
    mode: str | None = None,
    **unknown: Any,
) -> Callable[..., Any]:
    """The TorchDynamo back end: returns a callable for the graph of one captured frame.

    Raises BackplaneError for an unknown option or plugin; a graph that the plugin cannot take runs
    with PyTorch, counted, unless ``strict``.
    """
    setup_logging()
    if mode is not None or unknown:
        names = ", ".join(repr(n) for n in ([*unknown, "mode"] if mode is not None else unknown))
        raise BackplaneError("BP-0101", f"{names}: plugin back ends take options={{...}} only")
    parsed = Options.parse(options)
    info = find_plugin(plugin)
    if not 0 <= parsed.device < len(info["devices"]):
        raise BackplaneError(
            "BP-0104",
            f"plugin {plugin!r} has {len(info['devices'])} device(s), index {parsed.device} asked for",
        )
    compiler = FrameCompiler(plugin, parsed)
    if parsed.recorder:
        try:
            return RecordedFrame(compiler, graph_module, example_inputs)
        except _C.StatusError as error:
            if error.args[0] == "eager only":  # AOTAutograd would give wrong numbers
                compiler.note_eager("frame's", error)
                return graph_module.forward
            compiler.aot_reason = error.args[1]
    if reason := written_views.find_uneven_write(graph_module, example_inputs):
        compiler.note_eager("frame's", _C.StatusError("eager only", reason))
        return graph_module.forward
    from torch._functorch.aot_autograd import aot_module_simplified

    try:
        compiled = aot_module_simplified(
            graph_module,
            example_inputs,
            fw_compiler=compiler.forward,
            # Backward may run inside of code that TorchDynamo traces; this is not for it.
            bw_compiler=torch._dynamo.disable(compiler.backward),
            inference_compiler=compiler.inference,
            decompositions=decompositions.table(),
            keep_inference_input_mutations=False,
        )
    # TorchDynamo's own may ask it to capture the frame anew, with floats as constants.
    except (BackplaneError, torch._dynamo.exc.TorchDynamoException):
        raise
    except _C.StatusError as error:
        compiler.note_eager("frame's", error)
        return graph_module.forward
    except Exception as error:  # of PyTorch's tracing: sizes that depend on data, a program's error
        text = f"AOTAutograd does not take it: {type(error).__name__}: {error}".splitlines()[0]
        compiler.note_eager("frame's", _C.StatusError("unsupported", text))
        return graph_module.forward
    if compiler.aot_reason:
        compiler.note_aot()
    return TracedFrame(compiler, graph_module, compiled)
