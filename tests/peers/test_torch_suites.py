"""The comparison of PyTorch's databases finds what differs, with or without second gradients."""

import pytest
import torch

from peers.torch_suites import compare


def once(x):
    """A loss whose gradient PyTorch cannot differentiate."""
    return torch.nn.functional.multi_margin_loss(x, torch.tensor([0, 2]))


class Tripled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        return 3 * grad


class FakeDoor:
    def __init__(self, change):
        self.change = change

    def compile(self, function):
        return self.change(function)


def run(change):
    def arguments():
        return (torch.linspace(0.0, 1.0, 6).view(2, 3).requires_grad_(),), {}

    compare(FakeDoor(change), lambda: (once, []), arguments, second=True)


def test_second_gradients_that_eager_lacks_are_not_asked_for():
    run(lambda function: function)


def test_first_gradients_are_compared_all_the_same():
    with pytest.raises(AssertionError, match="call 0, gradient"):
        run(lambda function: lambda x: function(Tripled.apply(x)))
