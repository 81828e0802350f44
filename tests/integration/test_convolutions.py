"""Convolutions of all forms that PyTorch takes, forward and backward."""

from __future__ import annotations

import math
import random
from typing import Any

import pytest
import torch
import torch_backplane
from compiling import PLUGINS, compile_for, run_python
from torch import nn

COUNT = 60


def form(rng: random.Random) -> dict[str, object]:
    """Sizes, strides, paddings and dilations of one convolution, which may be impossible."""
    rank, groups = rng.choice((1, 2, 2, 3)), rng.choice((1, 1, 2, 3))
    stride = [rng.choice((1, 2, 3)) for _ in range(rank)]
    dilation = [rng.choice((1, 2, 3, 4)) for _ in range(rank)]
    return {
        "transposed": rng.random() < 0.6,
        "groups": groups,
        "channels": groups * rng.choice((1, 2, 4)),
        "results": groups * rng.choice((1, 2, 4)),
        "window": [rng.choice((1, 2, 3)) for _ in range(rank)],
        "sizes": [rng.choice((1, 3, 5, 8)) for _ in range(rank)],
        "stride": stride,
        "dilation": dilation,
        "padding": [rng.choice((0, 1, 2, 3)) for _ in range(rank)],
        "more": [rng.randrange(max(pair)) for pair in zip(stride, dilation, strict=True)],
        "has_bias": rng.random() < 0.6,
        "last": rank == 2 and rng.random() < 0.4,
    }


def run(function, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    given = [t.clone().requires_grad_() for t in tensors]
    result = function(*given)
    slope = torch.linspace(-1, 1, result.numel()).reshape(result.shape)
    return [result.detach(), *torch.autograd.grad((result * slope).sum(), given)]


@pytest.mark.parametrize("plugin", [p for p in PLUGINS if p != "cuda"])
def test_forms(plugin: str) -> None:
    rng, compared = random.Random(7), 0
    for number in range(COUNT if plugin != "opencl" else COUNT // 4):
        f = form(rng)
        groups, channels, results = f["groups"], f["channels"], f["results"]
        torch.manual_seed(number)
        x = torch.randn(2, channels, *f["sizes"])
        if f["last"]:
            x = x.to(memory_format=torch.channels_last)
        shape = (channels, results // groups) if f["transposed"] else (results, channels // groups)
        tensors = [x, torch.randn(*shape, *f["window"])]
        tensors += [torch.randn(results)] if f["has_bias"] else []

        def program(x, weight, bias=None, f=f):
            more = f["more"] if f["transposed"] else [0] * len(f["more"])
            return torch.ops.aten.convolution(
                x, weight, bias, f["stride"], f["padding"], f["dilation"], f["transposed"], more,
                f["groups"],
            )  # fmt: skip

        try:  # PyTorch's own oneDNN crashes over windows of one element in wide paddings
            with torch.backends.mkldnn.flags(enabled=False):
                expected = run(program, tensors)
        except RuntimeError:
            continue
        compared += 1
        actual = run(compile_for(plugin, program, "own"), tensors)
        torch.testing.assert_close(
            actual, expected, rtol=1e-3, atol=1e-3, msg=lambda m, f=f: f"{f}: {m}"
        )
    assert compared >= 8


def fallback_nodes(program, tensors: list[torch.Tensor]) -> int:
    before = torch_backplane.stats()["fallback_nodes"]
    actual = run(compile_for("cpu_onednn", program, "own"), tensors)
    torch.testing.assert_close(actual, run(program, tensors), rtol=1e-4, atol=1e-4)
    return torch_backplane.stats()["fallback_nodes"] - before


def test_a_form_that_onednn_lacks_costs_no_other() -> None:
    def lacking(x, weight):
        return torch.nn.functional.conv_transpose1d(x, weight, output_padding=3, dilation=4)

    def usual(x, weight):
        return torch.nn.functional.conv_transpose1d(x, weight, stride=2)

    weight = torch.randn(2, 2, 2)
    for size in (5, 6, 7):
        assert fallback_nodes(lacking, [torch.randn(1, 2, size), weight]) == 2
    assert fallback_nodes(usual, [torch.randn(1, 2, 5), weight]) == 0


@pytest.mark.parametrize("stride", [2, 3])
@pytest.mark.parametrize("channels", [2, 32])
def test_results_behind_the_last_window_hold_the_bias(channels: int, stride: int) -> None:
    def program(x, weight, bias):
        return torch.nn.functional.conv_transpose2d(
            x, weight, bias, stride=stride, output_padding=stride - 1
        )

    weight = torch.randn(channels, channels, 2, 2)
    for size in (1, 5):
        x = torch.randn(2, channels, size, size)
        assert fallback_nodes(program, [x, weight, torch.randn(channels)]) == 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("follows", ["bias", "norm", "bias and norm", "relu", "sum"])
def test_a_transposed_weight_larger_than_the_second_cache(follows: str, dtype: torch.dtype) -> None:
    """oneDNN takes several passes over it; bias and norm are added once all the same."""
    torch.manual_seed(0)
    convolution = nn.ConvTranspose2d(512, 64, 8, stride=2, padding=3, bias="bias" in follows)
    norm = nn.BatchNorm2d(64).eval()
    for value in (norm.running_mean, norm.bias, convolution.bias):
        if value is not None:
            nn.init.normal_(value, std=10)
    convolution, norm = convolution.to(dtype), norm.to(dtype)

    def program(x: torch.Tensor, r: torch.Tensor) -> torch.Tensor:
        y = convolution(x)
        if "norm" in follows:
            y = norm(y)
        return y + r if follows == "sum" else y.relu()

    x, r = torch.randn(2, 512, 3, 3, dtype=dtype), torch.randn(2, 64, 6, 6, dtype=dtype)
    with torch.no_grad():
        expected = program(x, r)
        for _ in range(2):
            torch._dynamo.reset()
            found = compile_for("cpu_onednn", program, dynamic=False)(x, r)
            scale = float(expected.abs().max())
            tolerance = 1e-5 if dtype == torch.float32 else 2e-2
            assert float((found - expected).abs().max()) <= tolerance * scale
            x = x.contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("channels", [3, 64])
@pytest.mark.parametrize("last", [False, True])
def test_nothing_is_rounded_between_a_transposed_convolution_and_its_bias(
    last: bool, channels: int
) -> None:
    """A bias that takes most of the sum away: the difference alone is rounded to bfloat16."""
    torch.manual_seed(0)
    x = torch.randint(100, 140, (2, channels, 5, 5)).bfloat16()
    weight = torch.randint(1, 3, (channels, channels, 2, 2)).bfloat16()
    form = {"stride": 2}
    exact = nn.functional.conv_transpose2d(x.double(), weight.double(), **form)
    bias = -exact.mean((0, 2, 3)).bfloat16()
    expected = (exact + bias.double().view(1, -1, 1, 1)).bfloat16()
    if last:
        x = x.contiguous(memory_format=torch.channels_last)

    def program(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        return nn.functional.conv_transpose2d(x, weight, bias, **form)

    found = compile_for("cpu_onednn", program, dynamic=False)(x, weight, bias)
    assert torch.equal(found, expected)


FILLED = """
import torch, torch_backplane
from torch.nn import functional as F

FORMS = [(8, 4, 3, 2), (5, 2, 2, 1), (3, 3, 1, 2), (3, 4, 1, 3), (2, 2, 1, 1), (4, 3, 2, 2)]
for dtype in (torch.bfloat16, torch.float32):
    for window, stride, padding, size in FORMS:
        for groups in (1, 2):
            torch.manual_seed(0)
            x = torch.randn(2, 32 * groups, size, size).to(dtype)
            w = torch.randn(64 * groups, 32, window, window).to(dtype)

            def program(x, w):
                return F.conv2d(x, w, None, stride, padding, 1, groups)

            ours, right = (t.detach().requires_grad_() for t in (w, w.double()))
            y = torch_backplane.compile(program, backend="plugin:{plugin}", strict=True)(x, ours)
            y.sum().backward()
            program(x.double(), right).sum().backward()
            torch.testing.assert_close(ours.grad.double(), right.grad, rtol=2e-2, atol=2e-2)
"""


@pytest.mark.parametrize("plugin", PLUGINS)
def test_weight_gradients_of_images_smaller_than_the_stride(plugin: str) -> None:
    """With memory that is full of 12689: oneDNN reads what it did not write."""
    filling = {"MALLOC_PERTURB_": str(0xFF ^ 0x46)}
    done = run_python(FILLED.replace("{plugin}", plugin), filling)
    assert done.returncode == 0, done.stderr[-2000:]


@pytest.mark.parametrize(
    "settings", [{}, {"padding": 1}, {"dilation": 2}, {"stride": 2}, {"groups": 3}], ids=str
)
@pytest.mark.parametrize("plugin", [p for p in PLUGINS if p != "cuda"])
def test_taps_that_touch_no_infinity_keep_their_gradient(
    plugin: str, settings: dict[str, Any]
) -> None:
    """At the ends of rows and images, which in a kernel's memory the next ones follow."""
    torch.manual_seed(0)
    groups = settings.get("groups", 1)
    weight = torch.randn(6, 3 // groups, 3, 3, requires_grad=True)

    def convolution(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.conv2d(x, weight, **settings)

    compiled = compile_for(plugin, convolution, "own", dynamic=False)
    for place in [(0, 1, 0, 9), (0, 2, 9, 0), (1, 0, 9, 9), (1, 1, 4, 5)]:
        for number in (math.inf, math.nan):
            x = torch.randn(2, 3, 10, 10)
            x[place] = number
            expected = torch.autograd.grad(convolution(x, weight).sum(), weight)
            actual = torch.autograd.grad(compiled(x, weight).sum(), weight)
            torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-4, equal_nan=True)
