"""Reductions over any dims of tensors that lie any way, with odd values among the numbers: one
kernel takes runs, one columns, one the rest."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import torch_backplane
from torch.utils._pytree import tree_leaves

FLOATS: dict[str, Callable[[torch.Tensor, Any], Any]] = {
    "mean": lambda a, d: a.mean(d),
    "std": lambda a, d: a.std(d),
    "var": lambda a, d: a.var(d, correction=0),
    "var_mean": torch.var_mean,
    "norm": lambda a, d: torch.linalg.vector_norm(a, dim=d),
    "norm 1": lambda a, d: torch.linalg.vector_norm(a, 1, dim=d),
    "norm inf": lambda a, d: torch.linalg.vector_norm(a, math.inf, dim=d),
}
ALL: dict[str, Callable[[torch.Tensor, Any], Any]] = {
    "sum": lambda a, d: a.sum(d),
    "amax": lambda a, d: a.amax(d),
    "amin": lambda a, d: a.amin(d),
    "max": lambda a, d: a.max(d[0]),
    "argmin": lambda a, d: a.argmin(d[0]),
    "any": lambda a, d: a.ne(0).any(d[0]),
    "all": lambda a, d: a.ne(0).all(d[0]),
    "prod": lambda a, d: a.clamp(-2, 2).prod(d[0]),
}
SHAPES = ((5, 7), (300, 3), (3, 300), (64, 64), (9, 1, 33), (4, 5, 6, 7), (2500,), (17, 130))
LAYOUTS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "dense": lambda a: a,
    "turned": lambda a: a.transpose(0, -1),
    "apart": lambda a: torch.stack([a, a], -1)[..., 0],
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64, torch.int64])
@pytest.mark.parametrize("plugin", ["cpu_onednn", "reference"])
def test_reductions(plugin: str, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    functions = ALL | FLOATS if dtype.is_floating_point else ALL
    compiled = {
        name: torch_backplane.compile(function, backend=f"plugin:{plugin}", dynamic=True)
        for name, function in functions.items()
    }
    close = (
        {"rtol": 2e-2, "atol": 2e-2} if dtype is torch.bfloat16 else {"rtol": 2e-5, "atol": 2e-5}
    )
    for (number, shape), layout in itertools.product(enumerate(SHAPES), LAYOUTS):
        a = LAYOUTS[layout]((torch.randn(shape) * 3).to(dtype))
        odd = (None, math.nan, math.inf)[number % 3] if dtype.is_floating_point else None
        if odd is not None:
            a[(a.shape[0] // 2,) + (0,) * (a.dim() - 1)] = odd
        for dims in [
            (0,),
            (a.dim() - 1,),
            tuple(range(a.dim())),
            tuple(range(a.dim()))[1:] or (0,),
        ]:
            for name, function in functions.items():
                if name == "prod" and dtype is torch.bfloat16:
                    continue  # eager rounds after each factor
                if odd == math.inf and name in ("std", "var", "var_mean"):
                    continue  # of infinities what comes depends on the order
                actual, expected = compiled[name](a, dims), function(a, dims)
                which = f"{name} of {layout} {list(shape)} over {dims}"
                for one, other in zip(tree_leaves(actual), tree_leaves(expected), strict=True):
                    try:
                        torch.testing.assert_close(one, other, equal_nan=True, **close)
                    except AssertionError as error:
                        raise AssertionError(which) from error


@pytest.mark.parametrize("plugin", ["cpu_onednn", "opencl", "reference"])
@pytest.mark.parametrize("target", [1, -100])
def test_total_weight_of_one_sample(target: int, plugin: str) -> None:
    def losses(x: torch.Tensor, t: torch.Tensor, w: torch.Tensor) -> list[torch.Tensor]:
        each = (torch.ops.aten.nll_loss_forward(x, t, w, how, -100) for how in range(3))
        return [r for both in each for r in both]

    operands = torch.rand(3), torch.tensor(target), torch.tensor([2.0, 3.0, 4.0])
    compiled = torch_backplane.compile(losses, backend=plugin)
    for actual, expected in zip(compiled(*operands), losses(*operands), strict=True):
        torch.testing.assert_close(actual, expected, equal_nan=True)


@pytest.mark.parametrize("plugin", ["cpu_onednn", "opencl", "reference"])
@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
@pytest.mark.parametrize("inner", [None, (), (2, 1)], ids=str)
def test_classes_without_weight_count(
    inner: tuple[int, ...] | None, reduction: str, plugin: str
) -> None:
    """Other than samples that are ignored: zero times an infinity, and zero of zero, are no numbers."""
    targets = torch.tensor(0) if inner is None else torch.tensor([0, 2, -100, 1])
    if inner:
        targets = targets.view(2, *inner)
    shape = (3,) if inner is None else (targets.shape[0], 3, *inner)

    def losses(x: torch.Tensor, t: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
        x = x.detach().requires_grad_()
        loss = F.nll_loss(x, t, w, reduction=reduction)
        return loss.detach(), *torch.autograd.grad(loss.sum(), x)

    compiled = torch_backplane.compile(losses, backend=plugin)
    for weights in ([0.0, 1.0, 2.0], [0.0, 0.0, 0.0]):
        for first in (-1.0, -math.inf):
            scores = torch.linspace(-2, -1, math.prod(shape)).view(shape)
            scores.view(-1)[0] = first
            operands = scores, targets, torch.tensor(weights)
            for actual, expected in zip(compiled(*operands), losses(*operands), strict=True):
                torch.testing.assert_close(actual, expected, equal_nan=True)


def batch_norm(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return F.batch_norm(x, None, None, w[0, :, 0, 0], b, True)


def layer_norm(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return F.layer_norm(x.movedim(1, -1), (16,), w[0, :, 0, 0], b)


CENTRED = (batch_norm, layer_norm)
LONG: dict[str, Callable[..., torch.Tensor]] = {
    "sum": lambda x, w, b: x.permute(0, 2, 3, 1).reshape(-1, 16).sum(0) * b,
    "mean": lambda x, w, b: x.permute(0, 2, 3, 1).mean((0, 1, 2)) * b,
    "convolution": F.conv2d,
    "transposed convolution": F.conv_transpose2d,
    "batch norm": batch_norm,
    "layer norm": layer_norm,
    "linear": lambda x, w, b: F.linear(x.movedim(1, -1), w[:, :, 0, 0], b),
}


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("plugin", ["cpu_onednn", "opencl"])
def test_sums_over_many_rows_keep_their_digits(plugin: str, layout: torch.memory_format) -> None:
    """192,000 numbers of about 1 in one float lose four of its seven digits."""
    torch.manual_seed(0)
    x = (torch.rand(4, 16, 200, 240) + 0.5).to(memory_format=layout)
    w, b = torch.rand(16, 16, 1, 1), torch.rand(16)

    def observe(
        function: Callable[..., torch.Tensor], dtype: torch.dtype, centred: bool
    ) -> list[torch.Tensor]:
        args = [t.to(dtype).requires_grad_() for t in (x.detach(), w.detach(), b.detach())]
        result = function(*args)
        torch.manual_seed(1)
        grad = torch.rand(result.shape, dtype=torch.float32) + 0.5
        # Terms of the gradient of a norm's weight cancel.
        sums = args[2:] if centred else args[1:]
        of_parameters = torch.autograd.grad(result, sums, grad.to(dtype), allow_unused=True)
        return [result.detach(), *(g for g in of_parameters if g is not None)]

    for name, function in LONG.items():
        compiled = torch_backplane.compile(function, backend=f"plugin:{plugin}")
        centred = function in CENTRED
        true = observe(function, torch.float64, centred)
        for got, wanted in zip(observe(compiled, torch.float32, centred), true, strict=True):
            error = (got.double() - wanted).abs().max() / wanted.abs().max()
            assert error < 2e-6, f"{name}: {error:.2g}"


@pytest.mark.parametrize("plugin", ["cpu_onednn", "opencl"])
def test_the_bias_of_a_convolution_over_few_channels_keeps_its_digits(plugin: str) -> None:
    """16,384 positions are sums that the library itself adds up."""
    torch.manual_seed(0)
    x, grad = torch.rand(4, 1, 64, 64), torch.rand(4, 8, 64, 64) + 0.5
    w, b = torch.rand(8, 1, 1, 1), torch.rand(8, requires_grad=True)
    compiled = torch_backplane.compile(F.conv2d, backend=f"plugin:{plugin}")
    (got,) = torch.autograd.grad(compiled(x, w, b), b, grad)
    true = grad.double().sum((0, 2, 3))
    assert (got.double() - true).abs().max() / true.abs().max() < 2e-6
