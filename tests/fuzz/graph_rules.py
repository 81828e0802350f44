"""How operators are called in random graphs: by their schema, or by a rule of their own where that
finds no call that PyTorch accepts."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import torch

from fuzz.graphs import Graph, Refused, Value, overload

Rule = Callable[[Graph], str]
RULES: dict[str, Rule] = {}
SCALARS = (0, 1, 2, -1, 0.5, 1.5, -0.5, 3)
EDGES = (math.inf, -math.inf, math.nan, -0.0)
WIDE_SCALARS = (200, 256, 300, -129, 70000, 2**33)  # not every dtype holds them
# Arguments by what they are called, for operators that are called by their schema.
INTEGERS = {"n": (0, 1, 2), "k": (1, 2), "p": (1, 2), "diagonal": (-1, 0, 1), "offset": (-1, 0, 1)}
INTEGERS |= {
    "bins": (3, 5),
    "chunks": (2, 3),
    "sections": (1, 2),
    "groups": (1, 2),
    "repeats": (1, 2),
}
INTEGERS |= {
    "upscale_factor": (1, 2),
    "downscale_factor": (1,),
    "decimals": (0, 1),
    "dilation": (1,),
}
INTEGERS |= {
    "start": (0, 1, -2),
    "end": (2, -1, 4),
    "step": (1, 2),
    "length": (1, 2),
    "index": (0, -1),
}
INTEGERS |= {"reduction": (0, 1, 2), "split_size": (2, 3), "steps": (3, 5), "size": (2, 3)}
# Operators whose operands must be of a kind, by the beginning of their name.
INTEGRAL = ("bitwise", "gcd", "lcm", "bincount", "_int_mm")
FLOATING = ("special", "lgamma", "digamma", "erf", "log", "sigmoid", "gelu", "silu", "elu", "mish",
            "hardtanh", "hardswish", "hardsigmoid", "softplus", "_softmax", "_log_softmax", "var",
            "std", "mean", "quantile", "nanquantile", "mse", "huber", "smooth", "linalg",
            "upsample", "_upsample", "pool", "avg_pool", "max_pool", "grid", "native", "fft")  # fmt: skip


def rule(*names: str) -> Callable[[Rule], Rule]:
    def keep(function: Rule) -> Rule:
        for name in names:
            RULES[f"aten.{name}"] = function
        return function

    return keep


def write(graph: Graph, value: Any) -> str:
    if isinstance(value, Value):
        return value.name
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(write(graph, v) for v in value) + "]"
    if isinstance(value, float):
        return repr(value)
    return str(value)


def _integer(graph: Graph, name: str, first: Value | None) -> Any:
    if name in (
        "dim",
        "dim0",
        "dim1",
        "axis",
        "axis0",
        "axis1",
        "start_dim",
        "end_dim",
        "dimension",
    ):
        return graph.dim(first) if first is not None else 0
    return graph.rng.choice(INTEGERS.get(name, (0, 1, 2)))


def _argument(graph: Graph, op: str, argument: Any, first: Value | None) -> Any:
    kind = str(argument.type)
    name = argument.name
    bare = op.removeprefix("aten.")
    if kind in ("Tensor", "Optional[Tensor]"):
        if kind.startswith("Optional") and graph.rng.random() < 0.5:
            return None
        if first is None:
            wanted = (
                "int"
                if bare.startswith(INTEGRAL)
                else "float"
                if bare.startswith(FLOATING)
                else None
            )
            if wanted is None and graph.rng.random() < 0.7:
                wanted = "same"
            return graph.pick(dtype=wanted)
        if name in ("mask", "condition"):
            return graph.like(first, torch.bool)
        if name in ("index", "indices"):
            return graph.index(2, first.tensor.shape)
        if graph.rng.random() < 0.1:
            return graph.pick()
        return graph.like(first)
    if kind in ("List[Tensor]", "List[Optional[Tensor]]"):
        value = graph.pick(least=graph.rng.choice((0, 1, 1, 2)))
        rest = [graph.like(value) for _ in range(graph.rng.choice((0, 1, 2)))]
        return [value, *rest]
    if name == "dtype":  # the schema calls it an integer
        return graph.rng.choice(("None", "torch.float32", "torch.float64"))
    if kind in ("number", "Optional[number]"):
        # Powers and polynomials of such a degree overflow, in float32 earlier than in double.
        # A factory has so many elements.
        wide = first is not None and name not in ("ord", "p", "n") and graph.rng.random() < 0.1
        number = graph.rng.choice(WIDE_SCALARS if wide else SCALARS)
        if first is not None and graph.rng.random() < 0.04:
            # Of a limit that is NaN, PyTorch's vectors and what is left beside them say otherwise.
            return graph.rng.choice(EDGES[:2] if name in ("min_val", "max_val") else EDGES)
        # One less is another number in double alone, which PyTorch computes some elements with.
        return 256 if name == "exponent" and number > 2**24 else number
    if kind in ("float", "Optional[float]"):
        return graph.rng.choice((0.5, 1.0, 0.25))
    if kind in ("bool", "Optional[bool]"):
        return graph.rng.random() < 0.5
    if kind in ("int", "SymInt", "Optional[int]", "Optional[SymInt]"):
        return _integer(graph, name, first)
    if kind.startswith(("List[", "Optional[List[")) and "nt]" in kind:
        if name in ("size", "shape") and first is None:
            return "[" + ", ".join(graph.text(s) for s in graph.shape()) + "]"
        if name in ("dim", "dims", "dims0", "axes") and first is not None:
            return graph.dims(first)
        rank = first.tensor.dim() if first is not None else 2
        return [graph.rng.choice((0, 1, 2)) for _ in range(rank)]
    if kind.startswith("Optional"):
        return None
    raise Refused(f"no rule for {kind} {name}")


def generic(graph: Graph, op: str) -> str:
    """Arguments by the schema: operands that broadcast, small numbers, half of the defaults."""
    texts: list[str] = []
    first: Value | None = None
    for argument in overload(op)._schema.arguments:
        if argument.is_out:
            raise Refused("writes to out=")
        has_default = argument.has_default_value()
        if has_default and (graph.rng.random() < 0.6 or argument.name in ("device", "layout")):
            continue
        try:
            value = _argument(graph, op, argument, first)
        except Refused:
            if has_default:
                continue
            raise
        if first is None and isinstance(value, Value):
            first = value
        if first is None and isinstance(value, list) and value and isinstance(value[0], Value):
            first = value[0]
        text = value if isinstance(value, str) else write(graph, value)
        named = argument.kwarg_only or len(texts) < _position(op, argument.name)
        texts.append(f"{argument.name}={text}" if named else text)
    return ", ".join(texts)


@functools.cache
def _position(op: str, name: str) -> int:
    return [a.name for a in overload(op)._schema.arguments].index(name)


# --- views and movement --------------------------------------------------------------------------


@rule("view", "reshape", "_unsafe_view", "view_copy", "_reshape_copy")
def _view(graph: Graph) -> str:
    value = graph.pick(least=1)
    shape = list(value.tensor.shape)
    how = graph.rng.random()
    if how < 0.3:
        sizes = ["-1"]
    elif how < 0.6 and len(shape) > 1:
        sizes = [*map(graph.text, shape[:-2]), "-1"]
    elif how < 0.8:
        sizes = ["1", *map(graph.text, shape)]
    else:
        sizes = [*map(graph.text, shape[:-1]), "-1", "1"]
    return f"{value.name}, [{', '.join(sizes)}]"


@rule("expand", "broadcast_to", "expand_copy")
def _expand(graph: Graph) -> str:
    value = graph.pick()
    shape = [
        graph.text(s) if s != 1 else graph.text(graph.rng.choice((1, 2, 5)))
        for s in value.tensor.shape
    ]
    return f"{value.name}, [{', '.join([*graph.rng.choice(((), ('2',))), *shape])}]"


@rule("permute", "permute_copy")
def _permute(graph: Graph) -> str:
    value = graph.pick()
    return f"{value.name}, {graph.rng.sample(range(value.tensor.dim()), value.tensor.dim())}"


@rule("split_with_sizes", "split_with_sizes_copy", "split.sizes", "unsafe_split_with_sizes")
def _split_sizes(graph: Graph) -> str:
    value = graph.pick(least=1)
    dim = graph.dim(value)
    size = value.tensor.shape[dim]
    if size < 2:
        raise Refused
    first = graph.rng.randint(0, min(size, 3))
    return f"{value.name}, [{first}, {graph.text(size)} - {first}], {dim}"


@rule("as_strided", "as_strided_copy")
def _as_strided(graph: Graph) -> str:
    value = graph.input((graph.rng.choice((5, 7)), 7))
    offset = graph.rng.choice(("", ", 1"))
    return f"{value.name}, [2, 3], {graph.rng.choice(('[7, 1]', '[1, 2]', '[3, 1]'))}{offset}"


@rule("slice.Tensor", "slice_copy.Tensor")
def _slice(graph: Graph) -> str:
    value = graph.pick(least=1)
    start, end = graph.rng.choice(((1, -1), (0, 3), (2, 100), (-3, None), (3, 1), (None, -2)))
    return f"{value.name}, {graph.dim(value)}, {start}, {end}, {graph.rng.choice((1, 1, 2, 3))}"


@rule("select.int", "select_copy.int")
def _select(graph: Graph) -> str:
    value = graph.pick(least=1)
    return f"{value.name}, {graph.dim(value)}, {graph.rng.choice((0, 0, -1, 1))}"


@rule("unflatten.int")
def _unflatten(graph: Graph) -> str:
    value = graph.pick(least=1)
    return f"{value.name}, {graph.dim(value)}, [1, -1]"


@rule("unfold", "unfold_copy")
def _unfold(graph: Graph) -> str:
    return f"{graph.pick(least=1).name}, -1, {graph.rng.choice((1, 2))}, {graph.rng.choice((1, 2))}"


@rule("view.dtype", "view_copy.dtype")
def _view_dtype(graph: Graph) -> str:
    value = graph.pick(least=1)
    same = {1: "int8", 2: "int16", 4: "int32", 8: "int64"}[min(value.tensor.element_size(), 8)]
    return f"{value.name}, torch.{same}"


@rule("constant_pad_nd", "pad")
def _pad(graph: Graph) -> str:
    value = graph.pick(least=1)
    count = graph.rng.randint(1, min(2, value.tensor.dim()))
    pads = [graph.rng.choice((-1, 0, 1, 2)) for _ in range(2 * count)]
    return f"{value.name}, {pads}"


def _padding(rank: int) -> Rule:
    def make(graph: Graph) -> str:
        value = graph.input((2, *graph.shape(rank)), graph.dtype)
        return f"{value.name}, {[graph.rng.choice((0, 1)) for _ in range(2 * rank)]}"

    return make


for _rank in (1, 2, 3):
    rule(f"reflection_pad{_rank}d", f"replication_pad{_rank}d")(_padding(_rank))


@rule("repeat", "tile")
def _repeat(graph: Graph) -> str:
    value = graph.pick()
    return f"{value.name}, {[graph.rng.choice((1, 2)) for _ in range(value.tensor.dim())]}"


@rule("flip")
def _flip(graph: Graph) -> str:
    value = graph.pick(least=1)
    return f"{value.name}, {graph.dims(value)}"


@rule("roll")
def _roll(graph: Graph) -> str:
    value = graph.pick(least=1)
    dims = graph.dims(value)
    return f"{value.name}, {[graph.rng.choice((-1, 1, 3)) for _ in dims]}, {dims}"


@rule("cat", "concat")
def _cat(graph: Graph) -> str:
    value = graph.pick(least=1)
    dim = graph.dim(value)
    others = []
    for _ in range(graph.rng.choice((1, 2, 3))):
        shape = list(value.tensor.shape)
        shape[dim] = graph.rng.choice((*FIXED_OR_ZERO, shape[dim]))
        able = [v for v in graph.values if list(v.tensor.shape) == shape]
        others.append(graph.rng.choice(able) if able else graph.input(shape, value.tensor.dtype))
    return f"[{', '.join(v.name for v in (value, *others))}], {dim}"


FIXED_OR_ZERO = (0, 1, 2)


@rule("stack", "_stack")
def _stack(graph: Graph) -> str:
    value = graph.pick()
    able = [v for v in graph.values if v.tensor.shape == value.tensor.shape]
    chosen = [graph.rng.choice(able) for _ in range(graph.rng.choice((1, 2, 3)))]
    dim = graph.rng.randint(-value.tensor.dim() - 1, value.tensor.dim())
    return f"[{', '.join(v.name for v in chosen)}], {dim}"


def _scatter_rule(op: str) -> Rule:
    def make(graph: Graph) -> str:
        value = graph.pick(least=2, dtype="same")
        shape = value.tensor.shape
        if op == "diagonal_scatter":
            source = graph.input(torch.empty(shape, device="meta").diagonal().shape)
            return f"{value.name}, {source.name}"
        if op == "select_scatter":
            source = graph.input(shape[1:])
            return f"{value.name}, {source.name}, 0, {graph.rng.choice((0, -1))}"
        if shape[0] < 3:
            raise Refused
        source = graph.input((2, *shape[1:]))
        return f"{value.name}, {source.name}, 0, 1, 3"

    return make


for _op in ("slice_scatter", "select_scatter", "diagonal_scatter"):
    rule(_op)(_scatter_rule(_op))


@rule("to.dtype", "_to_copy")
def _to(graph: Graph) -> str:
    return f"{graph.pick().name}, dtype={graph.rng.choice(DTYPES)}"


DTYPES = ("torch.float32", "torch.float64", "torch.bfloat16", "torch.float16", "torch.int64",
          "torch.int32", "torch.bool", "torch.uint8", "torch.int8")  # fmt: skip


@rule("to.dtype")
def _to_dtype(graph: Graph) -> str:
    return f"{graph.pick().name}, {graph.rng.choice(DTYPES)}"


@rule("copy_", "copy", "expand_as", "view_as", "type_as")
def _copy(graph: Graph) -> str:
    value = graph.pick()
    return f"{value.name}, {graph.like(value).name}"


# --- products ------------------------------------------------------------------------------------


def _product(left: str, right: str, *bias: str) -> Rule:
    """Letters are sizes; of each operand, a text of letters."""

    def make(graph: Graph) -> str:
        value = graph.pick(rank=len(left), dtype="same")
        sizes = dict(zip(left, value.tensor.shape, strict=True))
        out = []
        for letters in (right, *bias):
            for letter in letters:
                sizes.setdefault(letter, graph.rng.choice((5, 7, 1, 2, 16)))
            out.append(_sized(graph, [sizes[letter] for letter in letters]).name)
        second, *rest = out
        return ", ".join([*rest, value.name, second])

    return make


def _sized(graph: Graph, shape: Any, share: float = 0.5) -> Value:
    able = [
        v
        for v in graph.values
        if list(v.tensor.shape) == list(shape) and v.tensor.dtype == graph.dtype
    ]
    if able and graph.rng.random() < share:
        return graph.rng.choice(able)
    return graph.input(shape)


for _name, _letters in {
    "mm": ("ij", "jk"), "bmm": ("bij", "bjk"), "mv": ("ij", "j"), "dot": ("i", "i"),
    "outer": ("i", "j"), "addmm": ("ij", "jk", "k"), "baddbmm": ("bij", "bjk", "bik"),
    "addmv": ("ij", "j", "i"), "addr": ("i", "j", "ij"), "vdot": ("i", "i"),
    "addbmm": ("bij", "bjk", "ik"), "_addmm_activation": ("ij", "jk", "k"),
    "inner": ("ij", "kj"), "kron": ("ij", "kl"), "cdist": ("bij", "bkj"),
}.items():  # fmt: skip
    rule(_name)(_product(*_letters))


@rule("matmul")
def _matmul(graph: Graph) -> str:
    value = graph.pick(least=1, dtype="same")
    size = value.tensor.shape[-1]
    shape = graph.rng.choice(((size,), (size, 7), (size, 1), (2, size, 3)))
    return f"{value.name}, {_sized(graph, shape).name}"


@rule("linear")
def _linear(graph: Graph) -> str:
    value = graph.pick(least=1, dtype="same")
    width = graph.rng.choice((5, 7, 1, 4, 16))
    weight = graph.input((width, value.tensor.shape[-1]))
    bias = graph.rng.choice(("None", graph.input((width,)).name))
    return f"{value.name}, {weight.name}, {bias}"


@rule("einsum")
def _einsum(graph: Graph) -> str:
    value = graph.pick(rank=3, dtype="same")
    b, i, j = value.tensor.shape
    text, shape = graph.rng.choice(
        (("bij,jk->bik", (j, 4)), ("bij,bij->b", (b, i, j)), ("bij,bkj->bik", (b, 2, j)))
    )
    return f"{text!r}, [{value.name}, {_sized(graph, shape).name}]"


@rule("tensordot")
def _tensordot(graph: Graph) -> str:
    value = graph.pick(least=1, dtype="same")
    other = _sized(graph, (value.tensor.shape[-1], 3))
    return f"{value.name}, {other.name}, [-1], [0]"


@rule("bilinear")
def _bilinear(graph: Graph) -> str:
    one, two = graph.input((3, 5)), graph.input((3, 4))
    return f"{one.name}, {two.name}, {graph.input((2, 5, 4)).name}, None"


# --- convolutions and pooling --------------------------------------------------------------------


def _optional(graph: Graph, shape: tuple[int, ...]) -> str:
    return graph.input(shape).name if graph.rng.random() < 0.6 else "None"


def _image(graph: Graph, rank: int, channels: int, sizes: tuple[int, ...] = (5, 7, 8, 4)) -> Value:
    pixels = [graph.rng.choice(sizes) for _ in range(rank)]
    return _sized(graph, [graph.rng.choice((1, 2)), channels, *pixels], 0.3)


def _convolution(rank: int, transposed: bool) -> Rule:
    def make(graph: Graph) -> str:
        groups = graph.rng.choice((1, 1, 2, 4))
        channels, results = 4, graph.rng.choice((4, 8))
        image = _image(graph, rank, channels)
        window = [graph.rng.choice((1, 2, 3)) for _ in range(rank)]
        shape = (channels, results // groups) if transposed else (results, channels // groups)
        weight = graph.input((*shape, *window))
        bias = graph.rng.choice(("None", graph.input((results,)).name))
        stride = [graph.rng.choice((1, 1, 2, 3)) for _ in range(rank)]
        padding = [graph.rng.choice((0, 1)) for _ in range(rank)]
        dilation = [graph.rng.choice((1, 1, 2, 4 if transposed else 2)) for _ in range(rank)]
        # Of the result, which a stride or a dilation leaves open.
        more = [graph.rng.randrange(max(pair)) for pair in zip(stride, dilation, strict=True)]
        tail = f"{more}, {groups}, {dilation}" if transposed else f"{dilation}, {groups}"
        return f"{image.name}, {weight.name}, {bias}, {stride}, {padding}, {tail}"

    return make


for _rank in (1, 2, 3):
    rule(f"conv{_rank}d")(_convolution(_rank, False))
    rule(f"conv_transpose{_rank}d" + ("" if _rank == 1 else ".input"))(_convolution(_rank, True))


@rule("convolution")
def _any_convolution(graph: Graph) -> str:
    plain = _convolution(2, False)(graph).rsplit(", ", 1)
    return f"{plain[0]}, False, [0, 0], {plain[1]}"


@rule("_convolution")
def _private_convolution(graph: Graph) -> str:
    plain = _convolution(2, False)(graph).rsplit(", ", 1)
    return f"{plain[0]}, False, [0, 0], {plain[1]}, False, False, False, False"


@rule("pow.Scalar")
def _power(graph: Graph) -> str:
    # Of a negative number it is NaN, unless rounding makes the exponent whole.
    return f"{graph.rng.choice((0, 1, 2, 0.5, 1.5))}, {graph.pick().name}"


def _pool(rank: int, average: bool) -> Rule:
    def make(graph: Graph) -> str:
        image = _image(graph, rank, graph.rng.choice((1, 3, 4)))
        window = [graph.rng.choice((1, 2, 3)) for _ in range(rank)]
        stride = [graph.rng.choice((1, 2)) for _ in range(rank)]
        padding = [graph.rng.choice((0, 0, 1)) if w > 1 else 0 for w in window]
        flags = f"{graph.rng.random() < 0.3}, {graph.rng.random() < 0.5}"
        if not average:
            # A window that lies in the padding has no largest element: PyTorch gives any index.
            dilation = [1 if pad else graph.rng.choice((1, 1, 2)) for pad in padding]
            flags = f"{dilation}, {graph.rng.random() < 0.3}"
        return f"{image.name}, {window}, {stride}, {padding}, {flags}"

    return make


for _rank in (1, 2, 3):
    rule(f"avg_pool{_rank}d")(_pool(_rank, True))
    rule(f"max_pool{_rank}d", f"max_pool{_rank}d_with_indices")(_pool(_rank, False))


def _adaptive(rank: int) -> Rule:
    # Of no pixels PyTorch's kernels make an error, its shape rules a mean: sizes that never change.
    def make(graph: Graph) -> str:
        image = _image(graph, rank, 3, (4, 6, 8))
        return f"{image.name}, {[graph.rng.choice((1, 2, 3)) for _ in range(rank)]}"

    return make


for _rank in (1, 2, 3):
    rule(f"adaptive_avg_pool{_rank}d", f"_adaptive_avg_pool{_rank}d", f"adaptive_max_pool{_rank}d")(
        _adaptive(_rank)
    )


def _upsample(rank: int, corners: bool) -> Rule:
    def make(graph: Graph) -> str:
        sizes = [graph.rng.choice((3, 8, 10)) for _ in range(rank)]
        flag = f", {graph.rng.random() < 0.5}" if corners else ""
        return f"{_image(graph, rank, 3).name}, {sizes}{flag}"

    return make


for _rank in (1, 2, 3):
    rule(f"upsample_nearest{_rank}d", f"_upsample_nearest_exact{_rank}d")(_upsample(_rank, False))
rule("upsample_linear1d")(_upsample(1, True))
rule(
    "upsample_bilinear2d", "upsample_bicubic2d", "_upsample_bilinear2d_aa", "_upsample_bicubic2d_aa"
)(_upsample(2, True))
rule("upsample_trilinear3d")(_upsample(3, True))


@rule("pixel_shuffle")
def _pixel_shuffle(graph: Graph) -> str:
    return f"{_image(graph, 2, 4).name}, 2"


@rule("pixel_unshuffle", "channel_shuffle")
def _pixel_unshuffle(graph: Graph) -> str:
    return f"{graph.input((1, 4, 4, 6)).name}, 2"


@rule("grid_sampler_2d", "grid_sampler")
def _grid(graph: Graph) -> str:
    image = _image(graph, 2, 3)
    grid = graph.input((image.tensor.shape[0], 4, 5, 2), None, -1.2, 1.2)
    modes = f"{graph.rng.choice((0, 1))}, {graph.rng.choice((0, 1, 2))}, {graph.rng.random() < 0.5}"
    return f"{image.name}, {grid.name}, {modes}"


@rule("im2col")
def _im2col(graph: Graph) -> str:
    return (
        f"{_image(graph, 2, 3).name}, [2, 2], [1, 1], {graph.rng.choice(([0, 0], [1, 1]))}, [1, 1]"
    )


@rule("col2im")
def _col2im(graph: Graph) -> str:
    return f"{graph.input((2, 12, 9)).name}, [4, 4], [2, 2], [1, 1], [0, 0], [1, 1]"
