"""When a result is as good as PyTorch's own.

Rounding differs between two correct kernels, so equality is the wrong question. The oracle is the
same model in float64: what is compared must not be much further from it than eager is.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn


@dataclass(frozen=True)
class Tolerance:
    """Errors are root mean squares. Passes: error <= factor * eager's error + share * size."""

    factor: float
    share: float  # of the tensor's own size
    small_share: float  # the same for tensors of less than 1000 elements: one error is no statistic
    floor: float  # of the largest of all tensors compared: gradients that are zero but for rounding


FLOAT32 = Tolerance(factor=3.0, share=1e-6, small_share=1e-5, floor=1e-6)
BFLOAT16 = Tolerance(factor=3.0, share=2e-3, small_share=1.5e-2, floor=2e-3)


def rms(tensor: torch.Tensor) -> float:
    return tensor.double().square().mean().sqrt().item() if tensor.numel() else 0.0


def to_float64(value: Any) -> Any:
    """A copy of a model, or of inputs, in float64."""
    if isinstance(value, nn.Module):
        return copy.deepcopy(value).double()
    if isinstance(value, torch.Tensor):
        return value.double() if value.is_floating_point() else value
    if isinstance(value, Mapping):
        return {name: to_float64(item) for name, item in value.items()}
    return value


def _mismatch(actual: torch.Tensor, eager: torch.Tensor) -> str:
    if actual.shape != eager.shape:
        return f"shape {tuple(actual.shape)}, expected {tuple(eager.shape)}"
    if actual.dtype != eager.dtype:
        return f"dtype {actual.dtype}, expected {eager.dtype}"
    strides = [
        (a, b)
        for size, a, b in zip(eager.shape, actual.stride(), eager.stride(), strict=True)
        if size > 1 and eager.numel()
    ]
    if any(a != b for a, b in strides):
        return f"strides {actual.stride()}, expected {eager.stride()}"
    if not torch.equal(actual.isnan(), eager.isnan()):
        return f"{actual.isnan().sum()} NaN, expected {eager.isnan().sum()} or at other places"
    if not torch.equal(actual.isinf(), eager.isinf()):
        return f"{actual.isinf().sum()} infinities, expected {eager.isinf().sum()}"
    return ""


def differences(
    actual: Mapping[str, torch.Tensor | None],
    eager: Mapping[str, torch.Tensor | None],
    exact: Mapping[str, torch.Tensor | None],
    tolerance: Tolerance = FLOAT32,
) -> list[str]:
    """One line for each tensor that is wrong."""
    out = []
    largest = max((rms(t) for t in exact.values() if t is not None), default=0.0)
    for name, expected in eager.items():
        got, oracle = actual[name], exact[name]
        if expected is None or got is None:
            if expected is not got:
                out.append(f"{name}: {'None' if got is None else 'a tensor'}, unlike eager")
            continue
        fault = _mismatch(got.detach(), expected.detach())
        if fault:
            out.append(f"{name}: {fault}")
            continue
        if not expected.is_floating_point():
            if not torch.equal(got, expected):
                out.append(f"{name}: {(got != expected).sum()} of {got.numel()} integers differ")
            continue
        finite = expected.detach().isfinite() & oracle.detach().isfinite()
        error = rms((got.detach().double() - oracle.detach())[finite])
        eager_error = rms((expected.detach().double() - oracle.detach())[finite])
        share = tolerance.small_share if got.numel() < 1000 else tolerance.share
        allowed = tolerance.factor * eager_error + share * rms(oracle[finite])
        allowed += tolerance.floor * largest
        if not error <= allowed:
            out.append(
                f"{name}: error {error:.2e}, allowed {allowed:.2e} "
                f"(eager's {eager_error:.2e}, size {rms(oracle):.2e})"
            )
    return out


def assert_as_good(
    actual: Mapping[str, torch.Tensor | None],
    eager: Mapping[str, torch.Tensor | None],
    exact: Mapping[str, torch.Tensor | None],
    tolerance: Tolerance = FLOAT32,
) -> None:
    wrong = differences(actual, eager, exact, tolerance)
    more = "" if len(wrong) <= 8 else f"\n  and {len(wrong) - 8} more"
    assert not wrong, f"{len(wrong)} of {len(eager)} tensors:\n  " + "\n  ".join(wrong[:8]) + more
