"""The OpenCL plugin's convolutions and poolings beside eager."""

from __future__ import annotations

import random
from typing import Any, NamedTuple

import pytest
import torch
from compiling import compile_for
from torch.nn import functional as F


def compiled(function: Any) -> Any:
    return compile_for("opencl", function, dynamic=False)


def check_with_gradients(
    function: Any, inputs: list[torch.Tensor], generator: torch.Generator, what: str = ""
) -> None:
    """Result and gradients are as near to float64's as eager's, up to a small factor."""
    cotangent = torch.randn(function(*inputs).shape, generator=generator)

    def run(function: Any, inputs: list[torch.Tensor]) -> list[torch.Tensor]:
        result = function(*inputs)
        cotangents = cotangent.to(result.dtype)
        return [result.detach(), *torch.autograd.grad(result, inputs, cotangents)]

    exact = run(function, [t.detach().double().requires_grad_() for t in inputs])
    for number, (ours, eagers, best) in enumerate(
        zip(run(compiled(function), inputs), run(function, inputs), exact, strict=True)
    ):
        assert ours.shape == eagers.shape and ours.dtype == eagers.dtype
        fault, allowed = (ours - best).abs().max(), (eagers - best).abs().max()
        assert fault <= 4 * allowed + 1e-6 * best.abs().max(), (what, number, fault, allowed)


class Convolution(NamedTuple):
    channels: int
    results: int
    image: tuple[int, int]
    kernel: tuple[int, int]
    settings: dict[str, Any]  # what else conv2d takes

    def tensors(
        self, images: int, layout: torch.memory_format, generator: torch.Generator
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Images and a weight."""
        groups = self.settings.get("groups", 1)
        x = torch.randn(images, self.channels, *self.image, generator=generator)
        weight = torch.randn(
            self.results, self.channels // groups, *self.kernel, generator=generator
        )
        return x.to(memory_format=layout), weight


CONVOLUTIONS = [
    Convolution(3, 20, (9, 11), (3, 3), {"padding": 1}),
    Convolution(4, 13, (20, 70), (3, 3), {}),
    Convolution(4, 6, (7, 7), (3, 3), {"padding": 1, "stride": 2}),
    Convolution(3, 8, (23, 17), (7, 7), {"padding": 3, "stride": 2}),
    Convolution(4, 8, (12, 12), (3, 2), {"padding": (0, 2), "dilation": (2, 1), "groups": 2}),
    Convolution(6, 6, (8, 8), (3, 3), {"padding": 1, "groups": 6}),
    Convolution(5, 7, (6, 9), (1, 1), {}),
    Convolution(5, 7, (6, 9), (1, 1), {"stride": 2}),
    Convolution(2, 3, (3, 3), (3, 3), {}),
    Convolution(2, 3, (1, 40), (1, 5), {"padding": (0, 4)}),
    # Small images: their taps lie side by side. Strides: one product for each phase.
    Convolution(16, 20, (4, 4), (3, 3), {"padding": 1}),
    Convolution(5, 30, (4, 4), (3, 3), {"padding": 1, "stride": 2}),
    Convolution(5, 6, (9, 9), (5, 5), {"padding": 2, "stride": 3}),
    Convolution(3, 7, (3, 5), (5, 5), {"padding": 2}),
    Convolution(6, 9, (6, 4), (3, 3), {"padding": 1, "dilation": 2, "groups": 3}),
    Convolution(4, 4, (10, 10), (2, 2), {"stride": 3}),
    Convolution(4, 8, (8, 8), (1, 1), {"groups": 2}),
    # Images of few places beside each other.
    Convolution(20, 24, (7, 7), (1, 1), {}),
    Convolution(70, 17, (3, 5), (1, 1), {}),
    Convolution(130, 12, (1, 1), (1, 1), {}),
    Convolution(9, 31, (5, 10), (1, 1), {}),
    # Each channel by itself.
    Convolution(3, 3, (2, 3), (7, 7), {"padding": 3, "groups": 3}),
    Convolution(3, 6, (19, 33), (5, 3), {"padding": 2, "groups": 3, "stride": (2, 1)}),
    Convolution(4, 4, (9, 7), (3, 3), {"padding": 2, "dilation": 2, "groups": 4, "stride": 2}),
]


@pytest.mark.parametrize("convolution", CONVOLUTIONS)
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_convolutions_and_their_gradients(
    convolution: Convolution, layout: torch.memory_format
) -> None:
    generator = torch.Generator().manual_seed(0)
    x, weight = convolution.tensors(9, layout, generator)
    bias = torch.randn(convolution.results, generator=generator)
    inputs = [t.requires_grad_() for t in (x, weight, bias)]

    def f(*tensors: torch.Tensor) -> torch.Tensor:
        return F.conv2d(*tensors, **convolution.settings)

    check_with_gradients(f, inputs, generator)


@pytest.mark.parametrize("convolution", CONVOLUTIONS)
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_what_follows_a_convolution_is_part_of_it(
    convolution: Convolution, layout: torch.memory_format
) -> None:
    generator = torch.Generator().manual_seed(0)
    x, weight = convolution.tensors(2, layout, generator)
    mean, scale, shift = torch.randn(3, convolution.results, generator=generator)
    residual = torch.randn_like(F.conv2d(x, weight, **convolution.settings))

    def block(x: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        y = F.conv2d(x, weight, **convolution.settings)
        y = F.batch_norm(y, mean, scale.abs() + 1, scale, shift)
        return (y + residual).relu()

    with torch.no_grad():
        torch.testing.assert_close(
            compiled(block)(x, residual), block(x, residual), rtol=1e-4, atol=1e-4
        )


def test_what_follows_other_convolutions() -> None:
    """One dim, three dims, and an operand that has an element a line of the image."""
    for function, inputs in (
        (lambda x, w, r: F.conv2d(x, w) * r + 1, ((1, 4, 6, 6), (5, 4, 1, 1), (6, 1))),
        (lambda x, w, r: F.conv1d(x, w).sigmoid() * r, ((2, 4, 20), (5, 4, 3), (5, 1))),
        (
            lambda x, w, r: F.conv3d(x, w).tanh() * r,
            ((1, 4, 5, 6, 7), (5, 4, 2, 2, 2), (5, 1, 1, 1)),
        ),
    ):
        tensors = [torch.randn(*dims) for dims in inputs]
        torch.testing.assert_close(
            compiled(function)(*tensors), function(*tensors), rtol=1e-4, atol=1e-4
        )


@pytest.mark.parametrize("pad", [(1, 1, 2, 2), (0, 0, 0, 0), (0, 1, 0, 1), (-1, -1, 1, 1), (2, 2)])
@pytest.mark.parametrize("value", [0, 0.5])
def test_padding_before_a_convolution(pad: tuple[int, ...], value: float) -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(2, 4, 9, 8, generator=generator)
    weight = torch.randn(6, 4, 3, 3, generator=generator)

    def f(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return F.conv2d(F.pad(x, pad, value=value), weight, padding=(0, 1))

    check_with_gradients(f, [x.requires_grad_(), weight.requires_grad_()], generator)


@pytest.mark.long
def test_convolutions_of_many_shapes() -> None:
    """Forward and gradients, transposed ones too, with windows, strides and sizes drawn at random."""
    draw = random.Random(0)
    generator = torch.Generator().manual_seed(0)
    for _ in range(60):
        groups = draw.choice((1, 1, 2, 3))
        channels, results = groups * draw.randint(1, 7), groups * draw.randint(1, 9)
        transposed = draw.random() < 0.3
        settings: dict[str, Any] = {"groups": groups}
        for name, values in (
            ("stride", (1, 1, 2, 3)),
            ("padding", (0, 1, 2)),
            ("dilation", (1, 2)),
        ):
            settings[name] = tuple(draw.choice(values) for _ in range(2))
        kernel = [draw.randint(1, 5) for _ in range(2)]
        image = [
            max(draw.randint(1, 14), (k - 1) * d + 1)
            for k, d in zip(kernel, settings["dilation"], strict=True)
        ]
        x = torch.randn(draw.randint(1, 9), channels, *image, generator=generator)
        ends = (channels, results // groups) if transposed else (results, channels // groups)
        weight = torch.randn(*ends, *kernel, generator=generator)
        convolve = F.conv_transpose2d if transposed else F.conv2d

        def f(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
            return convolve(x, weight, **settings)  # noqa: B023

        inputs = [x.requires_grad_(), weight.requires_grad_()]
        try:
            f(x.double(), weight.double())
        except RuntimeError:  # padding leaves nothing of a transposed one
            continue
        torch._dynamo.reset()
        check_with_gradients(
            f, inputs, generator, str((x.shape, weight.shape, transposed, settings))
        )


@pytest.mark.parametrize(
    "kernel, stride, padding, dilation",
    [
        (3, 2, 1, 1),
        (2, 2, 0, 1),
        (3, 1, 1, 2),
        ((3, 2), (2, 1), (1, 0), 1),
        (5, 2, 2, 1),
        ((1, 7), (1, 2), (0, 3), 1),
    ],
)
@pytest.mark.parametrize("special", [None, float("nan"), -float("inf")])
def test_the_largest_of_a_window_is_eagers(
    kernel: Any, stride: Any, padding: Any, dilation: int, special: float | None
) -> None:
    """Values, positions and gradients: among equals the first, of several NaN the last."""

    def pool(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return F.max_pool2d(x, kernel, stride, padding, dilation, return_indices=True)

    x = torch.randn(2, 3, 9, 8, generator=torch.Generator().manual_seed(0)).round()
    if special is not None:
        x[0] = special
        x[1, 0].view(-1)[::5] = special
    x.requires_grad_()
    expected, actual = pool(x), compiled(pool)(x)
    cotangent = torch.arange(1.0, expected[0].numel() + 1).view_as(expected[0])
    gradients = [torch.autograd.grad(r[0], x, cotangent)[0] for r in (actual, expected)]
    for ours, theirs in zip((*actual, gradients[0]), (*expected, gradients[1]), strict=True):
        torch.testing.assert_close(ours, theirs, equal_nan=True)
