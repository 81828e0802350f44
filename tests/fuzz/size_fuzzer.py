"""The fuzzer of sizes: what it makes, how it judges, what it writes."""

from __future__ import annotations

import functools
from typing import Any

import torch

from fuzz import findings, size_check
from fuzz.judge import Finding
from fuzz.run import Fuzzer
from fuzz.sizes import make_sizes

MAIN = """
if __name__ == "__main__":
    import sys

    sys.exit(str(check_sizes(f, inputs(), PLUGIN, DTYPE, GRAD) or "") or None)
"""


def judge(text: str, **how: Any) -> Finding | None:
    space: dict[str, Any] = {"draw": size_check.draw, "torch": torch}
    try:
        exec(compile(text, "<fuzzed>", "exec", dont_inherit=True), space)
        given = [space[name] for name in ("PLUGIN", "DTYPE", "GRAD")]
        found = size_check.check_sizes(space["f"], space["inputs"](), *given, **how)
    except (SyntaxError, TypeError, AttributeError, NameError, ValueError, IndexError, KeyError):
        return None  # no program any more
    return None if found is None else Finding(found[0], found[1], text)


def plainly(text: str) -> None:
    judge(text, compile=lambda function, backend: function)


def write(finding: Finding, origin: str) -> str:
    return findings.standalone(finding, origin, [size_check], MAIN)


def make_fuzzer(plugin: str) -> Fuzzer:
    return Fuzzer("sizes", functools.partial(make_sizes, plugin), judge, plainly, write)
