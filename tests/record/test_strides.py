"""Strides of results, for operands that lie in other orders than PyTorch's samples do."""

from __future__ import annotations

import itertools
import random
import warnings
from collections.abc import Iterator
from typing import Any

import torch
from fuzz import graph_check
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

SAMPLES = 8  # of each operator
CALLS = 16  # of each operator below it
# Their results are views of what LAPACK wrote, or of a buffer that the kernel chose.
OWN_ORDER = ("_fft_", "linalg_", "_linalg_", "_embedding_bag")


class Calls(TorchDispatchMode):
    """The operators below: ``(overload, arguments, keywords)``."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[Any, Any, Any]] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        writes = func._schema.is_mutable or func.is_view
        if not writes and not func.name().removeprefix("aten::").startswith(OWN_ORDER):
            self.found.append((func, args, kwargs or {}))
        return out


def calls_of(op: Any) -> Iterator[tuple[Any, Any, Any]]:
    for sample in itertools.islice(op.sample_inputs("cpu", torch.float32), SAMPLES):
        with Calls() as calls:
            try:
                op(sample.input, *sample.args, **sample.kwargs)
            except (RuntimeError, ValueError, AssertionError):
                continue
        yield from calls.found


def laid_otherwise(value: Any, draw: random.Random) -> Any:
    is_plain = isinstance(value, torch.Tensor) and value.layout == torch.strided
    if not is_plain or value.dim() < 2 or value.numel() == 0:
        return value
    order = draw.sample(range(value.dim()), value.dim())
    return value.permute(order).contiguous().permute([order.index(d) for d in range(value.dim())])


def strides(results: Any) -> list[torch.Tensor | None]:
    return [
        graph_check.layout_of(t)
        for t in pytree.tree_leaves(results)
        if isinstance(t, torch.Tensor) and t.layout == torch.strided
    ]


def difference(func: Any, args: Any, kwargs: Any) -> str:
    leaves, spec = pytree.tree_flatten((args, kwargs))
    places = [i for i, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]

    def call(*tensors: torch.Tensor) -> Any:
        filled = list(leaves)
        for place, tensor in zip(places, tensors, strict=True):
            filled[place] = tensor
        inner, named = pytree.tree_unflatten(filled, spec)
        return func(*inner, **named)

    tensors = [leaves[i] for i in places]
    names = [f"x{i}" for i in range(len(tensors))]
    space: dict[str, Any] = {"call": call}
    exec(f"def f({', '.join(names)}):\n    return call({', '.join(names)})", space)
    torch.manual_seed(0)
    try:
        expected = strides(call(*tensors))
        compiled = graph_check.compile_graph(space["f"], "reference", tensors)
        actual = strides(compiled(*tensors))
    except Exception:
        return ""  # of other tests
    same = len(actual) == len(expected) and all(
        a is None or b is None or torch.equal(a, b) for a, b in zip(actual, expected, strict=True)
    )
    lie = [tuple(t.stride()) for t in tensors]
    return "" if same else f"{func}: of {lie}: {actual}, expected {expected}"


def test_strides_are_eagers() -> None:
    draw, seen, wrong = random.Random(0), {}, []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for op in op_db:
            if not op.supports_dtype(torch.float32, "cpu"):
                continue
            for func, args, kwargs in calls_of(op):
                seen[func] = seen.get(func, 0) + 1
                if seen[func] > CALLS:
                    continue
                args, kwargs = pytree.tree_map(lambda v: laid_otherwise(v, draw), (args, kwargs))
                if text := difference(func, args, kwargs):
                    wrong.append(text)
    assert len(seen) > 300
    assert not wrong, "\n".join(wrong)


BINARY = (
    torch.add, torch.sub, torch.mul, torch.div, torch.lt, torch.eq, torch.maximum, torch.pow,
    torch.atan2, torch.logical_and, torch.fmod, torch.remainder, torch.hypot, torch.xlogy,
    torch.copysign, torch.rsub,
)  # fmt: skip
DTYPES = (torch.float32, torch.float64, torch.int64, torch.uint8, torch.bool, torch.bfloat16)


def lies_somehow(sizes: list[int], dtype: torch.dtype, draw: random.Random) -> torch.Tensor:
    made = torch.ones(sizes, dtype=dtype)
    way = draw.randrange(4)
    if way == 0:
        return laid_otherwise(made, draw)
    if way == 1:
        return made[[slice(1) if draw.random() < 0.5 else slice(None) for _ in sizes]].expand(sizes)
    if way == 2:
        return torch.ones([2 * s for s in sizes], dtype=dtype)[[slice(None, None, 2)] * len(sizes)]
    return made


def test_operands_that_are_converted_first() -> None:
    """An expanded operand of another type lies densely when the loop looks how its operands lie."""
    draw, wrong, compared = random.Random(0), [], 0
    for _ in range(1500):
        func = draw.choice(BINARY)
        sizes = [draw.choice((1, 2, 3, 4)) for _ in range(draw.randint(1, 4))]
        a, b = (lies_somehow(sizes, draw.choice(DTYPES), draw) for _ in range(2))
        try:
            func(a, b)
        except RuntimeError:
            continue
        compared += 1
        if what := difference(func, (a, b), {}):
            wrong.append(f"{func.__name__} {a.dtype} {a.stride()} {b.dtype} {b.stride()}: {what}")
    assert compared > 1000
    assert not wrong
