"""Programs in which a number follows from a size, each called at several sizes: no argument of an
operator keeps the number of another size."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
import torch_backplane

INDEX = torch.tensor([0, 1])
RIGHT = torch.linspace(-1, 1, 49).reshape(7, 7)
ROWS = (4, 5, 6, 8, 4)
# On opencl, where each takes seconds; with --long all.
ON_OPENCL = ("add_alpha", "mul", "scatter_value", "addmm", "ap2", "mm_leaky", "pad", "slice")


def three_wide(x: torch.Tensor) -> torch.Tensor:
    return torch.ones(2, x.shape[0], 3)


# x [n, 7] and n.
PROGRAMS = {
    "mm_leaky": lambda x, n: F.leaky_relu(x @ RIGHT, n),
    "mm_hardtanh": lambda x, n: F.hardtanh(x @ RIGHT, -n, n - 4),
    "mm_elu": lambda x, n: F.elu(x @ RIGHT, n),
    "mm_add": lambda x, n: torch.add(x @ RIGHT, x, alpha=n),
    "mm_muln": lambda x, n: (x @ RIGHT) * n,
    "mm_clamp": lambda x, n: (x @ RIGHT).clamp(-n, n - 4),
    "conv_leaky": lambda x, n: F.leaky_relu(F.conv1d(x[None], three_wide(x)), n),
    "pad_conv": lambda x, n: F.conv1d(F.pad(x[None], (1, 1), value=n), three_wide(x)),
    "padn_conv": lambda x, n: F.conv1d(F.pad(x[None], (n, 1)), three_wide(x)),
    "lin_add": lambda x, n: torch.add(F.linear(x, RIGHT), x, alpha=n),
    "baddbmm": lambda x, n: torch.baddbmm(x[None], x[None], RIGHT[None], beta=n, alpha=n - 2),
    "addmv": lambda x, n: torch.addmv(x[:, 0], x, RIGHT[0], beta=n, alpha=2),
    "addr": lambda x, n: torch.addr(x, x[:, 0], RIGHT[0], beta=n, alpha=n - 2),
    "addbmm": lambda x, n: torch.addbmm(x, x[None], RIGHT[None], beta=n),
    "sdpa": lambda x, n: F.scaled_dot_product_attention(x[None], x[None], x[None], scale=n),
    "bce": lambda x, n: F.binary_cross_entropy_with_logits(
        x, x.sigmoid(), pos_weight=torch.full((7,), float(n))
    ),
    "mse_n": lambda x, n: F.mse_loss(x, x * 0) / n,
    "gauss": lambda x, n: F.gaussian_nll_loss(x, x * 0, x.abs() + n),
    "group_chain": lambda x, n: ((x * n + n).relu() - n).tanh() * n,
    "sm_scale": lambda x, n: torch.softmax(x / n, 1) * n,
    "ln_n": lambda x, n: F.layer_norm(x, (7,)) * n + n,
    "cat_n": lambda x, n: torch.cat([x * n, x + n], 1),
    "add_alpha": lambda x, n: torch.add(x, x, alpha=n),
    "sub_alpha": lambda x, n: torch.sub(x, x.flip(0), alpha=n),
    "rsub": lambda x, n: torch.rsub(x, n, alpha=2),
    "rsub_alpha": lambda x, n: torch.rsub(x, 3, alpha=n),
    "mul": lambda x, n: x * n,
    "div": lambda x, n: x / n,
    "fdiv": lambda x, n: x // n,
    "mod": lambda x, n: x % n,
    "pow": lambda x, n: x.abs() ** (n / 4),
    "pows": lambda x, n: n**x,
    "powi": lambda x, n: x**n,
    "clamp": lambda x, n: x.clamp(-n, n / 8),
    "clampmax": lambda x, n: x.clamp(max=n - 4),
    "full": lambda x, n: torch.full((3, 2), n) + x.sum(),
    "fullf": lambda x, n: torch.full((3, 2), float(n)) + x.sum(),
    "full_like": lambda x, n: torch.full_like(x, n),
    "new_full": lambda x, n: x.new_full((2,), n),
    "fill": lambda x, n: x.clone().fill_(n),
    "masked_fill": lambda x, n: x.masked_fill(x > 0, n),
    "index_fill": lambda x, n: x.index_fill(0, INDEX, n),
    "scatter_value": lambda x, n: x.scatter(0, torch.zeros(1, 7, dtype=torch.long), n),
    "index_add": lambda x, n: x.index_add(0, INDEX, x[:2], alpha=n),
    "addmm": lambda x, n: torch.addmm(x, x, torch.ones(7, 7), beta=n, alpha=n - 1),
    "addcmul": lambda x, n: torch.addcmul(x, x, x, value=n),
    "addcdiv": lambda x, n: torch.addcdiv(x, x, x.abs() + 1, value=n),
    "lerp": lambda x, n: torch.lerp(x, x + 1, n / 3.0),
    "lerpn": lambda x, n: torch.lerp(x, x + 1, n),
    "leaky": lambda x, n: F.leaky_relu(x, n),
    "elu": lambda x, n: F.elu(x, n),
    "celu": lambda x, n: F.celu(x, n),
    "hardtanh": lambda x, n: F.hardtanh(x, -n, n - 4),
    "threshold": lambda x, n: F.threshold(x, n - 4, n),
    "softplus": lambda x, n: F.softplus(x, n, n),
    "softshrink": lambda x, n: F.softshrink(x, n - 3),
    "hardshrink": lambda x, n: F.hardshrink(x, n - 3),
    "norm_p": lambda x, n: torch.linalg.vector_norm(x, n),
    "norm_dim": lambda x, n: x.norm(n, 1),
    "renorm": lambda x, n: torch.renorm(x, 2, 0, n),
    "cdist": lambda x, n: torch.cdist(x, x + 1, n),
    "pdist": lambda x, n: F.pdist(x, n),
    "eq": lambda x, n: (x * 4).round() == n - 4,
    "gt": lambda x, n: x > n - 4,
    "where": lambda x, n: torch.where(x > 0, x, n),
    "where2": lambda x, n: torch.where(x > 0, n, 0),
    "arange": lambda x, n: torch.arange(n) + x.sum(),
    "arange2": lambda x, n: torch.arange(2, n * 2, 2).float() * x.sum(),
    "linspace": lambda x, n: torch.linspace(0, n, 5) + x.sum(),
    "linspace_n": lambda x, n: torch.linspace(0, 1, n) + x.sum(),
    "logspace": lambda x, n: torch.logspace(0, 1, n) + x.sum(),
    "eye": lambda x, n: torch.eye(n) @ x,
    "std_corr": lambda x, n: torch.var(x, 1, correction=n - 2),
    "quant": lambda x, n: torch.round(x, decimals=n - 3),
    "roll": lambda x, n: torch.roll(x, n - 2, 1),
    "rollb": lambda x, n: torch.roll(x, n),
    "narrow": lambda x, n: x.narrow(0, 1, n - 2),
    "slice": lambda x, n: x[:, n - 3 :],
    "select": lambda x, n: x[n - 1],
    "selectc": lambda x, n: x[:, n - 3],
    "step": lambda x, n: x.repeat(1, 5)[:, ::n],
    "pad": lambda x, n: F.pad(x, (n, 1), value=n),
    "padc": lambda x, n: F.pad(x[None], (n - 2, 1), mode="replicate"),
    "padr": lambda x, n: F.pad(x[None], (n - 3, 1), mode="reflect"),
    "circ": lambda x, n: F.pad(x[None], (n - 3, 1), mode="circular"),
    "topk": lambda x, n: x.topk(n - 2, 1)[0],
    "kth": lambda x, n: x.kthvalue(n - 2, 1)[0],
    "tril": lambda x, n: x.tril(n - 4),
    "triu": lambda x, n: x.triu(n - 4),
    "diag": lambda x, n: x.diagonal(n - 5),
    "diag_embed": lambda x, n: torch.diag_embed(x[0], n - 4),
    "trili": lambda x, n: torch.tril_indices(n, 4, 1) + x.sum().long(),
    "avg_pool": lambda x, n: F.avg_pool1d(x[None], n - 2, 1),
    "max_pool": lambda x, n: F.max_pool1d(x[None], n - 2, stride=1),
    "pool_stride": lambda x, n: F.avg_pool1d(x[None].repeat(1, 1, 4), 2, stride=n - 2),
    "pool_pad": lambda x, n: F.max_pool1d(x[None], 7, 1, padding=n - 3),
    "ap2": lambda x, n: F.avg_pool2d(x[None, None], 2, divisor_override=n),
    "adaptive": lambda x, n: F.adaptive_avg_pool1d(x[None], n - 1),
    "adaptmax": lambda x, n: F.adaptive_max_pool1d(x[None], n - 1),
    "conv_pad": lambda x, n: F.conv1d(x[None], torch.ones(2, x.shape[0], 3), padding=n - 2),
    "conv_dil": lambda x, n: F.conv1d(
        x[None].repeat(1, 1, 5), torch.ones(2, x.shape[0], 3), dilation=n - 2
    ),
    "conv_str": lambda x, n: F.conv1d(
        x[None].repeat(1, 1, 5), torch.ones(2, x.shape[0], 3), stride=n - 2
    ),
    "conv_groups": lambda x, n: F.conv1d(x[None], torch.ones(n, 1, 3), groups=n),
    "convt": lambda x, n: F.conv_transpose1d(
        x[None], torch.ones(x.shape[0], 2, 3), stride=n, output_padding=1
    ),
    "unfold": lambda x, n: x.unfold(1, n - 1, 2),
    "im2col": lambda x, n: F.unfold(x[None, None], (n - 2, 3)),
    "interp": lambda x, n: F.interpolate(x[None], size=n * 2),
    "interps": lambda x, n: F.interpolate(x[None], scale_factor=n),
    "pixel": lambda x, n: F.pixel_shuffle(
        x.repeat(1, 16 * n)[:, : n * n * 4].reshape(x.shape[0], n * n, 2, 2), n
    ),
    "cumsum_n": lambda x, n: x.cumsum(0) * n,
    "softmaxn": lambda x, n: (x * n).softmax(1),
    "onehot": lambda x, n: F.one_hot(torch.tensor([0, 1]), n) + x.sum(),
    "chunk": lambda x, n: x.repeat(1, 4).chunk(n, 1)[0],
    "split": lambda x, n: x.split(n - 2, 1)[0],
    "tsplit": lambda x, n: torch.tensor_split(x, n - 1, 1)[0],
    "repeat": lambda x, n: x.repeat(1, n),
    "repint": lambda x, n: x.repeat_interleave(n, 1),
    "expand": lambda x, n: x[:, None].expand(-1, n, -1),
    "bias": lambda x, n: F.layer_norm(x, (7,), eps=n),
    "bn_eps": lambda x, n: F.batch_norm(x, None, None, training=True, eps=n),
    "gn": lambda x, n: F.group_norm(x.repeat(1, n)[:, : n * 2], n),
    "lrn": lambda x, n: F.local_response_norm(x[None], n - 1),
    "nll_ign": lambda x, n: F.nll_loss(x, torch.arange(x.shape[0]) % 7, ignore_index=n - 2),
    "huber": lambda x, n: F.huber_loss(x, x.flip(0), delta=n / 4),
    "smooth": lambda x, n: F.smooth_l1_loss(x, x.flip(0), beta=n / 4),
    "ce_ls": lambda x, n: F.cross_entropy(x, torch.arange(x.shape[0]) % 7, label_smoothing=1 / n),
    "margin": lambda x, n: F.multi_margin_loss(x, torch.arange(x.shape[0]) % 7, margin=n / 2),
    "emb_pad": lambda x, n: F.embedding(torch.tensor([0, 1, 2]), x, padding_idx=n - 1),
    "emb_max": lambda x, n: F.embedding_bag(torch.tensor([[0, 1]]), x),
    "bincount": lambda x, n: torch.bincount(torch.tensor([0, 1]), minlength=n) + x.sum(),
    "histc": lambda x, n: torch.histc(x, n, -2, n),
    "bucket": lambda x, n: torch.bucketize(n, torch.sort(x[0])[0]) + 0,
    "poly": lambda x, n: torch.special.chebyshev_polynomial_t(x, n),
    "mvl": lambda x, n: torch.mvlgamma(x.abs() + n, n - 2),
    "polyg": lambda x, n: torch.polygamma(n - 3, x.abs() + 1),
    "rot90": lambda x, n: torch.rot90(x, n),
    "logit": lambda x, n: torch.logit(x.sigmoid(), 1 / (4 * n)),
    "nan": lambda x, n: torch.nan_to_num(x / 0 * 0, n, n, n),
    "heavi": lambda x, n: torch.floor_divide(x * 9, n),
    "fmod": lambda x, n: torch.fmod(x * 9, n),
    "rem": lambda x, n: torch.remainder(n, x * 9),
    "xlogy": lambda x, n: torch.xlogy(n, x.abs()),
    "zeta": lambda x, n: torch.special.zeta(x.abs() + 2, n),
    "shift": lambda x, n: x.long() << n,
    "bitand": lambda x, n: (x * 9).long() & n,
    "bitor": lambda x, n: n | (x * 9).long(),
    "isin": lambda x, n: torch.isin((x * 9).long(), n),
    "matpow": lambda x, n: torch.linalg.matrix_power(x[:3, :3], n - 2),
    "vander": lambda x, n: torch.vander(x[0], n),
    "diff": lambda x, n: torch.diff(x, n - 2, 1),
    "fft": lambda x, n: torch.fft.rfft(x, n).abs(),
    "stft": lambda x, n: torch.fft.irfft(torch.fft.rfft(x), n),
    "take": lambda x, n: x.take(torch.tensor([n])),
    "asstr": lambda x, n: torch.as_strided(x, (2, n - 1), (1, 1), n - 3) * 1,
    "asstr2": lambda x, n: x.as_strided((2, 2), (n - 2, 1)) * 1,
    "dropout0": lambda x, n: F.dropout(x, 0.0) * n,
    "gumb": lambda x, n: x.sigmoid().bernoulli(0.0) * n,
    "rep0": lambda x, n: (x.sum(0) * n).sum() / n,
}


def outcome(function, x: torch.Tensor):
    try:
        result = function(x)
        if not result.requires_grad:
            return result, None
        return result.detach(), torch.autograd.grad(result.float().square().sum(), x)[0]
    except (RuntimeError, IndexError, ValueError) as error:
        return error


def check(name: str, backend: str) -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        return PROGRAMS[name](x, x.shape[0])

    compiled = torch_backplane.compile(program, backend=backend, dynamic=True)
    for rows in ROWS:
        x = torch.randn(rows, 7, generator=torch.Generator().manual_seed(rows))
        expected = outcome(program, x.clone().requires_grad_())
        actual = outcome(compiled, x.clone().requires_grad_())
        if isinstance(expected, Exception) or isinstance(actual, Exception):
            assert isinstance(actual, Exception), expected
            assert isinstance(expected, Exception), actual
            continue
        torch.testing.assert_close(actual, expected, rtol=2e-3, atol=2e-3, equal_nan=True)


@pytest.mark.parametrize("backend", ("eager", "reference", "cpu_onednn"))
@pytest.mark.parametrize("name", PROGRAMS)
def test_number(name: str, backend: str) -> None:
    check(name, backend)


@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=[pytest.mark.long] * (n not in ON_OPENCL)) for n in PROGRAMS],
)
def test_number_on_opencl(name: str) -> None:
    check(name, "opencl")


@pytest.mark.parametrize("number", [-(2**62), -(2**62) - 1, -(2**63), 2**63 - 1])
def test_the_least_of_all_integers_are_no_sizes(number: int) -> None:
    def f(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x.mul(number), x.bitwise_xor(number) + x.shape[0]

    compiled = torch_backplane.compile(f, backend="plugin:reference", dynamic=True)
    for rows in (3, 5, 7):
        x = torch.arange(rows)
        for actual, expected in zip(compiled(x), f(x), strict=True):
            assert torch.equal(actual, expected)
