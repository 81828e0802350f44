"""Whether results are right."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

# (atol, rtol), as torch.testing.assert_close has them.
DEFAULT_TOLERANCES = {
    torch.float16: (1e-5, 1e-3),
    torch.bfloat16: (1e-5, 1.6e-2),
    torch.float32: (1e-5, 1.3e-6),
    torch.float64: (1e-7, 1e-7),
    torch.complex32: (1e-5, 1e-3),
    torch.complex64: (1e-5, 1.3e-6),
    torch.complex128: (1e-7, 1e-7),
}
# Where eager itself misses the exact result, a plugin may miss it by this many times as much; but
# not where eager is so far off that the comparison says nothing.
EXACT_FACTOR = 4.0
EXACT_WORST = 1e-2

Tolerances = dict[torch.dtype, tuple[float, float]]


def tolerances(wider: Tolerances) -> Tolerances:
    """(atol, rtol) by dtype: the defaults, or ``wider`` where that is more."""
    out = dict(DEFAULT_TOLERANCES)
    for dtype, (atol, rtol) in wider.items():
        base = out.get(dtype, (0.0, 0.0))
        out[dtype] = (max(base[0], atol), max(base[1], rtol))
    return out


def describe(tensor: torch.Tensor) -> str:
    strides = "" if tensor.is_contiguous() else f" strides {list(tensor.stride())}"
    return f"{str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)}{strides}"


def same_strides(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Strides of dimensions that have two elements or more."""
    return a.numel() == 0 or all(
        x == y for x, y, size in zip(a.stride(), b.stride(), a.shape, strict=True) if size > 1
    )


def metadata_difference(
    actual: Sequence[torch.Tensor | None],
    expected: Sequence[torch.Tensor],
    recorded: Sequence[torch.Tensor] | None = None,
) -> str:
    """Empty when shapes, dtypes and strides are as expected; strides may also be as ``recorded``."""
    if len(actual) != len(expected):
        return f"{len(actual)} results instead of {len(expected)}"
    for number, (have, want) in enumerate(zip(actual, expected, strict=True)):
        if have is None:
            return f"result {number} is None"
        if have.shape != want.shape or have.dtype != want.dtype:
            return f"result {number} is {describe(have)} instead of {describe(want)}"
        if not same_strides(have, want) and not (
            recorded is not None and same_strides(have, recorded[number])
        ):
            return f"result {number} has strides {have.stride()} instead of {want.stride()}"
    return ""


def plain(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().resolve_conj().resolve_neg()


def value_difference(
    actual: Sequence[torch.Tensor], expected: Sequence[torch.Tensor], allowed: Tolerances
) -> str:
    """Empty when all values are near enough, NaN and infinities in the same places."""
    for number, (have, want) in enumerate(zip(actual, expected, strict=True)):
        atol, rtol = allowed.get(want.dtype, (0.0, 0.0))
        try:
            torch.testing.assert_close(
                plain(have),
                plain(want),
                rtol=rtol,
                atol=atol,
                equal_nan=True,
                check_stride=False,
            )
        except AssertionError as error:
            text = " ".join(str(error).split())
            return f"result {number} ({describe(want)}): {text}"
    return ""


def distance(values: torch.Tensor, exact: torch.Tensor) -> torch.Tensor:
    """Largest relative or, below one, absolute distance; NaN where only one of them is NaN."""
    values, exact = plain(values).to(exact.dtype), plain(exact)
    same = (values == exact) | (values.isnan() & exact.isnan())
    far = ((values - exact).abs() / exact.abs().clamp(min=1.0)).masked_fill(same, 0.0)
    return far.max() if far.numel() else torch.zeros((), dtype=torch.float64)


def as_exact_as(
    actual: Sequence[torch.Tensor],
    eager: Sequence[torch.Tensor],
    exact: Sequence[torch.Tensor],
    allowed: Tolerances,
) -> bool:
    """Whether every result lies about as near to the float64 results as eager's does."""
    if len(exact) != len(eager):
        return False
    for have, want, true in zip(actual, eager, exact, strict=True):
        if not (want.is_floating_point() or want.is_complex()):
            if not torch.equal(have, want):
                return False
            continue
        if true.shape != want.shape:
            return False
        _, rtol = allowed.get(want.dtype, (0.0, 0.0))
        eager_distance = distance(want, true)
        if not bool(eager_distance <= EXACT_WORST):
            return False
        if not bool(distance(have, true) <= EXACT_FACTOR * eager_distance + rtol):
            return False
    return True


# Factorizations are unique up to signs, or to a basis of a subspace. These give what is unique of
# the results: the product, that columns are orthonormal, and the values.


def _svd(results: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    u, s, vh = results
    k = s.size(-1)
    product = (u[..., :k] * s.unsqueeze(-2)) @ vh[..., :k, :]
    return [product, u.mH @ u, vh @ vh.mH, s]


def _svd_v(results: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    u, s, v = results
    return _svd([u, s, v.mH])


def _eigh(results: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    values, vectors = results
    return [(vectors * values.unsqueeze(-2)) @ vectors.mH, vectors.mH @ vectors, values]


def _eig(results: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    values, vectors = results
    product = torch.linalg.solve(vectors, vectors * values.unsqueeze(-2), left=False)
    return [product, vectors.abs().square().sum(-2), values]


def _qr(results: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    q, r = results
    return [q @ r, q.mH @ q, r.abs()]


FACTORS: dict[str, Callable[[Sequence[torch.Tensor]], list[torch.Tensor]]] = {
    "linalg.eig": _eig,
    "linalg.eigh": _eigh,
    "linalg.qr": _qr,
    "linalg.svd": _svd,
    "qr": _qr,
    "svd": _svd_v,
}


def breaks_ties_otherwise(
    source: torch.Tensor, actual: Sequence[torch.Tensor], expected: Sequence[torch.Tensor]
) -> bool:
    """Whether indices differ only in which of several equal elements of ``source`` they name."""
    for have, want in zip(actual, expected, strict=True):
        if have.dtype != torch.int64:
            if not torch.equal(have, want):
                return False
        elif not torch.equal(have, want) and not any(
            _names_equal_elements(source, have, want, dim) for dim in range(source.dim())
        ):
            return False
    return True


def _names_equal_elements(
    source: torch.Tensor, have: torch.Tensor, want: torch.Tensor, dim: int
) -> bool:
    if have.dim() < source.dim():
        have, want = have.unsqueeze(dim), want.unsqueeze(dim)
    sizes = [
        a == b or d == dim for d, (a, b) in enumerate(zip(have.shape, source.shape, strict=True))
    ]
    both = torch.cat([have, want], dim)
    if not all(sizes) or bool((both < 0).any() | (both >= source.size(dim)).any()):
        return False
    in_order = have.sort(dim).values
    if bool((in_order.diff(dim=dim) == 0).any()):
        return False  # one element named twice
    return torch.equal(source.gather(dim, have), source.gather(dim, want))


def looks_alike(actual: Sequence[torch.Tensor], expected: Sequence[torch.Tensor]) -> bool:
    """For random results: the same places finite, and means that a common distribution allows."""
    for have, want in zip(actual, expected, strict=True):
        have, want = plain(have), plain(want)
        if have.is_complex():
            have, want = torch.view_as_real(have), torch.view_as_real(want)
        have, want = have.double(), want.double()
        if have.numel() == 0:
            continue
        if not bool(torch.isfinite(have).all()):
            return False
        spread = torch.maximum(have.std(correction=0), want.std(correction=0))
        allowed = 6 * spread * (2 / have.numel()) ** 0.5 + 1e-6
        # Few numbers say little: their own spread may be far off.
        if have.numel() >= 16 and bool((have.mean() - want.mean()).abs() > allowed):
            return False
    return True
