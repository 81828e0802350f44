"""From a Python function over tensors to the functional ATen graph that plugins are given."""

from __future__ import annotations

import contextlib
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

DATA_DEPENDENT = (
    DataDependentOutputException,
    DynamicOutputShapeException,
    GuardOnDataDependentSymNode,
)


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

    def functional(*arguments: torch.Tensor) -> list[torch.Tensor]:
        with FunctionalTensorMode(), contextlib.nullcontext() if grad else torch.no_grad():
            wrapped = [to_fun(argument) for argument in arguments]
            results = function(*wrapped)
            for argument in wrapped:
                sync_functional_tensor(argument)
            changed[:] = [i for i, argument in enumerate(wrapped) if has_data_mutation(argument)]
            return [from_fun(result) for result in results + [wrapped[i] for i in changed]]

    traced = make_fx(functional, decomposition_table=table, tracing_mode="fake")(*arguments)
    for node in reversed(traced.graph.nodes):
        if node.target in CHECKS:
            traced.graph.erase_node(node)
    traced.graph.eliminate_dead_code()
    traced.recompile()
    return traced, changed


def is_random(graph: torch.fx.Graph) -> bool:
    return any(
        isinstance(node.target, torch._ops.OpOverload)
        and torch.Tag.nondeterministic_seeded in node.target.tags
        for node in graph.nodes
    )
