"""Runs the catalogue through our front end and through TorchDynamo, and says what each made of it."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable
from typing import Any

import torch
import torch._dynamo
from frontend.programs import (
    basics,
    classes,
    data,
    exceptions,
    flow,
    functions,
    networks,
    operators,
    outside,
    records,
)
from frontend.programs.catalog import PROGRAMS, Program, Trace, run, run_plainly
from torch_backplane import _C, frontend

_MODULES = (basics, flow, exceptions, functions, classes, records)
_MODULES += (data, operators, networks, outside)
GROUPS = [module.__name__.rpartition(".")[2] for module in _MODULES]


@dataclasses.dataclass
class Result:
    """What one front end made of one program."""

    operators: int = 0  # that ran inside of graphs, over all calls
    whole: bool = True  # no call left its graph
    reasons: list[str] = dataclasses.field(default_factory=list)  # why some did
    wrong: str = ""  # what differs from plain Python


def run_ours(program: Program) -> Result:
    compiled: list[Any] = []

    def compile(function: Callable[..., Any]) -> Any:
        compiled.append(frontend.compile(function, backend="eager", entry_limit=16))
        return compiled[-1]

    result = Result()
    expected = run_plainly(program)
    result.wrong = run(program, compile).difference(expected)
    for one in compiled:
        counters = frontend.counters(one)
        result.reasons += [*counters["plain_reasons"], *counters["breaks"]]
        result.operators += sum(e["calls"] * e["hits"] for e in frontend.entries(one))
    result.whole = not result.reasons
    return result


class _Counting:
    """A backend for TorchDynamo that runs graphs as they are and counts what ours would record."""

    def __init__(self) -> None:
        self.operators = 0

    def __call__(self, graph: torch.fx.GraphModule, _: list[Any]) -> Callable[..., Any]:
        count: int | None = None

        def call(*args: Any) -> Any:
            nonlocal count
            if count is None:
                with contextlib.suppress(TypeError, RuntimeError, ValueError):
                    recording = _C.record_fx(
                        graph, list(args), with_backward=torch.is_grad_enabled()
                    )
                    count = recording.call_count if recording.ok else None
            if count is None:
                count = sum(node.op.startswith("call") for node in graph.graph.nodes)
            self.operators += count
            return graph(*args)

        return call


def _run_dynamo(program: Program, expected: Trace, full: bool) -> Result:
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    backend = _Counting()
    result = Result()

    def compile(function: Callable[..., Any], **_: Any) -> Any:
        return torch.compile(function, backend=backend, dynamic=False, fullgraph=full)

    try:
        with torch._dynamo.config.patch(recompile_limit=16):
            result.wrong = run(program, compile).difference(expected)
    except Exception as error:
        result.wrong = f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"
    result.operators = backend.operators
    torch._dynamo.reset()
    return result


def run_dynamo(program: Program) -> Result:
    """Whole where it says nothing against ``fullgraph``, which would change what the program does."""
    expected = run_plainly(program)
    full = _run_dynamo(program, expected, full=True)
    if full.operators and not full.wrong:
        return full
    result = _run_dynamo(program, expected, full=False)
    result.reasons = [
        reason.partition("\n")[0] for reason in torch._dynamo.utils.counters["graph_break"]
    ]
    result.whole = False
    return result


__all__ = ["GROUPS", "PROGRAMS", "Result", "run_dynamo", "run_ours"]
