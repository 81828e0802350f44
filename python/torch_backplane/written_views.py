"""What AOTAutograd gets wrong: writes through a view that shows an element of its base twice, or
whose windows leave some out, gradients of results that are such views, what a backward reads of an
input that is written behind the forward, draws and assertions that nobody reads."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from torch._guards import detect_fake_mode
from torch._subclasses import FakeTensor, FakeTensorMode
from torch.fx.experimental.symbolic_shapes import has_free_unbacked_symbols
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode, is_traceable_wrapper_subclass
from torch.utils.weak import WeakTensorKeyDictionary

# The inverse of expand is a sum, which rounds; that of unfold leaves out what lies between windows.
UNEVEN = (torch.ops.aten.expand.default, torch.ops.aten.unfold.default)


@dataclasses.dataclass
class Effects:
    """What operators do beside their results, by their names: ``draws`` in their order."""

    draws: list[str] = dataclasses.field(default_factory=list)
    assertions: int = 0

    def add(self, func: torch._ops.OpOverload) -> None:
        name = func.overloadpacket.__name__
        if name == "_assert_async":
            self.assertions += 1
        elif torch.Tag.nondeterministic_seeded in func.tags:
            name = name.removesuffix("_").removesuffix("_functional")
            # The one becomes the other where AOTAutograd traces.
            self.draws.append("bernoulli" if name == "native_dropout" else name)


@dataclasses.dataclass
class Seen:
    """Of a frame that ran without memory: ``shown`` are the arguments whose memory results show,
    ``written`` those that it writes. They and ``effects`` are None where it did not come to its end, for
    ``error``."""

    uneven_write: str = ""
    effects: Effects | None = None
    shown: set[int] | None = None
    written: set[int] | None = None
    error: str = ""


class _Watch(TorchDispatchMode):
    supports_higher_order_operators = True

    def __init__(self) -> None:
        super().__init__()
        self.found = ""
        self.effects = Effects()
        self.written: set[int | None] = set()  # memories
        self.uneven = WeakTensorKeyDictionary()  # views without an inverse

    def is_uneven(self, tensor: torch.Tensor) -> bool:
        return tensor in self.uneven or _shows_twice(tensor)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        if not isinstance(func, torch._ops.OpOverload):
            return result
        self.effects.add(func)
        for position, argument in enumerate(func._schema.arguments):
            if argument.alias_info is None:
                continue
            value = args[position] if position < len(args) else kwargs.get(argument.name)
            given = [t for t in pytree.tree_leaves(value) if isinstance(t, torch.Tensor)]
            is_uneven = any(map(self.is_uneven, given))
            if argument.alias_info.is_write:
                self.written.update({*map(_memory_of, given)} - {None})
                if is_uneven and not self.found:
                    self.found = f"{func} writes through a view that shows an element twice or leaves some out"
            elif is_uneven or func in UNEVEN:
                for view in pytree.tree_leaves(result):
                    if isinstance(view, torch.Tensor):
                        self.uneven[view] = True
        return result


def _fresh(value: Any) -> Any:
    """A tensor that lies as this one does, in the memory of the mode that is active."""
    if not isinstance(value, torch.Tensor):
        return value
    if is_traceable_wrapper_subclass(value):
        parts, context = value.__tensor_flatten__()
        fresh = {part: _fresh(getattr(value, part)) for part in parts}
        return type(value).__tensor_unflatten__(fresh, context, value.size(), value.stride())
    if type(value) not in (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer, FakeTensor):
        raise TypeError(f"a {type(value).__name__} would be written")
    return torch.empty_strided(value.size(), value.stride(), dtype=value.dtype, device=value.device)


class _OnFreshTensors(torch.fx.Interpreter):
    """Weights and the state of optimizers are attributes of a graph: a write to them is the program's."""

    def __init__(self, graph_module: Any) -> None:
        super().__init__(graph_module)
        self.attributes: dict[str, Any] = {}

    def get_attr(self, target: Any, args: Any, kwargs: Any) -> Any:
        if target not in self.attributes:
            self.attributes[target] = _fresh(super().get_attr(target, args, kwargs))
        return self.attributes[target]


def run_without_memory(graph_module: Any, examples: list[Any]) -> Seen:
    """What the graph of a frame does, before AOTAutograd is to trace it.

    A graph that does not run without memory says little, and one of forward-mode AD nothing: a run
    that ends early would leave its level behind.
    """
    names = [getattr(node.target, "__name__", "") for node in graph_module.graph.nodes]
    if "_enter_dual_level" in names:
        return Seen()
    watch, seen = _Watch(), Seen()
    mode = detect_fake_mode(examples) or FakeTensorMode(allow_non_fake_inputs=True)
    try:
        with mode:
            inputs = [_fresh(example) for example in examples]
            with torch.no_grad(), watch:
                results = _OnFreshTensors(graph_module).run(*inputs)
        seen.effects = watch.effects
        shown = {*map(_memory_of, pytree.tree_leaves(results))} - {None}
        seen.shown = {i for i, value in enumerate(inputs) if _memory_of(value) in shown}
        seen.written = {i for i, value in enumerate(inputs) if _memory_of(value) in watch.written}
    except Exception as error:
        seen.error = f"{type(error).__name__}: {error}".splitlines()[0]
    seen.uneven_write = watch.found
    return seen


def _memory_of(value: Any) -> int | None:
    is_strided = isinstance(value, torch.Tensor) and value.layout is torch.strided
    return value.untyped_storage()._cdata if is_strided else None


def find_effects(traced: Any) -> Effects:
    """Those of a graph that AOTAutograd made."""
    effects = Effects()
    for node in traced.graph.nodes:
        if isinstance(node.target, torch._ops.OpOverload):
            effects.add(node.target)
    return effects


def find_lost_effect(seen: Seen, traced: Effects) -> str:
    """Why AOTAutograd's forward is not to run for a frame; empty where it does what the frame does.
    It drops draws and assertions that nobody reads, and draws where the frame need not."""
    if seen.effects is None:
        return ""
    if seen.effects.draws != traced.draws:
        return f"it draws {_text(seen.effects.draws)}, and AOTAutograd {_text(traced.draws)}"
    if seen.effects.assertions > traced.assertions:
        return "AOTAutograd drops an assertion"
    return ""


def find_shared_result(seen: Seen, groups: list[set[int]]) -> str:
    """Why AOTAutograd is not to run a frame of which these arguments share memory with each other. It
    makes a result that shows a written one anew, as a view of what all of them are views of, and takes
    a wrong one."""
    for group in groups:
        if any(found is not None and not group & found for found in (seen.shown, seen.written)):
            continue
        return (
            "a result shows an argument that shares memory with others, and one of them is written"
        )
    return ""


def _text(draws: list[str]) -> str:
    return ", ".join(draws) or "nothing"


def find_shared_tangent(tangents: list[Any]) -> str:
    """Why AOTAutograd is not to run a frame whose results have these tangents; empty where nothing is
    found. It copies a gradient into memory that lies as the result does, where the parts of one element
    write over each other."""
    for tangent in tangents:
        if not isinstance(tangent, torch.Tensor) or not tangent.numel():
            continue
        if not all(type(s) is int for s in (*tangent.stride(), *tangent.shape)):
            continue  # where a size is open, it is copied as it comes
        if _shows_twice(tangent):
            return "a result with a gradient shows an element of its memory twice"
    return ""


def _shows_twice(tensor: torch.Tensor) -> bool:
    """Whether an element of its memory may be shown twice, by its strides."""
    if tensor.layout is not torch.strided or has_free_unbacked_symbols(tensor):
        return torch._debug_has_internal_overlap(tensor) == 1
    if not tensor.numel():
        return False
    lies = zip(tensor.stride(), tensor.shape, strict=True)
    last = 0
    for stride, size in sorted([(s, n) for s, n in lies if n != 1], key=lambda one: one[0]):
        if stride <= last:
            return True
        last += stride * (size - 1)
    return False


def save_content_before_write(graph_module: Any, metadata: Any) -> None:
    """Inputs that the program writes and that a backward reads as they were (a checkpoint computes
    its part again): the forward gives copies, since the write comes behind it."""
    graph = graph_module.graph
    (output,) = graph.find_nodes(op="output")
    inputs = graph.find_nodes(op="placeholder")
    written = {
        node for node, info in zip(inputs, metadata.input_info, strict=False) if info.mutates_data
    }
    results = list(output.args[0])
    for i in range(metadata.num_forward, len(results)):
        if results[i] not in written:
            continue
        with graph.inserting_before(output):
            copy = graph.call_function(torch.ops.aten.clone.default, (results[i],))
        copy.meta.update(results[i].meta)
        results[i] = copy
    output.args = (tuple(results),)
    graph_module.recompile()
