"""Runs one program plainly and compiled, and says what differs."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import random
import re
from collections.abc import Callable
from typing import Any

import numpy
import torch

from fuzz import observe
from fuzz.graph_check import RUNS, Noise

Compile = Callable[..., Any]
OUTSIDE = "outside of a call"
NOISE = re.compile(r"\d+|'[^']*'|\"[^\"]*\"|\[[^]]*\]")


@dataclasses.dataclass(frozen=True)
class Finding:
    """``kind``: what stays the same while the program is made smaller."""

    kind: str
    difference: str
    text: str


def reset() -> None:
    """What a program may have changed in the process."""
    torch.set_grad_enabled(True)
    torch.set_default_dtype(torch.float32)
    torch.use_deterministic_algorithms(False)
    torch.autograd.set_detect_anomaly(False)
    os.environ.pop("FUZZED", None)
    random.seed(0)
    numpy.random.seed(0)


def watch(code: Any, compile: Compile) -> list[Any]:
    reset()
    names = ("call", "grads", "tensor")
    space: dict[str, Any] = {name: getattr(observe, name) for name in names}
    space["__name__"] = "fuzzed"
    try:
        exec(code, space)
        return observe.watch(space["main"], compile)
    except Exception as error:
        return [(OUTSIDE, type(error).__name__, observe.text_of(error))]
    finally:
        reset()


def plain(function: Any) -> Any:
    if not callable(function):
        raise TypeError("only functions are compiled")
    return function


def through(options: dict[str, Any]) -> Compile:
    """How a program with these options is compiled; ``door``: "torch" for torch.compile."""
    by_torch = options.get("door") == "torch"
    settings = {name: value for name, value in options.items() if name != "door"}

    def compile(function: Any) -> Any:
        plain(function)
        if by_torch:
            torch._dynamo.reset()
            return torch.compile(function, **settings)
        from torch_backplane import frontend

        return frontend.compile(function, **settings)

    compile.__qualname__ = plain.__qualname__  # a program may show what it was given
    return compile


def errors_in(step: Any) -> list[str]:
    """Texts of the exceptions that a step shows, outermost first."""
    found = []
    if isinstance(step, tuple):
        if len(step) >= 2 and step[0] == ("str", "error"):
            with contextlib.suppress(IndexError, TypeError):
                found.append(f"{step[1][1][0][1][0][1]}: {step[1][1][0][1][1][1]}")
        for part in step:
            found += errors_in(part)
    return found


def kind_of(actual: list[Any], expected: list[Any]) -> str:
    for is_now, was in zip(actual, expected, strict=False):
        if is_now == was:
            continue
        now, then = errors_in(is_now), errors_in(was)
        if now == then:
            if was[0] == "printed":
                return "prints otherwise"
            return f"other value: {NOISE.sub('_', observe.difference(is_now, was)):.40}"
        short = [NOISE.sub("_", (texts or ["nothing"])[0]) for texts in (now, then)]
        return f"raises {short[0]:.120}, expected {short[1].partition(':')[0]}"
    return "other number of steps"


def options_of(code: Any) -> dict[str, Any]:
    space: dict[str, Any] = {"__name__": "fuzzed"}
    exec(code, space)
    return space["OPTIONS"]


class OtherKernels(Noise):
    """Results as kernels give them that round otherwise; what is exact stays: sums of eighths."""

    def disturb(self, tensor: torch.Tensor, summed: bool = False, rough: float = 0.0) -> None:
        before = tensor.clone()
        super().disturb(tensor, summed, rough)
        if tensor.is_floating_point() and torch._debug_has_internal_overlap(tensor) == 0:
            scaled = before.double() * 4096
            tensor.copy_(torch.where(scaled == scaled.round(), before, tensor))


def is_of_rounding(code: Any, actual: list[Any], expected: list[Any]) -> bool:
    """Each step that differs does so in plain PyTorch with kernels that round otherwise: a program
    that is called with its own results makes any rounding large."""
    left = {i for i, step in enumerate(expected) if actual[i] != step}
    for seed in range(RUNS):
        with OtherKernels(seed):
            noised = watch(code, plain)
        if len(noised) != len(expected):
            return False
        left -= {i for i in left if noised[i] != expected[i]}
    return not left


def differs_elsewhere(code: Any, options: dict[str, Any], expected: list[Any]) -> bool:
    """Whether it does so with these options, too; in a child, as AOTAutograd may leave a process in
    which nothing works any more."""
    child = os.fork()
    if child == 0:
        status = 1
        with contextlib.suppress(BaseException):
            status = 0 if watch(code, through(options)) == expected else 1
        os._exit(status)
    return os.waitpid(child, 0)[1] != 0


@dataclasses.dataclass(frozen=True)
class Difference:
    """Between what a program shows compiled, by ``made``, and plainly."""

    text: str
    code: Any
    made: Compile
    actual: list[Any]
    expected: list[Any]


def judge(
    text: str,
    compile: Compile | None = None,
    is_excused: Callable[[Difference], bool] = lambda difference: False,
) -> Finding | None:
    """None where the program does the same compiled as plainly, or not even plainly."""
    try:
        code = builtin_compile(text)
        expected = watch(code, plain)
        made = compile if compile is not None else through(options_of(code))
    except (SyntaxError, KeyError):
        return None
    if expected[0][0] == OUTSIDE or not isinstance(options_of(code), dict):
        return None
    actual = watch(code, made)
    if actual == expected:
        return None
    options = options_of(code)
    by_torch = options.get("door") == "torch"
    if by_torch and differs_elsewhere(code, options | {"backend": "aot_eager"}, expected):
        return None  # TorchDynamo's or AOTAutograd's
    if watch(code, plain) != expected:
        return None  # it does not do the same twice
    if is_excused(Difference(text, code, made, actual, expected)):
        return None
    kind = kind_of(actual, expected)
    has_kernels = options.get("backend") != "eager"
    if kind.startswith("other value") and has_kernels and is_of_rounding(code, actual, expected):
        return None
    return Finding(kind, observe.difference(actual, expected), text)


def builtin_compile(text: str) -> Any:
    return compile(text, "<fuzzed>", "exec", dont_inherit=True)
