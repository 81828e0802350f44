"""Whoever looks for NaN in a result has to find it: samples of PyTorch's operators with one element that is
no number. What eager makes NaN of, in float32 and in float64, is NaN."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from compiling import PLUGINS, compile_for
from torch import nn
from torch.nn import functional as F
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils import _pytree as pytree

OPERANDS, PARTS = 2, 4
# Decompositions of matrices, draws, and memory that nobody wrote.
LEFT_OUT = (
    *("bernoulli", "cauchy", "cholesky", "cond", "det", "dropout", "eig", "empty", "exponential"),
    *(
        "geometric",
        "geqrf",
        "histc",
        "histogram",
        "householder",
        "inv",
        "ldl",
        "lobpcg",
        "log_normal",
    ),
    *(
        "lstsq",
        "lu",
        "matrix_rank",
        "multinomial",
        "nonzero",
        "normal",
        "nuc",
        "ormqr",
        "pca",
        "pinv",
    ),
    *("qr", "rand", "solve", "svd", "uniform"),
)
# PyTorch multiplies weights with the zeros around a picture; that they are left out is no loss.
PADDED = ("conv1d", "conv2d", "conv3d", "conv_transpose")


def poisoned(op: Any) -> Iterator[tuple[Any, ...]]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        samples = op.sample_inputs("cpu", torch.float32, requires_grad=False)
        samples = list(samples)
        for at in sorted({0, len(samples) // 2, len(samples) - 1}) if samples else ():
            sample = samples[at]
            leaves, spec = pytree.tree_flatten((sample.input, sample.args, sample.kwargs))
            places = [
                i
                for i, leaf in enumerate(leaves)
                if isinstance(leaf, torch.Tensor)
                and leaf.layout == torch.strided
                and leaf.is_floating_point()
                and leaf.is_contiguous()
                and leaf.numel() > 1
            ]
            if op.name.rsplit(".", 1)[-1].startswith(PADDED):
                places = [i for i in places if i == 0]
            for place in places[:OPERANDS]:
                given = [x.detach().clone() if isinstance(x, torch.Tensor) else x for x in leaves]
                given[place].view(-1)[given[place].numel() // 2] = torch.nan
                yield pytree.tree_unflatten(given, spec)


def wide(value: Any) -> Any:
    is_single = isinstance(value, torch.Tensor) and value.dtype is torch.float32
    return value.double() if is_single else value


def where_nan(results: Any) -> list[torch.Tensor]:
    return [
        x.isnan()
        for x in pytree.tree_leaves(results)
        if isinstance(x, torch.Tensor) and x.layout == torch.strided and x.is_floating_point()
    ]


@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize(
    "plugin", [pytest.param(p, marks=[pytest.mark.long] * (p == "cuda")) for p in PLUGINS]
)
def test_no_result_hides_what_is_no_number(plugin: str, part: int) -> None:
    compared, lost = 0, []
    operators = [
        op
        for op in op_db
        if torch.float32 in op.dtypes and not any(word in op.name for word in LEFT_OUT)
    ]
    for op in operators[part::PARTS]:

        def call(input: Any, args: Any, kwargs: Any, op: Any = op) -> Any:
            return op.op(input, *args, **kwargs)

        compiled = compile_for(plugin, call)
        for given in poisoned(op):
            try:
                expected = where_nan(call(*pytree.tree_map(lambda x: x, given)))
                certain = where_nan(call(*pytree.tree_map(wide, given)))
            except Exception:  # an operator that refuses it
                continue
            actual = where_nan(compiled(*given))
            for one, two, ours in zip(expected, certain, actual, strict=True):
                if one.shape != two.shape:
                    continue
                compared += 1
                if bool((one & two & ~ours).any()):
                    lost.append((op.name, op.variant_test_name))
    assert not lost
    assert compared > 150


ACTIVATIONS: dict[str, Any] = {
    "abs": torch.abs,
    "clamp": lambda x: x.clamp(-0.5, 0.5),
    "elu": F.elu,
    "gelu": F.gelu,
    "gelu, tanh": lambda x: F.gelu(x, approximate="tanh"),
    "hardsigmoid": F.hardsigmoid,
    "hardswish": F.hardswish,
    "hardtanh": F.hardtanh,
    "leaky_relu": F.leaky_relu,
    "leaky_relu of nothing": lambda x: F.leaky_relu(x, 0.0),
    "maximum": lambda x: torch.maximum(x, torch.zeros_like(x)),
    "mish": F.mish,
    "relu": F.relu,
    "relu and more": lambda x: F.relu(x) * 2 + x,
    "relu6": F.relu6,
    "sigmoid": torch.sigmoid,
    "silu": F.silu,
    "softplus": F.softplus,
    "tanh": torch.tanh,
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("plugin", PLUGINS)
def test_activations_behind_products(plugin: str, dtype: torch.dtype) -> None:
    """Libraries compute them with the product, in a way of their own."""
    linear, image = nn.Linear(16, 32), nn.Sequential(nn.Conv2d(4, 8, 3), nn.BatchNorm2d(8))
    linear, image = linear.to(dtype), image.to(dtype).eval()
    rows, pictures = torch.randn(8, 16, dtype=dtype), torch.randn(2, 4, 9, 9, dtype=dtype)
    rows[1, 3], pictures[0, 1, 3, 3] = torch.nan, torch.nan
    turned = pictures.to(memory_format=torch.channels_last)
    added = torch.randn(8, 32, dtype=dtype)
    for name, activation in ACTIVATIONS.items():

        def results(activation: Any = activation) -> list[torch.Tensor]:
            return [
                activation(linear(rows)),
                activation(linear(rows) + added),
                activation(rows @ added[:, :16].t()),
                activation(image[0](pictures)),
                activation(image(pictures)),
                activation(image(turned)),
            ]

        with torch.no_grad():
            expected, actual = results(), compile_for(plugin, results)()
        for i, (one, ours) in enumerate(zip(expected, actual, strict=True)):
            assert bool(ours.isnan()[one.isnan()].all()), (name, i)
