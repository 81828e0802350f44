"""Graphs that the fuzzer found something with, each as small as it made them."""

from __future__ import annotations

import pytest
import torch
import torch_backplane

from fuzz.cases import SINGLE, check_case, each_of, on_each_plugin
from fuzz.graph_check import check_graph, make

aten = torch.ops.aten
COMPLEX = torch.complex64


def imag_of_a_slice(x):
    return [aten.imag.default(x)]


def real_pairs_of_a_slice(x):
    return [aten.view_as_real.default(x)]


def conj_of_an_input(x):
    return [aten.conj.default(x)]


def adjoint_and_a_part(x):
    return [aten.adjoint.default(x), aten.slice.Tensor(x, 0, 1, 3)]


def number_in_a_tensor(x):
    return [aten.isin.Scalar_Tensor(1, x)]


def limits_in_the_wrong_order(x):
    return [aten.hardtanh.default(x, 3)]


def loss_of_a_row(x):
    row = x[0] * 2
    return [aten.mse_loss.default(x, row), aten.smooth_l1_loss.default(x, row)]


def draws_into_turned_memory(x):
    return [aten.native_dropout.default(x, 0.5, True)[1], aten.alpha_dropout.default(x, 0.25, True)]


def one_element_a_channel(x):
    mean, variance = x[0] * 0, x[0] * 0 + 1
    out = aten.batch_norm.default(x[:1], None, None, mean, variance, True, 0.1, 0.001, False)
    return [out, mean, variance]


def spread_of_equal_values(x):
    return [aten.std.dim(x, [0])]


def norms_of_high_order(x):
    return [aten.linalg_vector_norm.default(x[:1], 300, [0])]


def distances_of_many_rows(x):
    far = (x[:, :3] * 3 / (x[:, :3] > 1)).repeat(8, 1)  # infinite some of them, NaN others
    return [aten.cdist.default(far, x[:3, :3]), aten._euclidean_dist.default(far, x[:3, :3])]


def products_of_complex_infinities(x):
    a, b = x / (x.real > 0), x * (x.imag / 0)
    return [a * b, a * 2j, torch.addcmul(x, a, b), torch.addcmul(a, b, x)]


def slopes_of_one_number(x):
    return [aten._prelu_kernel.default(x[0, 1], x)]


def norms_of_short_floats(x):
    return [*aten._weight_norm_interface.default(x, x[:, :1])]


def no_shape_function(x):
    return [*aten._aminmax.default(x), aten._masked_softmax.default(x, x > 0, 1)]


def polynomials_of_no_degree(x):
    degree = aten.div.Tensor(x * 0, x * 0)  # NaN
    return [
        aten.special_shifted_chebyshev_polynomial_v.default(x, degree),
        aten.special_hermite_polynomial_h.default(x, degree + float("inf")),
        aten.special_chebyshev_polynomial_t.default(x * 0 + 1, degree),
    ]


def roots_beside_a_branch_cut(x):
    return [aten.float_power.Tensor_Scalar(aten.fft_ihfft(x, 2), 0.5)]


def mask_of_nothing(x):
    return [*aten.native_dropout.default(x[:0], 0.5, True)]


def parts_of_a_row_shown_often(x):
    row = x[:1].expand(4, x.size(1))
    return torch.ops.aten.unsafe_split.Tensor(row, 2), torch.ops.aten.unsafe_chunk(row, 3, 1)


def zeros_without_memory(x):
    """Behind what the recorder does not take: AOTAutograd makes a constant of them."""
    return aten._sample_dirichlet(x.abs()).isnan(), aten._efficientzerotensor([2, 3]).view(-1)


def fractions_among_integers(x):
    whole = x.to(torch.int16)
    return [
        aten.isin.Scalar_Tensor(-0.5, whole),
        aten.isin.Tensor_Scalar(whole, 0.5),
        aten.isin.Scalar_Tensor(1.0, whole),
    ]


def draws_after_draws(x):
    counts = aten.poisson.default(x.abs() * 3)
    return [counts, aten.alpha_dropout.default(counts, 0.25, True)]


def bounds_that_changed_places(x):
    return torch.special.logit(x, 0.7), torch.special.logit(x, 1.0)


def powers_beyond_the_largest_number(x):
    """0 times infinity is NaN, also where the power alone is too large."""
    return [aten.ldexp.Tensor(x.to(torch.int64) * 0, torch.full((7,), 130))]


def products_along_no_dimension(x):
    """None of the three has the dimension that is walked along."""
    return [aten._trilinear.default(x, x, x, [0, 1], [0, 1], [2, 1], [1])]


def zeros_through_two_views(x):
    rows = aten.permute.default(x, [0, 1])
    parts = aten.split_with_sizes.default(rows, [3, x.size(1) - 3], -1)
    return [aten.zero_.default(rows), parts[0]]


def results_in_turned_memory(x):
    """Their kernels keep the order of dimensions, or do not: what draws behind them tells."""
    bits = aten.sigmoid.default(x)
    tests = (
        aten.logical_and.default(x, x),
        aten.logical_xor.default(x, x),
        aten.logical_not.default(x),
    )
    parts = aten.complex.default(x, x), aten.polar.default(bits, x)
    loss = aten.binary_cross_entropy.default(bits, bits, None, 0)
    copy = aten.lift_fresh_copy.default(x)
    return [*aten.log_sigmoid_forward.default(x), *tests, *parts, loss, copy]


def places_and_draws(x):
    return [
        aten.nonzero_static.default(x, size=3),
        aten.dropout.default(aten.log_sigmoid_forward.default(x)[0], 0.5, True),
        aten.uniform.default(aten.angle.default(aten.complex.default(x, x))),
    ]


def conjugated_and_added(x):
    return [aten.fft_ifft.default(x, dim=-2) + 1, aten.fft_ihfft.default(x, dim=0) * 2]


def counts_that_nobody_reads(x):
    aten.binomial.default(x[0, :1], x[0, :2])
    return [x + 1]


def views_of_a_row_shown_often(x):
    return [x[1:], x[None], x + 1]


def lines_under_turned_weights(x):
    weight = x[:4, :3].expand(2, 4, 3).transpose(1, 2) * 1
    rows = x[None, :3]
    column = x[:1, None, :4].mT * 1  # lies as one of channels, too
    return [
        aten.conv1d.default(rows, weight * 1, None, [1], [1]),
        aten.conv_transpose1d.default(rows, weight.transpose(0, 1) * 1),
        aten.conv_transpose1d.default(column, weight.permute(2, 0, 1) * 1),
    ]


def smaller_pictures_of_channels(x):
    picture = torch.ones(2, 4, 6, 7).permute(0, 3, 1, 2) * x[0, 0]
    return [aten.pixel_unshuffle.default(picture, 2), aten.channel_shuffle.default(picture, 7)]


def a_volume_that_lies_as_pictures(x):
    volume = torch.ones(2, 3, 4, 7).permute(0, 3, 1, 2) * x[0, 0]
    pads = [0, 1, 1, 0, 1, 1]
    wide = aten.replication_pad3d.default(volume[:, :1], [2, 2, 0, 0, 1, 1])
    some = aten.replication_pad3d.default(volume, pads)
    return some, wide, aten.reflection_pad3d.default(volume, pads)


FOUND = (
    (smaller_pictures_of_channels, SINGLE, "plain"),
    (a_volume_that_lies_as_pictures, SINGLE, "plain"),
    (lines_under_turned_weights, SINGLE, "plain"),
    (results_in_turned_memory, SINGLE, "transposed"),
    (places_and_draws, SINGLE, "transposed"),
    (conjugated_and_added, SINGLE, "transposed"),
    (conjugated_and_added, SINGLE, "sliced"),
    (counts_that_nobody_reads, torch.float64, "plain"),
    (views_of_a_row_shown_often, SINGLE, "expanded"),
    (polynomials_of_no_degree, SINGLE, "plain"),
    (roots_beside_a_branch_cut, SINGLE, "sliced"),
    (parts_of_a_row_shown_often, SINGLE, "plain"),
    (parts_of_a_row_shown_often, SINGLE, "sliced"),
    (bounds_that_changed_places, SINGLE, "plain"),
    (zeros_without_memory, SINGLE, "plain"),
    (fractions_among_integers, SINGLE, "plain"),
    (draws_after_draws, SINGLE, "transposed"),
    (zeros_through_two_views, SINGLE, "sliced"),
    (products_along_no_dimension, SINGLE, "plain"),
    (mask_of_nothing, torch.float64, "plain"),
    (powers_beyond_the_largest_number, SINGLE, "plain"),
    (limits_in_the_wrong_order, SINGLE, "plain"),
    (loss_of_a_row, SINGLE, "plain"),
    (draws_into_turned_memory, SINGLE, "transposed"),
    (draws_into_turned_memory, SINGLE, "sliced"),
    (one_element_a_channel, SINGLE, "plain"),
    (norms_of_high_order, SINGLE, "plain"),
    (spread_of_equal_values, SINGLE, "expanded"),
    (distances_of_many_rows, SINGLE, "plain"),
    (slopes_of_one_number, SINGLE, "plain"),
    (products_of_complex_infinities, COMPLEX, "plain"),
    (norms_of_short_floats, torch.float16, "plain"),
    (no_shape_function, SINGLE, "plain"),
    (imag_of_a_slice, COMPLEX, "sliced"),
    (real_pairs_of_a_slice, COMPLEX, "sliced"),
    (conj_of_an_input, COMPLEX, "plain"),
    (adjoint_and_a_part, COMPLEX, "transposed"),
    (number_in_a_tensor, SINGLE, "plain"),
)


@on_each_plugin
@each_of(FOUND)
def test_found(graph, dtype, layout, plugin):
    check_case(graph, dtype, layout, plugin)


@on_each_plugin
def test_the_nearest_element_beside_infinite_gradients(plugin):
    def graph(x):
        grid = x.clamp(-0.9, 0.9).reshape(-1)[:24].reshape(1, 3, 4, 2)
        image = x.reshape(-1)[:24].reshape(1, 2, 4, 3)
        sampled = aten.grid_sampler_2d.default(image, grid, 1, 1, False)
        return [sampled * torch.inf]

    check_case(graph, SINGLE, "plain", plugin)


@on_each_plugin
@pytest.mark.parametrize("mode", (0, 2))
def test_points_outside_of_a_picture_beside_infinite_gradients(mode, plugin):
    def graph(x):
        grid = (x * 1.2).reshape(-1)[:24].reshape(1, 3, 4, 2)
        image = x.reshape(-1)[:24].reshape(1, 2, 4, 3)
        sampled = aten.grid_sampler_2d.default(image, grid, mode, 0, True)
        return [sampled * torch.inf]

    check_case(graph, SINGLE, "plain", plugin)


@on_each_plugin
@pytest.mark.parametrize("reduction", (0, 1))
def test_logits_of_infinite_targets(reduction, plugin):
    def graph(x):
        target = aten.special_entr.default(x)
        return [aten.binary_cross_entropy_with_logits.default(x, target, None, None, reduction)]

    check_case(graph, SINGLE, "plain", plugin)


@on_each_plugin
def test_groups_of_an_image_that_is_not_counted(plugin):
    def graph(x):
        channels = x.reshape(1, -1)[:, :28].reshape(4, 7)
        return [aten.native_group_norm.default(channels, None, None, 1, 4, 7, 2, 1e-3)[0]]

    check_case(graph, SINGLE, "plain", plugin)


@on_each_plugin
@pytest.mark.parametrize("norm", (0.0, 1.0, 1.5, 2.0, torch.inf))
def test_distances_from_nan(norm, plugin):
    def graph(x):
        far = torch.where(x > 1.5, torch.nan, x)
        return [
            aten._cdist_forward.default(far, x[:3] * 2, norm, 2),
            aten._pdist_forward(far, norm),
        ]

    check_case(graph, SINGLE, "plain", plugin)


@on_each_plugin
def test_nan_among_numbers(plugin):
    rnn = torch.nn.RNN(7, 3, nonlinearity="relu").eval()
    targets, lengths = torch.tensor([[1, 2]]), (torch.tensor([4]), torch.tensor([2]))

    def graph(x):
        nan = torch.where(x > 1.0, torch.nan, x)
        grid = nan.reshape(-1)[:24].reshape(1, 3, 4, 2)
        image = x.reshape(-1)[:24].reshape(1, 2, 4, 3)
        likely = nan[:4, :5].log_softmax(-1)[:, None]
        return [
            aten.grid_sampler_2d.default(image, grid, 0, 0, True),
            aten.embedding_renorm.default(nan, torch.tensor([0, 1, 2]), 1.0, 2.0),
            aten.embedding_renorm.default(nan, torch.tensor([0, 1, 2]), 1.0, torch.inf),
            torch.nn.functional.ctc_loss(likely, targets, *lengths),
            rnn(nan[:, None])[0],
        ]

    check_case(graph, SINGLE, "plain", plugin)


@on_each_plugin
def test_distances_of_no_rows(plugin):
    """PyTorch's own backward ends the process, where it is asked for."""
    compiled = torch_backplane.compile(aten._pdist_forward.default, backend=plugin)
    made = compiled(torch.zeros(0, 7, requires_grad=True))
    assert made.shape == (0,)
    assert made.requires_grad


def median_along_nothing(x):
    return [aten.nanmedian.dim(x, 0)[0], aten.max.dim(x, 0)[0]]


def median_of_no_integers(x):
    return [aten.median.default(x.to(d)) for d in (torch.int64, torch.int32, torch.uint8)]


def variance_of_nothing(x):
    return [*aten.var_mean.correction(x, None, correction=-0.5)]


def norm_of_nothing(x):
    return [aten.linalg_vector_norm.default(x, -1), aten.norm.Scalar(x, float("nan"))]


def rows_of_nothing(x):
    return [aten.index.Tensor(x, [torch.tensor([0])])]


def picture_of_nothing(x):
    return [aten.grid_sampler_2d.default(x[None, None], x[None, :, :2, None] * 0, 0, 0, False)]


def batch_of_nothing(x):
    return [aten._native_batch_norm_legit.no_stats(x[None].mT, None, None, True, 0.1, 0.001)[0]]


def shuffle_of_nothing(x):
    return [aten.pixel_shuffle.default(x[None, None].expand(2, 4, -1, -1), 2)]


def normal_rows_of_nothing(x):
    return [aten.layer_norm.default(x.mT, [7, x.shape[0]])]


def part_of_nothing(x):
    return [aten.slice_scatter.default(x, x[:2] + 1, 0, 3)]


def memory_of_nothing(x):
    return [aten.as_strided_copy.default(x, [2, 3], [7, 1])]


def functions_of_the_mean_of_nothing(x):
    mean = aten.var_mean.correction(x, [0], keepdim=True)[1]
    return [aten.floor_divide.Scalar(mean, -0.5), aten.fmod.Scalar(mean, 0.5), mean.pow(3.5)]


def sizes_as_numbers(x):
    return [aten.native_group_norm.default(x[None], None, None, 1, 5, 7, 1, 0.001)[0]]


OF_NOTHING = (
    median_along_nothing,
    median_of_no_integers,
    variance_of_nothing,
    norm_of_nothing,
    functions_of_the_mean_of_nothing,
    rows_of_nothing,
    picture_of_nothing,
    batch_of_nothing,
    shuffle_of_nothing,
    normal_rows_of_nothing,
    part_of_nothing,
    memory_of_nothing,
    sizes_as_numbers,
)


@on_each_plugin
@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("graph", OF_NOTHING, ids=lambda v: v.__name__)
def test_nothing(graph, grad, plugin):
    """PyTorch's kernels refuse empty operands that its shape functions let through."""

    def inputs(n, m):
        return {"x": make((n, m), SINGLE)}

    sizes = ({"n": 5, "m": 7}, {"n": 0, "m": 7})
    assert check_graph(graph, inputs, sizes, plugin, grad) is None


def one_row_added_often(x):
    """To one element, where neither place nor number moves along the indices."""
    index, row = torch.zeros(3, dtype=torch.int64), x[:1].expand(3, 7)
    return [
        aten._unsafe_index_put.default(x[:1], [index], row, True),
        aten.index_add.default(x[:1], 0, index, row),
        aten.scatter_add.default(x[:1, :1], 0, index[:, None], row[:, :1]),
        aten.embedding_dense_backward.default(row, index, 1, -1, False),
    ]


@pytest.mark.parametrize("plugin", ["reference", "cpu_onednn", "opencl"])
def test_one_row_added_often(plugin):
    check_case(one_row_added_often, SINGLE, "plain", plugin)


def layer_norm_of_all(x):
    return torch.nn.functional.layer_norm(x, list(x.shape)), torch.native_layer_norm(
        x, list(x.shape), None, None, 1e-3
    )


def group_norm_of_pictures(x):
    return torch.native_group_norm(
        x.expand(2, 4, *x.shape).contiguous(), torch.ones(4), None, 2, 4, x.numel(), 2, 1e-5
    )


def pooled_rows(x):
    return torch.nn.functional.adaptive_avg_pool2d(x[None], 2)


def sums_at_no_place(x):
    """A loop over no index ran once."""
    none = torch.zeros(0, dtype=torch.int64)
    wide = torch.ones(3, 7)
    return (
        torch.index_add(wide, 1, none, wide[:, :0] * 2),
        torch.scatter_add(wide, 1, none.reshape(1, 0).expand(3, 0), wide) + x.sum(),
        torch.index_put(wide, (none,), wide[:0] * 3, accumulate=True),
    )


@pytest.mark.parametrize("plugin", ("reference", "cpu_onednn", "opencl"))
@pytest.mark.parametrize(
    "program", (sums_at_no_place, layer_norm_of_all, group_norm_of_pictures, pooled_rows)
)
def test_none_after_some(program, plugin):
    """A size of 0, met when the others are generalised."""
    compiled = torch_backplane.compile(program, backend=plugin)
    for rows in (3, 5, 0, 4, 0):
        x = torch.randn(rows, 7)
        try:
            expected = program(x)
        except RuntimeError as error:
            with pytest.raises(type(error)):
                compiled(x)
            continue
        torch.testing.assert_close(compiled(x), expected, equal_nan=True)


@pytest.mark.parametrize("plugin", ("reference", "cpu_onednn", "opencl"))
def test_dims_that_are_summed_differ_with_the_sizes(plugin):
    compiled = torch_backplane.compile(torch.kron, backend=plugin)
    for sizes in ((1, 7), (8, 1), (5, 3), (1, 1), (7, 1), (1, 6)):
        x, y = torch.randn(sizes), torch.randn(1, requires_grad=True)
        expected = torch.autograd.grad(torch.kron(x, y).square().sum(), y)[0]
        actual = torch.autograd.grad(compiled(x, y).square().sum(), y)[0]
        torch.testing.assert_close(actual, expected)
