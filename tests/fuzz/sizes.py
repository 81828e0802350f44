"""Texts of one operator, with what follows it, at the sizes of real models: where libraries take other
blocks, threads and passes than at the few elements of ``graphs``. A row makes shapes and an
expression, or nothing where the sizes that it drew are too much work."""

from __future__ import annotations

import dataclasses
import math
import random
from collections.abc import Callable

SIZES = (*(1, 2, 3, 7, 8, 15, 16, 17, 31, 32, 33, 63, 64, 65, 100, 127, 128, 129, 255, 256, 257),)
SIZES += (*(300, 384, 511, 512, 513, 640, 768, 1000, 1023, 1024, 1025, 1536, 2048, 2049, 3072),)
SIZES += (4096, 5000)
ELEMENTS = 2_000_000  # of a tensor
PRODUCTS = 300_000_000
SMOOTH = ("{}", "{}", "torch.tanh({})", "F.gelu({})", "torch.sigmoid({})", "F.silu({})")
SHARP = ("F.relu({})", "F.hardtanh({})")  # their gradients jump


@dataclasses.dataclass(frozen=True)
class Tensor:
    dims: tuple[int, ...]
    layout: str = "rows"

    def text(self, seed: int) -> str:
        return f"draw({self.dims}, {self.layout!r}, seed={seed})"


Made = tuple[dict[str, Tensor], str]
Row = Callable[[random.Random], "Made | None"]


def size(rng: random.Random, most: int) -> int:
    return rng.choice([n for n in SIZES if n <= most])


def shape(rng: random.Random, rank: int, elements: int = ELEMENTS) -> tuple[int, ...]:
    dims = []
    for _ in range(rank):
        dims.append(size(rng, max(1, elements)))
        elements //= dims[-1]
    rng.shuffle(dims)
    return tuple(dims)


def rows_or_columns(rng: random.Random, dims: tuple[int, ...]) -> Tensor:
    return Tensor(dims, rng.choice(("rows", "rows", "columns")))


def picture(rng: random.Random, elements: int = ELEMENTS) -> Tensor:
    channels = rng.choice((3, 8, 16, 32, 64, 96, 100, 256, 512, 1024))
    batch, height, width = shape(rng, 3, min(elements // channels, 40_000))
    return Tensor((batch, channels, height, width), rng.choice(("rows", "channels")))


def product(rng: random.Random) -> Made | None:
    m, k, n = size(rng, 2048), size(rng, 4096), size(rng, 4096)
    if m * k * n > PRODUCTS:
        return None
    tensors = {"a": rows_or_columns(rng, (m, k)), "b": rows_or_columns(rng, (k, n))}
    if rng.random() < 0.5:
        return tensors, "a @ b"
    return tensors | {"c": Tensor((n,))}, "a @ b + c"


def linear(rng: random.Random) -> Made | None:
    batch, k, n = shape(rng, rng.choice((1, 2, 3)), 512), size(rng, 4096), size(rng, 4096)
    if math.prod(batch) * k * n > PRODUCTS:
        return None
    tensors = {"x": Tensor((*batch, k)), "w": Tensor((n, k))}
    if rng.random() < 0.3:
        return tensors, "F.linear(x, w)"
    return tensors | {"b": Tensor((n,))}, "F.linear(x, w, b)"


def batched_product(rng: random.Random) -> Made | None:
    b, m, k, n = size(rng, 64), size(rng, 512), size(rng, 512), size(rng, 512)
    if b * m * k * n > PRODUCTS:
        return None
    return {
        "a": rows_or_columns(rng, (b, m, k)),
        "b": rows_or_columns(rng, (b, k, n)),
    }, "a @ b"


def attention(rng: random.Random) -> Made | None:
    b, h, m, n = size(rng, 4), size(rng, 16), size(rng, 1024), size(rng, 1024)
    d = rng.choice((8, 16, 32, 40, 64, 80, 96, 128, 256))
    if b * h * m * n * d > PRODUCTS:
        return None
    tensors = {"q": Tensor((b, h, m, d)), "k": Tensor((b, h, n, d)), "v": Tensor((b, h, n, d))}
    how = rng.choice(("", ", attn_mask=mask", ", is_causal=True"))
    if "mask" in how:
        tensors["mask"] = Tensor((1, 1, m, n))
    return tensors, f"F.scaled_dot_product_attention(q, k, v{how})"


def convolution(rng: random.Random) -> Made | None:
    transposed, rank = rng.random() < 0.5, rng.choice((1, 2, 2, 2, 3))
    groups = rng.choice((1, 1, 1, 2, 4, 32))
    inner, outer = (groups * math.ceil(size(rng, 2048) / groups) for _ in range(2))
    if rng.random() < 0.5:  # those of networks
        inner, outer = (rng.choice((32, 64, 96, 128, 256, 512, 1024)) for _ in range(2))
    window, stride = rng.choice((1, 2, 3, 4, 5, 6, 7, 8)), rng.choice((1, 2, 2, 3, 4))
    dilation = rng.choice((1, 1, 1, 2))
    if rng.random() < 0.5:
        forms = ((1, 1), (3, 1), (3, 2), (2, 2), (4, 2), (4, 4), (5, 1), (7, 2), (8, 8), (8, 4))
        (window, stride), dilation = rng.choice(forms), 1
    padding = rng.randint(0, window // 2)
    sizes = (rng.choice((1, 2, 3, 4, 5, 7, 8, 13, 16)),) * rank
    batch = rng.choice((1, 1, 2, 4, 8))
    weight = inner * outer // groups * window**rank
    if weight > 4 * ELEMENTS or batch * math.prod(sizes) * weight > 4 * PRODUCTS:
        return None
    layout = rng.choice(("rows", "channels")) if rank == 2 else "rows"
    w = (inner, outer // groups) if transposed else (outer, inner // groups)
    tensors = {"x": Tensor((batch, inner, *sizes), layout), "w": Tensor((*w, *(window,) * rank))}
    options = f"stride={stride}, padding={padding}, dilation={dilation}, groups={groups}"
    if transposed:
        options += f", output_padding={rng.randrange(max(stride, dilation))}"
    bias = rng.random() < 0.6
    if bias:
        tensors["b"] = Tensor((outer,))
    name = f"F.conv{'_transpose' * transposed}{rank}d"
    text = f"{name}(x, w, {'b' if bias else 'None'}, {options})"
    if rng.random() < 0.3:
        tensors |= {n: Tensor((outer,)) for n in ("mean", "var", "scale", "shift")}
        text = f"F.batch_norm({text}, mean.detach(), var.detach().abs() + 1, scale, shift)"
    return tensors, text


def norm(rng: random.Random) -> Made | None:
    if rng.random() < 0.5:
        rows = shape(rng, 2)
        tensors = {"x": Tensor(rows), "w": Tensor(rows[1:]), "b": Tensor(rows[1:])}
        if rng.random() < 0.3:
            del tensors["b"]
            return tensors, "F.rms_norm(x, w.shape, w)"
        return tensors, "F.layer_norm(x, w.shape, w, b)"
    x = picture(rng)
    channels = x.dims[1]
    tensors = {"x": x, "w": Tensor((channels,)), "b": Tensor((channels,))}
    if rng.random() < 0.5 and channels % 4 == 0:
        return tensors, f"F.group_norm(x, {rng.choice((1, 2, 4))}, w, b)"
    return tensors, "F.batch_norm(x, None, None, w, b, True)"


def reduction(rng: random.Random) -> Made | None:
    dims = shape(rng, rng.choice((1, 2, 3, 4)))
    over = sorted(rng.sample(range(len(dims)), rng.randint(1, len(dims))))
    name = rng.choice(("sum", "mean", "amax", "logsumexp", "var"))
    return {"x": Tensor(dims)}, f"torch.{name}(x, {tuple(over)})"


def row(rng: random.Random) -> Made | None:
    dims = shape(rng, rng.choice((1, 2, 3)))
    name = rng.choice(("softmax", "log_softmax", "cumsum"))
    return {"x": Tensor(dims)}, f"torch.{name}(x, {rng.randrange(len(dims))})"


def pooling(rng: random.Random) -> Made | None:
    window, stride = rng.choice((2, 3, 5, 7)), rng.choice((1, 2, 3))
    name = rng.choice(("max_pool2d", "avg_pool2d"))
    return {"x": picture(rng)}, f"F.{name}(x, {window}, {stride}, {rng.randint(0, window // 2)})"


def recurrent(rng: random.Random) -> Made | None:
    steps, batch, inner, outer = size(rng, 64), size(rng, 64), size(rng, 512), size(rng, 512)
    if steps * batch * (inner + outer) * outer * 4 > PRODUCTS:
        return None
    name, gates = rng.choice((("gru", 3), ("lstm", 4)))
    tensors = {
        "x": Tensor((steps, batch, inner)),
        "h": Tensor((1, batch, outer)),
        "w": Tensor((gates * outer, inner)),
        "u": Tensor((gates * outer, outer)),
        "a": Tensor((gates * outer,)),
        "b": Tensor((gates * outer,)),
    }
    state = "(h, h.tanh())" if name == "lstm" else "h"
    weights = "[w * 0.1, u * 0.1, a, b]"
    return tensors, f"torch.{name}(x, {state}, {weights}, True, 1, 0.0, False, False, False)[0]"


def resampling(rng: random.Random) -> Made | None:
    x = picture(rng, ELEMENTS // 4)
    to = (size(rng, 257), size(rng, 257))
    if x.dims[0] * x.dims[1] * to[0] * to[1] > ELEMENTS:
        return None
    mode = rng.choice(("bilinear", "bicubic", "nearest"))
    return {"x": x}, f"F.interpolate(x, {to}, mode={mode!r})"


def movement(rng: random.Random) -> Made | None:
    dims = shape(rng, rng.choice((2, 3, 4)))
    order = tuple(rng.sample(range(len(dims)), len(dims)))
    text = f"x.sin().permute({order}).contiguous()"
    return {"x": Tensor(dims)}, f"torch.cat([{text}, {text} + 1], {rng.randrange(len(dims))})"


ROWS: tuple[Row, ...] = (product, linear, batched_product, attention, convolution, convolution)
ROWS += (norm, reduction, row, pooling, recurrent, resampling, movement)

TEXT = """import torch
from torch.nn import functional as F

PLUGIN, DTYPE, GRAD = {plugin!r}, torch.{dtype}, {grad}


def f({names}):
    return {result}


def inputs():
    return [
{tensors}
    ]
"""


def make_sizes(plugin: str, seed: str) -> str:
    rng = random.Random(f"sizes {seed}")
    made = None
    while made is None:
        made = rng.choice(ROWS)(rng)
    tensors, result = made
    grad = rng.random() < 0.5
    result = rng.choice(SMOOTH if grad else (*SMOOTH, *SHARP)).format(result)
    lines = [f"        {t.text(i)}," for i, t in enumerate(tensors.values())]
    return TEXT.format(
        plugin=plugin,
        dtype=rng.choice(("float32", "float32", "float32", "bfloat16")),
        grad=grad,
        names=", ".join(tensors),
        result=result,
        tensors="\n".join(lines),
    )
