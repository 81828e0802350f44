"""The harness for PyTorch's own unit tests: what differs is found, what fails anyhow is not."""

import os
import signal
import subprocess
import sys
import time
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


SLEEPER = """
import os, time
from pathlib import Path
from torch.testing._internal.common_utils import TestCase

class TestSleeps(TestCase):
    def test_long(self):
        Path({pid!r}).write_text(str(os.getpid()) + ".")
        time.sleep(100)
"""


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_a_worker_ends_with_the_harness(tmp_path: Path) -> None:
    (tmp_path / "test").mkdir()
    told = tmp_path / "pid"
    (tmp_path / "test" / "test_sleeps.py").write_text(SLEEPER.format(pid=str(told)))
    harness = subprocess.Popen(
        [sys.executable, "-m", "peers.pytorch", "test_sleeps", "--checkout", str(tmp_path)],
        cwd=Path(__file__).parent.parent,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parent.parent)},
    )
    try:
        until = time.monotonic() + 120
        while not (told.exists() and told.read_text().endswith(".")):
            assert harness.poll() is None and time.monotonic() < until
            time.sleep(0.1)
        worker = int(told.read_text().rstrip("."))
        assert is_running(worker)
    finally:
        harness.kill()
        harness.wait()
    try:
        until = time.monotonic() + 30
        while is_running(worker):
            assert time.monotonic() < until, "the worker runs on"
            time.sleep(0.1)
    finally:
        if is_running(worker):
            os.kill(worker, signal.SIGKILL)
