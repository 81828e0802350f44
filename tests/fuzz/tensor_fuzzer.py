"""The fuzzer of programs over tensors: judged and written as the other programs are."""

from __future__ import annotations

from fuzz import judge, program_fuzzer
from fuzz.run import Fuzzer
from fuzz.tensor_programs import make_program


def make_fuzzer(backend: str | None = None, door: str = "own") -> Fuzzer:
    """``backend``: this one for all programs, instead of each one's own; ``door``: "torch" for
    torch.compile."""

    def make(seed: str) -> str:
        return program_fuzzer.with_backend(make_program(seed, door), backend)

    return Fuzzer("tensors", make, judge.judge, program_fuzzer.plainly, program_fuzzer.write)
