"""The cases of packages: enough of them, told apart by name, and not to be passed by wrong results.

The packages themselves are not imported here; ``./dev test peers libraries`` runs their cases.
"""

import dataclasses

import pytest
import torch

from peers.libraries import GROUPS
from peers.libraries.common import both, normal, train_case

NAMES = [case.name for cases in GROUPS.values() for case in cases()]


@dataclasses.dataclass(frozen=True)
class FakeDoor:
    change: object

    def compile(self, function):
        return self.change(function)


def linear():
    return torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2))


def run(change, cases=None):
    for case in cases or both("linear", linear, normal(4, 3), normal(4, 3), normal(2, 3)):
        case.run(FakeDoor(change))


def test_as_many_as_promised():
    assert len(set(NAMES)) == len(NAMES) >= 150
    assert len({name.partition(".")[0] for name in NAMES}) >= 40


def test_the_program_itself_passes():
    run(lambda function: function)


def test_a_wrong_number_is_found():
    with pytest.raises(AssertionError, match="call 0, result"):
        run(lambda function: lambda x: function(x) * 1.01)


def test_a_stale_number_is_found():
    def change(function):
        first = []

        def call(x):
            if not first or first[0].shape[0] != x.shape[0]:
                first[:] = [function(x)]
            return first[0]

        return call

    with pytest.raises(AssertionError, match="call 1, result"):
        run(change)


def test_a_wrong_gradient_is_found():
    class Doubled(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, grad):
            return 2 * grad

    with pytest.raises(AssertionError, match="call 0, gradient"):
        run(lambda function: lambda x: Doubled.apply(function(x)))


def test_a_missed_write_is_found():
    def change(function):
        function.train(False)
        return lambda x: function(x.clone())

    def make():
        return torch.nn.BatchNorm1d(3, affine=False, momentum=None)

    with pytest.raises(AssertionError):
        run(change, [train_case("norm", make, normal(4, 3, grad=True))])


def test_a_program_that_fails_as_it_is_does_not_pass():
    def make():
        raise ImportError("no such package")

    with pytest.raises(RuntimeError, match="the program fails as it is"):
        run(lambda function: function, [train_case("missing", make, normal(1))])
