"""What a plugin in a process of its own costs, beside the same library in the program.

A program for each way, both alive for the whole row; blocks of warm calls go to them in turn, there
and back (A B B A), and one ratio is that of a pair. Results are compared with eager's.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import time
from typing import Any

import measure
import subjects
import torch
from torch import nn

ROUNDS = 15
WAYS = {"in-process": "", "isolated": "process"}
MLP = "mlp"  # beside the models of the zoo: three layers, of which a call takes little


def _mlp() -> tuple[nn.Module, torch.Tensor]:
    layers = [nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 10)]
    return nn.Sequential(*layers), torch.randn(8, 64)


class Program:
    """One way, as a process that runs blocks of calls when it is told to."""

    def __init__(self, way: str, model: str, mode: str, plugin: str, threads: int) -> None:
        command = [sys.executable, __file__, "--serve", model, mode, plugin]
        environment = {**os.environ, "BACKPLANE_ISOLATION": way, "OMP_NUM_THREADS": str(threads)}
        environment.pop("OMP_WAIT_POLICY", None)
        self.process = subprocess.Popen(
            command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.ask(0)

    def ask(self, seconds: float) -> float:
        """The median of a block's calls, in seconds; of 0 s, when it is ready."""
        assert self.process.stdin is not None and self.process.stdout is not None
        print(seconds, file=self.process.stdin, flush=True)
        for line in self.process.stdout:
            if line.startswith("RESULT "):
                return float(line.removeprefix("RESULT "))
        raise RuntimeError(f"the program ended with {self.process.wait()}")

    def end(self) -> None:
        self.process.kill()
        self.process.wait()


def serve(model: str, mode: str, plugin: str) -> None:
    torch.manual_seed(0)
    backend = {"backend": f"plugin:{plugin}"}
    if model == MLP:
        network, inputs = _mlp()
        run = torch.compile(network, **backend)

        def call() -> Any:
            if mode == "inference":
                with torch.no_grad():
                    return run(inputs)
            network.zero_grad()
            return run(inputs).square().mean().backward()

        with torch.no_grad():
            fault = (run(inputs) - network(inputs)).abs().max().item()
        wrong = "" if fault < subjects.LIMIT else f"wrong by {fault}"
    else:
        subject = subjects.Subject(model, mode)
        with subject.environment():
            network, plain = subject.build(), subject.build()
            run = torch.compile(network, **backend)
            wrong = subject.find_fault(subject.result(network, run), subject.result(plain, plain))
            made = subject.call(network, run)

        def call() -> Any:
            with subject.environment():
                return made()

    if wrong:
        sys.exit(f"{model}: {wrong}")
    for _ in range(5):
        call()
    for line in sys.stdin:
        samples = [0.0]
        end = time.perf_counter() + float(line)
        while time.perf_counter() < end:
            start = time.perf_counter()
            call()
            samples.append(time.perf_counter() - start)
        print("RESULT", statistics.median(samples[1:] or samples), flush=True)


def compare(model: str, mode: str, plugin: str, threads: int, block: float = 0.3) -> dict[str, Any]:
    programs = {name: Program(way, model, mode, plugin, threads) for name, way in WAYS.items()}
    try:
        seconds: dict[str, list[float]] = {name: [] for name in programs}
        for _ in range(ROUNDS):
            pairs: dict[str, list[float]] = {name: [] for name in programs}
            for name in (*programs, *reversed(programs)):
                pairs[name].append(programs[name].ask(block))
            for name, both in pairs.items():
                seconds[name].append(statistics.mean(both))
    finally:
        for program in programs.values():
            program.end()
    here, there = seconds.values()
    ratio = measure.bootstrap([b / a for a, b in zip(here, there, strict=True)])
    return {
        "model": model,
        "mode": mode,
        "threads": threads,
        "seconds": {name: statistics.median(values) for name, values in seconds.items()},
        "ratio": [ratio.value, ratio.low, ratio.high],
    }


def show_isolation(
    models: list[str], plugin: str, threads: list[int], json_path: pathlib.Path | None
) -> int:
    rows = []
    print(f"{'model':12} {'mode':10} threads  in-process    isolated  ratio")
    for model in (MLP, *models):
        for mode in subjects.MODES:
            for count in threads:
                row = compare(model, mode, plugin, count)
                rows.append(row)
                here, there = (1e3 * s for s in row["seconds"].values())
                value, low, high = row["ratio"]
                print(
                    f"{model:12} {mode:10} {count:7}  {here:7.3f} ms  {there:7.3f} ms  "
                    f"{value:.2f} [{low:.2f}, {high:.2f}]",
                    flush=True,
                )
    if json_path:
        json_path.write_text(json.dumps(rows, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--serve", nargs=3, metavar=("MODEL", "MODE", "PLUGIN"), required=True)
    serve(*parser.parse_args().serve)
