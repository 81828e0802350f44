"""Functions of elements at the numbers that kernels treat as special, and beside them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from compiling import PLUGINS, compile_for
from fuzz.graph_check import stepped

aten = torch.ops.aten
UNARY = [
    "abs",
    "acos",
    "acosh",
    "asin",
    "asinh",
    "atan",
    "atanh",
    "ceil",
    "cos",
    "cosh",
    "erf",
    "erfc",
    "exp",
    "exp2",
    "expm1",
    "floor",
    "frac",
    "log",
    "log10",
    "log1p",
    "log2",
    "neg",
    "reciprocal",
    "round",
    "rsqrt",
    "sgn",
    "sigmoid",
    "sign",
    "signbit",
    "sin",
    "sinc",
    "sinh",
    "sqrt",
    "square",
    "tan",
    "tanh",
    "trunc",
    "isnan",
    "isfinite",
    "isinf",
    "logical_not",
    "positive",
    "nan_to_num",
    "deg2rad",
    "digamma",
    "erfinv",
    "i0",
    "lgamma",
    "logit",
    "special_airy_ai",
    "special_bessel_j0",
    "special_bessel_j1",
    "special_bessel_y0",
    "special_bessel_y1",
    "special_entr",
    "special_erfcx",
    "special_i0e",
    "special_i1",
    "special_i1e",
    "special_log_ndtr",
    "special_modified_bessel_i0",
    "special_modified_bessel_k0",
    "special_ndtr",
    "special_ndtri",
    "special_scaled_modified_bessel_k1",
    "special_spherical_bessel_j0",
]
BINARY = [
    "add",
    "sub",
    "mul",
    "div",
    "atan2",
    "copysign",
    "hypot",
    "fmod",
    "remainder",
    "maximum",
    "minimum",
    "pow",
    "xlogy",
    "heaviside",
    "logaddexp",
    "eq",
    "lt",
    "ge",
    "nextafter",
    "floor_divide",
]
INFINITY, NAN = float("inf"), float("nan")
SPECIAL = (0.0, -0.0, 1.0, -1.0, INFINITY, -INFINITY, NAN, 0.5, -2.0, 3.0, 7.5, 1e-30, -1e30, 1e20)
BESIDE = (1e9, -1e30, INFINITY, NAN, 0.0, 0.5)
NEAR = 1e-5  # relative
PARAMETERS = (0.0, 1.0, -1.0, INFINITY, -INFINITY, NAN, 0.5, -0.5)


def unary(x: torch.Tensor) -> list[torch.Tensor]:
    return [_function(name)(x) for name in UNARY]


def _function(name: str) -> Callable[..., torch.Tensor]:
    return getattr(torch.special, name.removeprefix("special_"), None) or getattr(torch, name)


def binary(x: torch.Tensor, y: torch.Tensor) -> list[torch.Tensor]:
    return [getattr(torch, name)(x, y) for name in BINARY]


# With parameters, each of which is one of the special numbers.
WITH_PARAMETERS: dict[str, Callable[[torch.Tensor, float], torch.Tensor]] = {
    "add": lambda x, a: torch.add(x, x, alpha=a),
    "addcdiv": lambda x, a: torch.addcdiv(x, x, x + 1, value=a),
    "addcmul": lambda x, a: torch.addcmul(x, x, x, value=a),
    "celu": F.celu,
    "clamp_max": torch.clamp_max,
    "clamp_min": torch.clamp_min,
    "elu": aten.elu,
    "elu, input": lambda x, a: aten.elu(x, 1.0, 1.0, a),
    "elu, scale": lambda x, a: aten.elu(x, 1.0, a),
    "eq": torch.eq,
    "fmod": torch.fmod,
    "hardshrink": F.hardshrink,
    "hardtanh, high": lambda x, a: F.hardtanh(x, -1.0, a),
    "hardtanh, low": lambda x, a: F.hardtanh(x, a, 1.0),
    "heaviside": lambda x, a: torch.heaviside(x, torch.full_like(x, a)),
    "leaky_relu": F.leaky_relu,
    "lerp": lambda x, a: torch.lerp(x, x + 1, a),
    "lt": torch.lt,
    "mul": torch.mul,
    "nan_to_num": torch.nan_to_num,
    "pow": torch.pow,
    "pow of a number": lambda x, a: torch.pow(a, x),
    "remainder": torch.remainder,
    "softplus": lambda x, a: F.softplus(x, 1.0, a),
    "sub": lambda x, a: torch.sub(x, x, alpha=a),
    "threshold": lambda x, a: F.threshold(x, a, 0.25),
    "threshold, value": lambda x, a: F.threshold(x, 0.5, a),
    "true_divide": torch.true_divide,
    "where": lambda x, a: torch.where(x > 0, x, a),
    "xlogy": torch.xlogy,
}


@pytest.mark.parametrize("plugin", PLUGINS)
@pytest.mark.parametrize("name", WITH_PARAMETERS)
def test_special_parameters(name: str, plugin: str) -> None:
    function = WITH_PARAMETERS[name]
    x = torch.tensor(SPECIAL * 2)

    def all_of_them(x: torch.Tensor, refused: frozenset[float] = frozenset()) -> list[torch.Tensor]:
        return [function(x, a) for a in PARAMETERS if a not in refused]

    refused = frozenset(a for a in PARAMETERS if is_refused(function, x, a))
    ways = [
        all_of_them(x, refused),
        all_of_them(stepped(x), refused),  # one by one
        [r.to(torch.float32) for r in all_of_them(x.double(), refused)],
    ]
    actual = compile_for(plugin, all_of_them)(x, refused)
    taken = [a for a in PARAMETERS if a not in refused]
    for i, a in enumerate(taken):
        bad = wrong(actual[i], [way[i] for way in ways]).nonzero().flatten()
        at = [(x[j].item(), actual[i][j].item(), ways[0][i][j].item()) for j in bad[:4].tolist()]
        assert not at, (a, at)


def is_refused(function: Callable[..., torch.Tensor], x: torch.Tensor, a: float) -> bool:
    try:
        function(x, a)
    except (RuntimeError, ValueError):
        return True
    return False


def gradients(x: torch.Tensor) -> list[torch.Tensor]:
    return [torch.abs(x), torch.tanh(x), torch.nn.functional.elu(x), torch.lerp(x, x * 2, 1.0)]


def wrong(actual: torch.Tensor, expected: list[torch.Tensor]) -> torch.Tensor:
    """Where none of what PyTorch gives is met."""
    right = torch.zeros(actual.shape, dtype=torch.bool)
    for e in expected:
        right |= (actual == e) | (actual.isnan() & e.isnan())
        if actual.is_floating_point():
            right |= e.isfinite() & ((actual - e).abs() <= NEAR * (1 + e.abs()))
    return ~right


@pytest.mark.parametrize("plugin", PLUGINS)
@pytest.mark.parametrize("function", [unary, binary], ids=lambda f: f.__name__)
def test_special_values(function, plugin: str) -> None:
    x = torch.tensor([a for a in SPECIAL for _ in SPECIAL])
    y = torch.tensor([b for _ in SPECIAL for b in SPECIAL])
    operands = (x,) if function is unary else (x, y)
    ways = [
        function(*operands),
        function(*[stepped(t) for t in operands]),  # one by one
        [r.to(torch.float32) for r in function(*[t.double() for t in operands])],
    ]
    actual = compile_for(plugin, function)(*operands)
    for i, name in enumerate(UNARY if function is unary else BINARY):
        bad = wrong(actual[i], [way[i] for way in ways]).nonzero().flatten()
        at = [([t[j].item() for t in operands], actual[i][j].item()) for j in bad[:4].tolist()]
        assert not at, (name, at)


@pytest.mark.parametrize("plugin", PLUGINS)
def test_special_values_of_gradients(plugin: str) -> None:
    found = []
    for run in (gradients, compile_for(plugin, gradients)):
        x = torch.tensor(SPECIAL * 2, requires_grad=True)
        found.append([torch.autograd.grad(r.sum(), x, retain_graph=True)[0] for r in run(x)])
    for actual, expected in zip(found[1], found[0], strict=True):
        assert not wrong(actual, [expected]).any(), (actual, expected)


@pytest.mark.parametrize("plugin", PLUGINS)
def test_what_lies_beside_changes_nothing(plugin: str) -> None:
    """Elements of a vector are computed together."""
    lanes = 16
    values = torch.cat([s * torch.logspace(-44, 38, 200) for s in (1, -1)])
    alone = values.repeat_interleave(lanes)
    compiled = compile_for(plugin, unary, dynamic=False)
    expected = [r.clone() for r in compiled(alone)]
    own = torch.arange(len(alone)) % lanes != lanes - 1
    for other in BESIDE:
        mixed = torch.where(own, alone, other)
        for name, actual, was in zip(UNARY, compiled(mixed), expected, strict=True):
            same = (actual == was) | (actual.isnan() & was.isnan()) | ~own
            if actual.is_floating_point():
                same |= (actual - was).abs() <= NEAR * was.abs()
            assert bool(same.all()), (name, other, alone[~same][:4])


def test_signs_of_zero() -> None:
    """In vectors and one by one, as in eager mode."""

    def f(x):
        return [torch.tanh(x), torch.expm1(x), torch.sin(x), torch.nn.functional.relu6(x)]

    x = torch.full((33,), -0.0)
    for actual in compile_for("cpu_onednn", f)(x):
        assert bool(torch.signbit(actual).all())
