"""Runs one file of PyTorch's unit tests, in a process of its own.

As a program: ``python pytorch_worker.py FILE plain|DOOR:BACKEND RESULTS SKIP``, as ``processes`` starts
it.
"""

from __future__ import annotations

import argparse
import ast
import faulthandler
import functools
import os
import signal
import sys
import types
import unittest
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))
from peers.results import ResultFile
from peers.unit_tests import Recorder, without

MARK = "_backplane_captured"
TEST_SECONDS = 120


class _Marker(ast.NodeTransformer):
    """Decorates the functions themselves: instantiated tests are wrappers around them."""

    def visit_FunctionDef(self, function: ast.FunctionDef) -> ast.FunctionDef:
        if function.name.startswith("test"):
            mark = ast.copy_location(ast.Name(MARK, ast.Load()), function)
            function.decorator_list.append(mark)
        return function


def load(path: Path, capture: Callable[[Any], Any]) -> types.ModuleType:
    """The module of a file, each of its test functions given to ``capture``."""
    module = types.ModuleType(path.stem)
    module.__file__ = str(path)
    setattr(module, MARK, capture)
    sys.modules[path.stem] = module
    tree = ast.fix_missing_locations(_Marker().visit(ast.parse(path.read_text())))
    exec(compile(tree, str(path), "exec"), module.__dict__)
    return module


def capture_by(compile_function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """A decorator that captures at the first call."""

    def capture(function: Any) -> Any:
        captured: list[Any] = []

        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            if not captured:
                captured.append(compile_function(function))
            return captured[0](*args, **kwargs)

        return call

    return capture


def _as_it_is(function: Any) -> Any:
    return function


def _name_on_cpu(test: unittest.TestCase) -> str:
    return test.id().replace("BACKPLANE.", "CPU.").replace("_backplane", "_cpu")


class _TooLong(BaseException):
    """A test that takes too long for a suite of thousands."""


def _limit(*_: Any) -> None:
    raise _TooLong(f"over {TEST_SECONDS} s")


class _Timed(Recorder):
    """Ends a test that takes too long, and puts back what a test that failed leaves switched."""

    def startTest(self, test: unittest.TestCase) -> None:
        super().startTest(test)
        signal.alarm(TEST_SECONDS)

    def stopTest(self, test: unittest.TestCase) -> None:
        import torch

        signal.alarm(0)
        torch.set_default_dtype(torch.float32)
        torch.set_grad_enabled(True)
        torch.use_deterministic_algorithms(False)
        torch.compiler.reset()
        super().stopTest(test)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("file", type=Path)
    parser.add_argument("how")
    parser.add_argument("results", type=Path)
    parser.add_argument("skip", type=Path)
    given = parser.parse_args()

    door, _, backend = given.how.partition(":")
    os.environ["PYTORCH_TESTING_DEVICE_ONLY_FOR"] = "privateuse1" if door == "device" else "cpu"
    sys.path.insert(0, str(given.file.parent))
    sys.argv = [str(given.file.resolve())]  # which its tests are to be of
    import torch
    import torch_backplane

    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    if door == "device":
        torch_backplane.device(backend.removeprefix("plugin:"), 0)
    compile_by = {"own": torch_backplane.compile, "torch": torch.compile}.get(door)
    capture: Callable[[Any], Any] = _as_it_is
    if compile_by is not None:
        capture = capture_by(functools.partial(compile_by, backend=backend))
        capture(lambda x: x + 1)(torch.ones(1))  # imports what a test's mocks would break
    skipped = frozenset(given.skip.read_text().split("\n"))
    with given.results.open("a") as file:
        results = ResultFile(file)
        faulthandler.enable()
        signal.signal(signal.SIGALRM, _limit)
        try:
            suite = unittest.defaultTestLoader.loadTestsFromModule(load(given.file, capture))
        except (unittest.SkipTest, ImportError) as reason:
            results.skip_all(f"{type(reason).__name__}: {reason}")
            return
        without(suite, skipped, _name_on_cpu).run(_Timed(results, _name_on_cpu))
        results.finish()


if __name__ == "__main__":
    main()
