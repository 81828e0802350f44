"""One small program for each kind of kernel that plugin:opencl generates, at sizes with tails.

Started by itself it runs them (or those whose names are given) and compares them with eager mode;
test_opencl_oclgrind.py does so under a driver that watches every access to memory.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional as F

Call = Callable[..., Any]
generator = torch.Generator().manual_seed(0)


def rand(*dims: int) -> torch.Tensor:
    return torch.randn(*dims, generator=generator)


def whole(high: int, *dims: int) -> torch.Tensor:
    return torch.randint(0, high, dims, generator=generator)


def flash(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


def batch_norm(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return F.batch_norm(x, torch.zeros(5), torch.ones(5), w, b, training=True)


def conv_block(x: torch.Tensor, w: torch.Tensor, m: torch.Tensor, r: torch.Tensor) -> torch.Tensor:
    return (F.batch_norm(F.conv2d(x, w, padding=1), m, m.abs() + 1) + r).relu()


# Name -> function, inputs, whether gradients are taken as well.
PROGRAMS: dict[str, tuple[Call, tuple[Any, ...], bool]] = {
    "points": (lambda x, y: F.gelu(x * y + 0.5) * torch.tanh(x), (rand(5, 37), rand(37)), True),
    "points transposed": (lambda x: (x.t() + 1).exp(), (rand(33, 18),), False),
    "halves": (lambda x: (x * 2).sigmoid(), (rand(7, 19).bfloat16(),), False),
    "softmax short": (lambda x: x.softmax(-1), (rand(9, 64),), True),
    "softmax": (lambda x: x.log_softmax(-1), (rand(3, 1041),), True),
    "layer norm": (lambda x, w, b: F.layer_norm(x, (70,), w, b), (rand(9, 70), rand(70), rand(70)), True),
    "batch norm": (batch_norm, (rand(3, 5, 4, 7), rand(5), rand(5)), True),
    "group norm": (lambda x, w, b: F.group_norm(x, 2, w, b), (rand(3, 6, 5, 5), rand(6), rand(6)), True),
    "folds": (lambda x: (x.sum(0), x.amax(1), x.argmin(1), x.var(1)), (rand(19, 35),), False),
    "mm": (torch.mm, (rand(37, 29), rand(29, 45)), True),
    "bmm": (lambda x, y: torch.bmm(x, y.transpose(1, 2)).relu(), (rand(3, 14, 9), rand(3, 20, 9)), True),
    "linear": (lambda x, w, b: F.gelu(F.linear(x, w, b)), (rand(13, 30), rand(50, 30), rand(50)), True),
    "few rows": (lambda x, w, m: (F.linear(x, w), torch.mm(x, m)), (rand(5, 20), rand(21, 20), rand(20, 32)), False),
    "whole numbers": (torch.mm, (whole(9, 5, 6), whole(9, 6, 7)), False),
    "vectors": (torch.mv, (rand(20, 33), rand(33)), True),
    "attention": (flash, (rand(1, 2, 11, 8), rand(1, 2, 11, 8), rand(1, 2, 11, 8)), True),
    "conv": (lambda x, w, b: F.conv2d(x, w, b, padding=1).relu(), (rand(2, 3, 9, 11), rand(20, 3, 3, 3), rand(20)), True),
    "conv block": (conv_block, (rand(1, 3, 6, 9), rand(5, 3, 3, 3), rand(5), rand(1, 5, 6, 9)), False),
    "conv 1x1": (F.conv2d, (rand(2, 5, 6, 9), rand(7, 5, 1, 1)), True),
    "conv of many": (F.conv2d, (rand(3, 7, 3, 7), rand(10, 7, 1, 1), rand(10)), True),
    "conv of whole panels": (F.conv2d, (rand(3, 16, 4, 9), rand(16, 16, 1, 1)), True),
    "conv strided": (lambda x, w: F.conv2d(x, w, stride=2, padding=1), (rand(1, 4, 9, 8), rand(6, 4, 3, 3)), True),
    "conv small": (lambda x, w: F.conv2d(x, w, stride=2, padding=1), (rand(9, 4, 4, 4), rand(6, 4, 3, 3)), True),
    "conv by channel": (lambda x, w: F.conv2d(x, w, padding=3, groups=4), (rand(2, 4, 9, 5), rand(4, 1, 7, 7)), True),
    "conv in place": (F.conv2d, (rand(2, 5, 8, 8), rand(7, 5, 1, 1)), True),
    "conv groups": (lambda x, w: F.conv2d(x, w, groups=2, dilation=2), (rand(1, 4, 9, 8), rand(6, 2, 3, 3)), True),
    "conv transposed": (lambda x, w: F.conv_transpose2d(x, w, stride=2), (rand(1, 4, 5, 6), rand(4, 3, 3, 3)), True),
    "pooling": (lambda x: F.max_pool2d(x, 3, 2, 1), (rand(1, 3, 9, 11),), True),
    "mean pooling": (lambda x: F.avg_pool2d(x, 2).sum() + F.adaptive_avg_pool2d(x, 3).sum(), (rand(1, 3, 8, 10),), True),
    "resampling": (lambda x: F.interpolate(x, scale_factor=1.7, mode="bilinear"), (rand(1, 2, 5, 7),), True),
    "cat": (lambda x, y: torch.cat([x, y * 2, x.flip(0)], 1), (rand(4, 5), rand(4, 18)), True),
    "pads": (lambda x: F.pad(F.pad(x, (2, 1), mode="reflect"), (1, 3)), (rand(1, 3, 9),), False),
    "triangle": (lambda x: x.tril() + x.triu(1).roll(1, 0), (rand(9, 21),), True),
    "embedding": (lambda w, i: F.embedding(i, w) * 2, (rand(11, 18), whole(11, 3, 5)), True),
    "gather": (lambda x, i: x.gather(1, i), (rand(6, 9), whole(9, 6, 4)), True),
    "index": (lambda x, i: x[i, 1:], (rand(6, 9), whole(6, 4)), True),
    "index put": (lambda x, i, y: x.index_put((i,), y, accumulate=True), (rand(6, 9), whole(6, 4), rand(4, 9)), False),
    "scatter": (lambda x, i, y: x.scatter_add(0, i, y), (rand(6, 9), whole(6, 4, 9), rand(4, 9)), True),
    "scans": (lambda x: (x.cumsum(1), x.cumprod(0), x.logcumsumexp(1), x.cummax(1).values), (rand(5, 19),), False),
    "sort": (lambda x: (torch.sort(x, dim=1, stable=True), torch.topk(x, 3, 0)), (rand(5, 19),), False),
    "nll": (F.cross_entropy, (rand(7, 18), whole(18, 7)), True),
    "nll 2d": (F.cross_entropy, (rand(2, 5, 3, 4), whole(5, 2, 3, 4)), True),
    "factories": (lambda x: x + torch.arange(9.0) + torch.eye(9), (rand(9, 9),), False),
}  # fmt: skip


def flat(tree: Any) -> list[torch.Tensor]:
    return [t for t in torch.utils._pytree.tree_leaves(tree) if isinstance(t, torch.Tensor)]


def run(function: Call, inputs: tuple[Any, ...], backward: bool) -> list[torch.Tensor]:
    leaves = [t.detach().requires_grad_(backward and t.is_floating_point()) for t in inputs]
    results = flat(function(*leaves))
    if backward:
        sum(t.square().sum() for t in results).backward()
    return [t.detach() for t in results] + [t.grad for t in leaves if t.grad is not None]


def main(names: list[str]) -> None:
    import torch_backplane

    for name in names or PROGRAMS:
        function, inputs, backward = PROGRAMS[name]
        torch._dynamo.reset()
        with torch_backplane.record() as graphs:
            compiled = torch.compile(
                function, backend="plugin:opencl", options={"report": False}, dynamic=False
            )
            actual = run(compiled, inputs, backward)
        for ours, theirs in zip(actual, run(function, inputs, backward), strict=True):
            tolerance = 2e-2 if ours.dtype == torch.bfloat16 else 1e-4
            torch.testing.assert_close(ours, theirs, rtol=tolerance, atol=1e-4)
        left = [node["op"] for graph in graphs for node in graph["fallback"]]
        print(f"{name}: {left or 'right'}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
