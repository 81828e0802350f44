"""How one operator at the sizes of real models is judged: beside float64 and eager mode."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch_backplane

# Of the largest value. A block too many or too few is off by more than a hundredth, tails of
# functions by less than this.
ALLOWED = {torch.float32: 3e-3, torch.bfloat16: 6e-2}


def draw(dims: tuple[int, ...], layout: str = "rows", seed: int = 0) -> torch.Tensor:
    """Normal numbers. ``columns``: the last two dims lie the other way; ``channels``: as pictures of
    channels-last networks do."""
    generator = torch.Generator().manual_seed(seed)
    if layout == "columns":
        return draw((*dims[:-2], dims[-1], dims[-2]), seed=seed).transpose(-1, -2)
    drawn = torch.randn(dims, generator=generator)
    return drawn.contiguous(memory_format=torch.channels_last) if layout == "channels" else drawn


def results(
    program: Callable[..., torch.Tensor], tensors: list[torch.Tensor], grad: bool
) -> list[torch.Tensor]:
    given = [tensor.detach().requires_grad_(grad) for tensor in tensors]
    if not grad:
        with torch.no_grad():
            return [program(*given)]
    y = program(*given)
    slope = draw(tuple(y.shape), seed=99).to(y.dtype)
    return [y.detach(), *torch.autograd.grad((y * slope).sum(), given)]


def off(found: torch.Tensor, exact: torch.Tensor) -> float:
    """The largest error, of the largest value; NaN where one alone is NaN or infinite."""
    finite = exact.isfinite()
    if not torch.allclose(found.double()[~finite], exact[~finite], equal_nan=True):
        return math.nan
    found, exact = found.double()[finite], exact[finite]
    if not exact.numel():
        return 0.0
    return float((found - exact).abs().max() / exact.abs().max().clamp(min=1e-30))


def check_sizes(
    program: Callable[..., torch.Tensor],
    inputs: list[torch.Tensor],
    plugin: str,
    dtype: torch.dtype,
    grad: bool,
    compile: Callable[..., Any] = torch_backplane.compile,
) -> tuple[str, str] | None:
    """``(kind, difference)``, or None; also where eager mode refuses."""
    tensors = [tensor.to(dtype) for tensor in inputs]
    try:
        exact = results(program, [tensor.double() for tensor in tensors], grad)
        eager = results(program, tensors, grad)
    except RuntimeError:
        return None
    torch_backplane.reset()
    compiled = compile(program, backend=f"plugin:{plugin}")
    for call in (1, 2):
        try:
            found = results(compiled, tensors, grad)
        except Exception as error:
            return "raises", f"{type(error).__name__}: {error}"
        for i, (ours, theirs, right) in enumerate(zip(found, eager, exact, strict=True)):
            error, allowed = off(ours, right), max(ALLOWED[dtype], 4 * off(theirs, right))
            if not error <= allowed:
                what = "result" if i == 0 else f"gradient {i - 1}"
                return (
                    "differs",
                    f"call {call}, {what}: {error:.2g} of the largest, not {allowed:.2g}",
                )
    return None
