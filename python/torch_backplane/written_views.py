"""Writes that AOTAutograd gets wrong: through a view that shows an element of its base twice, or
whose windows leave some out, gradients of results that are such views, and what a backward reads of
an input that is written behind the forward."""

from __future__ import annotations

import contextlib
from typing import Any

import torch
from torch._guards import detect_fake_mode
from torch._subclasses import FakeTensor, FakeTensorMode
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.weak import WeakTensorKeyDictionary

# The inverse of expand is a sum, which rounds; that of unfold leaves out what lies between windows.
UNEVEN = (torch.ops.aten.expand.default, torch.ops.aten.unfold.default)


class _Watch(TorchDispatchMode):
    supports_higher_order_operators = True

    def __init__(self) -> None:
        super().__init__()
        self.found = ""
        self.uneven = WeakTensorKeyDictionary()  # views without an inverse

    def is_uneven(self, tensor: torch.Tensor) -> bool:
        return tensor in self.uneven or torch._debug_has_internal_overlap(tensor) == 1

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        if not isinstance(func, torch._ops.OpOverload):
            return result
        for position, argument in enumerate(func._schema.arguments):
            if argument.alias_info is None:
                continue
            value = args[position] if position < len(args) else kwargs.get(argument.name)
            given = [t for t in pytree.tree_leaves(value) if isinstance(t, torch.Tensor)]
            is_uneven = any(map(self.is_uneven, given))
            if argument.alias_info.is_write:
                if is_uneven and not self.found:
                    self.found = f"{func} writes through a view that shows an element twice or leaves some out"
            elif is_uneven or func in UNEVEN:
                for view in pytree.tree_leaves(result):
                    if isinstance(view, torch.Tensor):
                        self.uneven[view] = True
        return result


def _fresh(value: Any) -> Any:
    """A tensor that lies as this one does, in the memory of the mode that is active."""
    if not isinstance(value, torch.Tensor) or type(value) not in (
        torch.Tensor,
        torch.nn.Parameter,
        torch.nn.Buffer,
        FakeTensor,
    ):
        return value
    return torch.empty_strided(value.size(), value.stride(), dtype=value.dtype, device=value.device)


class _OnFreshTensors(torch.fx.Interpreter):
    """Weights and the state of optimizers are attributes of a graph: a write to them is the program's."""

    def __init__(self, graph_module: Any) -> None:
        super().__init__(graph_module)
        self.attributes: dict[str, Any] = {}

    def get_attr(self, target: Any, args: Any, kwargs: Any) -> Any:
        if target not in self.attributes:
            value = super().get_attr(target, args, kwargs)
            self.attributes[target] = _fresh(value)
            if isinstance(value, torch.Tensor) and self.attributes[target] is value:
                raise TypeError(f"a {type(value).__name__} would be written")
        return self.attributes[target]


def find_uneven_write(graph_module: Any, examples: list[Any]) -> str:
    """Why AOTAutograd is not to trace the graph of a frame; empty where nothing is found.

    Runs it on tensors without memory. A graph that does not run so says nothing, nor one of
    forward-mode AD: a run that ends early would leave its level behind.
    """
    names = [getattr(node.target, "__name__", "") for node in graph_module.graph.nodes]
    if "_enter_dual_level" in names:
        return ""
    watch = _Watch()
    mode = detect_fake_mode(examples) or FakeTensorMode(allow_non_fake_inputs=True)
    with contextlib.suppress(Exception), mode:
        inputs = [_fresh(example) for example in examples]
        with torch.no_grad(), watch:
            _OnFreshTensors(graph_module).run(*inputs)
    return watch.found


def find_shared_tangent(tangents: list[Any]) -> str:
    """Why AOTAutograd is not to run a frame whose results have these tangents; empty where nothing is
    found. It copies a gradient into memory that lies as the result does, where the parts of one element
    write over each other."""
    for tangent in tangents:
        if not isinstance(tangent, torch.Tensor) or not tangent.numel():
            continue
        lies = [*zip(tangent.stride(), tangent.shape, strict=True)]
        if not all(type(s) is type(n) is int for s, n in lies):
            continue  # where a size is open, it is copied as it comes
        last = 0
        for stride, size in sorted((s, n) for s, n in lies if n != 1):
            if stride <= last:
                return "a result with a gradient shows an element of its memory twice"
            last += stride * (size - 1)
    return ""


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
