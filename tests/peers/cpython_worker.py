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
import unittest
import unittest.case
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))
from peers.results import ResultFile
from peers.unit_tests import Recorder, without


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
        without(suite, skipped).run(Recorder(results))
        results.finish()


if __name__ == "__main__":
    main()
