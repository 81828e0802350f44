"""Hooks of saved tensors that keep them as another type, as they may where eager mode saves numbers
alone."""

import pytest
import torch
from compiling import DOORS, compile_for
from torch.autograd.graph import saved_tensors_hooks


def larger(x, y):
    return torch.maximum(x, y)


def clamped(x, y):
    return (x * 2).clamp(min=y)


def product(x, y):
    return (x * y).tanh()


HOOKS = {
    "half": (lambda t: t.half(), lambda t: t.float()),
    "given on as double": (lambda t: t, lambda t: t.double()),
    "arithmetic": (lambda t: t * 1, lambda t: t),
}


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("plugin", ("reference", "cpu_onednn", "opencl"))
@pytest.mark.parametrize("hooks", HOOKS.values(), ids=HOOKS)
@pytest.mark.parametrize("program", (larger, clamped, product), ids=lambda p: p.__name__)
def test_hooks_that_change_types(program, hooks, plugin, door):
    torch._dynamo.reset()
    outcomes = []
    for called in (program, compile_for(plugin, program, door)):
        x = torch.linspace(-1, 1, 8).reshape(2, 4).requires_grad_()
        y = torch.linspace(0.5, -0.5, 8).reshape(2, 4).requires_grad_()
        with saved_tensors_hooks(*hooks):
            result = called(x, y)
        outcomes.append(torch.autograd.grad(result.sum(), [x, y]))
    torch.testing.assert_close(outcomes[1], outcomes[0], rtol=2e-3, atol=2e-3, check_dtype=False)
