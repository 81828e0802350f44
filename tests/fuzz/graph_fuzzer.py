"""The fuzzer of graphs: what it makes, how it judges, what it writes."""

from __future__ import annotations

import functools
from typing import Any

import torch

from fuzz import findings, graph_check, graph_rules_more
from fuzz.graphs import make_graph
from fuzz.judge import Finding
from fuzz.run import Fuzzer

MAIN = """
if __name__ == "__main__":
    import sys

    door = DOORS[globals().get("DOOR", "graph")]
    sys.exit(str(check_graph(f, inputs, CALLS, PLUGIN, GRAD, door) or "") or None)
"""


@functools.cache
def operators(without: tuple[str, ...] = ()) -> tuple[str, ...]:
    """The rows of the op table that graphs call."""
    from torch_backplane import _C

    rows = [row["name"] for row in _C.op_table() if not graph_rules_more.never(row["name"])]
    return tuple(row for row in rows if row.removeprefix("aten.") not in without)


def make(plugin: str, without: tuple[str, ...], seed: str) -> str:
    return make_graph(seed, list(operators(without)), plugin)


def judge(text: str, compile: Any = None) -> Finding | None:
    space: dict[str, Any] = {"make": graph_check.make, "torch": torch}
    try:
        exec(builtin_compile(text), space)
        graph = [space[name] for name in ("f", "inputs", "CALLS", "PLUGIN", "GRAD")]
    except (SyntaxError, KeyError, NameError):
        return None
    try:
        door = compile or graph_check.DOORS[space.get("DOOR", "graph")]
        found = graph_check.check_graph(*graph, compile=door)
    except (TypeError, AttributeError, NameError, ValueError, IndexError, KeyError):
        return None  # no graph any more
    if found is None:
        return None
    return Finding(found[0], found[1], text)


def plainly(text: str) -> None:
    """With the noise that the judge makes, for its operators run then too."""
    judge(text, lambda function, plugin, inputs: function)


def builtin_compile(text: str) -> Any:
    return compile(text, "<fuzzed>", "exec", dont_inherit=True)


def write(finding: Finding, origin: str) -> str:
    return findings.standalone(finding, origin, [graph_check], MAIN)


def make_fuzzer(plugin: str, without: tuple[str, ...] = ()) -> Fuzzer:
    return Fuzzer("graphs", functools.partial(make, plugin, without), judge, plainly, write)
