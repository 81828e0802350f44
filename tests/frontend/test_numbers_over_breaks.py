"""Numbers of the program that are tensors, over a break and from call to call."""

import numpy
import pytest
import torch
import torch_backplane


def made_before(x, n):
    return torch.tensor(float(n)) * (x * float(n))


def made_before_and_returned(x, n):
    made = torch.tensor(float(n))
    return made, x + n.item()


def made_in_between(x, n):
    first = float(n)
    made = torch.full((), float(n))
    return made + x * first


@pytest.mark.parametrize("backend", ("eager", "plugin:reference", "plugin:cpu_onednn"))
@pytest.mark.parametrize(
    "program", (made_before, made_before_and_returned, made_in_between), ids=lambda p: p.__name__
)
def test_a_number_that_a_part_hands_on(program, backend):
    """An array from outside breaks at each look: what stands before it is a graph of its own."""
    compiled = torch_backplane.compile(program, backend=backend)
    x = torch.randn(3)
    for number in (3, 4, 5, 3, 16, 2.5):
        n = numpy.array(number)
        torch.testing.assert_close(compiled(x, n), program(x, n))
