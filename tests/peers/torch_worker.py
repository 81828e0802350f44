"""Runs one suite of ``torch_suites`` through one door, in a process of its own.

As a program: ``python torch_worker.py SUITE DOOR PLUGIN RESULTS SKIP``, as ``processes`` starts it.
"""

from __future__ import annotations

import argparse
import faulthandler
import fnmatch
import sys
import traceback
import unittest
import warnings
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))
from peers.results import FAILED, PASSED, SKIPPED, ResultFile


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("suite")
    parser.add_argument("door", choices=["own", "torch"])
    parser.add_argument("plugin")
    parser.add_argument("--only", default="*")
    parser.add_argument("results", type=Path)
    parser.add_argument("skip", type=Path)
    given = parser.parse_args()

    import torch

    from peers.torch_suites import SUITES, Door

    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    faulthandler.enable()
    skipped = frozenset(given.skip.read_text().split("\n"))
    door = Door(given.door, given.plugin)
    with given.results.open("a") as file:
        results = ResultFile(file)
        for case in SUITES[given.suite]():
            if case.name in skipped or not fnmatch.fnmatchcase(case.name, given.only):
                continue
            results.begin(case.name)
            try:
                case.run(door)
            except unittest.SkipTest as reason:
                results.end(case.name, SKIPPED, str(reason))
            except Exception:
                results.end(case.name, FAILED, traceback.format_exc())
            else:
                results.end(case.name, PASSED)
            torch._dynamo.reset()
        results.finish()


if __name__ == "__main__":
    main()
