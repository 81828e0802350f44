"""From a Python function over tensors to the functional ATen graph that plugins are given."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._functorch._aot_autograd.functional_utils import (
    from_fun,
    has_data_mutation,
    sync_functional_tensor,
    to_fun,
)
from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException
from torch._subclasses.functional_tensor import FunctionalTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode
from torch.utils._python_dispatch import TorchDispatchMode

Function = Callable[..., list[torch.Tensor]]

# The table is PyTorch's core ATen decompositions, less the operators below. Those are whole in the
# graphs of common models, and every device vendor has one kernel for each.
KEPT_WHOLE = (
    "_log_softmax_backward_data",
    "_safe_softmax",
    # Decomposed, it no longer returns what its backward, which stays whole, reads.
    "_scaled_dot_product_flash_attention_for_cpu",
    "_softmax_backward_data",
    "embedding_dense_backward",
    "gelu_backward",
    "hardtanh_backward",
    "leaky_relu_backward",
    "native_batch_norm_backward",
    "native_group_norm_backward",
    "native_layer_norm_backward",
    "sigmoid_backward",
    "silu",
    "silu_backward",
    "tanh_backward",
    "threshold_backward",
)

# They read results and return nothing; a graph of values has no place for them.
CHECKS = (torch.ops.aten._linalg_check_errors.default,)


class WithoutChecks(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return None if func in CHECKS else func(*args, **(kwargs or {}))


class UnbackedSize(Exception):
    """The shape of a result is known only after the call."""


DATA_DEPENDENT = (
    UnbackedSize,
    DataDependentOutputException,
    DynamicOutputShapeException,
    GuardOnDataDependentSymNode,
)


# PyTorch's words when C++ code asks a fake tensor for its values.
READS_VALUES = "its data is not allocated yet"


def depends_on_data(error: Exception) -> bool:
    return isinstance(error, DATA_DEPENDENT) or READS_VALUES in str(error)


def decompositions() -> dict[Any, Any]:
    table = dict(torch._decomp.core_aten_decompositions())
    for name in KEPT_WHOLE:
        del table[getattr(torch.ops.aten, name).default]
    return table


def trace(
    function: Function, arguments: Sequence[torch.Tensor], table: dict[Any, Any], grad: bool
) -> tuple[torch.fx.GraphModule, list[int]]:
    """The graph, free of mutation, and the positions of arguments that ``function`` changes.

    Their new values are further results. Every node carries a fake CPU tensor as ``meta["val"]``.
    """
    changed: list[int] = []
    if any(argument.layout != torch.strided for argument in arguments):
        raise NotImplementedError("a tensor with a sparse layout")

    def functional(*arguments: torch.Tensor) -> list[torch.Tensor]:
        with FunctionalTensorMode(), WithoutChecks(), torch.set_grad_enabled(grad):
            wrapped = [to_fun(argument) for argument in arguments]
            results = function(*wrapped)
            if any(result.layout != torch.strided for result in results):
                raise NotImplementedError("a result with a sparse layout")
            for argument in wrapped:
                sync_functional_tensor(argument)
            changed[:] = [i for i, argument in enumerate(wrapped) if has_data_mutation(argument)]
            return [from_fun(result) for result in results + [wrapped[i] for i in changed]]

    traced = make_fx(functional, decomposition_table=table, tracing_mode="fake")(*arguments)
    traced.graph.eliminate_dead_code()
    traced.recompile()
    for node in traced.graph.nodes:
        if has_unbacked_size(node.meta.get("val")):
            raise UnbackedSize(f"{node.target} gives a size that depends on data")
    return traced, changed


def has_unbacked_size(value: Any) -> bool:
    if isinstance(value, (list, tuple)):
        return any(has_unbacked_size(item) for item in value)
    if isinstance(value, torch.Tensor):
        return any(isinstance(size, torch.SymInt) for size in value.shape)
    return isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool))


def is_random(graph: torch.fx.Graph) -> bool:
    return any(
        isinstance(node.target, torch._ops.OpOverload)
        and torch.Tag.nondeterministic_seeded in node.target.tags
        for node in graph.nodes
    )
