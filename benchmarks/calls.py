#!/usr/bin/env python3
"""What a training call costs beside its kernels: forward and backward of eight elements.

    .venv/bin/python benchmarks/calls.py [--plugin cpu_onednn] [--rounds 15]

TorchDynamo's own cost in a mode is what its `eager` back end, which runs the same operators, adds to
eager there; the engine's is that of a program with one view only, by eager. The last two columns are
training without both: what the back end adds, kernels included.
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


def view_only(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return w.view_as(w)


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
    runs = {"eager": program, "one view": view_only} | {
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

    def dynamo(mode: str) -> float:
        return found[mode].median("dynamo alone") - found[mode].median("eager")

    engine = found["train"].median("one view")
    print(
        f"TorchDynamo's own cost: forward {dynamo('infer') * 1e6:.1f} us, "
        f"training {dynamo('train') * 1e6:.1f} us; the engine's {engine * 1e6:.1f} us"
    )
    print(f"{'':26}{'forward':>10}{'training':>10}{'less both':>12}{'ratio':>8}")

    def rest(name: str) -> float:
        captured = name not in ("eager", "one view")
        return found["train"].median(name) - engine - (dynamo("train") if captured else 0.0)

    for name in runs:
        forward, training = found["infer"].median(name), found["train"].median(name)
        ratio = rest(options.plugin) / rest(name) if rest(name) > 0 else float("nan")
        print(
            f"{name:26}{forward * 1e6:8.1f}us{training * 1e6:8.1f}us{rest(name) * 1e6:10.1f}us"
            f"{ratio:8.2f}"
        )


if __name__ == "__main__":
    main()
