"""Operators of PyTorch's own database on tensors of a plugin's device, beside the CPU's results."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Sequence
from typing import Any

import torch
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils._pytree import tree_leaves, tree_map
from torch_backplane.opinfo.entries import GPU_ONLY_PREFIX, UNINITIALIZED

# Memory that nobody has written has no value to compare; what is resized keeps what it had.
UNWRITTEN = UNINITIALIZED - {"resize_", "resize_as_"}
# The device holds strided tensors: these make or take others.
SPARSE = ("sparse.mm", "sparse.sampled_addmm", "to_sparse")
# Unique but for signs or order, and sensitive to the last bit; each has identities for a test.
UP_TO_SIGNS = ("linalg.eig", "linalg.eigh", "linalg.svd", "svd", "svd_lowrank", "pca_lowrank")
# Asks for an argument on the CPU, on every device.
HOST_ARGUMENT = ("tensor_split",)
# Which of equal values comes first is open, unless a stable order is asked for.
ORDERING = ("sort", "argsort", "topk")
LEFT_OUT = (*UNWRITTEN, *SPARSE, *UP_TO_SIGNS, *HOST_ARGUMENT)
NARROW = (torch.bfloat16, torch.float16)
TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 2e-2, torch.float16: 4e-3}
REFUSALS = (RuntimeError, ValueError, NotImplementedError, IndexError, TypeError)


def is_chosen(op: Any) -> bool:
    # A view whose base stays behind shows another memory.
    partial = ("as_strided", "partial_views")
    is_cudas = op.name.startswith(GPU_ONLY_PREFIX)
    return op.name not in LEFT_OUT and not is_cudas and (op.name, op.variant_test_name) != partial


@functools.cache
def operators(dtype: torch.dtype) -> dict[str, Any]:
    """By name."""
    chosen = [op for op in op_db if is_chosen(op) and dtype in op.supported_dtypes("cpu")]
    return {
        f"{op.name}{'.' * bool(op.variant_test_name)}{op.variant_test_name}": op for op in chosen
    }


def ordered(op: Any, sample: Any, result: Any) -> Any:
    """The values at the positions that an ordering gave, for comparison instead of these."""
    if op.name not in ORDERING or sample.kwargs.get("stable"):
        return result
    names = ("dim",) if op.name != "topk" else ("k", "dim")
    given = {**dict(zip(names, sample.args, strict=False)), **sample.kwargs}
    positions = result if op.name == "argsort" else result[1]
    positions = positions.detach().cpu()
    values, dim = sample.input.detach(), given.get("dim", -1)
    flat = positions.unsqueeze(0) if positions.dim() == 0 else positions
    each = flat.sort(dim).values
    assert flat.shape[dim] < 2 or not (each.diff(dim=dim) == 0).any(), "a position twice"
    chosen = values.gather(dim, positions)
    return chosen if op.name == "argsort" else (result[0], chosen)


def widened(value: Any) -> Any:
    if not isinstance(value, torch.Tensor) or not value.is_floating_point():
        return value
    return value.double() if value.dtype is torch.float32 else value.float()


def error_of(found: Any, exact: Any) -> float:
    """The largest; infinite where a tensor is of another shape, or only one is no number."""
    worst = 0.0
    for a, e in zip(tree_leaves(found), tree_leaves(exact), strict=True):
        if not isinstance(e, torch.Tensor):
            continue
        if a.shape != e.shape:
            return float("inf")
        if a.numel():
            same = (a == e) | (a.isnan() & e.isnan())
            wide = torch.complex128
            off = (a.to(wide) - e.to(wide)).abs().nan_to_num(torch.inf)
            worst = max(worst, float(off.masked_fill(same, 0.0).max()))
    return worst


def check(
    op: Any,
    dtype: torch.dtype,
    device: str,
    samples: int,
    assert_equal: Any,
    nearer: Sequence[torch.dtype] = NARROW,
) -> int:
    """How many samples were right. Raises what ``assert_equal(actual, expected, atol=, rtol=)``
    raises, or what the device refuses. Of a type in ``nearer`` a result that is not equal is right
    where it is as near to that of the wider type as the CPU's (float32: half as near)."""

    def moved(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return value.detach().to(device)
        return torch.device(device) if isinstance(value, torch.device) else value

    def on_host(value: Any) -> Any:
        return value.detach().cpu() if isinstance(value, torch.Tensor) else value

    compared = 0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for sample in op.sample_inputs("cpu", dtype):
            torch.manual_seed(0)
            try:
                expected = op(sample.input, *sample.args, **sample.kwargs)
            except REFUSALS:
                continue  # not for the CPU either
            settings = dict(sample.kwargs)
            if settings.get("device") == "cpu":
                settings["device"] = device
            torch.manual_seed(0)
            actual = op(*tree_map(moved, (sample.input, *sample.args)), **tree_map(moved, settings))
            actual, expected = (ordered(op, sample, result) for result in (actual, expected))
            close = TOLERANCE.get(dtype)
            actual = tree_map(on_host, actual)
            try:
                assert_equal(actual, expected, atol=close, rtol=close)
            except AssertionError:
                # Some kernels of the CPU add in bfloat16, some operators make roundings large.
                if dtype not in nearer:
                    raise
                torch.manual_seed(0)
                given = tree_map(widened, (sample.input, sample.args, sample.kwargs))
                exact = ordered(op, sample, op(given[0], *given[1], **given[2]))
                allowed = (2.0 if dtype is torch.float32 else 1.0) * error_of(expected, exact)
                if not error_of(actual, exact) <= allowed < float("inf"):
                    raise
            compared += 1
            if compared == samples:
                break
    return compared
