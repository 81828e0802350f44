"""One measurement in a process of its own; prints one line of JSON. Started by run.py."""

from __future__ import annotations

import argparse
import json
import pathlib
import sys
import time
import types
from typing import Any

import measure
import roofline
import subjects
import torch

BUDGETS = (1.0, 0.8, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1, 0.0)


def _memory(field: str) -> int:
    """VmRSS (now) or VmHWM (the most since the last reset) in bytes."""
    for line in pathlib.Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field):
            return int(line.split()[1]) * 1024
    return 0


def _reset_peak() -> None:
    pathlib.Path("/proc/self/clear_refs").write_text("5")


def steady(options: argparse.Namespace) -> dict[str, Any]:
    """Alternating blocks of all back ends on one model; results are checked before and after."""
    import torch_backplane

    subject = subjects.Subject(options.model, options.mode, options.size)
    out: dict[str, Any] = {"absent": {}, "differences": {}}
    with subject.environment():
        reference = subject.build()
        expected = subject.result(reference, reference)
        candidates = {
            "eager": subject.call(reference, reference),
            "eager again": subject.call(reference, reference),
        }
        checks = {}
        graphs: list[dict[str, Any]] = []
        for name in options.backends.split(","):
            backend = subjects.backends(options.plugin)[name]
            if name == "eager" or (backend.inference_only and subject.training):
                continue
            model = subject.build()
            try:
                run = backend.compile(model)
                with torch_backplane.record() as compiled:
                    actual = subject.result(model, run)
            except Exception as error:  # any third party may fail in any way; the table says so
                out["absent"][name] = f"{type(error).__name__}: {error}".splitlines()[0][:200]
                continue
            graphs += compiled
            out["differences"][name] = subjects.difference(actual, expected)
            if fault := subject.find_fault(actual, expected):
                out["absent"][name] = fault
                continue
            candidates[name] = subject.call(model, run)
            checks[name] = (model, run)
        before = torch_backplane.stats()
        if options.plugin in candidates:
            candidates[options.plugin]()
        after = torch_backplane.stats()
        series = measure.alternate(
            candidates, rounds=options.rounds, block_s=options.block, budget_s=options.budget
        )
        for name, (model, run) in checks.items():
            if fault := subject.find_fault(subject.result(model, run), expected):
                out["absent"][name] = f"{fault} after many calls"
        out["flops"] = roofline.work(candidates["eager"])
        out["bytes"] = roofline.traffic(reference, subject.inputs, subject.training)
    out["seconds"] = {name: series.median(name) for name in candidates}
    out["rounds"], out["dropped"], out["quiet"] = series.rounds, series.dropped, series.quiet
    out["ratios"] = {
        f"{options.plugin} to {name}": vars(series.ratio(name, options.plugin))
        for name in candidates
        if options.plugin in candidates and name not in (options.plugin, "eager again")
    }
    out["same"] = vars(series.ratio("eager again", "eager"))
    ours = [graph for graph in graphs if graph["plugin"] == options.plugin]
    out["nodes"] = sum(graph.get("nodes", 0) for graph in ours)
    out["fallback_nodes"] = sum(graph.get("fallback_nodes", 0) for graph in ours)
    out["partitions"] = sum(len(graph.get("partitions", ())) for graph in ours)
    out["whole_eager_graphs"] = sum("eager" in graph for graph in ours)
    for way in ("host_to_device", "device_to_host"):
        out[f"{way}_bytes"] = after[f"{way}_bytes"] - before[f"{way}_bytes"]
        out[f"{way}_count"] = sum(
            sum(count for _, count in after["transfers"][d][way].values())
            - sum(count for _, count in before["transfers"].get(d, {}).get(way, {}).values())
            for d in after["transfers"]
        )
    return out


def first(options: argparse.Namespace) -> dict[str, Any]:
    """The first call in a fresh process, and memory beyond model and inputs."""
    subject = subjects.Subject(options.model, options.mode, options.size)
    backend = subjects.backends(options.plugin)[options.backends]
    with subject.environment():
        model = subject.build()
        run = backend.compile(model)
        call = subject.call(model, run)
        _reset_peak()
        base = _memory("VmRSS")
        start = time.perf_counter()
        call()
        seconds = time.perf_counter() - start
        compile_peak = _memory("VmHWM") - base
        call()
        _reset_peak()
        for _ in range(3):
            call()
        return {"seconds": seconds, "compile_peak": compile_peak, "peak": _memory("VmHWM") - base}


def overhead(options: argparse.Namespace) -> dict[str, Any]:
    """One addition on one value: what a call costs beside its kernels."""
    x = torch.ones(1)

    def function(value: torch.Tensor) -> torch.Tensor:
        return value + 1

    candidates = {"eager": lambda: function(x)}
    absent = {}
    with torch.no_grad():
        for name in options.backends.split(","):
            backend = subjects.backends(options.plugin)[name]
            if name in ("eager", "inductor-best"):
                continue
            # A code object of its own: TorchDynamo's cache belongs to it.
            own = types.FunctionType(
                function.__code__.replace(co_name=f"add_{len(candidates)}"), globals()
            )
            try:
                run = torch.compile(own, **backend.settings)
                assert torch.equal(run(x), function(x))
            except Exception as error:
                absent[name] = f"{type(error).__name__}: {error}".splitlines()[0][:200]
                continue
            candidates[name] = lambda run=run: run(x)
        series = measure.alternate(candidates, rounds=options.rounds, block_s=0.05, micro=True)
    return {"seconds": {n: series.median(n) for n in candidates}, "absent": absent}


def group(options: argparse.Namespace) -> dict[str, Any]:
    """One group of operators, eager and on the plugin. CPU seconds of all threads as well, which
    other load on the machine does not touch."""
    import groups

    subject = groups.make(options.group)
    with torch.no_grad():
        expected = subject.function(*subject.inputs)
        run = torch.compile(subject.function, backend=f"plugin:{options.plugin}", dynamic=False)
        actual = run(*subject.inputs)
        fault = ((actual - expected).abs().max() / expected.abs().max()).item()
        if fault > subjects.LIMIT:
            return {"error": f"wrong by {fault:.1e}"}
        candidates = {
            "eager": lambda: subject.function(*subject.inputs),
            options.plugin: lambda: run(*subject.inputs),
        }
        series = measure.alternate(
            candidates, rounds=options.rounds, block_s=options.block, micro=True
        )
        cpu = {name: measure.cpu_seconds(call) for name, call in candidates.items()}
    return {
        "ratio": vars(series.ratio("eager", options.plugin)),
        "seconds": {name: series.median(name) for name in candidates},
        "cpu_ratio": cpu["eager"] / cpu[options.plugin],
    }


NODES = 33  # products of a chain, each a kernel of its own


def launch(options: argparse.Namespace) -> dict[str, Any]:
    """What a call costs beside its kernels' work, from chains of one and of many tiny products."""
    x = torch.eye(4)

    def chain(count: int) -> Any:
        def function(x: torch.Tensor) -> torch.Tensor:
            for _ in range(count):
                x = torch.mm(x, x)
            return x

        own = types.FunctionType(
            function.__code__.replace(co_name=f"chain_{count}"),
            globals(),
            closure=function.__closure__,
        )
        run = torch.compile(own, backend=f"plugin:{options.plugin}", dynamic=False)
        assert torch.equal(run(x), x)
        return lambda: run(x)

    with torch.no_grad():
        series = measure.alternate(
            {"one": chain(1), "many": chain(NODES)}, rounds=options.rounds, block_s=0.05, micro=True
        )
    one, many = series.median("one"), series.median("many")
    node = (many - one) / (NODES - 1)
    return {"executable": one - node, "node": node}


def compile_first(options: argparse.Namespace) -> dict[str, Any]:
    """The first call of a small network: seconds of all threads, whatever else the machine does."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Linear(96, 200),
        torch.nn.GELU(),
        torch.nn.LayerNorm(200),
        torch.nn.Linear(200, 50),
        torch.nn.Softmax(-1),
    )
    x = torch.randn(70, 96)
    torch.compile(lambda x: x + 1, backend=f"plugin:{options.plugin}")(x)  # all that is loaded once
    with torch.no_grad():
        start, busy = time.perf_counter(), time.process_time()
        torch.compile(model, backend=f"plugin:{options.plugin}", dynamic=False)(x)
        return {"seconds": time.perf_counter() - start, "cpu": time.process_time() - busy}


def _training_trace(subject: subjects.Subject, model: Any, run: Any) -> Any:
    """Memory of one training step over time."""
    from torch_backplane import memory

    leaves = list(model.parameters())
    return memory.trace_step(lambda: subject.case.loss(run(**subject.inputs)), leaves)


def memory(options: argparse.Namespace) -> dict[str, Any]:
    """Peak and saved bytes of one training step: eager, PyTorch's partitioner, and the plugin."""
    import torch_backplane
    from torch_backplane import _C
    from torch_backplane import memory as tracing

    subject = subjects.Subject(options.model, "training", options.size)
    ways = {
        "eager": lambda model: model,
        "pytorch": tracing.pytorch_partitioner,
        "ours": subjects.backends(options.plugin)[options.plugin].compile,
    }
    out: dict[str, Any] = {}
    with subject.environment(), torch_backplane.record() as compiled:
        for name, way in ways.items():
            torch._dynamo.reset()
            model = subject.build()
            trace = _training_trace(subject, model, way(model))
            out[name] = {
                "peak": trace.peak,
                "with_scratch": trace.peak_with_scratch,
                "saved": trace.after_forward,
            }
    out["whole_eager_graphs"] = sum("eager" in graph for graph in compiled)
    out["packs"] = _C.resident_weight_bytes()
    return out


def budget(options: argparse.Namespace) -> dict[str, Any]:
    """One training step at several memory budgets: bytes saved, peak, predicted and measured time."""
    import torch_backplane

    subject = subjects.Subject(options.model, "training", options.size)
    settings = subjects.backends(options.plugin)[options.plugin].settings
    points: list[dict[str, Any]] = []
    candidates = {}
    with subject.environment(), torch._dynamo.config.patch(recompile_limit=64):
        for value in BUDGETS:
            model = subject.build()
            subject.result(model, model)  # models of transformers note the kind of their loss
            chosen = {**settings, "options": {"memory_budget": value, "report": False}}
            run = torch.compile(model, **chosen)
            with torch_backplane.record() as compiled:
                trace = _training_trace(subject, model, run)
            point = {"budget": value, "peak": trace.peak}
            for key in ("saved_bytes", "recompute_seconds"):
                point[key] = sum(graph.get(key, 0) for graph in compiled)
            points.append(point)
            candidates[str(value)] = subject.call(model, run)
        series = measure.alternate(
            candidates, rounds=options.rounds, block_s=options.block, budget_s=options.budget
        )
    for point in points:
        point["seconds"] = series.median(str(point["budget"]))
        point["ratio"] = vars(series.ratio(str(point["budget"]), str(BUDGETS[0])))
    return {"points": points}


def calibrate(options: argparse.Namespace) -> dict[str, Any]:
    return {"flops": roofline.peak_flops(options.plugin), "bandwidth": roofline.peak_bandwidth()}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    known = ["steady", "first", "overhead", "calibrate", "group", "launch", "compile_first"]
    parser.add_argument("what", choices=[*known, "memory", "budget"])
    parser.add_argument("--model", default="bert")
    parser.add_argument("--group", default="mm 512")
    parser.add_argument("--mode", default="inference", choices=subjects.MODES)
    parser.add_argument("--size", default="base")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--plugin", default="cpu_onednn")
    parser.add_argument("--backends", default="eager,cpu_onednn,inductor,openvino")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--block", type=float, default=0.3)
    parser.add_argument("--budget", type=float, default=float("inf"))
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    result = globals()[options.what](options)
    print("RESULT " + json.dumps(result), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
