"""Values of 16-bit floats that stay inside a kernel: what shows their digits shows those of memory."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch_backplane
from compiling import PLUGINS, compile_for
from torch.testing._internal.common_methods_invocations import unary_ufuncs

HALVES = (torch.float16, torch.bfloat16)


def overflow(h: torch.Tensor) -> tuple[torch.Tensor, ...]:
    y = h * 60000 * 1e33
    return y, y.isinf(), y.float(), y / 1e34


def underflow(h: torch.Tensor) -> tuple[torch.Tensor, ...]:
    y = h * 1e-4 * 1e-38
    return y == 0, y.sign(), y.float() * 1e30


def scaled_gradients(g: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    g = g * 2048
    bad = (~torch.isfinite(g)).any()
    return torch.where(bad, 1.0, 1.0 - g.float() / 2048), bad


def whole_numbers(h: torch.Tensor) -> tuple[torch.Tensor, ...]:
    y = h * 33.3
    return y.to(torch.int32), y % 1, y.round(), y // 0.5, y.frac(), y > 99.9, y.trunc()


def sums(h: torch.Tensor) -> tuple[torch.Tensor, ...]:
    y = h * 33.3
    return y.sum(-1, dtype=torch.float32), y.float().softmax(-1), (y.max(-1).indices, y.amax(-1))[0]


def product(h: torch.Tensor) -> tuple[torch.Tensor, ...]:
    y = h @ h.t()
    return y.round(), y.float(), y > 100


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize(
    "program", [overflow, underflow, scaled_gradients, whole_numbers, sums, product]
)
@pytest.mark.parametrize("plugin", PLUGINS)
def test_what_shows_digits_shows_those_of_memory(
    plugin: str, program: Callable[..., Any], dtype: torch.dtype
) -> None:
    h = torch.linspace(-40, 40, 96).reshape(4, 24).to(dtype)
    got = compile_for(plugin, program, "own")(h)
    for actual, expected in zip(got, program(h), strict=True):
        if expected.is_floating_point():
            assert actual.dtype == expected.dtype
            torch.testing.assert_close(actual, expected, rtol=1e-5, atol=0, equal_nan=True)
        else:
            assert torch.equal(actual, expected)


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("plugin", PLUGINS)
def test_a_stored_result_is_read_as_it_is_stored(plugin: str, dtype: torch.dtype) -> None:
    def program(h: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = h / 3
        return y, y - h * 0.3334

    h = torch.linspace(1, 40, 96).to(dtype)
    y, rest = compile_for(plugin, program, "own")(h)
    assert torch.equal(y, h / 3)
    exact = y.double() - h.double() * 0.3334
    assert (rest.double() - exact).abs().max() <= torch.finfo(dtype).eps * (h.double() / 3).max()


def _jumps(f: Callable[[torch.Tensor], torch.Tensor], exact: torch.Tensor, h: torch.Tensor):
    """Where the results for a value and for its rounded self are further apart than the slope on the
    value's side says: the rounded one may lie on a step."""
    a, b = f(exact), f(h)
    step = (exact - h).abs()
    slope = torch.maximum(
        *(
            (f(p * (1 + 1e-7)) - f(p * (1 - 1e-7))).abs() / (2e-7 * p.abs())
            for p in (exact, 2 * exact - h)
        )
    )
    return ((a - b).abs() > 3 * slope * step + 1e-6 * (a.abs() + 1)) & a.isfinite() & b.isfinite()


def _operators(dtype: torch.dtype) -> Iterator[tuple[str, Callable[[torch.Tensor], Any]]]:
    for info in unary_ufuncs:
        if "jiterator" in info.name or not info.supports_dtype(dtype, torch.device("cpu")):
            continue
        sample = next(iter(info.sample_inputs("cpu", torch.float64)), None)
        if sample is None or any(isinstance(v, torch.Tensor) for v in sample.kwargs.values()):
            continue
        yield info.name, lambda x, op=info.op, s=sample: op(x, *s.args, **s.kwargs)
    yield from {
        "remainder": lambda x: x % 0.7,
        "fmod": lambda x: x.fmod(0.7),
        "floor_divide": lambda x: x // 0.7,
        "div": lambda x: torch.div(x, 0.7, rounding_mode="trunc"),
        "divided": lambda x: 4 // x,
        "pow": lambda x: torch.pow(-2.0, x),
        "heaviside": lambda x: torch.heaviside(x - 3, x.new_tensor(0.5)),
        "threshold": lambda x: torch.threshold(x, 1.1, -20),
        "hardshrink": lambda x: torch.nn.functional.hardshrink(x, 1.1),
        "relu": lambda x: slope(torch.relu, x - 1.1),
        "clamp": lambda x: slope(lambda x: x.clamp(-2.2, 3.3), x),
        "hardtanh": lambda x: slope(lambda x: torch.nn.functional.hardtanh(x, -2.2, 3.3), x),
        "hardshrink_slope": lambda x: slope(lambda x: torch.nn.functional.hardshrink(x, 2.2), x),
        "softshrink": lambda x: slope(lambda x: torch.nn.functional.softshrink(x, 2.2), x),
        "leaky_relu": lambda x: slope(torch.nn.functional.leaky_relu, x - 1.1),
        "smooth_l1": lambda x: slope(
            lambda x: torch.nn.functional.smooth_l1_loss(x, x.detach() * 0 + 1.1, reduction="sum"),
            x,
        ),
        "hardsigmoid": lambda x: slope(torch.nn.functional.hardsigmoid, x - 3.3),
        "hardswish": lambda x: slope(torch.nn.functional.hardswish, x - 3.3),
        "elu": lambda x: slope(lambda x: torch.nn.functional.elu(x, 2.0), x - 1.1),
        "abs": lambda x: slope(torch.abs, x - 1.1),
    }.items()


def slope(f: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor) -> torch.Tensor:
    return torch.func.grad(lambda x: f(x).sum())(x)


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("plugin", PLUGINS)
def test_every_operator_that_jumps_reads_what_memory_would_hold(
    plugin: str, dtype: torch.dtype
) -> None:
    seen, wrong = set[str](), list[str]()
    base = torch.cat([torch.linspace(-9, 9, 2048), torch.arange(-64, 64) / 8]).to(dtype)
    for name, op in _operators(dtype):

        def program(h: torch.Tensor, op: Any = op) -> Any:
            return op(h * 1.1015625)

        expected = program(base)
        if not isinstance(expected, torch.Tensor) or expected.dtype != dtype:
            continue
        exact, stored = base.double() * 1.1015625, (base * 1.1015625).double()
        where = _jumps(lambda x, op=op: op(x).double(), exact, stored)
        where &= expected.double().abs() < 1e6  # the poles themselves
        if not where.any():
            continue
        seen.add(name)
        actual = compile_for(plugin, program, "own")(base)
        apart = (actual.double() - expected.double()).abs()[where]
        scale = expected.double().abs()[where]
        if (apart > 4 * torch.finfo(dtype).eps * scale + 1e-6).any():
            wrong.append(name)
        torch_backplane.reset()
    assert not wrong
    assert {"round", "floor", "ceil", "trunc", "frac"} <= seen


def test_what_jumps_has_the_slope_that_the_search_takes_for_a_step() -> None:
    h = torch.linspace(-9, 9, 4096, dtype=torch.float64)
    assert _jumps(torch.round, h * 1.001, h).any()
    assert not _jumps(torch.sin, h * 1.001, h).any()
    assert not _jumps(lambda x: x**3 + math.pi, h * 1.001, h).any()
