"""Whether results are right."""

from __future__ import annotations

from collections.abc import Sequence

import torch

# Factor on the relative tolerance of torch.testing.assert_close. Its default allows float32 about
# eleven units in the last place, which a sum in another order, or an exponential with another
# polynomial, exceeds; ten times that is still three digits better than bfloat16.
RTOL_FACTOR = 1.0
DEFAULT_TOLERANCES = {
    torch.float16: (1e-5, 1e-3),
    torch.bfloat16: (1e-5, 1.6e-2),
    torch.float32: (1e-5, 1.3e-6),
    torch.float64: (1e-7, 1e-7),
    torch.complex32: (1e-5, 1e-3),
    torch.complex64: (1e-5, 1.3e-6),
    torch.complex128: (1e-7, 1e-7),
}
# Where both miss the exact result, a plugin may miss it by this many times eager's distance.
EXACT_FACTOR = 4.0

Tolerances = dict[torch.dtype, tuple[float, float]]


def tolerances(wider: Tolerances) -> Tolerances:
    """(atol, rtol) by dtype: PyTorch's own, ten times the rtol, or ``wider`` where that is more."""
    out = {dtype: (atol, rtol * RTOL_FACTOR) for dtype, (atol, rtol) in DEFAULT_TOLERANCES.items()}
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
        bound = EXACT_FACTOR * distance(want, true) + rtol
        if not bool(distance(have, true) <= bound):
            return False
    return True


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
