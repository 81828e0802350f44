#!/usr/bin/env python3
"""Counts the ATen operators that real models hand to a torch.compile back end.

Every model of tests/models/zoo.py is compiled with a back end that only records: for inference and
for a training step, in float32 and under bfloat16 autocast. What is printed is a Markdown table,
operators by count; --json keeps everything that was seen: argument kinds, dtypes, layouts, calls.

    scripts/op_census.py --models bert,resnet --json census.json
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests" / "models"))

import torch
import torch._dynamo
import zoo
from functorch.compile import make_boxed_func
from torch._dynamo.utils import counters
from torch._functorch.aot_autograd import aot_module_simplified

EXAMPLES_PER_OPERATOR = 4


def short(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def describe(value: Any) -> str:
    """A value of a graph in a few characters: tensors as float32[2, s0]."""
    if isinstance(value, torch.fx.Node):
        return describe(value.meta["val"]) if "val" in value.meta else value.op
    if isinstance(value, torch.Tensor):
        tail = "" if value.is_contiguous() else " strides " + str(list(value.stride()))
        return f"{short(value.dtype)}{[str(n) if is_symbolic(n) else n for n in value.shape]}{tail}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(describe(item) for item in value) + "]"
    if is_symbolic(value):
        return f"{type(value).__name__}({value})"
    return str(value)


def is_symbolic(value: Any) -> bool:
    return isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool))


def kind(value: Any) -> str:
    """What a graph input or output is."""
    if isinstance(value, torch.fx.Node):
        value = value.meta.get("val")
    if isinstance(value, torch.Tensor):
        return "Tensor" if value.dim() else "0-d Tensor"
    return type(value).__name__


def operator_name(target: Any) -> str:
    if isinstance(target, torch._ops.OpOverload):
        return str(target)
    module = getattr(target, "__module__", "")
    return f"{module}.{getattr(target, '__name__', target)}".removeprefix("_")


def tensors_in(value: Any) -> list[torch.Tensor]:
    if isinstance(value, torch.fx.Node):
        value = value.meta.get("val")
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, (list, tuple)):
        return [tensor for item in value for tensor in tensors_in(item)]
    return []


def argument_kinds(node: torch.fx.Node) -> list[str]:
    """The name and type of each argument that was given, and whether it was None or symbolic."""
    if not isinstance(node.target, torch._ops.OpOverload):
        return [f"{index}: {kind(value)}" for index, value in enumerate(node.args)]
    kinds = []
    for index, argument in enumerate(node.target._schema.arguments):
        value = node.args[index] if index < len(node.args) else node.kwargs.get(argument.name, ...)
        if value is ...:
            continue
        form = str(argument.real_type)
        if value is None:
            form += " = None"
        elif isinstance(value, torch.fx.Node) and is_symbolic(value.meta.get("val")):
            form += " symbolic"
        elif isinstance(value, (list, tuple)) and any(
            isinstance(item, torch.fx.Node) and is_symbolic(item.meta.get("val")) for item in value
        ):
            form += " symbolic"
        elif isinstance(value, (list, tuple)) and None in value:
            form += " with None"
        kinds.append(f"{argument.name}: {form}")
    return kinds


class Census:
    """What one compilation of one model handed over."""

    def __init__(self, decompositions: dict[Any, Any] | None = None) -> None:
        self.graphs: list[dict[str, Any]] = []
        self.decompositions = decompositions or {}

    def record(self, role: str, graph: torch.fx.Graph) -> None:
        operators: dict[str, dict[str, Any]] = {}
        entry: dict[str, Any] = {"role": role, "operators": operators}
        entry["inputs"] = collections.Counter(
            kind(node) for node in graph.nodes if node.op == "placeholder"
        )
        entry["constants"] = [
            f"{node.target}: {describe(node)}" for node in graph.nodes if node.op == "get_attr"
        ]
        entry["other_nodes"] = collections.Counter(
            node.op
            for node in graph.nodes
            if node.op not in ("placeholder", "get_attr", "output", "call_function")
        )
        for node in graph.nodes:
            if node.op == "output":
                outputs = node.args[0] if isinstance(node.args[0], (list, tuple)) else node.args
                entry["outputs"] = collections.Counter(kind(value) for value in outputs)
                entry["inputs_returned"] = sum(
                    isinstance(value, torch.fx.Node) and value.op == "placeholder"
                    for value in outputs
                )
            elif node.op == "call_function":
                self._record_call(operators, node)
        self.graphs.append(entry)

    @staticmethod
    def _record_call(operators: dict[str, dict[str, Any]], node: torch.fx.Node) -> None:
        seen = operators.setdefault(
            operator_name(node.target),
            {
                "count": 0,
                "arguments": [],
                "dtypes": [],
                "outputs": [],
                "strided_inputs": 0,
                "strided_outputs": 0,
                "scalar_tensor_inputs": 0,
                "examples": [],
            },
        )
        seen["count"] += 1
        operands = [tensor for value in node.all_input_nodes for tensor in tensors_in(value)]
        results = tensors_in(node)
        seen["strided_inputs"] += any(not tensor.is_contiguous() for tensor in operands)
        seen["strided_outputs"] += any(not tensor.is_contiguous() for tensor in results)
        seen["scalar_tensor_inputs"] += any(tensor.dim() == 0 for tensor in operands)

        signature = ",".join(short(tensor.dtype) for tensor in operands)
        signature += " -> " + ",".join(short(tensor.dtype) for tensor in results)
        call = ", ".join(describe(value) for value in node.args)
        call += "".join(f", {name}={describe(value)}" for name, value in node.kwargs.items())
        value = node.meta.get("val")
        result = (
            kind(node) if not isinstance(value, (list, tuple)) else str([kind(v) for v in value])
        )
        for key, items in (
            ("arguments", argument_kinds(node)),
            ("dtypes", [signature]),
            ("outputs", [result]),
            ("examples", [f"({call}) -> {describe(value)}"]),
        ):
            limit = EXAMPLES_PER_OPERATOR if key == "examples" else None
            for item in items:
                if item not in seen[key] and (limit is None or len(seen[key]) < limit):
                    seen[key].append(item)

    def backend(self, gm: torch.fx.GraphModule, example_inputs: list[Any]) -> Any:
        def compiler(role: str) -> Any:
            def compile_graph(module: torch.fx.GraphModule, _: list[Any]) -> Any:
                self.record(role, module.graph)
                return make_boxed_func(module.forward)

            return compile_graph

        return aot_module_simplified(
            gm,
            example_inputs,
            fw_compiler=compiler("forward"),
            bw_compiler=compiler("backward"),
            inference_compiler=compiler("inference"),
            decompositions=self.decompositions,
            keep_inference_input_mutations=False,
        )


def take(
    case: zoo.ModelCase,
    training: bool,
    autocast: bool,
    dynamic: bool | None = None,
    decompositions: dict[Any, Any] | None = None,
) -> dict[str, Any]:
    torch._dynamo.reset()
    counters.clear()
    census = Census(decompositions)
    model = case.build().train(training)
    compiled = torch.compile(model, backend=census.backend, dynamic=dynamic)
    context = torch.autocast("cpu", torch.bfloat16) if autocast else contextlib.nullcontext()
    error = None
    try:
        with case.capture_config(), context, torch.set_grad_enabled(training):
            output = compiled(**case.inputs(labels=training))
        if training:
            case.loss(output).backward()
    except Exception as problem:
        error = f"{type(problem).__name__}: {str(problem)[:400]}"
    return {
        "model": case.name,
        "training": training,
        "autocast": autocast,
        "dynamic": bool(dynamic),
        "error": error,
        "breaks": {str(reason)[:300]: count for reason, count in counters["graph_break"].items()},
        "graphs": census.graphs,
    }


def core_decompositions() -> dict[Any, Any]:
    decompositions = dict(torch._decomp.core_aten_decompositions())
    # Made for export: the backward operator, which stays, cannot use what it returns.
    del decompositions[torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default]
    return decompositions


def table(runs: list[dict[str, Any]]) -> str:
    """Operators by count: inference, forward and backward of training, and models that use them."""
    counts: dict[str, collections.Counter[str]] = collections.defaultdict(collections.Counter)
    models: dict[str, set[str]] = collections.defaultdict(set)
    for run in runs:
        for graph in run["graphs"]:
            for name, seen in graph["operators"].items():
                counts[name][graph["role"]] += seen["count"]
                models[name].add(run["model"])
    roles = ("inference", "forward", "backward")
    lines = [f"| operator | {' | '.join(roles)} | total | models |", "|---|---|---|---|---|---|"]
    for name in sorted(counts, key=lambda name: (-counts[name].total(), name)):
        numbers = [str(counts[name][role]) for role in roles]
        lines.append(
            f"| {name} | {' | '.join(numbers)} | {counts[name].total()} | {len(models[name])} |"
        )
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", default=",".join(zoo.names()), help="separated by commas")
    parser.add_argument("--size", choices=zoo.SIZES, default="small")
    parser.add_argument(
        "--dynamic", action="store_true", help="symbolic shapes from the first call"
    )
    parser.add_argument("--core", action="store_true", help="decompose to the core ATen operators")
    parser.add_argument("--json", type=Path, help="file for everything that was seen")
    options = parser.parse_args()

    decompositions = core_decompositions() if options.core else None
    runs = []
    for name in options.models.split(","):
        case = zoo.case(name, options.size)
        if not case.available():
            print(f"{name}: left out, needs {', '.join(case.requires)}", file=sys.stderr)
            continue
        for training in (False, True):
            for autocast in (False, True):
                run = take(case, training, autocast, options.dynamic or None, decompositions)
                runs.append(run)
                if run["error"]:
                    print(f"{name}: {run['error']}", file=sys.stderr)
    if options.json:
        options.json.write_text(json.dumps(runs, indent=1) + "\n")
    print(table(runs))
    return int(any(run["error"] for run in runs))


if __name__ == "__main__":
    sys.exit(main())
