"""Our front end beside TorchDynamo: time from a call to a graph, and what a later call costs above it.

Both use a backend that does nothing but run the captured graph with ATen. Calls are timed in
alternating blocks; a ratio is TorchDynamo's time over ours, with the quartiles over the blocks.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch_backplane import _C, frontend


class Chain(nn.Module):
    """One module with a hundred parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(2, 2) for _ in range(50))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = x + layer.weight[0] + layer.bias
        return x


def three(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
    return a + b * c


SUBJECTS: dict[str, Callable[[], tuple[Any, tuple[Any, ...]]]] = {
    "three tensors": lambda: (three, tuple(torch.rand(3) for _ in range(3))),
    "100 parameters": lambda: (Chain().eval(), (torch.rand(2),)),
    "encoder layer": lambda: (
        nn.TransformerEncoderLayer(64, 4, 128, batch_first=True).eval(),
        (torch.rand(2, 8, 64),),
    ),
    "4 encoder layers": lambda: (
        nn.TransformerEncoder(
            nn.TransformerEncoderLayer(64, 4, 128, batch_first=True), 4, enable_nested_tensor=False
        ).eval(),
        (torch.rand(2, 8, 64),),
    ),
    "convolutions": lambda: (
        nn.Sequential(
            *[
                nn.Sequential(nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU())
                for _ in range(8)
            ]
        ).eval(),
        (torch.rand(1, 8, 8, 8),),
    ),
}


def seconds(function: Callable[..., Any], args: tuple[Any, ...], count: int) -> float:
    start = time.perf_counter()
    for _ in range(count):
        function(*args)
    return (time.perf_counter() - start) / count


def first_call(make: Callable[[], Any], args: tuple[Any, ...]) -> float:
    """Fastest of five fresh compilations, so that imports and caches of PyTorch are warm."""
    best = float("inf")
    for _ in range(5):
        torch._dynamo.reset()
        best = min(best, seconds(make(), args, 1))
    return best


def measure(name: str, rounds: int) -> dict[str, Any]:
    target, args = SUBJECTS[name]()
    ours = frontend.compile(target, backend="eager")
    theirs = torch.compile(target, backend="eager", dynamic=False)
    expected = target(*args)
    for compiled in (ours, theirs):
        torch.testing.assert_close(compiled(*args), expected)
    if frontend.counters(ours)["plain_calls"]:
        return {"name": name, "plain": frontend.counters(ours)["plain_reasons"]}
    count = max(20, int(0.02 / seconds(ours, args, 20)))
    blocks: list[tuple[float, float, float]] = []
    for _ in range(rounds):
        blocks.append(
            (seconds(theirs, args, count), seconds(ours, args, count), seconds(target, args, count))
        )
    entry = frontend.entries(ours)[0]
    handle = getattr(ours, "_backplane_compiled", ours)
    captures = {
        "ours": first_call(lambda: frontend.compile(target, backend="eager"), args),
        "theirs": first_call(lambda: torch.compile(target, backend="eager", dynamic=False), args),
    }
    ratios = sorted(t / o for t, o, _ in blocks)
    return {
        "name": name,
        "guards": len(entry["guards"]),
        "guards_us": min(_C.frontend.time_guards(handle, args, 2000) for _ in range(20)) * 1e6,
        "operators": entry["nodes"],
        "first_call_ms": {key: value * 1e3 for key, value in captures.items()},
        "first_call_ratio": captures["theirs"] / captures["ours"],
        "call_us": {
            "theirs": statistics.median(t for t, _, _ in blocks) * 1e6,
            "ours": statistics.median(o for _, o, _ in blocks) * 1e6,
            "uncompiled": statistics.median(p for _, _, p in blocks) * 1e6,
        },
        "call_ratio": statistics.median(ratios),
        "call_ratio_quartiles": (ratios[len(ratios) // 4], ratios[3 * len(ratios) // 4]),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(SUBJECTS))
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--json", type=pathlib.Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows = []
    with torch.no_grad():
        for name in options.names or SUBJECTS:
            row = measure(name, options.rounds)
            rows.append(row)
            if "plain" in row:
                print(f"{name:18} not captured: {row['plain']}")
                continue
            first, call = row["first_call_ms"], row["call_us"]
            print(
                f"{name:18} first call {first['theirs']:8.1f} ms, ours {first['ours']:7.2f} ms "
                f"({row['first_call_ratio']:5.1f}x)   call {call['theirs']:8.1f} us, ours "
                f"{call['ours']:7.1f} us, uncompiled {call['uncompiled']:7.1f} us "
                f"({row['call_ratio']:4.1f}x)   {row['guards']} guards in {row['guards_us']:.2f} us"
            )
    if options.json:
        options.json.write_text(json.dumps(rows, indent=2))


if __name__ == "__main__":
    main()
