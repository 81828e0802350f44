"""Each operator at the edges of its types, beside eager mode: zeros of both signs, what is no number, the least and
the largest numbers, and those that a shorter type does not hold."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from compiling import compile_for
from fuzz.graph_check import stepped

Function = Callable[..., torch.Tensor]
PLUGINS = ("cpu_onednn", "opencl")
FLOATS = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
ROUNDINGS = 16  # of a result, in units of its type's epsilon

UNARY: dict[str, Function] = {
    "abs": torch.abs,
    "acos": torch.acos,
    "acosh": torch.acosh,
    "asin": torch.asin,
    "asinh": torch.asinh,
    "atan": torch.atan,
    "atanh": torch.atanh,
    "ceil": torch.ceil,
    "celu": F.celu,
    "clamp": lambda x: x.clamp(-1, 1),
    "clamp at zero": lambda x: x.clamp(0, 1),
    "clamp below zero": lambda x: x.clamp(-1, 0),
    "clamp_max": lambda x: x.clamp_max(0),
    "clamp_min": lambda x: x.clamp_min(0),
    "copysign": lambda x: torch.copysign(x, -0.0),
    "cosh": torch.cosh,
    "div_trunc": lambda x: torch.div(x, -3.0, rounding_mode="trunc"),
    "elu": F.elu,
    "erf": torch.erf,
    "erfc": torch.erfc,
    "exp": torch.exp,
    "exp2": torch.exp2,
    "expm1": torch.expm1,
    "floor": torch.floor,
    "floor_divide": lambda x: x // 2.5,
    "floor_divide by infinity": lambda x: x // math.inf,
    "floor_divide by zero": lambda x: x // 0.0,
    "fmod": lambda x: torch.fmod(x, -2.5),
    "frac": torch.frac,
    "gelu": F.gelu,
    "hardshrink": F.hardshrink,
    "hardsigmoid": F.hardsigmoid,
    "hardswish": F.hardswish,
    "hardtanh": lambda x: F.hardtanh(x, 0.0, 2.0),
    "isfinite": torch.isfinite,
    "isinf": torch.isinf,
    "isnan": torch.isnan,
    "leaky_relu": lambda x: F.leaky_relu(x, 0.25),
    "leaky_relu of no slope": lambda x: F.leaky_relu(x, 0.0),
    "less zero": lambda x: x - 0.0,
    "log": torch.log,
    "log10": torch.log10,
    "log1p": torch.log1p,
    "log2": torch.log2,
    "logit": torch.logit,
    "mish": F.mish,
    "nan_to_num": torch.nan_to_num,
    "neg": torch.neg,
    "over zero": lambda x: x / -0.0,
    "plus negative zero": lambda x: x + -0.0,
    "plus zero": lambda x: x + 0.0,
    "reciprocal": torch.reciprocal,
    "relu": F.relu,
    "relu6": F.relu6,
    "remainder": lambda x: torch.remainder(x, -2.5),
    "remainder by infinity": lambda x: torch.remainder(x, math.inf),
    "remainder of a number": lambda x: torch.remainder(3, x),
    "round": torch.round,
    "rsqrt": torch.rsqrt,
    "selu": F.selu,
    "sigmoid": torch.sigmoid,
    "sign": torch.sign,
    "signbit": torch.signbit,
    "silu": F.silu,
    "sinh": torch.sinh,
    "softplus": F.softplus,
    "softshrink": lambda x: F.softshrink(x) + 0.0,  # its zeros have either sign, by length
    "sqrt": torch.sqrt,
    "square": torch.square,
    "tanh": torch.tanh,
    "threshold": lambda x: F.threshold(x, 0.0, 0.0),
    "times negative zero": lambda x: x * -0.0,
    "trunc": torch.trunc,
    "zero less": lambda x: 0.0 - x,
}
UNARY |= {f"pow {p}": lambda x, p=p: x**p for p in (0, 1, 2, 3, 5, -1, -2, -3, 0.5, -0.5, 1.5)}
UNARY |= {f"power of {p}": lambda x, p=p: torch.pow(p, x) for p in (2.0, -2.0, 0.0, 1.0)}
BINARY: dict[str, Function] = {
    "atan2": torch.atan2,
    "clamp_min": lambda x, y: torch.clamp(x, min=y),
    "copysign": torch.copysign,
    "div": torch.div,
    "div_trunc": lambda x, y: torch.div(x, y, rounding_mode="trunc"),
    "floor_divide": torch.floor_divide,
    "fmax": torch.fmax,
    "fmin": torch.fmin,
    "fmod": torch.fmod,
    "heaviside": torch.heaviside,
    "hypot": torch.hypot,
    "logaddexp": torch.logaddexp,
    "maximum": torch.maximum,
    "minimum": torch.minimum,
    "pow": torch.pow,
    "remainder": torch.remainder,
    "sigmoid_backward": torch.ops.aten.sigmoid_backward,
    "xlogy": torch.xlogy,
}
WHOLE: dict[str, Function] = {
    "abs": torch.abs,
    "clamp": lambda x: x.clamp(1, 100),
    "cumprod": lambda x: (x | 1).cumprod(0, dtype=x.dtype),
    "cumsum": lambda x: x.cumsum(0, dtype=x.dtype),
    "floor_divide": lambda x: x // 3,
    "fmod": lambda x: torch.fmod(x, 3),
    "hardtanh": lambda x: F.hardtanh(x, 1, 3),
    "neg": torch.neg,
    "plus": lambda x: x + 100,
    "pow": lambda x: x**5,
    "relu": F.relu,
    "remainder": lambda x: x % 3,
    "shifted": lambda x: (x << 3) >> 2,
    "sign": torch.sign,
    "square": torch.square,
    "sum": lambda x: x.sum(dtype=x.dtype),
    "times": lambda x: x * 3,
}
PAIRS_OF_WHOLE: dict[str, Function] = {
    "add": lambda x, y: torch.add(x, y, alpha=3),
    "eq": torch.eq,
    "floor_divide": lambda x, y: x // (y | 1),
    "fmod": lambda x, y: torch.fmod(x, y | 1),
    "lt": torch.lt,
    "maximum": torch.maximum,
    "mul": torch.mul,
    "remainder": lambda x, y: x % (y | 1),
    "rsub": torch.rsub,
    "where": lambda x, y: torch.where(x > y, x, y),
}


def floats(dtype: torch.dtype) -> torch.Tensor:
    kind = torch.finfo(dtype)
    least = kind.smallest_normal * kind.eps
    sizes = [0.0, least, kind.smallest_normal - least, kind.smallest_normal, 1e-7, 0.25, 0.5, 1.0]
    sizes += [1.5, 2.0, 2.5, 3.0, 6.0, 9.0, 20.5, 88.9, 104.5, 2.0**24 + 1, 2.0**31, 1e19]
    signed = [sign * size for size in [*sizes, kind.max, math.inf] for sign in (1, -1)]
    return torch.tensor([*signed, math.nan], dtype=torch.float64).to(dtype)


def integers(dtype: torch.dtype) -> torch.Tensor:
    kind = torch.iinfo(dtype)
    found = {kind.min, kind.min + 1, kind.max // 2 + 1, kind.max - 1, kind.max}
    found |= {0, 1, 2, 3, 7, 8, 31, 63, 64} | ({-1, -2, -3, -7} if kind.min else set())
    return torch.tensor(sorted(found), dtype=dtype)


def pairs(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return x.repeat_interleave(len(x)), x.repeat(len(x))


def met(actual: torch.Tensor, expected: torch.Tensor) -> torch.Tensor:
    """Where they are the same number, zeros by their sign, or but for roundings."""
    if not actual.is_floating_point():
        return (actual == expected).int()
    kind = torch.finfo(actual.dtype)
    same = (actual == expected) & ((actual != 0) | (actual.signbit() == expected.signbit()))
    a, e = actual.double(), expected.double()
    near = (a - e).abs() <= ROUNDINGS * kind.eps * (kind.smallest_normal + e.abs().clamp(max=1e300))
    if kind.eps > 1e-12:
        near |= (a - e).abs() <= 2 * kind.eps  # beside 1, which many functions go through
    near &= e.isfinite() & a.isfinite() & ((a != 0) | (e != 0))
    return (same | near | (actual.isnan() & expected.isnan())).int()


def taken(functions: dict[str, Function], operands: tuple[torch.Tensor, ...]) -> list[str]:
    def is_taken(function: Function) -> bool:
        try:
            function(*operands)
        except (RuntimeError, TypeError):
            return False
        return True

    return [name for name, function in functions.items() if is_taken(function)]


def compare(
    plugin: str, functions: dict[str, Function], all_operands: list[tuple[torch.Tensor, ...]]
) -> None:
    names = taken(functions, all_operands[0])

    def program(*operands: torch.Tensor) -> list[torch.Tensor]:
        return [functions[name](*operands) for name in names]

    compiled = compile_for(plugin, program, "own")
    found = {}
    for operands in all_operands:
        # Eager mode's loops over vectors and its loops over elements differ: either is right.
        ways = [program(*operands), program(*[stepped(o) for o in operands])]
        ways.append(exactly(program, operands, ways[0]))
        for j, (name, actual) in enumerate(zip(names, compiled(*operands), strict=True)):
            right = sum(met(actual, way[j]) for way in ways) > 0
            at = (~right).view(-1).nonzero().flatten()[:4].tolist()
            if at:
                all_values = (*operands, actual.view(-1), ways[0][j].view(-1))
                found[name] = [[values[i].item() for values in all_values] for i in at]
    assert not found, found


def exactly(
    program: Callable[..., list[torch.Tensor]],
    operands: tuple[torch.Tensor, ...],
    like: list[torch.Tensor],
) -> list[torch.Tensor]:
    """In float64, and rounded once; of whole numbers what it is."""
    if not operands[0].is_floating_point():
        return like
    return [
        r.to(own.dtype)
        for r, own in zip(program(*[o.double() for o in operands]), like, strict=True)
    ]


@pytest.mark.parametrize("plugin", PLUGINS)
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_floats(dtype: torch.dtype, plugin: str) -> None:
    x = floats(dtype)
    compare(plugin, UNARY, [(x,), (x[:3],), (stepped(x.repeat(2)[:70]),)])


@pytest.mark.parametrize("plugin", PLUGINS)
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_pairs_of_floats(dtype: torch.dtype, plugin: str) -> None:
    compare(plugin, BINARY, [pairs(floats(dtype))])


@pytest.mark.parametrize("plugin", PLUGINS)
@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
def test_whole_numbers(dtype: torch.dtype, plugin: str) -> None:
    x = integers(dtype)
    compare(plugin, WHOLE, [(x,), (x[:3],), (stepped(x.repeat(4)),)])


@pytest.mark.parametrize("plugin", PLUGINS)
@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
def test_pairs_of_whole_numbers(dtype: torch.dtype, plugin: str) -> None:
    compare(plugin, PAIRS_OF_WHOLE, [pairs(integers(dtype))])


@pytest.mark.parametrize("plugin", PLUGINS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_what_is_small_keeps_its_digits(dtype: torch.dtype, plugin: str) -> None:
    """What is left where the larger of both is zero, and where a series ends."""

    def program(x: torch.Tensor) -> list[torch.Tensor]:
        zero = torch.zeros_like(x)
        return [torch.logaddexp(zero, -x), torch.logaddexp2(zero, -x), torch.digamma(x)]

    x = torch.arange(1, 80, dtype=dtype)
    for actual, expected in zip(compile_for(plugin, program, "own")(x), program(x), strict=True):
        torch.testing.assert_close(actual, expected, rtol=16 * torch.finfo(dtype).eps, atol=0)


@pytest.mark.parametrize("plugin", PLUGINS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.int32], ids=str)
def test_steps_are_taken_in_the_type_of_the_result(dtype: torch.dtype, plugin: str) -> None:
    """Of the halves too, which do not hold how many there are."""

    def program(x: torch.Tensor) -> list[torch.Tensor]:
        ends = [(0, 1), (-1, 2), (0.1, 7), (3, 3), (10, 0)]
        counts = (1, 2, 7, 100, 515, 2500)
        return [x + torch.linspace(a, b, n, dtype=dtype) for a, b in ends for n in counts]

    x = torch.zeros(1, dtype=dtype)
    assert all(map(torch.equal, compile_for(plugin, program, "own")(x), program(x)))
