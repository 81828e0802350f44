"""The fuzzer of programs: what it makes, how it judges, what it writes."""

from __future__ import annotations

import ast
import functools

from fuzz import findings, judge, observe
from fuzz.judge import Finding
from fuzz.programs import make_program
from fuzz.run import Fuzzer


def make(backend: str | None, only: tuple[str, ...], seed: str) -> str:
    return with_backend(make_program(seed, only), backend)


def with_backend(text: str, backend: str | None) -> str:
    """The program, compiled by this one for all; None: by its own."""
    if backend is None:
        return text
    lines = text.splitlines()
    number = next(i for i, line in enumerate(lines) if line.startswith("OPTIONS = "))
    options = ast.literal_eval(lines[number].removeprefix("OPTIONS = "))
    lines[number] = f"OPTIONS = {options | {'backend': backend}}"
    return "\n".join(lines) + "\n"


def plainly(text: str) -> None:
    judge.watch(judge.builtin_compile(text), judge.plain)


def write(finding: Finding, origin: str) -> str:
    return findings.standalone(finding, origin, [observe], findings.MAIN)


def make_fuzzer(backend: str | None = None, only: tuple[str, ...] = ()) -> Fuzzer:
    return Fuzzer("programs", functools.partial(make, backend, only), judge.judge, plainly, write)
