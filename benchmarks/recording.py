#!/usr/bin/env python3
"""Time to the joint graph: the recorder beside PyTorch's AOTAutograd, on the graphs that TorchDynamo
captures, in alternation in one process.

    .venv/bin/python benchmarks/recording.py [--model NAME] [--mode inference] [--rounds 3]

AOTAutograd's time includes its partitioner and metadata pass, with compilers that do nothing; it has
no entry that stops before. The first recording of a process meets each operator for the first time
and is given apart. Two lines a model: best of all rounds, and their ratio.

    .venv/bin/python benchmarks/recording.py --compile cpu_onednn …

measures a whole back end instead, from TorchDynamo's graph to a callable, caches off: the plugin
beside Inductor. One round each; Inductor takes tens of seconds a model.
"""

from __future__ import annotations

import argparse
import copy
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from typing import Any

import subjects
import torch
from models import zoo
from torch._functorch.aot_autograd import aot_module_simplified, make_boxed_func
from torch._inductor.compile_fx import compile_fx
from torch_backplane import _C, decompositions
from torch_backplane.backend import compile_frame


def trace_with_aot(module: Any, inputs: list[Any]) -> float:
    def compiler(graph: Any, _: Any) -> Any:
        return make_boxed_func(graph.forward)

    start = time.perf_counter()
    aot_module_simplified(
        module,
        inputs,
        fw_compiler=compiler,
        bw_compiler=compiler,
        inference_compiler=compiler,
        decompositions=decompositions.table(),
        keep_inference_input_mutations=False,
    )
    return time.perf_counter() - start


def compile_plugin(plugin: str, module: Any, inputs: list[Any]) -> float:
    with tempfile.TemporaryDirectory() as folder:
        os.environ["BACKPLANE_CACHE_DIR"] = folder
        start = time.perf_counter()
        compile_frame(plugin, module, inputs, options={"report": False})
        return time.perf_counter() - start


def compile_with_inductor(module: Any, inputs: list[Any]) -> float:
    with torch._inductor.config.patch(force_disable_caches=True):
        start = time.perf_counter()
        compile_fx(copy.deepcopy(module), inputs)
        return time.perf_counter() - start


def capture(name: str, mode: str, size: str, backend: Callable[..., Any]) -> None:
    """Gives each graph that TorchDynamo captures of the model to `backend`."""
    subject = subjects.Subject(name, mode, size)
    with subject.environment():
        torch.compile(subject.build(), backend=backend)(**subject.inputs)
    torch._dynamo.reset()


def measure_compile(name: str, mode: str, size: str, plugin: str) -> list[str]:
    lines: list[str] = []

    def backend(module: Any, inputs: list[Any]) -> Any:
        ours = compile_plugin(plugin, module, inputs)
        again = compile_plugin(plugin, module, inputs)
        theirs = compile_with_inductor(module, inputs)
        lines.append(
            f"{name:12} {mode:9} {plugin} {ours * 1e3:7.0f} ms, again {again * 1e3:6.0f} ms"
            f"  Inductor {theirs * 1e3:7.0f} ms  ratio {theirs / ours:5.1f}"
        )
        return module.forward

    capture(name, mode, size, backend)
    return lines


def measure(name: str, mode: str, size: str, rounds: int) -> list[str]:
    """A line for each graph that is captured."""
    lines: list[str] = []

    def backend(module: Any, inputs: list[Any]) -> Any:
        first = _C.record_fx(module, inputs)
        if not first.ok:
            lines.append(f"{name:12} {mode:9} refused: {first.reason}")
            return module.forward
        ours, theirs = [], []
        for _ in range(rounds):
            ours += [_C.record_fx(module, inputs).record_ns / 1e9 for _ in range(4)]
            theirs.append(trace_with_aot(module, inputs))
        nodes = len(first.operators)
        lines.append(
            f"{name:12} {mode:9} {first.forward_node_count:5} + {nodes - first.forward_node_count:<5}"
            f" first {first.record_ns / 1e6:7.1f} ms  best {min(ours) * 1e3:6.2f} ms"
            f"  median {statistics.median(ours) * 1e3:6.2f} ms"
            f"  AOTAutograd best {min(theirs) * 1e3:7.0f} ms"
            f"  ratio {min(theirs) / min(ours):5.0f}"
            f"  shapes by Python {first.shape_counts['python']}"
        )
        return module.forward

    capture(name, mode, size, backend)
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", action="append", choices=zoo.names())
    parser.add_argument("--mode", action="append", choices=subjects.MODES)
    parser.add_argument("--size", default="small", choices=zoo.SIZES)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--compile", metavar="PLUGIN")
    options = parser.parse_args()
    torch.set_num_threads(1)
    for name in options.model or zoo.names():
        if not zoo.case(name).available():
            continue
        for mode in options.mode or subjects.MODES:
            lines = (
                measure_compile(name, mode, options.size, options.compile)
                if options.compile
                else measure(name, mode, options.size, options.rounds)
            )
            for line in lines:
                print(line, flush=True)


if __name__ == "__main__":
    main()
