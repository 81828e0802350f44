"""Functions of elements at the numbers that kernels treat as special, and beside them."""

from __future__ import annotations

import platform
import re
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
    "floor_divide": torch.floor_divide,
    "floor_divide of a number": aten.floor_divide.Scalar,
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


ACTIVATIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "celu": F.celu,
    "clamp": lambda x: torch.clamp(x, -1.0, 0.5),
    "elu": F.elu,
    "gelu": F.gelu,
    "gelu, tanh": lambda x: F.gelu(x, approximate="tanh"),
    "glu": lambda x: F.glu(torch.stack([x, x]), 0),
    "hardshrink": F.hardshrink,
    "hardsigmoid": F.hardsigmoid,
    "hardswish": F.hardswish,
    "hardtanh": F.hardtanh,
    "leaky_relu": F.leaky_relu,
    "lerp": lambda x: torch.lerp(x, x * 2, 1.0),
    "logsigmoid": F.logsigmoid,
    "mish": F.mish,
    "relu": F.relu,
    "relu6": F.relu6,
    "selu": F.selu,
    "silu": F.silu,
    "softplus": F.softplus,
    "softshrink": F.softshrink,
    "softsign": F.softsign,
    "tanhshrink": F.tanhshrink,
    "threshold": lambda x: F.threshold(x, 0.5, 0.25),
    "where": lambda x: torch.where(x > 0, x, x * 2),
}
LOSSES: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "binary_cross_entropy_with_logits": F.binary_cross_entropy_with_logits,
    "gaussian_nll": lambda x, y: F.gaussian_nll_loss(x, y, torch.ones_like(x)),
    "hinge_embedding": F.hinge_embedding_loss,
    "huber": F.huber_loss,
    "huber, delta": lambda x, y: F.huber_loss(x, y, delta=0.5),
    "l1": F.l1_loss,
    "margin_ranking": lambda x, y: F.margin_ranking_loss(x, x * 2, y),
    "mse": F.mse_loss,
    "poisson_nll": F.poisson_nll_loss,
    "smooth_l1": F.smooth_l1_loss,
    "smooth_l1, beta": lambda x, y: F.smooth_l1_loss(x, y, beta=2.0),
    "soft_margin": F.soft_margin_loss,
}
CONSTANT = ("ceil", "floor", "isnan", "isfinite", "isinf", "logical_not", "round", "sgn", "sign")
CONSTANT += ("signbit", "trunc", "eq", "lt", "ge", "heaviside", "nextafter", "floor_divide")
NOT_DERIVED = ("special_airy_ai", "special_bessel_j0", "special_bessel_j1", "special_bessel_y0")
NOT_DERIVED += ("special_bessel_y1", "special_modified_bessel_i0", "special_modified_bessel_k0")
NOT_DERIVED += ("special_scaled_modified_bessel_k1", "special_spherical_bessel_j0")
DERIVED: dict[str, dict[str, Callable[..., torch.Tensor]]] = {
    "unary": {n: _function(n) for n in UNARY if n not in CONSTANT + NOT_DERIVED},
    "binary": {n: getattr(torch, n) for n in BINARY if n not in CONSTANT},
    "activations": ACTIVATIONS,
    "losses": LOSSES,
}


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
@pytest.mark.parametrize("group", DERIVED)
def test_special_values_of_gradients(group: str, plugin: str) -> None:
    """Each function has operands of its own, so that one backward gives all gradients apart."""
    functions = DERIVED[group]
    pairs = group in ("binary", "losses")
    x = torch.tensor([a for a in SPECIAL for _ in SPECIAL] if pairs else SPECIAL * 2)
    y = torch.tensor([b for _ in SPECIAL for b in SPECIAL])

    def all_of_them(xs: list[torch.Tensor], ys: list[torch.Tensor]) -> list[torch.Tensor]:
        if pairs:
            return [f(a, b) for f, a, b in zip(functions.values(), xs, ys, strict=True)]
        return [f(a) for f, a in zip(functions.values(), xs, strict=True)]

    def derived(run: Callable[..., list[torch.Tensor]], dtype: torch.dtype, lay: Callable) -> list:
        xs = [lay(x.to(dtype)).requires_grad_() for _ in functions]
        ys = [lay(y.to(dtype)).requires_grad_(group == "binary") for _ in functions]
        sum(r.sum() for r in run(xs, ys)).backward()
        return [
            [t.grad.float()[:: len(t) // len(x)] for t in ts if t.grad is not None]
            for ts in zip(xs, ys, strict=True)
        ]

    plain = torch.clone
    ways = [
        derived(all_of_them, torch.float32, plain),
        derived(all_of_them, torch.float32, lambda t: stepped(t).detach()),  # one by one
        # Whole vectors of each: hardswish's gradient at NaN is NaN there, and 1 beside them.
        derived(all_of_them, torch.float32, lambda t: t.repeat_interleave(64)),
        derived(all_of_them, torch.float64, plain),
    ]
    actual = derived(compile_for(plugin, all_of_them), torch.float32, plain)
    found = {}
    for i, name in enumerate(functions):
        for g, gradient in enumerate(actual[i]):
            bad = wrong(gradient, [way[i][g] for way in ways]).nonzero().flatten()
            at = [
                (
                    (x[j].item(), y[j].item()) if pairs else x[j].item(),
                    gradient[j].item(),
                    ways[0][i][g][j].item(),
                )
                for j in bad[:4].tolist()
            ]
            if at:
                found[name, g] = at
    assert not found, found


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


@pytest.mark.parametrize("plugin", PLUGINS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
def test_signs_of_what_is_no_number(dtype: torch.dtype, plugin: str) -> None:
    def f(x):
        return [
            x.signbit(),
            x.new_ones(()).copysign(x).signbit(),
            (-x).signbit(),
            x.abs().signbit(),
        ]

    x = torch.tensor([torch.nan, 0.0, -0.0, torch.inf, -torch.inf, 1.0, -1.0] * 5).to(dtype)
    x = torch.cat([x, x.copysign(x.new_full((), -1.0))])
    for actual, expected in zip(compile_for(plugin, f)(x), f(x), strict=True):
        assert torch.equal(actual, expected)


@pytest.mark.parametrize("plugin", PLUGINS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("number", [torch.inf, torch.nan], ids=str)
def test_given_statistics_have_gradients_without_the_input(
    number: float, dtype: torch.dtype, plugin: str
) -> None:
    """Batch norm of inference is linear."""
    weight, bias, mean, variance = (torch.rand(20) + 0.5 for _ in range(4))

    def f(xs: list[torch.Tensor]) -> list[torch.Tensor]:
        return [F.batch_norm(x, mean, variance, weight, bias) for x in xs]

    def inputs() -> list[torch.Tensor]:
        made = [torch.ones(dims, dtype=dtype) for dims in ((3, 20), (2, 20, 7), (2, 20, 5, 9))]
        made.append(made[-1].contiguous(memory_format=torch.channels_last))
        for x in made:
            x[1, 3] = number
        return [x.requires_grad_() for x in made]

    def gradients(run: Callable[..., list[torch.Tensor]]) -> list[torch.Tensor]:
        xs = inputs()
        torch.autograd.backward(run(xs), [torch.ones_like(x) for x in xs])
        return [x.grad for x in xs]

    for actual, expected in zip(gradients(compile_for(plugin, f)), gradients(f), strict=True):
        torch.testing.assert_close(actual, expected)


@pytest.mark.parametrize("plugin", PLUGINS)
@pytest.mark.parametrize("number", [torch.inf, torch.nan], ids=str)
@pytest.mark.parametrize(
    "mode", ["linear", "bilinear", "trilinear", "nearest", "nearest-exact", "bicubic"]
)
def test_resampling_beside_what_is_no_number(mode: str, number: float, plugin: str) -> None:
    """Weights of zero count along the image's own dims, and along no others."""
    dims = {"linear": 1, "trilinear": 3}.get(mode, 2)
    x = torch.ones(1, 2, *[4] * dims)
    x.view(-1)[2] = number
    ways = [{}] if mode.startswith("nearest") else [{"align_corners": a} for a in (False, True)]

    def f(x: torch.Tensor) -> list[torch.Tensor]:
        return [F.interpolate(x, n, mode=mode, **way) for n in (1, 3, 4, 8) for way in ways]

    laid = [x] if dims != 2 else [x, x.contiguous(memory_format=torch.channels_last)]
    for operand in laid:
        for actual, expected in zip(compile_for(plugin, f)(operand), f(operand), strict=True):
            torch.testing.assert_close(actual, expected, equal_nan=True)


# Of numbers that are zero within the bounds of each.
KEEPS_ZEROS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "tanh": torch.tanh,
    "expm1": torch.expm1,
    "sin": torch.sin,
    "relu": F.relu,
    "relu6": F.relu6,
    "hardtanh": lambda x: F.hardtanh(x, 0.0, 2.0),
    "hardtanh below": lambda x: F.hardtanh(x, -2.0, 0.0),
    "clamp": lambda x: x.clamp(0, 1),
    "clamp below": lambda x: x.clamp(-1, 0),
    "clamp_min": lambda x: x.clamp_min(0),
    "clamp_max": lambda x: x.clamp_max(0),
}


@pytest.mark.parametrize("plugin", PLUGINS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
def test_signs_of_zero(dtype: torch.dtype, plugin: str) -> None:
    """In vectors and one by one, as in eager mode."""

    def f(x: torch.Tensor) -> list[torch.Tensor]:
        return [function(x) for function in KEEPS_ZEROS.values()]

    compiled = compile_for(plugin, f)
    for zero in (0.0, -0.0):
        x = torch.full((33,), zero, dtype=dtype)
        for name, actual in zip(KEEPS_ZEROS, compiled(x), strict=True):
            assert torch.equal(actual.signbit(), x.signbit()), (name, zero)


@pytest.mark.parametrize("plugin", PLUGINS)
def test_a_correction_that_is_no_number(plugin: str) -> None:
    def function(x: torch.Tensor) -> list[torch.Tensor]:
        return [aten.var.correction(x, c, correction=torch.nan) for c in (None, [1])]

    x = torch.randn(3, 5)
    for actual, expected in zip(compile_for(plugin, function)(x), function(x), strict=True):
        torch.testing.assert_close(actual, expected, equal_nan=True)


@pytest.mark.parametrize("plugin", PLUGINS)
def test_indices_that_do_not_exist_are_not_read(plugin: str) -> None:
    """None of them, but a stride of 0: what reads the first for all reads nothing."""
    index = torch.empty_strided((0,), (0,), dtype=torch.int64)
    x, rows = torch.randn(5, 7), torch.empty_strided((0, 7), (0, 1))

    def function(x: torch.Tensor, rows: torch.Tensor) -> list[torch.Tensor]:
        return [x.index_add(0, index, rows), x.index_copy(0, index, rows), x[index]]

    for actual, expected in zip(
        compile_for(plugin, function)(x, rows), function(x, rows), strict=True
    ):
        torch.testing.assert_close(actual, expected)


@pytest.mark.parametrize("plugin", [p for p in PLUGINS if p != "cuda"])
def test_the_larger_of_two_zeros_is_the_first(plugin: str) -> None:
    def program(x, y):
        return torch.fmax(x, y), torch.fmin(x, y)

    x, y = torch.tensor([0.0, -0.0] * 20), torch.tensor([-0.0, 0.0] * 20)
    for actual, expected in zip(compile_for(plugin, program)(x, y), program(x, y), strict=True):
        assert torch.equal(actual.signbit(), expected.signbit())


@pytest.mark.skipif(platform.machine() != "x86_64", reason="what x86's conversion gives")
@pytest.mark.parametrize("plugin", [p for p in PLUGINS if p != "cuda"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
def test_numbers_that_no_integer_holds(dtype: torch.dtype, plugin: str) -> None:
    """PyTorch promises nothing; the host's processor gives the same wherever its kernels are."""

    def program(x):
        integers = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool)
        return [x.to(integer) for integer in integers]

    far = torch.tensor([1e10, -1e10, 1e20, torch.inf, -torch.inf, torch.nan, 300, -300, -1.5])
    x = far.to(dtype).repeat(9)
    assert all(map(torch.equal, compile_for(plugin, program)(x), program(x)))


@pytest.mark.parametrize("plugin", [p for p in PLUGINS if p != "cuda"])
@pytest.mark.parametrize(
    "dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64], ids=str
)
def test_roots_that_are_powers(dtype: torch.dtype, plugin: str) -> None:
    """PyTorch takes them as roots, but for float16: zeros and infinities have other signs."""

    def program(x):
        return x**0.5, x**-0.5

    x = torch.tensor([-torch.inf, torch.inf, -0.0, 0.0, 4, -4, torch.nan], dtype=dtype).repeat(9)
    for actual, expected in zip(compile_for(plugin, program)(x), program(x), strict=True):
        torch.testing.assert_close(actual, expected, equal_nan=True)
        is_number = ~expected.isnan()
        assert torch.equal(actual.signbit()[is_number], expected.signbit()[is_number])


DECOMPOSED = {
    "eigh": lambda x: torch.linalg.eigh(x).eigenvalues,
    "eigvalsh": torch.linalg.eigvalsh,
    "svd": lambda x: torch.linalg.svd(x).S,
    "svdvals": torch.linalg.svdvals,
    "cholesky": torch.linalg.cholesky,
    "cond": torch.linalg.cond,
    "matrix_norm": lambda x: torch.linalg.matrix_norm(x, 2),
    "matrix_rank": torch.linalg.matrix_rank,
    "pinv": torch.linalg.pinv,
    "slogdet": torch.linalg.slogdet,
}


@pytest.mark.parametrize("plugin", PLUGINS)
@pytest.mark.parametrize("name", DECOMPOSED)
def test_decompositions_of_what_is_no_number(name: str, plugin: str) -> None:
    """Where PyTorch computes values alone it gives some for what has no vectors."""
    symmetric = torch.tensor([[4.0, 1, 2], [1, 5, 1], [2, 1, 6]])
    corner = torch.tensor([2])
    compiled = compile_for(plugin, DECOMPOSED[name])
    for number in map(torch.tensor, (torch.nan, torch.inf)):
        for x in (symmetric * number, symmetric.index_put((corner, corner), number)):
            try:
                expected = DECOMPOSED[name](x)
            except torch.linalg.LinAlgError as error:
                with pytest.raises(torch.linalg.LinAlgError, match=re.escape(str(error)[:60])):
                    compiled(x)
                continue
            torch.testing.assert_close(compiled(x), expected, equal_nan=True)
