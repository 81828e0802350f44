"""Runs unit tests and tells what each does at once, in the form of ``results``."""

from __future__ import annotations

import traceback
import unittest
from collections.abc import Callable, Collection
from typing import Any

from peers.results import ERROR, FAILED, PASSED, SKIPPED, ResultFile

Name = Callable[[unittest.TestCase], str]


def _text(error: Any) -> str:
    return "".join(traceback.format_exception(*error))


class Recorder(unittest.TestResult):
    """Writes what happens to each test at once."""

    def __init__(self, file: ResultFile, name: Name = unittest.TestCase.id) -> None:
        super().__init__()
        self._results = file
        self._name = name
        self._worst: dict[str, tuple[str, str]] = {}

    def startTest(self, test: unittest.TestCase) -> None:
        super().startTest(test)
        self._results.begin(self._name(test))

    def stopTest(self, test: unittest.TestCase) -> None:
        self._results.end(self._name(test), *self._worst.pop(test.id(), (PASSED, "")))
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


def without(
    suite: unittest.TestSuite, skipped: Collection[str], name: Name = unittest.TestCase.id
) -> unittest.TestSuite:
    """Keeps the suites' own order and nesting, which fixtures of classes depend on."""
    kept = type(suite)()
    for test in suite:
        if isinstance(test, unittest.TestSuite):
            kept.addTest(without(test, skipped, name))
        elif name(test) not in skipped:
            kept.addTest(test)
    return kept
