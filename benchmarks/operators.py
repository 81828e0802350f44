"""Single operators beside eager mode: what `run.py --operators` times.

Each runs in this process, on one thread, through `torch_backplane.compile`; times are the least of
many calls. That is enough to find what has no quick kernel, not to compare a few percent.
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch_backplane
from torch import Tensor
from torch.nn import functional

UNARY = """abs neg exp exp2 expm1 log log2 log10 log1p sin cos tan asin acos atan sinh cosh tanh
asinh acosh atanh sqrt rsqrt reciprocal square sign floor ceil round trunc frac sigmoid erf erfc
erfinv lgamma digamma relu isnan isinf isfinite logical_not deg2rad sgn i0 sinc logit nan_to_num"""
ABOVE_ZERO = "log log2 log10 log1p sqrt rsqrt lgamma digamma acosh"
BELOW_ONE = "logit erfinv asin acos atanh"
BINARY = """add sub mul div atan2 maximum minimum fmax fmin pow fmod remainder hypot copysign eq ne lt
le gt ge logical_and logical_or logaddexp floor_divide xlogy nextafter heaviside"""
ACTIVATIONS = """gelu silu mish softplus elu selu celu leaky_relu hardswish hardsigmoid hardtanh relu6
softsign tanhshrink logsigmoid hardshrink softshrink glu"""
REDUCTIONS = """sum mean amax amin prod std var logsumexp argmax argmin any all nansum count_nonzero
median"""
WITHOUT_GRADIENT = ("floor_divide", "heaviside")  # PyTorch has none of them
ALONG = "softmax log_softmax cumsum cumprod sort argsort logcumsumexp"


@dataclasses.dataclass(frozen=True)
class Case:
    """A function and its arguments."""

    name: str
    function: Callable[..., Any]
    arguments: tuple[Tensor, ...]


@dataclasses.dataclass(frozen=True)
class Row:
    """Seconds of a call."""

    name: str
    eager: float
    plugin: float

    @property
    def ratio(self) -> float:
        """How many times eager's time the plugin takes."""
        return self.plugin / self.eager


def _along(name: str, *dim: Any) -> Callable[[Tensor], Any]:
    function = getattr(torch, name)
    return lambda x: function(x, *dim)


def _named(x: Tensor, y: Tensor) -> Iterator[Case]:
    above = x.abs() + 0.1
    for name in UNARY.split():
        of = (
            above if name in ABOVE_ZERO.split() else x.sigmoid() if name in BELOW_ONE.split() else x
        )
        yield Case(name, getattr(torch, name), (of,))
    for name in BINARY.split():
        divides = name in ("fmod", "remainder", "floor_divide")
        function = getattr(torch, name)
        yield Case(name, lambda a, b, f=function: f(a, b), (above, above + 0.5 if divides else y))
    for name in ACTIVATIONS.split():
        yield Case(name, getattr(functional, name), (x,))
    for name in REDUCTIONS.split():
        over_all = [(0, 1)] if name in ("amax", "amin", "logsumexp") else []
        yield Case(f"{name} of all", _along(name, *over_all), (x,))
        for dim in (0, 1):
            yield Case(f"{name} over dim {dim}", _along(name, dim), (x,))
    for name in ALONG.split():
        for dim in (0, 1):
            yield Case(f"{name} along dim {dim}", _along(name, dim), (x,))


def _others(x: Tensor, y: Tensor, rand: Callable[..., Tensor]) -> Iterator[Case]:
    row, deep, image = rand(512), rand(8, 64, 256), rand(4, 32, 28, 28)
    line, weight = rand(4, 32, 400), rand(64, 32, 3, 3)
    heads = rand(2, 4, 64, 32)
    generator = torch.Generator().manual_seed(1)
    index = torch.randint(0, 256, (256, 512), generator=generator)
    picks = torch.randint(0, 256, (1000,), generator=generator)
    mask, double = x > 0, x.double()
    yield from (
        Case("gather", lambda a, i: a.gather(0, i), (x, index)),
        Case("index_select", lambda a, i: a.index_select(0, i), (x, picks)),
        Case("index", lambda a, i: a[i], (x, picks)),
        Case("scatter", lambda a, i, b: a.scatter(0, i, b), (x, index, y)),
        Case("scatter_add", lambda a, i, b: a.scatter_add(0, i, b), (x, index, y)),
        Case("index_add", lambda a, i: a.index_add(0, i, a[i]), (x, picks)),
        Case("index_put", lambda a, i: a.index_put((i,), a[i], accumulate=True), (x, picks)),
        Case("embedding", functional.embedding, (index, x)),
        Case("topk", lambda a: a.topk(10)[0], (x,)),
        Case("where", torch.where, (mask, x, y)),
        Case("masked_fill", lambda a, m: a.masked_fill(m, 0.0), (x, mask)),
        Case("clamp", lambda a: a.clamp(-1, 1), (x,)),
        Case("lerp", lambda a, b: torch.lerp(a, b, 0.3), (x, y)),
        Case("addcmul", lambda a, b: torch.addcmul(a, a, b), (x, y)),
        Case("cat rows", lambda a, b: torch.cat([a, b], 0), (x, y)),
        Case("cat columns", lambda a, b: torch.cat([a, b], 1), (x, y)),
        Case("stack", lambda a, b: torch.stack([a, b], 1), (x, y)),
        Case("transpose", lambda a: a.t().contiguous(), (x,)),
        Case("permute", lambda a: a.permute(2, 0, 1).contiguous(), (deep,)),
        Case("flip", lambda a: a.flip(1), (x,)),
        Case("roll", lambda a: a.roll(3, 1), (x,)),
        Case("tril", torch.tril, (x,)),
        Case("repeat", lambda a: a.repeat(2, 2), (x,)),
        Case("add a row", lambda a, v: a + v, (x, row)),
        Case("add a column", lambda a, v: a + v[:256, None], (x, row)),
        Case("add neighbours", lambda a: a[:, 1:] + a[:, :-1], (x,)),
        Case("every second", lambda a: a[:, ::2] * 2, (x,)),
        Case("diff", lambda a: a.diff(dim=1), (x,)),
        Case("outer", lambda v: torch.outer(v, v), (row,)),
        Case("pad", lambda a: functional.pad(a, (1, 2, 3, 4)), (x,)),
        Case("pad by reflection", lambda a: functional.pad(a, (1, 2, 3, 4), "reflect"), (image,)),
        Case("layer_norm", lambda a: functional.layer_norm(a, (512,)), (x,)),
        Case("rms_norm", lambda a: functional.rms_norm(a, (512,)), (x,)),
        Case("group_norm", lambda a: functional.group_norm(a, 8), (image,)),
        Case("batch_norm", lambda a: functional.batch_norm(a, None, None, training=True), (image,)),
        Case("normalize", functional.normalize, (x,)),
        Case("cosine_similarity", functional.cosine_similarity, (x, y)),
        Case("mm", lambda a, b: a @ b.t(), (x, y)),
        Case("mv", torch.mv, (x, row)),
        Case("bmm", lambda t: t @ t.transpose(1, 2), (deep,)),
        Case("bmm of small", lambda t: t @ t.transpose(1, 2), (rand(512, 8, 8),)),
        Case("mm of float64", lambda a: a @ a.t(), (double,)),
        Case("mv of float64", lambda a: a @ a[0], (double,)),
        Case("mm of int64", lambda i: i @ i.t(), (index[:64],)),
        Case("exp of float64", torch.exp, (double,)),
        Case("sum of float64", lambda a: a.sum(0), (double,)),
        Case("sum of int64", lambda i: i.sum(1), (index,)),
        Case("sum of bool", lambda m: m.sum(1), (mask,)),
        Case("int64 modulo", lambda i: i % 7, (index,)),
        Case("to float64", lambda a: a.double(), (x,)),
        Case("to int64", lambda a: a.long(), (x,)),
        Case("to bfloat16", lambda a: a.bfloat16(), (x,)),
        Case("conv2d", lambda a, w: functional.conv2d(a, w, padding=1), (image, weight)),
        Case("conv1d", lambda a, w: functional.conv1d(a, w[:32, :, 0], padding=1), (line, weight)),
        Case("max_pool2d", lambda a: functional.max_pool2d(a, 2), (image,)),
        Case("avg_pool2d", lambda a: functional.avg_pool2d(a, 2), (image,)),
        Case("adaptive_avg_pool2d", lambda a: functional.adaptive_avg_pool2d(a, 7), (image,)),
        Case("nearest", lambda a: functional.interpolate(a, scale_factor=2), (image,)),
        Case(
            "bilinear",
            lambda a: functional.interpolate(a, scale_factor=2, mode="bilinear"),
            (image,),
        ),
        Case("pixel_shuffle", lambda a: functional.pixel_shuffle(a, 2), (image,)),
        Case("cross_entropy", lambda a, i: functional.cross_entropy(a, i[:, 0]), (x, index)),
        Case("mse_loss", functional.mse_loss, (x, y)),
        Case("smooth_l1_loss", functional.smooth_l1_loss, (x, y)),
        Case("kl_div", lambda a, b: functional.kl_div(a, b, reduction="sum"), (x, y.sigmoid())),
        Case("attention", functional.scaled_dot_product_attention, (heads, heads, heads)),
    )


def cases() -> list[Case]:
    """All cases; seeded, of about 131,000 elements each."""
    generator = torch.Generator().manual_seed(0)

    def rand(*dims: int) -> Tensor:
        return torch.randn(*dims, generator=generator)

    x, y = rand(256, 512), rand(256, 512)
    return [*_named(x, y), *_others(x, y, rand)]


def _least(call: Callable[[], object], count: int) -> float:
    best = math.inf
    for _ in range(count):
        start = time.perf_counter()
        call()
        best = min(best, time.perf_counter() - start)
    return best


def _step(
    function: Callable[..., Any], arguments: tuple[Tensor, ...]
) -> Callable[[], object] | None:
    """Forward and backward as one call; None where nothing is to be differentiated."""
    leaves = [a.clone().requires_grad_() if a.is_floating_point() else a for a in arguments]

    def step() -> None:
        for leaf in leaves:
            leaf.grad = None
        out = function(*leaves)
        (out[0] if isinstance(out, tuple) else out).sum().backward()

    out = function(*leaves)
    out = out[0] if isinstance(out, tuple) else out
    return step if out.requires_grad else None


def measure(case: Case, plugin: str, *, training: bool, calls: int = 40) -> Row | None:
    """None where the operator has no gradient, and is to be trained with."""
    compiled = torch_backplane.compile(case.function, backend=f"plugin:{plugin}")
    if training:
        pair = [_step(function, case.arguments) for function in (case.function, compiled)]
    else:
        pair = [lambda f=f: f(*case.arguments) for f in (case.function, compiled)]
    eager, ours = pair
    if eager is None or ours is None:
        return None
    with torch.set_grad_enabled(training):
        for _ in range(4):
            ours()
        return Row(case.name, _least(eager, calls), _least(ours, calls))


def show(plugin: str, *, training: bool, slower_than: float = 2.0) -> int:
    """Prints what takes more than `slower_than` times eager's time; 1 where a case failed."""
    torch.set_num_threads(1)
    rows, failed = [], 0
    for case in cases():
        if training and case.name in WITHOUT_GRADIENT:
            continue
        try:
            row = measure(case, plugin, training=training)
        except Exception as error:
            print(f"{case.name:28} {type(error).__name__}: {str(error).splitlines()[0][:120]}")
            failed = 1
            continue
        if row is None:
            continue
        rows.append(row)
        if row.ratio > slower_than:
            print(
                f"{row.name:28} {row.ratio:5.1f} times eager's time: "
                f"{row.plugin * 1e6:.0f} us, eager {row.eager * 1e6:.0f} us",
                flush=True,
            )
    mean = math.exp(sum(math.log(row.ratio) for row in rows) / len(rows))
    slow = sum(row.ratio > slower_than for row in rows)
    print(
        f"{len(rows)} operators{' in training' if training else ''}: {mean:.2f} times eager's time "
        f"in the geometric mean, {slow} above {slower_than:g}"
    )
    return failed
