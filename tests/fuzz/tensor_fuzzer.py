"""The fuzzer of programs over tensors: written as the other programs are, and judged so but for what
is said here."""

from __future__ import annotations

import re

from fuzz import judge as programs
from fuzz import observe, program_fuzzer
from fuzz.judge import Compile, Difference, Finding
from fuzz.run import Fuzzer
from fuzz.tensor_programs import make_program

GRADIENT = re.compile(r"\.grad\b|\b(?:twice|between|retained)\b")
REFUSALS = (
    "modified by an inplace operation",
    "through the graph a second time",
    "has been detached",
    "run the program again by PyTorch, but argument",
    "setStorage: ",  # of as_strided beyond what a kernel happens to have left behind its result
)


def is_refused_plainly(found: Difference) -> bool:
    """In the first step that differs one of the two refuses to differentiate what was written or is
    gone. A graph may have saved something else than eager mode does, and one node of it leads to all
    that its results depend on (docs/design/autograd.md)."""
    for is_now, was in zip(found.actual, found.expected, strict=False):
        if is_now != was:
            texts = (*programs.errors_in(is_now), *programs.errors_in(was))
            return any(words in text for text in texts for words in REFUSALS)
    return False


def is_of_strides(found: Difference) -> bool:
    """Only strides differ, in a program that asks for gradients: theirs are as they come."""
    if not GRADIENT.search(found.text.partition("def main")[2]):
        return False
    observe.Observer.sees_strides = False
    try:
        return programs.watch(found.code, found.made) == programs.watch(found.code, programs.plain)
    finally:
        observe.Observer.sees_strides = True


def is_printed_rounding(found: Difference) -> bool:
    has_kernels = programs.options_of(found.code).get("backend") != "eager"
    prints = programs.kind_of(found.actual, found.expected) == "prints otherwise"
    return (
        prints and has_kernels and programs.is_of_rounding(found.code, found.actual, found.expected)
    )


def is_excused(found: Difference) -> bool:
    return is_refused_plainly(found) or is_of_strides(found) or is_printed_rounding(found)


def judge(text: str, compile: Compile | None = None) -> Finding | None:
    return programs.judge(text, compile, is_excused)


def make_fuzzer(backend: str | None = None, door: str = "own") -> Fuzzer:
    """``backend``: this one for all programs, instead of each one's own; ``door``: "torch" for
    torch.compile."""

    def make(seed: str) -> str:
        return program_fuzzer.with_backend(make_program(seed, door), backend)

    return Fuzzer("tensors", make, judge, program_fuzzer.plainly, program_fuzzer.write)
