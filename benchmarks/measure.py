"""Paired timing on a shared machine: only ratios of blocks that ran side by side count.

A round runs short blocks of all candidates forth and back (A B B A, or A B C C B A), so that a drift
of the machine's speed hits all of them alike. A calibration kernel runs before every block; rounds
in which it was more than 5 % slower than usual had other load beside them and are dropped.
"""

from __future__ import annotations

import dataclasses
import statistics
import time
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch

Call = Callable[[], object]

DISTURBED = 1.05  # calibration kernel against its usual time
SAMPLE_S = 2e-4  # shorter calls are timed several at once


@dataclasses.dataclass(frozen=True)
class Interval:
    """The median of paired ratios with its bootstrap 95 % interval."""

    value: float
    low: float
    high: float

    def contains(self, value: float) -> bool:
        return self.low <= value <= self.high

    def __str__(self) -> str:
        return f"{self.value:.3f} [{self.low:.3f}, {self.high:.3f}]"


@dataclasses.dataclass(frozen=True)
class Series:
    """Seconds per call of each candidate, by undisturbed round."""

    seconds: Mapping[str, Sequence[float]]
    rounds: int
    dropped: int
    quiet: bool  # enough undisturbed rounds; else `seconds` holds all rounds

    def median(self, name: str) -> float:
        return statistics.median(self.seconds[name])

    def ratio(self, of: str, to: str) -> Interval:
        """How many times faster `to` is than `of`: above one means that `to` wins."""
        return bootstrap([a / b for a, b in zip(self.seconds[of], self.seconds[to], strict=True)])


def bootstrap(ratios: Sequence[float], samples: int = 4000, seed: int = 0) -> Interval:
    values = np.asarray(ratios)
    picks = np.random.default_rng(seed).integers(0, len(values), (samples, len(values)))
    medians = np.median(values[picks], axis=1)
    low, high = np.percentile(medians, [2.5, 97.5])
    return Interval(float(np.median(values)), float(low), float(high))


class Calibration:
    """A small matrix product, whose time says how fast the machine is right now."""

    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(0)
        self.a = torch.randn(384, 384, generator=generator)
        self.out = torch.empty(384, 384)

    def __call__(self) -> float:
        best = float("inf")
        with torch.no_grad():
            for _ in range(6):
                start = time.perf_counter()
                torch.mm(self.a, self.a, out=self.out)
                best = min(best, time.perf_counter() - start)
        return best


def cpu_seconds(call: Call, budget_s: float = 1.0) -> float:
    """CPU time of one call over all threads, the least of several."""
    best, total = float("inf"), 0.0
    while total < budget_s:
        start = time.process_time()
        for _ in range(5):
            call()
        spent = time.process_time() - start
        total += spent
        best = min(best, spent / 5)
    return best


def _estimate(call: Call) -> float:
    start = time.perf_counter()
    call()
    once = time.perf_counter() - start
    repeat = max(1, min(100, int(SAMPLE_S / max(once, 1e-7))))
    start = time.perf_counter()
    for _ in range(repeat):
        call()
    return (time.perf_counter() - start) / repeat


def _block(call: Call, repeat: int, block_s: float) -> list[float]:
    samples = []
    end = time.perf_counter() + block_s
    while True:
        start = time.perf_counter()
        for _ in range(repeat):
            call()
        now = time.perf_counter()
        samples.append((now - start) / repeat)
        if now >= end:
            return samples


def alternate(
    candidates: Mapping[str, Call],
    *,
    rounds: int = 15,
    block_s: float = 0.3,
    micro: bool = False,
    limit: int | None = None,
    budget_s: float = float("inf"),
) -> Series:
    """Times the candidates until `rounds` rounds were undisturbed, or `limit` (twice as many) ran.

    It also stops after `budget_s` seconds, but not before five rounds. Each round counts for a candidate with the median
    of its samples, or with the minimum when `micro`.
    """
    limit = limit or 2 * rounds
    reduce = min if micro else statistics.median
    calibration = Calibration()
    calibration()
    repeat = {}
    for name, call in candidates.items():
        call()
        repeat[name] = max(1, int(SAMPLE_S / max(_estimate(call), 1e-7)))
    order = [*candidates, *reversed(candidates)]
    seconds: dict[str, list[float]] = {name: [] for name in candidates}
    speeds: list[float] = []  # the slowest calibration of each round
    everything: list[float] = []
    start = time.perf_counter()
    while True:
        samples: dict[str, list[float]] = {name: [] for name in candidates}
        checks = []
        for name in order:
            checks.append(calibration())
            samples[name] += _block(candidates[name], repeat[name], block_s)
        checks.append(calibration())
        for name, values in samples.items():
            seconds[name].append(reduce(values))
        speeds.append(max(checks))
        everything += checks
        usual = float(np.percentile(everything, 25))
        kept = [i for i, speed in enumerate(speeds) if speed <= DISTURBED * usual]
        if len(kept) >= rounds or len(speeds) >= limit:
            break
        if len(speeds) >= 5 and time.perf_counter() - start > budget_s:
            break
    quiet = len(kept) >= rounds
    if quiet:
        seconds = {name: [values[i] for i in kept] for name, values in seconds.items()}
    return Series(seconds, len(speeds), len(speeds) - len(kept), quiet)
