"""Rules of operators whose operands must fit each other: losses, indices, attention, cells, matrices.
And what is never called, with the reason."""

from __future__ import annotations

import torch

from fuzz import graph_check, graph_rules_norms  # noqa: F401  # whose rules are kept when it is imported
from fuzz.graph_rules import FIXED_OR_ZERO, Rule, _image, _optional, rule
from fuzz.graphs import Graph, Value

ELSEWHERE = "has no kernel for a CPU in PyTorch"
NO_TENSOR = "gives no tensor"
SPARSE = "gives or takes a sparse tensor"
BACKWARD = "is part of a backward graph, which gradients reach"
# By the name of a row, or its beginning with a star.
NOT_MADE = {
    "_assert_async*": NO_TENSOR,
    "_assert_tensor_metadata": NO_TENSOR,
    "_efficientzerotensor": "autograd's own, of which a gradient is zero by its kind",
    "_functional_assert*": NO_TENSOR,
    "_local_scalar_dense": NO_TENSOR,
    "allclose": NO_TENSOR,
    "equal": NO_TENSOR,
    "sym_size.int": NO_TENSOR,
    "_to_sparse*": SPARSE,
    "crow_indices": SPARSE,
    "_efficient_attention_forward": ELSEWHERE,
    "_flash_attention_forward": ELSEWHERE,
    "copy": "has the gaps of its first operand's memory, which a graph of values forgets with a write",
    "lift_fresh_copy": "is made by functionalization, whose kernel keeps strides that eager does not",
    "slice_inverse": "autograd's own: shows the memory around its operand",
    "_cholesky_solve_helper": "checks nothing: PyTorch's own kernel writes anywhere",
    "_fused_dropout": ELSEWHERE,
    "_masked_scale": ELSEWHERE,
    "_scaled_dot_product_efficient_attention": ELSEWHERE,
    "_scaled_dot_product_flash_attention": ELSEWHERE,
    "_scaled_dot_product_flash_attention.quantized": ELSEWHERE,
    "_thnn_fused_gru_cell": ELSEWHERE,
    "_thnn_fused_lstm_cell": ELSEWHERE,
    "addmm.dtype": ELSEWHERE,
    "baddbmm.dtype": ELSEWHERE,
    "bmm.dtype": ELSEWHERE,
    "mm.dtype": ELSEWHERE,
    "batch_norm_elemt": ELSEWHERE,
    "batch_norm_gather_stats*": ELSEWHERE,
    "batch_norm_stats": ELSEWHERE,
    "conv_depthwise3d": ELSEWHERE,
    "native_norm*": ELSEWHERE,
    "_scaled_mm": "takes 8-bit floating point numbers, which the dtypes of graphs lack",
    "_histogramdd*": "takes a list of edges for each column",
    "_fake_quantize_learnable*": "rounds to a grid of integers on which noise decides",
    "_fake_quantize_per_tensor_affine_cachemask*": "as above",
    "mkldnn_rnn_layer": "takes weights in an order that only PyTorch's own layer makes",
    "rrelu_with_noise_functional": "has a gradient of the noise before it is drawn",
    "*resize*": "gives memory that nobody has written",
    "empty*": "gives memory that nobody has written",
    "new_empty*": "gives memory that nobody has written",
    "*_backward*": BACKWARD,
    "*backward": BACKWARD,
    "*_jvp": "is forward-mode differentiation, which the compiler refuses",
    "normal*": "its numbers depend on what rounding did before",
    "*unpool*": "reads at indices that only a pool gives, from a tensor of its results",
    "_unsafe_masked_index*": "made by decompositions of PyTorch's own for a mask that they know",
    "segment_reduce": "its lengths must sum to a size",
    "istft": "inverts stft within a tolerance that noise exceeds",
    "ormqr": "takes the factors of geqrf, whose signs noise turns",
    "linalg_ldl*": "takes factors whose pivots noise changes",
    "linalg_householder_product": "takes the factors of geqrf, whose signs noise turns",
    "cholesky_inverse": "takes a factor, which noise makes singular",
    "_slow_conv2d_forward": "is convolution's own kernel",
    "slow_conv*": "is convolution's own kernel",
    "affine_grid_generator": "takes a list of all sizes of an image",
    "batch_norm_update_stats": "writes statistics that nothing reads",
    "_ctc_loss*": "takes lists of lengths that must fit",
    "_batch_norm_with_update*": "gives a reserve that nobody has written",
    "_batch_norm_no_update": "gives a reserve that nobody has written",
    "fractional_max_pool*": "takes random samples as an operand of its own",
    "_stack": "is the kernel of stack, and reads other memory of operands that it is not given",
    "_fft_c2c": "is the kernel of fft_fft",
    "_fft_c2r": "is the kernel of fft_irfft",
    "grid_sampler_3d": "as grid_sampler_2d",
    "linalg_eig": "gives vectors that are unique up to a factor only",
    "linalg_eigvals": "their order is nobody's promise",
    "_linalg_eigvals": "their order is nobody's promise",
    "_linalg_eigh": "gives vectors that are unique up to a factor only",
    "linalg_eigh": "gives vectors that are unique up to a factor only",
    "_linalg_svd": "gives vectors that are unique up to a factor only",
    "linalg_svd": "gives vectors that are unique up to a factor only",
    "linalg_qr": "gives vectors that are unique up to a factor only",
    "geqrf": "gives vectors that are unique up to a factor only",
    "linalg_lu*": "pivots are decided by rounding",
    "lu_unpack": "pivots are decided by rounding",
    "linalg_lstsq": "its further results are of no promised size",
    "_linalg_det": "gives pivots, which rounding decides",
    "_linalg_slogdet": "gives pivots, which rounding decides",
    "_linalg_solve_ex": "gives pivots, which rounding decides",
}


def never(op: str) -> str:
    """Why an operator is never called, or nothing."""
    name = op.removeprefix("aten.")
    for pattern, reason in NOT_MADE.items():
        begins, ends = pattern.startswith("*"), pattern.endswith("*")
        bare = pattern.strip("*")
        if (
            (begins and ends and bare in name)
            or (begins and not ends and name.endswith(bare))
            or (ends and not begins and name.startswith(bare))
            or name == pattern
        ):
            return reason
    return ""


@rule("narrow_copy")
def _narrow_copy(graph: Graph) -> str:
    """Its gradient takes no place that counts from the end."""
    value = graph.pick(least=1)
    return f"{value.name}, {graph.dim(value)}, 0, 1"


@rule("isin.Tensor_Tensor")
def _isin(graph: Graph) -> str:
    # What is said to be unique, and is not, gives anything; some of its kernels take views; whether
    # computed numbers are equal is rounding.
    one, two = graph.input(graph.shape()), graph.input(graph.shape())
    return f"{one.name}, {two.name}.contiguous(), invert={graph.rng.random() < 0.5}"


@rule("_pdist_forward")
def _pdist(graph: Graph) -> str:
    # Of more dims the kernel reads what it likes; its caller refuses them.
    return f"{graph.input(graph.shape(2)).name}, {graph.rng.choice((0.0, 1.0, 2.0, 3.0))}"


@rule("_masked_softmax")
def _masked_softmax(graph: Graph) -> str:
    # Writes rows as if they lay close, unchecked, and divides by their length.
    value = graph.pick(rank=2, dtype="same")
    if not value.tensor.shape[-1]:
        value = graph.input((4, 3))
    return f"{value.name}.contiguous(), {graph.input(value.tensor.shape, torch.bool).name}, -1"


# --- losses --------------------------------------------------------------------------------------


def _class_loss(rank: int, tail: str) -> Rule:
    def make(graph: Graph) -> str:
        scores = _image(graph, rank, 4)
        shape = (scores.tensor.shape[0], *scores.tensor.shape[2:])
        return (
            f"{scores.name}, {graph.index(4, shape).name}, {_optional(graph, (4,))}, "
            f"{graph.rng.choice((0, 1, 2))}{tail}"
        )

    return make


rule("nll_loss", "nll_loss_forward", "nll_loss_nd", "cross_entropy_loss")(_class_loss(0, ", -100"))
rule("nll_loss2d", "nll_loss2d_forward")(_class_loss(2, ", 1"))


@rule("binary_cross_entropy")
def _cross_entropy(graph: Graph) -> str:
    shape = graph.shape(2)
    one, two = (graph.input(shape, None, 0.1, 0.9) for _ in range(2))
    return f"{one.name}, {two.name}, None, {graph.rng.choice((0, 1, 2))}"


@rule("multi_margin_loss")
def _multi_margin(graph: Graph) -> str:
    return f"{graph.input((5, 4)).name}, {graph.index(4, (5,)).name}"


@rule("multilabel_margin_loss_forward")
def _multilabel(graph: Graph) -> str:
    return (
        f"{graph.input((3, 4)).name}, {graph.index(4, (3, 4)).name}, {graph.rng.choice((0, 1, 2))}"
    )


# --- indices -------------------------------------------------------------------------------------


@rule("index.Tensor", "_unsafe_index.Tensor")
def _index(graph: Graph) -> str:
    value = graph.pick(least=1)
    shape = graph.rng.choice(((3,), (2, 2), (0,), (1,)))
    count = graph.rng.randint(1, min(2, value.tensor.dim()))
    indices = [graph.index(value.tensor.shape[d], shape).name for d in range(count)]
    before = ["None"] if count < value.tensor.dim() and graph.rng.random() < 0.3 else []
    if before:
        indices = [graph.index(value.tensor.shape[d + 1], shape).name for d in range(count)]
    return f"{value.name}, [{', '.join(before + indices)}]"


@rule("index_put", "index_put_", "_index_put_impl", "_unsafe_index_put")
def _index_put(graph: Graph) -> str:
    value = graph.pick(least=1, dtype="same")
    index = graph.index(value.tensor.shape[0], (graph.rng.choice((1, 3)),))
    source = graph.input((*index.tensor.shape, *value.tensor.shape[1:]))
    return f"{value.name}, [{index.name}], {source.name}, True"


@rule("put", "put_")
def _put(graph: Graph) -> str:
    value = graph.pick(least=1, dtype="same")
    index = graph.index(min(value.tensor.numel(), 2), (graph.rng.choice((1, 3)),))
    source = graph.input(index.tensor.shape, value.tensor.dtype)
    return f"{value.name}, {index.name}, {source.name}, True"  # of several writes, any may win


@rule("rrelu_with_noise", "rrelu_with_noise_")
def _rrelu(graph: Graph) -> str:
    value = graph.pick(least=1, dtype="same")
    # Written: what it gives where it is the value itself depends on the order of two stores.
    return f"{value.name}, torch.zeros_like({value.name}), training={graph.rng.random() < 0.5}"


@rule("gather")
def _gather(graph: Graph) -> str:
    value = graph.pick(least=1)
    dim = graph.dim(value)
    shape = list(value.tensor.shape)
    size = shape[dim]
    shape[dim] = graph.rng.choice((*FIXED_OR_ZERO, 3))
    return f"{value.name}, {dim}, {graph.index(size, shape).name}"


def _scatter(source: bool, tail: str) -> Rule:
    def make(graph: Graph) -> str:
        value = graph.pick(least=1, dtype="same")
        dim = graph.dim(value)
        shape = list(value.tensor.shape)
        size = shape[dim]
        shape[dim] = graph.rng.choice((1, 2))
        if not tail and source:
            shape[dim] = 1  # of several that write one element, any may win
        index = graph.index(size, shape)
        what = graph.input(shape).name if source else "0.5"
        return f"{value.name}, {dim}, {index.name}, {what}{tail}"

    return make


rule("scatter.src")(_scatter(True, ""))
rule("scatter.value")(_scatter(False, ""))
rule("scatter_add")(_scatter(True, " "))
rule("scatter.reduce")(_scatter(True, ", reduce='add'"))
rule("scatter.value_reduce")(_scatter(False, ", reduce='add'"))


@rule("scatter_reduce.two")
def _scatter_reduce(graph: Graph) -> str:
    how = graph.rng.choice(("sum", "prod", "mean", "amax", "amin"))
    return _scatter(True, f", {how!r}, include_self={graph.rng.random() < 0.5}")(graph)


def _by_index(op: str) -> Rule:
    def make(graph: Graph) -> str:
        value = graph.pick(least=1, dtype="same")
        dim = graph.dim(value)
        size = value.tensor.shape[dim]
        count = 1 if op == "index_copy" else graph.rng.choice((0, 1, 3))
        text = f"{value.name}, {dim}, {graph.index(size, (count,)).name}"
        if op == "index_select":
            return text
        if op.startswith("index_fill"):
            return f"{text}, " + ("0.5" if op.endswith("Scalar") else graph.input(()).name)
        shape = list(value.tensor.shape)
        shape[dim] = count
        reduce = (
            f", {graph.rng.choice(('prod', 'mean', 'amax', 'amin'))!r}"
            if op == "index_reduce"
            else ""
        )
        return f"{text}, {graph.input(shape).name}{reduce}"

    return make


for _op in ("index_select", "index_add", "index_copy", "index_reduce", "index_fill.int_Scalar",
            "index_fill.int_Tensor"):  # fmt: skip
    rule(_op)(_by_index(_op))


@rule("embedding")
def _embedding(graph: Graph) -> str:
    table = graph.input((graph.rng.choice((4, 7, 16)), graph.rng.choice((1, 4, 5))))
    return f"{table.name}, {graph.index(table.tensor.shape[0], graph.rng.choice(((3,), (2, 5), ()))).name}"


def _bag(rows: str) -> Rule:
    def make(graph: Graph) -> str:
        table, indices = graph.input((7, 4)), graph.index(7, (6,))
        mode = graph.rng.choice((0, 1))
        return f"{table.name}, {indices.name}{rows}, torch.tensor([0, 2]), False, {mode}"

    return make


rule("embedding_bag")(_bag(""))
# Read indices as if they lay close, unchecked.
rule("_embedding_bag", "_embedding_bag_forward_only")(_bag(".contiguous()"))


@rule("one_hot")
def _one_hot(graph: Graph) -> str:
    # PyTorch composes it otherwise for shapes alone, which gives other strides.
    return f"{graph.index(4, graph.shape(2)).name}.contiguous(), 4"


@rule("repeat_interleave.Tensor")
def _repeats(graph: Graph) -> str:
    return graph.index(3, (4,)).name


@rule("repeat_interleave.self_Tensor")
def _repeats_of(graph: Graph) -> str:
    value = graph.pick(least=1)
    return f"{value.name}, {graph.index(3, (value.tensor.shape[0],)).name}, 0"


@rule("masked_fill.Tensor")
def _masked_fill(graph: Graph) -> str:
    value = graph.pick(dtype="same")
    return f"{value.name}, {graph.like(value, torch.bool).name}, {graph.input(()).name}"


@rule("fill.Tensor")
def _fill(graph: Graph) -> str:
    return f"{graph.pick(dtype='same').name}, {graph.input(()).name}"


@rule("where.self")
def _where(graph: Graph) -> str:
    value = graph.pick()
    return f"{graph.like(value, torch.bool).name}, {value.name}, {graph.like(value).name}"


def _where_with(op: str) -> Rule:
    def make(graph: Graph) -> str:
        value = graph.pick()
        mask = graph.like(value, torch.bool).name
        texts = {
            "Scalar": "0.5, 2",
            "ScalarOther": f"{value.name}, 1",
            "ScalarSelf": f"1, {value.name}",
        }
        return f"{mask}, {texts[op]}"

    return make


for _op in ("Scalar", "ScalarOther", "ScalarSelf"):
    rule(f"where.{_op}")(_where_with(_op))


def _ordered(op: str) -> Rule:
    def make(graph: Graph) -> str:
        # Few equal elements, whose order a sort may choose; short floats have many.
        short = graph.dtype.is_floating_point and graph.dtype.itemsize == 2
        layout = graph.rng.choice(("plain", "reversed", "sliced", "stepped"))
        shape = graph.shape(graph.rng.choice((1, 2)))
        value = graph.input(shape, torch.float32 if short else None, layout=layout)
        size = value.tensor.shape[-1]
        count = graph.rng.randint(1, size)
        tail = {"topk": f", {count}", "kthvalue": f", {count}", "msort": ""}
        tail |= dict.fromkeys(("median.dim", "nanmedian.dim", "mode"), ", -1")
        if op.endswith(".stable"):
            return f"{value.name}, stable=True, dim=-1, descending={graph.rng.random() < 0.5}"
        return f"{value.name}{tail.get(op, f', -1, {graph.rng.random() < 0.5}')}"

    return make


for _op in (
    "sort",
    "sort.stable",
    "argsort",
    "argsort.stable",
    "topk",
    "kthvalue",
    "msort",
    "median.dim",
    "nanmedian.dim",
    "mode",
):
    rule(_op)(_ordered(_op))


# --- attention and cells -------------------------------------------------------------------------


def _attention(four: bool, masked: str) -> Rule:
    def make(graph: Graph) -> str:
        heads = (2, graph.rng.choice((1, 3))) if four or graph.rng.random() < 0.6 else (2,)
        queries, keys = graph.rng.choice((1, 5, 7)), graph.rng.choice((1, 4, 7))
        width = graph.rng.choice((4, 8, 6))  # of none, the kernel leaves results unwritten
        q = graph.input((*heads, queries, width))
        k, v = (graph.input((*heads, keys, width)) for _ in range(2))
        mask = graph.rng.choice(("None", graph.input((queries, keys)).name))
        causal = graph.rng.random() < 0.3 and mask == "None"
        if masked == "attn_mask":  # reads rows as if they lay close, unchecked
            rows = ", ".join(f"{one.name}.contiguous()" for one in (q, k, v))
            return f"{rows}, 0.0, {causal}, attn_mask={mask}"
        return f"{q.name}, {k.name}, {v.name}, {mask}, 0.0, {causal}"

    return make


rule("scaled_dot_product_attention", "_scaled_dot_product_attention_math")(_attention(False, ""))
rule("_scaled_dot_product_flash_attention_for_cpu")(_attention(True, "attn_mask"))


def _cell(gates: int, states: int) -> Rule:
    def make(graph: Graph) -> str:
        value = graph.pick(rank=2, dtype="same")
        batch, width = value.tensor.shape
        hidden = graph.rng.choice((4, 5))
        state = [graph.input((batch, hidden)).name for _ in range(states)]
        text = f"[{', '.join(state)}]" if states > 1 else state[0]
        weights = [graph.input((gates * hidden, n)).name for n in (width, hidden)]
        biases = [_optional(graph, (gates * hidden,))] * 2
        return ", ".join([value.name, text, *weights, *biases])

    return make


rule("lstm_cell")(_cell(4, 2))
rule("gru_cell")(_cell(3, 1))
rule("rnn_tanh_cell", "rnn_relu_cell")(_cell(1, 1))


# --- matrices and the rest -----------------------------------------------------------------------


def _matrix(graph: Graph) -> Value:
    """Square, far from singular, symmetric and positive."""
    size = graph.rng.choice((1, 3, 5))
    dtype = graph.dtype if graph.dtype in (torch.float32, torch.float64) else torch.float32
    value = graph.input((*graph.rng.choice(((), (2,))), size, size), dtype)
    made = graph.add(f"{value.name} @ {value.name}.mT + 3 * torch.eye({size}, dtype={dtype})")
    return made[0]


@rule("cholesky", "linalg_cholesky", "linalg_cholesky_ex", "linalg_inv", "linalg_inv_ex", "linalg_det",
      "linalg_slogdet", "logdet", "linalg_eigvalsh", "linalg_svdvals", "linalg_matrix_exp")  # fmt: skip
def _square(graph: Graph) -> str:
    return _matrix(graph).name


@rule("linalg_pinv")
def _pinv(graph: Graph) -> str:
    return f"{_matrix(graph).name}, rcond=1e-3"


@rule("multinomial")
def _multinomial(graph: Graph) -> str:
    return f"{graph.input((3, 4), None, 0.1, 1.0).name}, 2"


@rule("_compute_linear_combination")
def _combination(graph: Graph) -> str:
    value = graph.input((3, *graph.shape(1)))
    return f"{value.name}, {graph.input((2, 3)).name}"


@rule("_reshape_alias", "_reshape_alias_copy")
def _reshape_alias(graph: Graph) -> str:
    return f"{graph.input((3, 4)).name}.contiguous(), [4, 3], [3, 1]"


@rule("lift_fresh_copy")
def _fresh_copy(graph: Graph) -> str:
    # PyTorch's functionalization makes a clone of it, which keeps strides; the kernel does not.
    return f"{graph.pick().name}.contiguous()"


@rule("poisson")
def _poisson(graph: Graph) -> str:
    return graph.input(graph.shape(2), None, 0.0, 3.0).name


@rule("linalg_matrix_power")
def _power(graph: Graph) -> str:
    return f"{_matrix(graph).name}, {graph.rng.choice((0, 1, 2, 3, -1))}"


def _solve(op: str) -> Rule:
    def make(graph: Graph) -> str:
        matrix = _matrix(graph)
        right = graph.input((*matrix.tensor.shape[:-1], 2), matrix.tensor.dtype)
        if op == "linalg_solve_triangular":
            return f"{matrix.name}, {right.name}, upper={graph.rng.random() < 0.5}"
        if op == "linalg_solve":
            return f"{matrix.name}, {right.name}"
        return f"{right.name}, {matrix.name}"

    return make


for _op in ("linalg_solve", "cholesky_solve", "linalg_solve_triangular", "triangular_solve"):
    rule(_op)(_solve(_op))


@rule("cross", "linalg_cross")
def _cross(graph: Graph) -> str:
    return f"{graph.input((5, 3)).name}, {graph.input((5, 3)).name}, dim=-1"


@rule("imag", "view_as_real", "view_as_real_copy", "_conj", "_conj_physical", "resolve_conj", "angle",
      "mH", "adjoint", "conj", "real", "sgn")  # fmt: skip
def _complex(graph: Graph) -> str:
    return graph.input(graph.shape(2), torch.complex64).name


@rule("view_as_complex", "view_as_complex_copy")
def _pairs(graph: Graph) -> str:
    shape = (*graph.shape(1), 2)
    name = f"x{len(graph.inputs)}"
    graph.inputs.append(f"make({graph.shape_text(shape)}, torch.float32)")
    value = Value(name, graph_check.make(shape, torch.float32))
    graph.space[name] = value.tensor
    graph.values.append(value)
    return name


@rule("meshgrid", "cartesian_prod")
def _meshgrid(graph: Graph) -> str:
    return f"[{graph.input((3,)).name}, {graph.input((2,)).name}]"


@rule("_int_mm")
def _int_mm(graph: Graph) -> str:
    # eager misreads repeated rows, and what lies with gaps
    left, right = (graph.input(s, torch.int8, layout="plain").name for s in ((32, 16), (16, 8)))
    return f"{left}, {right}"


@rule("conv_tbc")
def _conv_tbc(graph: Graph) -> str:
    return (
        f"{graph.input((6, 2, 3)).name}, {graph.input((3, 3, 4)).name}, {graph.input((4,)).name}, 1"
    )


@rule("bernoulli", "bernoulli.p")
def _bernoulli(graph: Graph) -> str:
    return graph.input(graph.shape(2), None, 0.0, 1.0).name


@rule("bernoulli.p")
def _bernoulli_p(graph: Graph) -> str:
    return f"{graph.pick(dtype='same').name}, 0.5"


@rule("quantile", "nanquantile")
def _quantile(graph: Graph) -> str:
    dtype = torch.float64 if graph.dtype == torch.float64 else torch.float32
    return (
        f"{graph.input(graph.shape(2), dtype).name}, {graph.input((2,), dtype, 0.0, 1.0).name}, 1"
    )


@rule("as_strided_scatter")
def _strided_scatter(graph: Graph) -> str:
    return f"{graph.input((5, 7)).name}, {graph.input((2, 3)).name}, [2, 3], [7, 1], 1"


@rule("linspace.Scalar_Tensor", "logspace.Scalar_Tensor")
def _to_tensor(graph: Graph) -> str:
    return f"0.5, {graph.input((), torch.float32).name}, 5"


@rule("linspace.Tensor_Scalar", "logspace.Tensor_Scalar")
def _from_tensor(graph: Graph) -> str:
    return f"{graph.input((), torch.float32).name}, 2, 5"


@rule("linspace.Tensor_Tensor", "logspace.Tensor_Tensor")
def _between_tensors(graph: Graph) -> str:
    return f"{graph.input((), torch.float32).name}, {graph.input((), torch.float32).name}, 5"


@rule("randint_like.Tensor")
def _randint_like(graph: Graph) -> str:
    return f"{graph.pick(dtype='same').name}, torch.tensor(4)"


@rule("norm.ScalarOpt_dtype")
def _norm(graph: Graph) -> str:
    return f"{graph.pick(dtype='float').name}, 2, dtype=torch.float64"


@rule("norm.ScalarOpt_dim_dtype")
def _norm_dim(graph: Graph) -> str:
    return f"{graph.pick(least=1, dtype='float').name}, 2, [-1], False, dtype=torch.float64"
