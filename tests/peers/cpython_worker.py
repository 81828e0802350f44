"""Runs the tests of one module of CPython's own ``test`` package, in a process of its own.

As a program: ``python cpython_worker.py MODULE plain|captured RESULTS SKIP``, as ``processes`` starts
it.
"""

from __future__ import annotations

import argparse
import faulthandler
import importlib
import sys
import sysconfig
import traceback
import unittest
import unittest.case
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))
from peers.results import ERROR, FAILED, PASSED, SKIPPED, ResultFile


def _text(error: Any) -> str:
    return "".join(traceback.format_exception(*error))


class Recorder(unittest.TestResult):
    """Writes what happens to each test at once."""

    def __init__(self, file: ResultFile) -> None:
        super().__init__()
        self._results = file
        self._worst: dict[str, tuple[str, str]] = {}

    def startTest(self, test: unittest.TestCase) -> None:
        super().startTest(test)
        self._results.begin(test.id())

    def stopTest(self, test: unittest.TestCase) -> None:
        self._results.end(test.id(), *self._worst.pop(test.id(), (PASSED, "")))
        super().stopTest(test)

    def _note(self, test: Any, outcome: str, detail: str = "") -> None:
        if isinstance(test, unittest.TestCase):
            self._worst.setdefault(test.id(), (outcome, detail))
        else:  # a fixture of a class or module
            self._results.end(test.id(), outcome, detail)

    def addError(self, test: Any, err: Any) -> None:
        self._note(test, ERROR, _text(err))

    def addFailure(self, test: Any, err: Any) -> None:
        self._note(test, FAILED, _text(err))

    def addSubTest(self, test: Any, subtest: Any, err: Any) -> None:
        if err is not None:
            self._note(test, FAILED, f"{subtest}\n{_text(err)}")

    def addSkip(self, test: Any, reason: str) -> None:
        self._note(test, SKIPPED, reason)

    def addExpectedFailure(self, test: Any, err: Any) -> None:
        self._note(test, "expected failure")

    def addUnexpectedSuccess(self, test: Any) -> None:
        self._note(test, "unexpected success")


def _warm_up(compile_function: Callable[..., Any]) -> None:
    """Imports what the first call of a compiled function imports, which a test's mocks would break."""
    import torch

    compile_function(lambda x: x + 1, backend="eager")(torch.ones(1))


def _captured_call(compile_function: Callable[..., Any]) -> Callable[..., Any]:
    def call(self: unittest.TestCase, method: Callable[[], Any]) -> None:
        compile_function(method, backend="eager")()

    return call


def _make_program(folder: Path) -> None:
    """Python's own library runs as it is. Under another path the tests are programs to capture."""
    (folder / "test").symlink_to(Path(sysconfig.get_path("stdlib")) / "test")
    sys.path.insert(0, str(folder))


def _without(suite: unittest.TestSuite, skipped: frozenset[str]) -> unittest.TestSuite:
    """Keeps the suites' own order and nesting, which fixtures of classes depend on."""
    kept = type(suite)()
    for test in suite:
        if isinstance(test, unittest.TestSuite):
            kept.addTest(_without(test, skipped))
        elif test.id() not in skipped:
            kept.addTest(test)
    return kept


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("module")
    parser.add_argument("how", choices=["plain", "captured"])
    parser.add_argument("results", type=Path)
    parser.add_argument("skip", type=Path)
    given = parser.parse_args()

    _make_program(given.results.parent)
    import torch  # noqa: F401  # in both runs: it changes what some tests see
    import torch_backplane
    from test import support
    from test.support import os_helper

    _warm_up(torch_backplane.compile)
    support.use_resources = []
    support.verbose = False
    sys.argv = [sys.argv[0]]
    skipped = frozenset(given.skip.read_text().split("\n"))
    with given.results.open("a") as file, os_helper.temp_cwd():
        results = ResultFile(file)
        faulthandler.enable()
        try:
            module = importlib.import_module(f"test.{given.module}")
            suite = unittest.defaultTestLoader.loadTestsFromModule(module)
        except unittest.SkipTest as reason:
            results.skip_all(str(reason))
            return
        if given.how == "captured":
            unittest.case.TestCase._callTestMethod = _captured_call(torch_backplane.compile)
        _without(suite, skipped).run(Recorder(results))
        results.finish()


if __name__ == "__main__":
    main()
