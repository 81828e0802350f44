"""Graphs that the fuzzer found something with: of operands that lie apart, of precision and of the
ends of ranges."""

from __future__ import annotations

import torch

from fuzz.cases import SINGLE, SIZES, check_case, each_of, on_each_plugin
from fuzz.graph_check import check_graph, compile_function, make

aten = torch.ops.aten
SHORT = torch.bfloat16


def beside_its_other_order(x):
    other = x.t().contiguous().t() * 3 + 4
    turned = [aten.floor_divide.default(x, other), aten.floor_divide.default(other, x)]
    numbers = [aten.floor_divide.default(x, x[0, 0] * 0 + 3), aten.rsub.Tensor(other, x)]
    return [*turned, *numbers, aten.pow.Tensor_Scalar(aten.rsub.Tensor(other, x), 0)]


def items_by_turned_indices(x):
    places = torch.zeros(3, 2, dtype=torch.int64).t()
    return [aten.index.Tensor(x, [places]), aten._unsafe_index.Tensor(x, [None, places])]


def losses_of_turned_scores(x):
    return [aten.soft_margin_loss.default(x, x[:1, :1] * 0 + 1, 0), x * 2]


def rolled_pictures_of_channels(x):
    picture = torch.ones(2, 4, 6, 7).permute(0, 3, 1, 2) * x[0, 0]
    return [
        aten.roll.default(picture, [1], [2]),
        aten.roll.default(picture, [0], [2]),
        aten.roll.default(picture, [1, -2], [1, 3]),
        aten._stack.default([x, x], 1),
    ]


def padded_pictures_of_channels(x):
    picture = torch.ones(2, 4, 6, 7).permute(0, 3, 1, 2) * x[0, 0]
    return [
        aten.reflection_pad2d.default(picture, [1, 1, 1, 0]),
        aten.replication_pad2d.default(picture, [1, 1, 1, 0]),
        aten.batch_norm.default(
            torch.ones(4, 6, 1, 7).permute(2, 3, 0, 1) * x[0, 0],
            *(None, None, None, None, True, 0.1, 1e-3, False),
        ),
        aten.batch_norm.default(
            torch.ones(4, 6, 2, 1, 7).permute(3, 4, 0, 1, 2) * x[0, 0],
            *(None, None, None, None, True, 0.1, 1e-3, False),
        ),
    ]


def transforms_back(x):
    return [aten.fft_ifftn.default(x[None].expand(2, *x.shape)), aten.fft_fft.default(x, None, 0)]


def loss_beside_one_number(x):
    return [torch.nn.functional.mse_loss(x[0], x[0, 0])]


def losses_beside_a_wider_target(x):
    number, column = x[0, 0], x[:, :1]
    sums = [f(a, x, 2) for f in (aten.mse_loss, aten.l1_loss) for a in (number, x[0], column)]
    return [*sums, aten.mse_loss(column, x[0]), aten.huber_loss(number, x)]


def between_the_ends(x):
    infinity = torch.full_like(x, float("inf"))
    ends = [aten.lerp.Scalar(x, x * 3, weight) for weight in (1.0, -1.0, 0.5, 0.3)]
    return [*ends, aten.lerp.Tensor(infinity, x, x), aten.lerp.Tensor(x, -infinity, x)]


def products_of_an_infinity_at_the_end(x):
    rows = torch.where(torch.arange(7) == 4, float("inf"), x)[:, 2:5].expand(2, -1, -1)
    return [aten.bmm.default(rows, aten.abs.default(x[:3]).expand(2, -1, -1) + 1)]


def wider_pictures_of_nan(x):
    return [aten.rsqrt.default(aten.upsample_bilinear2d.default(x[None, None], [5, 9], True))]


def norm_of_one_picture(x):
    pictures = aten.permute.default(x[None, :, None].expand(1, -1, 2, 7).contiguous(), [0, 3, 1, 2])
    apart = torch.stack([x[0], x[0]], 1)[:, 0]
    norm = aten._native_batch_norm_legit.no_stats
    weights = ((None, apart), (apart, None), (x[0], x[1]))
    return [norm(pictures, *pair, True, 0.1, 1e-3)[0] for pair in weights]


def norm_beside_scattered_statistics(x):
    """Dense from its last channel on, and no format that PyTorch would suggest."""
    pictures = x[:3].t().contiguous().view(7, 1, 3, 1).permute(3, 2, 1, 0)
    apart, dense = torch.stack([x[0], x[0] * 0 + 1], 1)[:3, 0], x[1, :3].clone()
    norm = aten._native_batch_norm_legit.default
    pairs = ((apart, dense), (dense, apart), (dense.clone(), dense))
    return [norm(pictures, None, None, *pair, True, 0.1, 1e-3)[0] for pair in pairs]


def places_of_what_is_known(x):
    """What the recorder runs itself; PyTorch's lists of places lie column by column."""
    places = aten.argwhere.default(torch.ones(5, 2, 2).triu())
    again = aten.select.int(places, 1, 1)
    return [places, aten.mul.Tensor(again, 2), aten.t.default(places)[0] + x[0, 0]]


def slopes_without_end_at_zero(x):
    zeros = torch.where(x > 0, x, torch.zeros_like(x))
    shrunk = aten.hardshrink.default(x, float("nan"))
    return [
        aten.elu.default(zeros, input_scale=float("inf")),
        aten.celu.default(zeros, 1e-45),
        shrunk,
    ]


def wide_transposed_convolutions(x):
    wide = aten.to.dtype(x, torch.float64)
    pictures = (
        wide[None, :, :, None].expand(2, -1, -1, 4) + torch.arange(4, dtype=torch.float64) / 3
    )
    taps = wide[:, :4, None, None] * torch.ones(3, 3, dtype=torch.float64) / 7
    return [
        aten.conv_transpose2d.input(pictures, taps, None, s, 0, 0, 1, d)
        for s, d in ((1, 1), (2, 1), (2, 2))
    ]


FOUND = (
    (beside_its_other_order, SINGLE, "plain"),
    (beside_its_other_order, SINGLE, "transposed"),
    (items_by_turned_indices, SINGLE, "plain"),
    (losses_of_turned_scores, SINGLE, "transposed"),
    (rolled_pictures_of_channels, SINGLE, "transposed"),
    (padded_pictures_of_channels, SINGLE, "plain"),
    (transforms_back, SINGLE, "transposed"),
    (loss_beside_one_number, SINGLE, "plain"),
    (losses_beside_a_wider_target, SINGLE, "plain"),
    (between_the_ends, SINGLE, "plain"),
    (products_of_an_infinity_at_the_end, SHORT, "plain"),
    (wider_pictures_of_nan, SINGLE, "plain"),
    (norm_of_one_picture, SINGLE, "plain"),
    (norm_beside_scattered_statistics, SINGLE, "plain"),
    (places_of_what_is_known, SINGLE, "plain"),
    (slopes_without_end_at_zero, SINGLE, "plain"),
)


def test_wide_convolutions_stay_wide():
    """A product whose factors are no tensors took float32 for its type."""
    check_case(wide_transposed_convolutions, SINGLE, "plain", "opencl")


@on_each_plugin
@each_of(FOUND)
def test_found(graph, dtype, layout, plugin):
    check_case(graph, dtype, layout, plugin)


@on_each_plugin
def test_what_leaves_nothing_is_refused(plugin):
    """By the second size alone."""

    def graph(x):
        return [aten.conv_transpose2d.input(x[None, None], x[:1, :1, None, None], None, 2, 1)]

    def inputs(n, m):
        return {"x": make((n, m), torch.float16)}

    assert check_graph(graph, inputs, ({"n": 5, "m": 7}, {"n": 1, "m": 7}), plugin) is None


@on_each_plugin
def test_what_casts_inside(plugin):
    """Under autocast their kernels multiply in bfloat16."""

    def graph(x):
        with torch.autocast("cpu"):
            square = x[:3, :3] + 3 * torch.eye(3)
            turned = torch.nn.functional.bilinear(x, x, torch.ones(2, 7, 7))
            return torch.linalg.pinv(square), turned, torch.ops.aten._euclidean_dist(x, x + 1)

    def inputs(n, m):
        return {"x": make((n, m), SINGLE)}

    assert check_graph(graph, inputs, SIZES, plugin, False, compile_function) is None
