"""Writes that autograd refuses raise where the program writes, with what it did before and behind."""

import pytest
import torch
import torch_backplane


def at_the_end(x, flag):
    try:
        x[:3] = (x * flag).sum()
    finally:
        flag.fill_(2)


def in_between(x, flag):
    flag.add_(1)
    x.mul_(2)
    flag.add_(1)


def caught(x, flag):
    try:
        x.add_(flag)
    except RuntimeError:
        flag.fill_(5)
    return flag * 2


PROGRAMS = (at_the_end, in_between, caught)


def leaf():
    x = torch.ones(4, requires_grad=True)
    return x, x


def view_of_a_leaf():
    x = torch.ones(4, requires_grad=True)
    return x, x.view(-1)


def one_of_several():
    x = torch.ones(8, requires_grad=True)
    return x, (x * 1).split(4)[0]


def made_without_gradients():
    x = torch.ones(4, requires_grad=True)
    with torch.no_grad():
        return x, x.view(-1)


def writable():
    x = torch.ones(4, requires_grad=True)
    return x, (x * 1).view(-1)


ARGUMENTS = (writable, leaf, view_of_a_leaf, one_of_several, made_without_gradients)


def outcome(program, make, number):
    x, given = make()
    flag = torch.tensor([float(number)])
    try:
        value = program(given, flag)
    except RuntimeError as error:
        value = str(error)
    return x.tolist(), given.tolist(), flag.tolist(), value


# TorchDynamo's graphs have neither handlers nor what follows the operator that raises.
CASES = [(program, "own") for program in PROGRAMS] + [(in_between, "torch")]


@pytest.mark.parametrize("make", ARGUMENTS, ids=lambda f: f.__name__)
@pytest.mark.parametrize(("program", "door"), CASES)
def test_as_eager(program, make, door):
    torch._dynamo.reset()
    backend = "plugin:reference"
    compile = torch_backplane.compile if door == "own" else torch.compile
    compiled = compile(program, backend=backend)
    for kind in (writable, make, make, writable):
        for number in (3, 4):
            assert outcome(compiled, kind, number) == outcome(program, kind, number), kind
