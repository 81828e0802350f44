"""How fast this machine could be: peaks measured in the same run, and the work of a model."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode


def _best(call: Callable[[], Any], seconds: float = 1.0) -> float:
    call()
    best, end = float("inf"), time.perf_counter() + seconds
    while time.perf_counter() < end:
        start = time.perf_counter()
        call()
        best = min(best, time.perf_counter() - start)
    return best


def peak_flops(plugin: str) -> float:
    """Floating-point operations per second of a large float32 matrix product, the best of eager and
    the plugin: a slow library must not make the roof low.
    """
    size = 1536
    a = torch.randn(size, size)
    layer = torch.nn.Linear(size, size, bias=False).requires_grad_(False)
    out = torch.empty(size, size)
    calls = [lambda: torch.mm(a, a, out=out)]
    try:
        compiled = torch.compile(layer, backend=f"plugin:{plugin}")
        compiled(a)
        calls.append(lambda: compiled(a))
    except Exception:  # it is in the table as absent
        pass
    with torch.no_grad():
        return 2 * size**3 / min(_best(call) for call in calls)


def peak_bandwidth() -> float:
    """Bytes per second of adding arrays that fit no cache."""
    count = 48 * 2**20
    a, b, out = torch.ones(count), torch.ones(count), torch.empty(count)
    return 3 * 4 * count / _best(lambda: torch.add(a, b, out=out))


def work(call: Callable[[], Any]) -> int:
    """Floating-point operations of matrix products, convolutions and attention in one call."""
    with FlopCounterMode(display=False) as counter:
        call()
    return counter.get_total_flops()


def traffic(model: torch.nn.Module, inputs: dict[str, Any], training: bool) -> int:
    """Bytes that must move at least: weights and inputs once; their gradients when training."""
    weights = sum(t.nbytes for t in {p.data_ptr(): p for p in model.parameters()}.values())
    fed = sum(t.nbytes for t in inputs.values() if isinstance(t, torch.Tensor))
    return weights * (3 if training else 1) + fed


def bound(flops: int, amount: int, peak: float, bandwidth: float) -> float:
    """Seconds that no implementation can go below."""
    return max(flops / peak, amount / bandwidth)
