#!/usr/bin/env python3
"""What a training call costs beside its kernels: forward and backward of eight elements.

    .venv/bin/python benchmarks/calls.py [--plugin cpu_onednn] [--rounds 15]

TorchDynamo's own cost is what its `eager` back end adds to a forward without gradients. The last two
columns are without it; the engine's own cost of a backward, which eager pays too, is in all of them.
"""

from __future__ import annotations

import argparse
import types
from collections.abc import Callable
from typing import Any

import measure
import torch
import torch_backplane


def program(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return (x * w).sin()


def copy_of(function: Callable[..., Any], name: str) -> Any:
    """A code object of its own: TorchDynamo's cache belongs to it."""
    return types.FunctionType(function.__code__.replace(co_name=name), globals())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--plugin", default="cpu_onednn")
    parser.add_argument("--rounds", type=int, default=15)
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch_backplane.plugins()
    x, w = torch.randn(8), torch.randn(8, requires_grad=True)
    tangent = torch.ones(8)
    quiet: dict[str, Any] = {"report": False}
    settings: dict[str, dict[str, Any]] = {
        "dynamo alone": {"backend": "eager"},
        "aot_eager": {"backend": "aot_eager"},
        "inductor": {"backend": "inductor"},
        options.plugin: {"backend": f"plugin:{options.plugin}", "options": quiet},
        f"{options.plugin}, AOTAutograd": {
            "backend": f"plugin:{options.plugin}",
            "options": {**quiet, "recorder": False},
        },
    }
    runs = {"eager": program} | {
        name: torch.compile(copy_of(program, f"program_{i}"), **setting)
        for i, (name, setting) in enumerate(settings.items())
    }

    def train(run: Callable[..., torch.Tensor]) -> None:
        torch.autograd.backward([run(x, w)], [tangent], inputs=[w])
        w.grad = None

    def infer(run: Callable[..., torch.Tensor]) -> None:
        with torch.no_grad():
            run(x, w)

    found = {}
    for mode, call in (("infer", infer), ("train", train)):
        candidates = {name: (lambda run=run, call=call: call(run)) for name, run in runs.items()}
        found[mode] = measure.alternate(candidates, rounds=options.rounds, block_s=0.05, micro=True)
    dynamo = found["infer"].median("dynamo alone") - found["infer"].median("eager")
    print(f"TorchDynamo's own cost: {dynamo * 1e6:.1f} us")
    print(f"{'':26}{'forward':>10}{'training':>10}{'less TorchDynamo':>18}{'ratio':>8}")
    ours = found["train"].median(options.plugin) - dynamo
    for name in runs:
        forward, training = found["infer"].median(name), found["train"].median(name)
        rest = training - (0 if name == "eager" else dynamo)
        print(
            f"{name:26}{forward * 1e6:8.1f}us{training * 1e6:8.1f}us{rest * 1e6:16.1f}us"
            f"{ours / rest:8.2f}"
        )


if __name__ == "__main__":
    main()
