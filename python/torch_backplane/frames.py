"""Graphs of TorchDynamo's frames as callables: recorded at the sizes of their calls, compiled where
their structure is new, else only run."""

from __future__ import annotations

import contextlib
import functools
import operator
from typing import TYPE_CHECKING, Any

import torch
from torch._subclasses import FakeTensor
from torch.autograd import forward_ad
from torch.utils._python_dispatch import _disable_current_modes

from torch_backplane import _C, torch_device
from torch_backplane.account import STATE, runs_again
from torch_backplane.errors import (
    OUT_OF_MEMORY,
    BackplaneDataError,
    BackplaneDeviceLostError,
    BackplaneError,
    raise_error,
)
from torch_backplane.varying_floats import NumberRefusedError, floats_in_tensors

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch_backplane.account import FrameAccount

# Of one graph; what differs further runs with PyTorch.
MAX_STRUCTURES = 64


class Recording:
    """A graph whose sizes are recorded as they come. Seen by ``stats()`` while it lives."""

    def __init__(
        self,
        account: FrameAccount,
        graph_module: Any,
        values: list[Any],
        *,
        name: str,
        static: list[int],
        pack_inference: bool,
        numbers: list[int] | None = None,
        buffers: list[int] | None = None,
    ) -> None:
        """``values``: what shows the device of each input. ``static``: inputs that are weights or
        buffers; ``buffers``: those of them that programs write. Raises StatusError, with the
        reason, where the graph cannot be recorded."""
        self.account = account
        self.graph_module = graph_module
        self.stages: list[Any] = []
        self.counts: dict[str, int] = {}
        self.draws = False  # random numbers
        self.role = ""  # of all that is compiled; empty: as the recorder says
        placeholders = graph_module.graph.find_nodes(op="placeholder")
        self.function = _C.RecordedGraph(
            graph_module,
            len(placeholders),
            [(account.plugin, _device_index(account, placeholders, values))],
            name,
            pack_inference,
            account.options.pack_weights is True,
            account.options.memory_budget,
            [node.name for node in placeholders],
            static,
            _dynamic_sizes(placeholders),
            numbers or [],
            buffers or [],
            verify=float(account.options.verify),
            strict=account.options.strict,
        )

    def add(self, arguments: list[Any] | tuple[Any, ...]) -> None:
        """Makes these sizes known. Raises StatusError where they cannot be recorded, and BP-0107
        where ``strict`` forbids what was compiled, now and in each later call."""
        try:
            stages = self.function.add(*arguments)
        finally:
            self._count()
        for role, function, cut, saved_bytes, recompute_seconds in stages:
            self.stages.append(function)
            self.draws = self.draws or _draws(function.report())
            try:
                self.account.accept(
                    function,
                    self.role or role,
                    cut=cut,
                    saved_bytes=saved_bytes,
                    recompute_seconds=recompute_seconds,
                )
            except BackplaneError as refusal:
                self.function = _Refused(refusal)
                raise

    def add_call(self, arguments: tuple[Any, ...]) -> None:
        """As ``add``, up to so many structures."""
        if self.counts.get("structures", 0) >= MAX_STRUCTURES:
            raise _C.StatusError("exhausted", f"{MAX_STRUCTURES} programs of it are compiled")
        self.add(arguments)

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


class RecordedFrame(Recording):
    """A captured frame that our recorder differentiates: callable with the frame's graph inputs."""

    def __init__(
        self,
        account: FrameAccount,
        graph_module: Any,
        examples: list[Any],
    ) -> None:
        """Floats that are inputs, and that the graph reads as numbers, are recorded one by one."""
        placeholders = graph_module.graph.find_nodes(op="placeholder")
        # A recording is made, and run, in the mode that it is called in.
        within = out_of_inference_mode(graph_module)
        static = [i for i, node in enumerate(placeholders) if _is_static(node, examples[i])]
        self.mode = torch.inference_mode if within is not None else None
        super().__init__(
            account,
            within or graph_module,
            examples,
            name=f"graph_{account.number}",
            static=static,
            buffers=[i for i in static if not isinstance(examples[i], torch.nn.Parameter)],
            pack_inference=account.options.pack_weights is not False,
            numbers=floats_in_tensors(placeholders),
        )
        self.graph_module = graph_module  # what PyTorch runs
        try:
            with self._in_mode():
                self.add([_with_hints(e) for e in examples])
        except _C.StatusError as error:
            # The call itself is to raise, and the next one may be better.
            if error.args[0] not in ("program error", OUT_OF_MEMORY):
                raise

    def __call__(self, *arguments: Any) -> Any:
        results = self._try(arguments)
        return self._call_new(arguments) if results is None else results

    def _try(self, arguments: tuple[Any, ...]) -> Any:
        """None where the call is not known yet."""
        drawn = torch.default_generator.get_state() if self.draws else None
        try:
            with self._in_mode():
                return self.function(*arguments)
        except _C.StatusError as error:
            if runs_again(error) and not self.account.options.strict:
                # Nothing was changed yet, and PyTorch says better what is wrong with the data.
                return self.account.call_eagerly(self.graph_module, arguments, error)
            raise_error("BP-0108", error)
        except Exception as error:
            if not _C.take_forward_failure() or _is_ours(error):
                raise
            failure = _OperatorError.of(error)
        return failure.run_again(self.account, self.graph_module, arguments, drawn)

    def _in_mode(self) -> contextlib.AbstractContextManager[Any]:
        return contextlib.nullcontext() if self.mode is None else self.mode()

    def _call_new(self, arguments: tuple[Any, ...]) -> Any:
        if any(isinstance(argument, FakeTensor) for argument in arguments):
            return self.graph_module.forward(*arguments)  # only looked at, as in their mode
        try:
            with self._in_mode():
                self.add_call(arguments)
        except _C.StatusError as error:
            return self.account.call_eagerly(self.graph_module, arguments, error)
        results = self._try(arguments)
        if results is not None:
            return results
        # PyTorch's own to make: it writes what only that may write.
        reason = _C.StatusError("unsupported", "the call is one that PyTorch has to make")
        return self.account.call_eagerly(self.graph_module, arguments, reason)


class DerivedFloats:
    """A captured frame that computes with floats before tensors read them, as Python does, or for
    which some floats are no tensors: each of these is recorded."""

    def __init__(
        self,
        account: FrameAccount,
        graph_module: Any,
        frame: RecordedFrame,
        derive: Callable[..., tuple[Any, ...]],
    ) -> None:
        """``derive``: the arguments of the recorded frame, from those of the call."""
        self.account = account
        self.graph_module = graph_module
        self.frame = frame
        self.derive = derive
        self.of_numbers: RecordedFrame | None = None

    def __call__(self, *arguments: Any) -> Any:
        try:
            given = self.derive(*arguments)
        except NumberRefusedError:
            return self._call_with_numbers(arguments)
        except Exception as error:  # a division by 0: the program raises where it stands then
            reason = _C.StatusError("program error", f"Python raised an error: {error}")
            return self.account.call_eagerly(self.graph_module, arguments, reason)
        return self.frame(*given)

    def _call_with_numbers(self, arguments: tuple[Any, ...]) -> Any:
        if self.of_numbers is None:
            try:
                self.of_numbers = RecordedFrame(self.account, self.graph_module, list(arguments))
            except _C.StatusError as error:
                return self.account.call_eagerly(self.graph_module, arguments, error)
        return self.of_numbers(*arguments)


class _OperatorError(Exception):
    """A graph's call failed before it wrote to arguments."""

    def __init__(self, refusal: _C.StatusError, original: Exception | None = None) -> None:
        super().__init__(refusal)
        self.refusal = refusal
        self.original = original

    @classmethod
    def of(cls, error: Exception) -> _OperatorError:
        """Of what an operator raised, or Python within one."""
        refusal = _C.StatusError("program error", f"PyTorch raised an error: {error}")
        trace = error.__traceback__
        return cls(refusal, error if trace is not None and trace.tb_next is not None else None)

    def run_again(
        self, account: FrameAccount, graph_module: Any, arguments: tuple[Any, ...], drawn: Any
    ) -> Any:
        """PyTorch raises once more, where the program stands then: with what it changed before. What
        Python raised and does not raise now was no operator's: a signal's handler, say."""
        if drawn is not None:
            torch.default_generator.set_state(drawn)
        results = account.call_eagerly(graph_module, arguments, self.refusal)
        if self.original is not None:
            raise self.original
        return results


def _is_ours(error: Exception) -> bool:
    return isinstance(error, (BackplaneError, torch.OutOfMemoryError))


def _draws(report: dict[str, Any]) -> bool:
    names = {node["op"] for node in report["fallback"]}
    names.update(name for part in report["partitions"] for name, _ in part["operators"])
    return any(map(_is_draw, names))


@functools.cache
def _is_draw(name: str) -> bool:
    """Of an operator by its name in a graph: ``aten.bernoulli.p``, ``aten.rand``."""
    try:
        found = operator.attrgetter(name)(torch.ops)
    except AttributeError:
        return False
    if isinstance(found, torch._ops.OpOverloadPacket):
        found = getattr(found, "default", None)
    return found is not None and torch.Tag.nondeterministic_seeded in found.tags


def _with_hints(example: Any) -> Any:
    """Sizes that change as they are now, of tensors that are between parts of a graph too."""
    if isinstance(example, torch.SymInt):
        return example.node.hint
    if not isinstance(example, FakeTensor) or not example._has_symbolic_sizes_strides:
        return example
    sizes = [_with_hints(size) for size in example.shape]
    strides = [_with_hints(stride) for stride in example.stride()]
    if None in sizes or None in strides:
        return example
    with example.fake_mode:
        made = torch.empty_strided(sizes, strides, dtype=example.dtype, device=example.device)
    return made.requires_grad_(example.requires_grad)


def out_of_inference_mode(graph_module: Any) -> Any:
    """The graph without the mode, where all of it lies in it; else None."""
    enter = torch.autograd.grad_mode._enter_inference_mode
    leave = torch.autograd.grad_mode._exit_inference_mode
    calls = [n for n in graph_module.graph.nodes if n.op.startswith("call_")]
    if not calls or calls[0].target is not enter or calls[-1].args != (calls[0],):
        return None
    if any(n.target is enter and n.args != (True,) for n in calls):
        return None
    graph = torch.fx.Graph()
    graph.output(graph.graph_copy(graph_module.graph, {}))
    # Gradients are off in it, whatever is switched, and what it was before comes back at its end.
    for node in reversed(graph.nodes):
        if node.target in (enter, leave, torch._C._set_grad_enabled):
            graph.erase_node(node)
    return torch.fx.GraphModule(graph_module, graph)


class TracedGraph(Recording):
    """A graph that AOTAutograd made of a frame, its forward or backward, as it keeps them: called
    with a list, which is emptied."""

    _boxed_call = True

    def __init__(
        self, account: FrameAccount, graph_module: Any, role: str, static: list[int]
    ) -> None:
        placeholders = graph_module.graph.find_nodes(op="placeholder")
        for node in graph_module.graph.find_nodes(op="get_attr"):
            if _lacks_memory(graph_module, node.target):
                # Not the graph that AOTAutograd made either.
                raise _C.StatusError("eager only", f"the constant {node.target!r} has no memory")
        pack = account.options.pack_weights
        super().__init__(
            account,
            graph_module,
            [node.meta.get("val") for node in placeholders],
            name=f"graph_{account.number}",
            static=static,
            pack_inference=role == "inference" if pack is None else pack,
        )
        self.role = role
        self.is_eager = False

    def __call__(self, arguments: list[Any]) -> Any:
        given = tuple(arguments)
        arguments.clear()
        try:
            results = self.function(*given)
            if results is None:
                results = self._call_new(given)
        except _C.StatusError as error:
            raise_error("BP-0108", error)
        except Exception as error:
            failed_in_forward = _C.take_forward_failure() or self.is_eager
            if self.role == "backward" or not failed_in_forward or _is_ours(error):
                raise
            raise _OperatorError.of(error) from error
        return list(results)

    def _call_new(self, arguments: tuple[Any, ...]) -> Any:
        with _disable_current_modes():  # AOTAutograd's own, around the first call
            return self._add_and_call(arguments)

    def _add_and_call(self, arguments: tuple[Any, ...]) -> Any:
        try:
            self.add_call(arguments)
        except _C.StatusError as error:
            if self.counts["structures"] or error.args[0] == "program error":
                return self.account.call_eagerly(self.graph_module, arguments, error)
            self.account.note_eager(self.role, error)
            self.function = self.graph_module.forward
            self.is_eager = True
        return self.function(*arguments)


torch._dynamo.decorators.skip_code(TracedGraph.__call__.__code__)


def make_eager(graph_module: Any, role: str) -> Callable[[list[Any]], Any]:
    """A graph that AOTAutograd made, run by PyTorch."""

    def call(arguments: list[Any]) -> Any:
        given = tuple(arguments)
        arguments.clear()
        try:
            return graph_module.forward(*given)
        except Exception as error:
            if role == "backward":
                raise
            raise _OperatorError.of(error) from error

    call._boxed_call = True  # type: ignore[attr-defined]
    return call


class TracedFrame:
    """A captured frame that AOTAutograd traces. Its functions lose the tangents of forward-mode AD
    and read the memory of every tensor: a call that brings dual tensors or tensors without memory
    runs with PyTorch. So does one whose arguments share memory in another way than those of the
    first call did, where the frame writes to some: what each write shows in others is traced."""

    def __init__(
        self, account: FrameAccount, graph_module: Any, compiled: Any, *, writes: bool, draws: bool
    ) -> None:
        self.account = account
        self.draws = draws
        self.graph_module = graph_module
        self.compiled = compiled
        self.writes = writes
        self.shared: list[Any] | None = None  # of the first call
        self.switches_gradients_on = any(
            node.target is torch._C._set_grad_enabled and node.args == (True,)
            for node in graph_module.graph.nodes
        )

    def __call__(self, *arguments: Any) -> Any:
        may_be_dual = forward_ad._current_level >= 0
        for argument in arguments:
            if isinstance(argument, torch.Tensor) and (
                argument._is_zerotensor()
                or (may_be_dual and forward_ad.unpack_dual(argument).tangent is not None)
            ):
                what = "a tensor of zeros without memory or a dual tensor of forward-mode AD"
                reason = _C.StatusError("unsupported", f"an argument is {what}")
                return self.account.call_eagerly(self.graph_module, arguments, reason)
        if self.switches_gradients_on and torch.is_inference_mode_enabled():
            what = "gradients are switched on in inference mode"  # which makes no history
            reason = _C.StatusError("unsupported", what)
            return self.account.call_eagerly(self.graph_module, arguments, reason)
        if self.writes:
            shared = shared_memory(arguments)
            if self.shared is None:
                self.shared = shared
            elif shared != self.shared:
                what = "arguments share memory in another way than when the frame was traced"
                reason = _C.StatusError("unsupported", what)
                return self.account.call_eagerly(self.graph_module, arguments, reason)
        drawn = torch.default_generator.get_state() if self.draws else None
        try:
            return self.compiled(*arguments)
        except _OperatorError as error:
            failure = error
        except (BackplaneDataError, BackplaneDeviceLostError) as error:
            if self.account.options.strict:
                raise
            is_data = isinstance(error, BackplaneDataError)
            kind = "invalid argument" if is_data else "device lost"
            failure = _OperatorError(_C.StatusError(kind, str(error)))
        return failure.run_again(self.account, self.graph_module, arguments, drawn)


class _Refused:
    """Stands for a function that ``strict`` forbids: every call raises."""

    def __init__(self, refusal: BackplaneError) -> None:
        self.refusal = refusal

    def __call__(self, *_: Any) -> Any:
        raise self.refusal


def shared_memory(arguments: Sequence[Any]) -> list[Any]:
    """The arguments that lie in one storage with another: which, with whom, and where in it."""
    by_storage: dict[int, list[int]] = {}
    for i, argument in enumerate(arguments):
        if isinstance(argument, torch.Tensor) and argument.layout is torch.strided:
            by_storage.setdefault(argument.untyped_storage()._cdata, []).append(i)
    return [
        [
            (i, arguments[i].storage_offset(), arguments[i].shape, arguments[i].stride())
            for i in group
        ]
        for group in by_storage.values()
        if len(group) > 1
    ]


def _lacks_memory(graph_module: Any, name: str) -> bool:
    value = operator.attrgetter(name)(graph_module)
    if not isinstance(value, torch.Tensor):
        return False
    is_plain = type(value) in (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)
    return not is_plain or torch._is_functional_tensor(value) or value._is_zerotensor()


def _device_index(account: FrameAccount, placeholders: list[Any], values: list[Any]) -> int:
    """Of the plugin's device: where the tensors are, else what the options say."""
    index = account.options.device
    for node, value in zip(placeholders, values, strict=True):
        if not isinstance(value, torch.Tensor):
            continue
        there = torch_device.find_plugin_device(value.device)
        if there is None:
            continue
        if there[0] != account.plugin:
            raise BackplaneError(
                "BP-0110",
                f"argument {node.name!r} is on {value.device}, which is {there[0]}:{there[1]}, "
                f"and the graph is compiled for plugin {account.plugin!r}",
            )
        index = there[1]
    return index


def _dynamic_sizes(placeholders: list[Any]) -> list[tuple[int, int, int]]:
    """(argument, dim, symbol) of the sizes that change; dim -1 is the argument itself, an integer.

    None where a size is more than a symbol: such sizes cannot be invented one by one.
    """
    symbols: dict[Any, int] = {}
    found: list[tuple[int, int, int]] = []
    for i, node in enumerate(placeholders):
        example = node.meta.get("example_value", node.meta.get("val"))
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


def _is_static(placeholder: Any, example: Any) -> bool:
    """A weight or buffer: TorchDynamo guards which tensor it is."""
    if isinstance(example, torch.nn.Parameter):
        return True
    return bool(placeholder.meta.get("tensor_dict", {}).get("_dynamo_static_input_type"))
