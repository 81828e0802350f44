"""The TorchDynamo back end of a plugin. The stages are C++; this wires them."""

from __future__ import annotations

import contextlib
import functools
import math
import operator
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch.utils import _pytree as pytree
from torch.utils.checkpoint import CheckpointPolicy

from torch_backplane import _C, higher_order, written_views
from torch_backplane.account import FrameAccount, run_eagerly, setup_logging
from torch_backplane.errors import BackplaneError
from torch_backplane.frames import (
    DerivedFloats,
    RecordedFrame,
    TracedFrame,
    TracedGraph,
    make_eager,
    out_of_inference_mode,
    shared_memory,
)
from torch_backplane.options import Options
from torch_backplane.plugin_search import check_device, find_plugin
from torch_backplane.varying_floats import floats_as_inputs


def forget() -> None:
    _C.clear_packs()


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
    info = find_plugin(plugin, parsed.isolation, may_be_absent=True)
    account = FrameAccount(plugin, parsed)
    if info["absent"]:
        account.note_absent("frame's", info["absent"])
        return functools.partial(run_eagerly, graph_module)
    check_device(info, plugin, parsed.device)
    _mend_powers(graph_module)
    _mend_one_hot(graph_module)
    if reason := _has_no_graph_of_operators(graph_module):
        account.note_eager("frame's", _C.StatusError("eager only", reason))
        return functools.partial(run_eagerly, graph_module)
    parts = higher_order.compile_parts(
        graph_module,
        example_inputs,
        lambda part, examples: compile_frame(plugin, part, examples, options=options),
    )
    if parts is not None:
        return parts
    if parsed.recorder:
        try:
            if _asks_how_written_memory_lies(graph_module):
                reason = "it asks for the strides of tensors, and writes some"
                raise _C.StatusError("unsupported", reason)
            if any(map(_enters_forward_mode, graph_module.graph.nodes)):
                raise _C.StatusError("unsupported", "it computes tangents in forward mode")
            with _transforms_as_they_were():
                return _recorded_frame(account, graph_module, example_inputs)
        except _C.StatusError as error:
            if error.args[0] == "eager only":  # AOTAutograd would give wrong numbers
                account.note_eager("frame's", error)
                return functools.partial(run_eagerly, graph_module)
            if _switches_inference_mode(graph_module):
                # Tracing that fails within would leave this thread in the mode.
                account.note_eager("frame's", error)
                return functools.partial(run_eagerly, graph_module)
            account.aot_reason = error.args[1]
    try:
        with _transforms_as_they_were():
            return _traced_frame(account, graph_module, example_inputs)
    # TorchDynamo's own may ask it to capture the frame anew, with floats as constants.
    except (BackplaneError, torch._dynamo.exc.TorchDynamoException):
        raise
    except _C.StatusError as error:
        account.note_eager("frame's", error)
        return functools.partial(run_eagerly, graph_module)
    except Exception as error:  # of PyTorch's tracing: sizes that depend on data, a program's error
        text = f"AOTAutograd does not take it: {type(error).__name__}: {error}".splitlines()[0]
        account.note_eager("frame's", _C.StatusError("unsupported", text))
        return functools.partial(run_eagerly, graph_module)


def _recorded_frame(account: FrameAccount, graph_module: Any, example_inputs: list[Any]) -> Any:
    floats = floats_as_inputs(graph_module, example_inputs)
    if floats is None:
        return RecordedFrame(account, graph_module, example_inputs)
    frame = RecordedFrame(account, floats.graph_module, floats.examples)
    if floats.derive is None:
        return frame
    return DerivedFloats(account, graph_module, frame, floats.derive)


@contextlib.contextmanager
def _transforms_as_they_were() -> Iterator[None]:
    """A graph that enters torch.vmap or forward-mode AD and ends within, by what is not captured,
    stays in it."""
    functorch = torch._C._functorch
    depth = functorch.get_dynamic_layer_stack_depth()
    was_dual = _is_in_dual_level()
    try:
        yield
    finally:
        if not was_dual and _is_in_dual_level():
            torch._C._exit_dual_level(level=0)
        if functorch.get_dynamic_layer_stack_depth() > depth:
            functorch.pop_dynamic_layer_stack_and_undo_to_depth(depth)


def _is_in_dual_level() -> bool:
    """There is one level of forward-mode AD at most."""
    try:
        level = torch._C._enter_dual_level()
    except RuntimeError:
        return True
    torch._C._exit_dual_level(level=level)
    return False


def _mend_powers(graph_module: Any) -> None:
    """FX writes a power of a negative number as ``-2.0 ** x``, which Python reads as ``-(2.0**x)``."""
    changed = False
    for node in graph_module.graph.find_nodes(op="call_function", target=operator.pow):
        base = node.args[0]
        if isinstance(base, (int, float)) and math.copysign(1, base) < 0:
            node.target = pow
            changed = True
    if changed:
        graph_module.recompile()


def _mend_one_hot(graph_module: Any) -> None:
    """PyTorch's asks for the least and the greatest class, which a recording cannot."""
    for module in graph_module.modules():
        if not isinstance(module, torch.fx.GraphModule):
            continue
        calls = module.graph.find_nodes(op="call_function", target=torch.nn.functional.one_hot)
        for node in calls:
            node.target = _one_hot
        if calls:
            module.recompile()


def _one_hot(tensor: torch.Tensor, num_classes: int = -1) -> torch.Tensor:
    """As PyTorch's, with its errors, where nothing has to be asked."""
    if tensor.dtype != torch.int64:
        raise RuntimeError("one_hot is only applicable to index tensor of type LongTensor.")
    if tensor.numel() == 0 and num_classes <= 0:
        raise RuntimeError("Can not infer total number of classes from empty tensor.")
    # PyTorch asks the CPU alone, and torch.vmap knows no assertions.
    is_asked = tensor.device.type == "cpu" and tensor.numel() > 0
    if num_classes == -1 or not is_asked or torch._C._functorch.maybe_current_level() is not None:
        return torch.nn.functional.one_hot(tensor, num_classes)
    torch._assert_async(tensor.min() >= 0, "Class values must be non-negative.")
    torch._assert_async(
        tensor.max() < num_classes, "Class values must be smaller than num_classes."
    )
    classes = torch.arange(max(num_classes, 0), device=tensor.device)
    return (tensor.unsqueeze(-1) == classes).to(torch.int64).contiguous()


def _has_no_graph_of_operators(graph_module: Any) -> str:
    """Why what a frame does cannot be said by operators on tensors; empty where it can."""
    if _makes_nested_tensors(graph_module):
        return "it makes nested tensors"  # whose sizes would be symbols that come from nowhere
    if setter := _sets_global_state(graph_module):
        return f"it calls {setter}, whose effect lasts"
    if _ends_in_forward_mode(graph_module):
        return "it ends within forward-mode AD, or leaves what it did not enter"
    if any(str(n.target) == "prims._tensor_version.default" for n in graph_module.graph.nodes):
        return "it asks how often a tensor was written"
    if _shows_inference_tensors(graph_module):
        return "a result is an inference tensor, and others are none"
    return ""


def _sets_global_state(graph_module: Any) -> str:
    for node in graph_module.graph.nodes:
        name = getattr(node.target, "__name__", "") if node.op == "call_function" else ""
        if not name.startswith(("set_", "_set_")) or name == "_set_grad_enabled":
            continue
        if name == "_set_fwd_grad_enabled" and node.args == (True,):
            continue  # as it was: torch.func.jvp sets it again at its end, which would be False else
        if any(getattr(owner, name, None) is node.target for owner in (torch, torch._C)):
            return name.removeprefix("_")
    return ""


def _enters_forward_mode(node: Any) -> bool:
    return getattr(node.target, "__name__", "") == "_enter_dual_level"


def _ends_in_forward_mode(graph_module: Any) -> bool:
    depth = 0
    for node in graph_module.graph.nodes:
        if _enters_forward_mode(node):
            depth += 1
        elif getattr(node.target, "__name__", "") == "_exit_dual_level":
            depth -= 1
        if depth < 0:
            return True
    return depth > 0


def _shows_inference_tensors(graph_module: Any) -> bool:
    """Not where all of the graph lies in the mode: then it runs in it."""
    if not _switches_inference_mode(graph_module) or out_of_inference_mode(graph_module):
        return False
    modes: list[bool] = []
    inside = set()
    for node in graph_module.graph.nodes:
        if node.target is torch.autograd.grad_mode._enter_inference_mode:
            modes.append(node.args == (True,))
        elif node.target is torch.autograd.grad_mode._exit_inference_mode:
            modes.pop()
        elif modes and modes[-1]:
            inside.add(node)
    (output,) = graph_module.graph.find_nodes(op="output")
    return not inside.isdisjoint(output.all_input_nodes)


def _makes_nested_tensors(graph_module: Any) -> bool:
    return any(
        isinstance(value, torch.Tensor) and value.is_nested
        for node in graph_module.graph.nodes
        if node.op != "placeholder"
        for value in pytree.tree_leaves(node.meta.get("example_value"))
    )


_WRITES = {
    operator.iadd,
    operator.iand,
    operator.ifloordiv,
    operator.ilshift,
    operator.imatmul,
    operator.imod,
    operator.imul,
    operator.ior,
    operator.ipow,
    operator.irshift,
    operator.isub,
    operator.itruediv,
    operator.ixor,
    operator.setitem,
}
_LAYOUT = {"stride", "storage_offset", "is_contiguous"}


def _asks_how_written_memory_lies(graph_module: Any) -> bool:
    """A recording has a new value for a tensor that is written, with strides of its own."""
    nodes = graph_module.graph.nodes
    if not any(n.op == "call_method" and n.target in _LAYOUT for n in nodes):
        return False
    return any(
        (n.op == "call_method" and n.target.endswith("_") and not n.target.endswith("__"))
        or n.target in _WRITES
        or "out" in n.kwargs
        or n.kwargs.get("inplace") is True
        for n in nodes
    )


def _switches_inference_mode(graph_module: Any) -> bool:
    enter = torch.autograd.grad_mode._enter_inference_mode
    return any(node.target is enter for node in graph_module.graph.nodes)


def _traced_frame(account: FrameAccount, graph_module: Any, example_inputs: list[Any]) -> Any:
    from torch._functorch.aot_autograd import aot_module_simplified

    seen = written_views.run_without_memory(graph_module, example_inputs)
    if seen.uneven_write:
        raise _C.StatusError("eager only", seen.uneven_write)
    if seen.error and seen.error == account.aot_reason:
        # The program's own: AOTAutograd may have another one, or none.
        raise _C.StatusError("eager only", seen.error)

    groups = [{who[0] for who in group} for group in shared_memory(example_inputs)]
    shared_result = written_views.find_shared_result(seen, groups)
    writes = False
    draws = False

    def compile_as(role: str) -> Callable[..., Any]:
        def compile(traced: Any, _inputs: list[Any]) -> Any:
            nonlocal writes, draws
            made = _metadata() if role != "backward" else None
            if made is not None:
                writes = any(info.mutates_data for info in made.input_info)
            if writes and shared_result:
                raise _C.StatusError("eager only", shared_result)
            if reason := written_views.find_shared_tangent(made.traced_tangents if made else []):
                raise _C.StatusError("eager only", reason)
            if role != "backward":
                effects = written_views.find_effects(traced)
                draws = bool(effects.draws)
                if reason := written_views.find_lost_effect(seen, effects):
                    raise _C.StatusError("eager only", reason)
            if role == "forward" and made is not None:
                made.bw_donated_idxs = []  # a backward that keeps its graph runs again
            if role == "forward" and made is not None and writes:
                written_views.save_content_before_write(traced, made)
            static = made.static_input_indices if made else []  # weights and buffers
            try:
                recorded = higher_order.without_tokens(traced)
                return TracedGraph(account, recorded, role, static)
            except _C.StatusError as error:
                if error.args[0] == "eager only":
                    raise
                account.note_eager(role, error)
                return make_eager(traced, role)

        return compile

    compiled = aot_module_simplified(
        graph_module,
        example_inputs,
        fw_compiler=compile_as("forward"),
        partition_fn=_partition,
        # Backward may run inside of code that TorchDynamo traces; this is not for it.
        bw_compiler=torch._dynamo.disable(compile_as("backward")),
        inference_compiler=compile_as("inference"),
        keep_inference_input_mutations=True,
    )
    if account.aot_reason:
        account.note_aot()
    return TracedFrame(account, graph_module, compiled, writes=writes, draws=draws)


def _partition(joint: Any, *arguments: Any, **options: Any) -> tuple[Any, Any]:
    """PyTorch's partition, whose backward repeats assertions of the forward, with the random numbers
    that they look at."""
    from torch._functorch.partitioners import default_partition, must_recompute

    # A checkpoint would draw its numbers again, from a generator set back for that, which no graph
    # can say: they are saved, and what follows from them is computed again.
    for node in joint.graph.nodes:
        tags = getattr(node.target, "tags", ())
        if torch.Tag.nondeterministic_seeded in tags and must_recompute(node):
            parts = [user for user in node.users if user.target is operator.getitem]
            for result in (node, *parts):
                result.meta["recompute"] = CheckpointPolicy.MUST_SAVE
    forward, backward = default_partition(joint, *arguments, **options)
    done = {node.name for node in forward.graph.nodes if node.op == "call_function"}
    needed: set[Any] = set()
    for node in reversed(backward.graph.nodes):
        if node.op == "output" or node.name not in done or node in needed:
            needed.add(node)
            needed.update(node.all_input_nodes)
    for node in reversed(backward.graph.nodes):
        if node.op == "call_function" and node not in needed:
            backward.graph.erase_node(node)
    backward.recompile()
    return forward, backward


def _metadata() -> Any:
    """What AOTAutograd knows of the forward graph that it makes; None where it says nothing."""
    context = torch._guards.TracingContext.try_get()
    return context.fw_metadata if context is not None else None
