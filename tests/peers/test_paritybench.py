"""Modules of public projects: files with packages that are gone, and a judge that tells a wrong
gradient from a kink."""

import re
import sys
import unittest

import pytest
import torch

from peers import paritybench, paritybench_runs

FILE = """
import sys
_module = sys.modules[__name__]
del sys
from _paritybench_helpers import _mock_config, _mock_layer, patch_functional
import no_such_package.deep as F
from no_such_package.deeper import Something
from torch.no_such_module import removed
from collections import Iterable
from torch.utils.tensorboard import SummaryWriter
patch_functional()
import torch
from torch import nn

class Sharp(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(width, 64), nn.ReLU(), _mock_layer(64, 4))
        self.register_buffer("calls", torch.zeros(1))
    def forward(self, x):
        self.calls += 1
        return self.layers(x)

class Asks(nn.Module):
    def forward(self, x):
        raise KeyError("nothing")

TESTCASES = [
    (Sharp, lambda: ([], {"width": 8}), lambda: ([torch.rand([16, 8])], {}), True),
    (Asks, lambda: ([], {}), lambda: ([torch.rand([4])], {}), True),
]
"""


class FakeDoor:
    name = "fake"

    def __init__(self, change=lambda module: module):
        self.compile = change


class Scaled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, by):
        ctx.by = by
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        return ctx.by * grad, None


def wrong_gradient(by):
    return FakeDoor(lambda module: lambda x: module(Scaled.apply(x, by)))


def raised(module):
    def call(x):
        raise ValueError("something else")

    return call


@pytest.fixture
def cases(tmp_path, monkeypatch):
    """Cases of ``FILE`` by class and mode."""
    path = tmp_path / "test_somebody_project.py"
    path.write_text(FILE)
    for module in (torch.functional, torch.nn.functional):
        for name in set(dir(torch.functional)) | set(dir(torch.nn.functional)):
            if re.match(r"[a-z]", name):
                monkeypatch.setattr(module, name, getattr(module, name, None), raising=False)
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path])
    return {case.name.partition(".")[2]: case.run for case in paritybench.cases(path)}


def test_what_a_file_imports_and_is_gone_is_mocked(cases):
    assert {*cases} == {f"{of}.{mode}" for of in ("Sharp", "Asks") for mode in paritybench.MODES}


@pytest.mark.parametrize("mode", paritybench.MODES)
def test_the_same_is_the_same(cases, mode):
    cases[f"Sharp.{mode}"](FakeDoor())


def test_a_program_that_fails_by_itself_is_left_out(cases):
    with pytest.raises(unittest.SkipTest, match="KeyError"):
        cases["Asks.inference"](FakeDoor())


def test_a_wrong_gradient_is_found(cases):
    with pytest.raises(AssertionError, match=r"call 0, gradient \(0\): .* from float64"):
        cases["Sharp.training"](wrong_gradient(1.001))


def test_rounding_of_a_gradient_is_none(cases):
    cases["Sharp.training"](wrong_gradient(1 + 1e-6))


def test_another_error_is_found(cases):
    with pytest.raises(AssertionError, match="ValueError"):
        cases["Sharp.inference"](FakeDoor(raised))


def test_a_lost_effect_is_found(cases):
    def forgets(module):
        return lambda x: torch.func.functional_call(module, {"calls": torch.zeros(1)}, (x,))

    with pytest.raises(AssertionError, match="call 0, state"):
        cases["Sharp.inference"](FakeDoor(forgets))


def test_values_beside_a_kink_are_no_finding():
    expected = [("call 0, gradient", torch.tensor([1.0, 2.0, 3.0]))]
    flipped = [("call 0, gradient", torch.tensor([1.0, 2.0, 3.01]))]
    beside = [("call 0, gradient", torch.tensor([1.0, 2.0, 2.99]))]
    assert not paritybench.difference(flipped, expected, None, [beside])
    assert "from float64" in paritybench.difference(flipped, expected, None, [expected])


def test_a_folder_that_is_no_checkout_is_an_error(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["paritybench_runs", "--checkout", str(tmp_path)])
    assert paritybench_runs.main() == 2
    assert f"found none in {tmp_path}" in capsys.readouterr().err


class Endless(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        while True:
            x = x + 1


def test_a_program_that_does_not_end_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paritybench, "MOST_SECONDS", 0.1)
    entry = (Endless, lambda: ([], {}), lambda: ([torch.ones(1)], {}), True)
    with pytest.raises(unittest.SkipTest, match="more than"):
        paritybench.compare(FakeDoor(), entry, "inference")
