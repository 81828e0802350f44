"""Ratios of a plugin to PyTorch's own back ends, on real models, side by side in one process each.

Each row is measured in a process of its own with alternating blocks; every result is compared with
eager's before and after. A ratio above one means that the plugin is faster; "+" and "-" mark claims:
intervals without 1.0 and effects above 3 %. A training step is forward and backward.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import pathlib
import platform
import subprocess
import sys
import tempfile
from typing import Any

import groups
import operators
import report
import roofline
import subjects
import torch
from capturing import show_capturing
from isolation import show_isolation

WORKER = pathlib.Path(__file__).with_name("worker.py")


def work(what: str, threads: int, caches: str, **settings: Any) -> dict[str, Any]:
    """Runs one measurement in a fresh process."""
    command = [sys.executable, str(WORKER), what, "--threads", str(threads)]
    for name, value in settings.items():
        command += [f"--{name}", str(value)]
    pathlib.Path(f"{caches}/pocl").mkdir(exist_ok=True)
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": str(threads),
        "POCL_MAX_PTHREAD_COUNT": str(threads),  # else as many as there are cores
        "TORCHINDUCTOR_CACHE_DIR": f"{caches}/inductor",
        "BACKPLANE_CACHE_DIR": f"{caches}/backplane",
        "POCL_CACHE_DIR": f"{caches}/pocl",
    }
    # The passive policy slows eager mode with several threads down, to half its speed and less.
    environment.pop("OMP_WAIT_POLICY", None)
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    for line in done.stdout.splitlines():
        if line.startswith("RESULT "):
            return json.loads(line.removeprefix("RESULT "))
    last = (done.stderr.strip().splitlines() or ["no output"])[-1]
    return {"error": f"exit status {done.returncode}: {last[:160]}"}


def versions() -> dict[str, str]:
    found = {"python": platform.python_version(), "torch": torch.__version__}
    for package in ("torch-backplane", "openvino", "transformers"):
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            found[package] = "absent"
    found["cpu"] = next(
        (
            line.partition(":")[2].strip()
            for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines()
            if line.startswith("model name")
        ),
        platform.machine(),
    )
    found["features"] = torch.backends.cpu.get_cpu_capability()
    found["cores"] = str(len(os.sched_getaffinity(0)))
    return found


class Run:
    def __init__(self, options: argparse.Namespace, caches: str) -> None:
        self.options = options
        self.caches = caches
        self.modes = (
            ["training"] if options.training else ["inference"] if options.quick else subjects.MODES
        )
        self.threads = options.threads or ([1] if options.quick else [1, 2])
        self.backends = [options.plugin, *options.beside]
        if options.inductor_best:
            self.backends.append("inductor-best")
        self.pace = {"rounds": 15, "block": 0.1 if options.quick else 0.3}
        if options.quick:
            self.pace["budget"] = 60

    def note(self, text: str) -> None:
        print(f"bench: {text}", file=sys.stderr, flush=True)

    def steady(self, model: str, mode: str, threads: int, roof: dict[str, Any]) -> dict[str, Any]:
        self.note(f"{model}, {mode}, {threads} threads")
        row = work(
            "steady",
            threads,
            self.caches,
            model=model,
            mode=mode,
            size=self.options.size,
            plugin=self.options.plugin,
            backends=",".join(self.backends),
            **self.pace,
        )
        row |= {"model": model, "mode": mode, "threads": threads}
        ours = row.get("seconds", {}).get(self.options.plugin)
        if ours and "flops" in roof:
            bound = roofline.bound(row["flops"], row["bytes"], roof["flops"], roof["bandwidth"])
            row["roof"] = bound / ours
        found = {name: f"{ratio['value']:.2f}" for name, ratio in row.get("ratios", {}).items()}
        self.note(f"{model}: {row.get('error') or found}")
        return row

    def first(self, model: str, mode: str, backend: str, steady: dict[str, Any]) -> dict[str, Any]:
        """Cold and warm first calls: the second process finds what the first one left on disk."""
        self.note(f"{model}, {mode}: first call with {backend}")
        row: dict[str, Any] = {"model": model, "mode": mode, "backend": backend}
        settings = {
            "model": model,
            "mode": mode,
            "size": self.options.size,
            "plugin": self.options.plugin,
            "backends": backend,
        }
        with tempfile.TemporaryDirectory(prefix="backplane-bench-") as caches:
            cold, warm = (work("first", self.threads[-1], caches, **settings) for _ in range(2))
        if "error" in cold or "error" in warm:
            return row | {"error": cold.get("error") or warm["error"]}
        row |= {"cold": cold["seconds"], "warm": warm["seconds"]}
        self.note(f"{model}: {backend} {row['cold']:.1f} s cold, {row['warm']:.1f} s warm")
        row |= {"compile_peak": cold["compile_peak"], "peak": cold["peak"]}
        seconds = steady.get("seconds", {})
        if backend in seconds and seconds[backend] < seconds["eager"]:
            row["break_even_calls"] = cold["seconds"] / (seconds["eager"] - seconds[backend])
        return row

    def run(self) -> dict[str, Any]:
        options = self.options
        result: dict[str, Any] = {
            "versions": versions(),
            "plugin": options.plugin,
            "size": options.size,
        }
        result["calibration"], result["overhead"] = {}, {}
        for threads in self.threads:
            self.note(f"calibration and call overhead, {threads} threads")
            result["calibration"][threads] = work(
                "calibrate", threads, self.caches, plugin=options.plugin
            )
            result["overhead"][threads] = work(
                "overhead",
                threads,
                self.caches,
                plugin=options.plugin,
                backends=",".join(self.backends),
            )
        result["steady"] = [
            self.steady(model, mode, threads, result["calibration"][threads])
            for model in options.models
            for mode in self.modes
            for threads in self.threads
        ]
        by_key = {(r["model"], r["mode"], r["threads"]): r for r in result["steady"]}
        result["first"] = [
            self.first(model, mode, backend, by_key[model, mode, self.threads[-1]])
            for model in ([] if options.no_first else options.models)
            for mode in self.modes
            for backend in ("eager", options.plugin, "inductor")
            if backend in self.backends
        ]
        others = [name for name in self.backends if name != options.plugin]
        result["summary"] = report.summary(result["steady"], options.plugin, others)
        return result

    def show(self, result: dict[str, Any]) -> None:
        plugin = self.options.plugin
        others = [name for name in self.backends if name != plugin]
        print(", ".join(f"{name} {value}" for name, value in result["versions"].items()))
        for threads, roof in result["calibration"].items():
            if "error" in roof:
                print(f"{threads} threads: calibration failed: {roof['error']}")
                continue
            print(
                f"{threads} threads: {roof['flops'] / 1e9:.0f} GFLOP/s in a matrix product, "
                f"{roof['bandwidth'] / 1e9:.0f} GB/s in adding arrays"
            )
            calls = result["overhead"][threads]
            times = [f"{n} {s * 1e6:.1f} us" for n, s in calls.get("seconds", {}).items()]
            times += [f"{name} absent" for name in calls.get("absent", {})]
            print(f"  one addition on one value: {', '.join(times) or calls.get('error')}")
        print()
        print(report.steady_table(result["steady"], plugin, others))
        if result["first"]:
            print()
            print(report.first_table(result["first"]))
        print()
        print(report.summary_table(result["summary"]))
        for row in result["steady"]:
            for name, why in row.get("absent", {}).items():
                print(
                    f"absent: {name} on {row['model']} {row['mode']} {row['threads']} threads: {why}"
                )


def show_costs(plugin: str, threads: int) -> int:
    """What a call costs beside its kernels' work, and what compiling costs; 1 where that failed."""
    with tempfile.TemporaryDirectory(prefix="backplane-bench-") as caches:
        launch = work("launch", threads, caches, plugin=plugin)
    with tempfile.TemporaryDirectory(prefix="backplane-bench-") as caches:
        cold, warm = (work("compile_first", threads, caches, plugin=plugin) for _ in range(2))
    if any("error" in row for row in (launch, cold, warm)):
        print(f"costs: {launch.get('error') or cold.get('error') or warm['error']}")
        return 1
    print(
        f"{'a call':22} {threads} threads: {launch['executable'] * 1e6:.1f} us an executable, "
        f"{launch['node'] * 1e6:.2f} us a node"
    )
    print(
        f"{'compiling a network':22} {threads} threads: {cold['seconds']:.2f} s cold "
        f"({cold['cpu']:.2f} s of CPU), {warm['seconds']:.2f} s from the cache "
        f"({warm['cpu']:.2f} s of CPU)"
    )
    return 0


def show_groups(plugin: str, threads: list[int]) -> int:
    """A table of single groups of operators; 1 where one could not be measured."""
    failed = 0
    for count in threads:
        failed |= show_costs(plugin, count)
    with tempfile.TemporaryDirectory(prefix="backplane-bench-") as caches:
        for count in threads:
            for name in groups.NAMES:
                row = work("group", count, caches, group=name, plugin=plugin, block=0.1, rounds=9)
                failed |= "error" in row
                found = row.get("error") or (
                    f"{row['ratio']['value']:.2f} [{row['ratio']['low']:.2f}, "
                    f"{row['ratio']['high']:.2f}] of eager, by CPU time {row['cpu_ratio']:.2f}"
                )
                print(f"{name:22} {count} threads: {found}", flush=True)
    return int(failed)


def show_memory(plugin: str, models: list[str], size: str, json_path: pathlib.Path | None) -> int:
    """A table of what one training step needs; 1 where a model could not be measured."""
    with tempfile.TemporaryDirectory(prefix="backplane-bench-") as caches:
        rows = [
            {"model": model} | work("memory", 1, caches, model=model, size=size, plugin=plugin)
            for model in models
        ]
    print(report.memory_table(rows, plugin))
    if json_path:
        json_path.write_text(json.dumps(rows, indent=1) + "\n")
    return int(any("error" in row for row in rows))


def show_budget(plugin: str, models: list[str], size: str, plot: pathlib.Path | None) -> int:
    """A table per model over the memory budget; the pictures go to PLOT with the model's name."""
    failed = 0
    with tempfile.TemporaryDirectory(prefix="backplane-bench-") as caches:
        for model in models:
            found = work(
                "budget", 1, caches, model=model, size=size, plugin=plugin, rounds=15, block=0.3
            )
            if "error" in found:
                print(f"{model}: {found['error']}")
                failed = 1
                continue
            print(f"{model}, {size}\n{report.budget_table(found['points'])}\n")
            if plot:
                path = plot.with_stem(f"{plot.stem}_{model}")
                path.write_text(report.budget_plot(model, found["points"]))
    return failed


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--models", type=lambda text: text.split(","), help="those of the zoo, by their names"
    )
    parser.add_argument("--plugin", default="cpu_onednn")
    parser.add_argument("--size", default="base", choices=["small", "base"])
    parser.add_argument(
        "--threads", type=lambda text: [int(t) for t in text.split(",")], help="1,2"
    )
    parser.add_argument("--quick", action="store_true", help="inference, one thread, short blocks")
    parser.add_argument("--training", action="store_true", help="training steps only")
    parser.add_argument("--no-first", action="store_true", help="leave out first calls and memory")
    parser.add_argument(
        "--beside",
        type=lambda text: text.split(","),
        default=["eager", "inductor", "openvino"],
        help="the back ends to compare with, by their names, eager among them",
    )
    parser.add_argument("--inductor-best", action="store_true", help="also Inductor's best options")
    parser.add_argument("--json", type=pathlib.Path, help="write everything to this file")
    parser.add_argument("--plot", type=pathlib.Path, help="write a picture (SVG) to this file")
    parser.add_argument("--groups", action="store_true", help="single groups of operators alone")
    parser.add_argument(
        "--operators", action="store_true", help="single operators beside eager mode alone"
    )
    parser.add_argument("--memory", action="store_true", help="peaks of training steps alone")
    parser.add_argument("--budget", action="store_true", help="training over memory_budget alone")
    parser.add_argument("--capturing", action="store_true", help="our front end beside TorchDynamo")
    parser.add_argument("--isolation", action="store_true", help="what a worker process costs")
    options = parser.parse_args()
    known = subjects.backends(options.plugin)
    if unknown := set(options.beside) - set(known):
        parser.error(f"no back ends {sorted(unknown)}; there are {', '.join(known)}")
    if "eager" not in options.beside:
        parser.error("--beside wants eager too: results are compared with its")
    if options.groups:
        return show_groups(options.plugin, options.threads or [1, 2])
    if options.operators:
        return operators.show(options.plugin, training=options.training)
    # Timing each takes long, capturing does not.
    if options.models is None:
        options.models = subjects.zoo.names() if options.capturing else list(subjects.MODELS)
    unknown = set(options.models) - set(subjects.zoo.names())
    if unknown:
        parser.error(f"no models {sorted(unknown)}; there are {', '.join(subjects.zoo.names())}")
    if options.memory:
        return show_memory(options.plugin, options.models, options.size, options.json)
    if options.capturing:
        found = show_capturing(options.models, options.plugin, rounds=15)
        if options.json:
            options.json.write_text(json.dumps(found, indent=1) + "\n")
        return 0
    if options.isolation:
        threads = options.threads or [1, 2]
        return show_isolation(options.models, options.plugin, threads, options.json)
    if options.budget:
        return show_budget(options.plugin, options.models, options.size, options.plot)
    with tempfile.TemporaryDirectory(prefix="backplane-bench-") as caches:
        run = Run(options, caches)
        result = run.run()
    run.show(result)
    if options.json:
        options.json.write_text(json.dumps(result, indent=1) + "\n")
    if options.plot:
        others = [name for name in run.backends if name != options.plugin]
        options.plot.write_text(report.plot(result["steady"], options.plugin, others))
    ours = [row for row in result["steady"] if options.plugin not in row.get("seconds", {})]
    return 1 if ours else 0


if __name__ == "__main__":
    sys.exit(main())
