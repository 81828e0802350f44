"""The harness for PyTorch's own unit tests: what differs is found, what fails anyhow is not."""

import sys
from pathlib import Path

import pytest

from peers import pytorch

FILE = """
import torch
from torch.testing._internal.common_device_type import instantiate_device_type_tests
from torch.testing._internal.common_utils import TestCase, parametrize, instantiate_parametrized_tests

class TestPlain(TestCase):
    def test_right(self):
        self.assertEqual(torch.ones(2) + 1, torch.full((2,), 2.0))

    def test_sees_that_it_is_captured(self):
        is_compiling = torch.compiler.is_compiling()
        one = torch.ones(1).sum().item()  # a break: what fails before it is run again as it is
        self.assertFalse(is_compiling and one == 1)

    def test_fails_anyhow(self):
        self.assertTrue(False)

    @parametrize("n", [1, 2])
    def test_parametrized(self, n):
        self.assertEqual(torch.ones(n).sum(), n)

class TestEach(TestCase):
    def test_device(self, device):
        self.assertEqual(torch.ones(2, device=device).device.type, "cpu")

    def test_dies(self, device):
        import os
        if torch.compiler.is_compiling():
            os.abort()

instantiate_parametrized_tests(TestPlain)
instantiate_device_type_tests(TestEach, globals())
"""


def test_what_differs_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "test" / "nn").mkdir(parents=True)
    (tmp_path / "test" / "nn" / "test_one.py").write_text(FILE)
    arguments = ["nn/test_one", "--checkout", str(tmp_path), "--plugin", "reference", "--jobs", "1"]
    monkeypatch.setattr(sys, "argv", ["pytorch", *arguments])
    assert pytorch.main() == 1
    said = capsys.readouterr().out
    assert "nn/test_one: 6 tests, 2 findings" in said
    assert "TestPlain.test_sees_that_it_is_captured: passed plain, failed captured" in said
    assert "TestEachCPU.test_dies_cpu: passed plain, the process ended with" in said


def test_a_folder_without_tests_is_explained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["pytorch", "--checkout", str(tmp_path)])
    assert pytorch.main() == 2
    assert "found none that is asked for" in capsys.readouterr().err
