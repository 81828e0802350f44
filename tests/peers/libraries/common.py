"""How a case of a package is written.

A package is imported inside of the functions that make a case's program, so that one that does not
import fails its own cases. Models are made from their classes with a fixed seed; each call has other
inputs, some of another size.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy
import torch

from peers.torch_suites import Case, Door, assert_same, clone, gradients, tensors

Inputs = Callable[[], Any]  # an argument, or a tuple of all of them
Compile = Callable[[Callable[..., Any]], Callable[..., Any]]


def as_it_is(function: Callable[..., Any]) -> Callable[..., Any]:
    return function


def compare(door: Door, work: Callable[[Compile], Any]) -> None:
    """``work`` compiles with what it is given and returns what it saw, named, in order."""

    def observe(compile_function: Compile) -> list[tuple[str, Any]]:
        random.seed(0)
        numpy.random.seed(0)
        torch.manual_seed(0)
        return list(work(compile_function))

    try:
        expected = observe(as_it_is)
    except Exception as error:
        raise RuntimeError("the program fails as it is") from error
    for (name, actual), (_, wanted) in zip(observe(door.compile), expected, strict=True):
        assert_same(actual, wanted, name)


def program(name: str, work: Callable[[Compile], Any]) -> Case:
    return Case(name, lambda door: compare(door, work))


def calls(
    compile_function: Compile,
    make: Callable[[], Any],
    inputs: tuple[Inputs, ...],
    training: bool,
) -> Iterator[tuple[str, Any]]:
    """Results, gradients, arguments and state of a module or function after each call."""
    torch.manual_seed(1)
    made = make()
    held: list[torch.Tensor] = []
    if isinstance(made, torch.nn.Module):
        made.train(training)
        held = [*made.parameters(), *made.buffers()]
    called = compile_function(made)
    for number, give in enumerate(inputs):
        torch.manual_seed(10 + number)
        given = give()
        args = given if isinstance(given, tuple) else (given,)
        torch.manual_seed(20 + number)
        with contextlib.nullcontext() if training else torch.no_grad():
            result = called(*args)
        yield f"call {number}, result", clone(result)
        if training:
            leaves = [t for t in [*tensors(args), *held] if t.requires_grad and t.is_leaf]
            first, _ = gradients(result, leaves, second=False)
            yield f"call {number}, gradient", first
        yield f"call {number}, argument", clone(tensors(args))
        yield f"call {number}, state", clone(held)


def eval_case(name: str, make: Callable[[], Any], *inputs: Inputs) -> Case:
    return program(name, lambda compile_: calls(compile_, make, inputs, training=False))


def train_case(name: str, make: Callable[[], Any], *inputs: Inputs) -> Case:
    return program(name, lambda compile_: calls(compile_, make, inputs, training=True))


def both(name: str, make: Callable[[], Any], *inputs: Inputs) -> Iterator[Case]:
    """A module without gradients in evaluation, and with them in training."""
    yield eval_case(f"{name}.eval", make, *inputs)
    yield train_case(f"{name}.train", make, *inputs)


def normal(*shape: int, grad: bool = False, dtype: torch.dtype = torch.float32) -> Inputs:
    return lambda: torch.randn(*shape, dtype=dtype, requires_grad=grad)


def uniform(*shape: int, grad: bool = False, dtype: torch.dtype = torch.float32) -> Inputs:
    return lambda: torch.rand(*shape, dtype=dtype, requires_grad=grad)


def integers(high: int, *shape: int) -> Inputs:
    return lambda: torch.randint(high, shape)


def together(*inputs: Inputs) -> Inputs:
    return lambda: tuple(give() for give in inputs)
