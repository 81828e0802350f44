"""Operators called with operands of other shapes than PyTorch's own calls have: samples of the
operator database and the operators of their backwards, one operand made longer, shorter, or of
another rank. What PyTorch refuses is refused, what it takes gives its numbers.

A process for each operator and plugin: one that dies is a finding.

usage: python -m opinfo.operands_suite PLUGINS [OPERATORS]
"""

from __future__ import annotations

import itertools
import os
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

CLASSES = ("normalization", "pooling", "indexing", "convolution")
SAMPLES = 2  # of each entry
LARGEST = 2000  # elements of an operand
LEAST_OPERATORS = 60
LEFT = ("' of sizes [", "is called by the program itself")  # in reasons of the recorder
# What decides there are values: ties, lengths that add up, offsets in order; or the kernel draws.
BY_VALUES = (
    "aten.kthvalue",
    "aten.topk",
    "aten.segment_reduce",
    "aten._embedding_bag",
    "aten._embedding_bag_forward_only",
    "aten._embedding_bag_backward",
    "aten._embedding_bag_per_sample_weights_backward",
    "aten.rrelu_with_noise",
)


# Of these operand 1 stays: its size says where indices may point, and PyTorch writes outside of it.
POINTED_INTO = ("max_pool",)


class Given(NamedTuple):
    op: Callable[..., Any]
    leaves: list[Any]
    spec: pytree.TreeSpec

    def places(self) -> list[int]:
        return [i for i, leaf in enumerate(self.leaves) if isinstance(leaf, torch.Tensor)]

    def program(self) -> Callable[..., Any]:
        def call(*tensors: torch.Tensor) -> Any:
            leaves = list(self.leaves)
            for place, tensor in zip(self.places(), tensors, strict=True):
                leaves[place] = tensor
            args, kwargs = pytree.tree_unflatten(leaves, self.spec)
            return self.op(*args, **kwargs)

        return call


def wanted() -> set[str]:
    from torch_backplane import _C

    return {
        row["name"]
        for row in _C.op_table()
        if (row["is_gradient"] or row["class"] in CLASSES) and row["name"] not in BY_VALUES
    }


class Collection(TorchDispatchMode):
    """The first call of each operator below autograd."""

    def __init__(self) -> None:
        super().__init__()
        self.wanted = wanted()
        self.found: dict[str, Given] = {}

    def __torch_dispatch__(self, op: Any, _types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = op(*args, **(kwargs or {}))
        name = str(op).removesuffix(".default")
        if name in self.wanted and name not in self.found and "random" not in name:
            leaves, spec = pytree.tree_flatten((args, kwargs or {}))
            tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
            plain = all(t.layout == torch.strided and t.numel() < LARGEST for t in tensors)
            if plain and any(t.dim() > 0 and t.numel() > 0 for t in tensors):
                leaves = [
                    leaf.detach().clone() if isinstance(leaf, torch.Tensor) else leaf
                    for leaf in leaves
                ]
                self.found[name] = Given(op, leaves, spec)
        return result


def collect() -> dict[str, Given]:
    collection = Collection()
    torch.manual_seed(0)
    for op in op_db:
        if not op.supports_dtype(torch.float32, "cpu"):
            continue
        grad = op.supports_autograd
        for sample in itertools.islice(op.sample_inputs("cpu", torch.float32, grad), SAMPLES):
            try:
                with collection:
                    result = op.op(sample.input, *sample.args, **sample.kwargs)
                    outputs = [
                        leaf
                        for leaf in pytree.tree_leaves(result)
                        if isinstance(leaf, torch.Tensor) and leaf.requires_grad
                    ]
                    if outputs:
                        torch.autograd.backward(outputs, [torch.ones_like(o) for o in outputs])
            except (RuntimeError, AssertionError):  # no such gradient, or for another device alone
                continue
    return dict(sorted(collection.found.items()))


def variants(tensor: torch.Tensor) -> Iterator[torch.Tensor]:
    for dim, size in enumerate(tensor.shape):
        if size > 1:
            yield tensor.narrow(dim, 0, 1).contiguous()
        if size > 0:
            yield torch.cat([tensor, tensor.narrow(dim, 0, 1)], dim)
        if size > 2:
            yield tensor.narrow(dim, 0, size - 1).contiguous()
    if tensor.dim() > 0 and tensor.shape[0] > 0:
        yield tensor[0].contiguous()
    yield tensor.unsqueeze(0).contiguous()
    if tensor.dim() > 1 and tensor.numel():
        yield tensor.flatten()[0].clone()


def are_same(one: Any, other: Any) -> bool:
    def close(a: torch.Tensor, b: torch.Tensor) -> bool:
        same = a.shape == b.shape and a.dtype == b.dtype
        return same and torch.allclose(a, b, rtol=1e-3, atol=1e-4, equal_nan=True)

    ours, theirs = (
        [leaf for leaf in pytree.tree_leaves(result) if isinstance(leaf, torch.Tensor)]
        for result in (one, other)
    )
    return len(ours) == len(theirs) and all(map(close, ours, theirs))


def outcome(program: Callable[..., Any], inputs: list[torch.Tensor]) -> Any:
    try:
        return program(*inputs)
    except Exception as error:
        return error


def disturb() -> None:
    """Other numbers where a kernel may read beyond what it was given."""
    del [torch.full((count,), 7.25) for count in (4, 16, 64, 256, 1024) * 3][:]


def is_left_to_pytorch(program: Callable[..., Any], inputs: list[torch.Tensor]) -> bool:
    """Then there is nothing to compare: PyTorch may read beyond its operands, too, and die."""
    from torch_backplane import _C

    recording = _C.record(program, inputs)
    return not recording.ok and any(words in recording.reason for words in LEFT)


def judge(program: Callable[..., Any], inputs: list[torch.Tensor], plugin: str) -> str:
    """Empty where the compiled function does what PyTorch does."""
    import torch_backplane

    if is_left_to_pytorch(program, inputs):
        return ""
    expected = outcome(program, inputs)
    disturb()
    again = outcome(program, inputs)
    actual = outcome(torch_backplane.compile(program, backend=plugin), inputs)
    if isinstance(expected, Exception):
        return "" if isinstance(actual, Exception) else f"not refused: {str(expected)[:80]}"
    if isinstance(actual, Exception):
        return f"raises {str(actual)[:160]!r}"
    if not are_same(expected, again) or are_same(expected, actual):
        return ""
    disturb()
    return "" if not are_same(expected, outcome(program, inputs)) else "wrong"


def try_operator(name: str, given: Given, plugin: str, at: Any) -> list[str]:
    found = []
    places = given.places()
    for i, place in enumerate(places):
        if i == 1 and any(part in name for part in POINTED_INTO):
            continue
        for variant in variants(given.leaves[place]):
            inputs = [variant if p == place else given.leaves[p] for p in places]
            where = f"operand {i} of {[tuple(t.shape) for t in inputs]}"
            at.seek(0)
            at.truncate()
            at.write(where)
            at.flush()
            if verdict := judge(given.program(), inputs, plugin):
                found.append(f"{where} {verdict}")
    return found


def in_process(name: str, given: Given, plugin: str) -> list[str]:
    with tempfile.TemporaryFile("w+") as at, tempfile.TemporaryFile("w+") as findings:
        child = os.fork()
        if child == 0:
            try:
                findings.write("\n".join(try_operator(name, given, plugin, at)))
                findings.flush()
            finally:
                os._exit(0)
        status = os.waitpid(child, 0)[1]
        at.seek(0)
        findings.seek(0)
        lines = findings.read().splitlines()
        if status:
            lines.append(f"{at.read()} ends the process: {os.waitstatus_to_exitcode(status)}")
        return [f"{name} on {plugin}: {line}" for line in lines]


def main() -> int:
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    plugins = sys.argv[1].split(",")
    found = collect()
    names = sys.argv[2].split(",") if len(sys.argv) > 2 else list(found)
    wrong = [
        line
        for name in names
        for plugin in plugins
        for line in in_process(name, found[name], plugin)
    ]
    print(f"{len(names)} operators, {len(wrong)} findings", *wrong, sep="\n")
    if len(sys.argv) == 2 and len(names) < LEAST_OPERATORS:
        print("too few operators")
        return 1
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
