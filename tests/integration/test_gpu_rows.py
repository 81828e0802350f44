"""Rows and columns that the work-items of a group share, in a GPU's schedule, on the emulated device."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
import torch
from compiling import compile_for
from torch.nn import functional

SHORT = (torch.bfloat16, torch.float16)
LENGTHS = (1, 3, 31, 32, 33, 255, 256, 1000, 4096, 5000)

Function = Callable[..., "torch.Tensor | tuple[torch.Tensor, ...]"]


def check(function: Function, *inputs: torch.Tensor) -> None:
    actual = compile_for("cuda", function, dynamic=False)(*inputs)
    expected = function(*inputs)
    if isinstance(expected, torch.Tensor):
        actual, expected = (actual,), (expected,)
    for one, other in zip(actual, expected, strict=True):
        wanted = (
            {"rtol": 2e-2, "atol": 2e-2} if one.dtype in SHORT else {"rtol": 1e-4, "atol": 1e-4}
        )
        if not one.dtype.is_floating_point:
            wanted = {}
        torch.testing.assert_close(one, other, equal_nan=True, **wanted)
    torch._dynamo.reset()


def norms(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
    n = x.shape[-1:]
    return (
        functional.layer_norm(x, n, w, w),
        functional.rms_norm(x, n, w),
        x.softmax(-1),
        x.log_softmax(-1),
        x.float().amax(-1),
        x.float().sum(-1),
        x.argmax(-1),
        (x > 0).sum(-1),
        (x > 0).all(-1),
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("length", LENGTHS)
def test_rows(length: int, dtype: torch.dtype) -> None:
    """Dense and strided ones, at addresses that are aligned and not."""
    rows = 2 if length > 1000 else 5
    w = torch.randn(length).to(dtype)
    memory = torch.randn(rows * (length + 8) * 2 + 8).to(dtype)
    for start, gap in ((0, 0), (1, 0), (0, 8), (0, 1)):
        size, stride = (rows, length), (length + gap, 1)
        check(lambda m, w: norms(m.as_strided(size, stride, start), w), memory, w)  # noqa: B023
    check(lambda m, w: norms(m.as_strided((rows, length), (length * 2, 2)), w), memory, w)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_long_row(dtype: torch.dtype) -> None:
    x = torch.randn(2, 70000).to(dtype)
    check(lambda x: (x.softmax(-1), x.float().sum(), x.float().mean(-1)), x)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rows_that_are_not_finite(dtype: torch.dtype) -> None:
    x = torch.randn(6, 300).to(dtype)
    x[0, 7], x[1, 299], x[2, 0], x[4, :] = torch.nan, torch.inf, -torch.inf, -torch.inf
    check(lambda x: (x.softmax(-1), x.log_softmax(-1), x.amax(-1), x.amin(-1), x.sum(-1)), x)
    check(lambda x: (x.amax(0), x.amin(0), x.sum(0), x.softmax(0)), x)


def gradients(function: Function, *inputs: torch.Tensor) -> Function:
    def step(*inputs: torch.Tensor) -> torch.Tensor:
        y = function(*inputs)
        return (y * y.detach().cos()).sum()

    leaves = [t.clone().requires_grad_() for t in inputs]
    step(*leaves).backward()
    expected = [t.grad for t in leaves]
    leaves = [t.clone().requires_grad_() for t in inputs]
    compile_for("cuda", step, dynamic=False)(*leaves).backward()
    for one, other in zip((t.grad for t in leaves), expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-3)
    torch._dynamo.reset()


@pytest.mark.parametrize("length", [33, 256, 1000])
def test_gradients_of_rows(length: int) -> None:
    x, w, b = torch.randn(70, length), torch.randn(length), torch.randn(length)
    gradients(lambda x, w, b: functional.layer_norm(x, (length,), w, b), x, w, b)
    gradients(lambda x, w: functional.rms_norm(x, (length,), w), x, w)
    gradients(lambda x: x.softmax(-1), x)
    gradients(lambda x: x.log_softmax(-1), x)
    gradients(lambda x, w: x * w, x, w)


def test_gradients_of_channels() -> None:
    x, w, b = torch.randn(4, 6, 9, 16), torch.randn(6), torch.randn(6)
    gradients(lambda x, w, b: functional.batch_norm(x, None, None, w, b, training=True), x, w, b)
    gradients(lambda x, w, b: functional.group_norm(x, 2, w, b), x, w, b)
    last = x.to(memory_format=torch.channels_last)
    gradients(lambda x, w, b: functional.batch_norm(x, None, None, w, b, training=True), last, w, b)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int32])
def test_columns(dtype: torch.dtype) -> None:
    for rows, columns, start in itertools.product((16, 100, 1000), (3, 64, 200), (0, 1)):
        memory = (torch.randn(rows * columns + 8) * 4).to(dtype)

        def f(memory: torch.Tensor) -> tuple[torch.Tensor, ...]:
            x = memory[start : start + rows * columns].view(rows, columns)  # noqa: B023
            wide = x.float() if x.is_floating_point() else x
            return wide.sum(0), x.amax(0), (x > 1).sum(0), (x != 0).any(0)

        check(f, memory)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_long_reductions_are_the_same_in_every_run(dtype: torch.dtype) -> None:
    x = torch.randn(4200, 128).to(dtype)

    def f(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = x.double()
        return x.float().sum(0), x.float().var(0), x.float().sum(), y.sum(0), y.std(), x.amax(0)

    check(f, x)
    compiled = compile_for("cuda", f, dynamic=False)
    for one, other in zip(compiled(x), compiled(x.clone()), strict=True):
        assert torch.equal(one, other)
    torch._dynamo.reset()


def test_sizes_that_change() -> None:
    def f(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return x.softmax(-1), functional.layer_norm(x, x.shape[-1:]), x.sum(0), x.sum()

    compiled = compile_for("cuda", f, dynamic=True)
    for rows, columns in ((40, 64), (50, 96), (60, 100), (41, 33), (3000, 512), (70, 4096)):
        x = torch.randn(rows, columns)
        for one, other in zip(compiled(x), f(x), strict=True):
            torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-3)


PERMUTED: dict[str, Function] = {
    "transposed": lambda x: x.view(96, 80).t().contiguous(),
    "offset": lambda x: x[1:].as_strided((70, 90), (1, 80)).contiguous(),
    "strided": lambda x: x.as_strided((40, 30), (2, 100)).contiguous(),
    "batch": lambda x: x.view(3, 64, 40).transpose(1, 2).contiguous(),
    "middle": lambda x: x.view(6, 32, 40).transpose(0, 1).contiguous(),
    "heads": lambda x: x.view(2, 48, 4, 20).transpose(1, 2).reshape(2, 4 * 48, 20),
    "heads together": lambda x: x.view(2, 4, 48, 20).transpose(1, 2).reshape(2, 48, 80),
    "in another order": lambda x: x.view(96, 80).t().reshape(40, 192),
    "odd": lambda x: x[: 77 * 97].view(77, 97).t().reshape(-1),
    "channels last": lambda x: x.view(2, 24, 16, 10).contiguous(memory_format=torch.channels_last),
    "added": lambda x: x.view(96, 80) + x.view(80, 96).t(),
    "two results": lambda x: (x.view(96, 80).t() * 2, x.view(80, 96) + x.view(96, 80).t()),
    "broadcast": lambda x: x.view(96, 80).t().contiguous() + x[:96],
}


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64, torch.uint8, torch.int64]
)
def test_what_lies_along_another_axis(dtype: torch.dtype) -> None:
    x = (torch.randn(96 * 80) * 4).to(dtype)
    for function in PERMUTED.values():
        check(function, x)
