"""Runs one suite of cases through one door, in a process of its own."""

from __future__ import annotations

import argparse
import faulthandler
import fnmatch
import traceback
import unittest
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from pathlib import Path

import torch

from peers.results import FAILED, PASSED, SKIPPED, ResultFile
from peers.torch_suites import Case, Door


def main(suites: Mapping[str, Callable[[], Iterator[Case]]]) -> None:
    """With the arguments ``SUITE DOOR PLUGIN [--only PATTERN] RESULTS SKIP``, as ``processes`` starts
    it."""
    parser = argparse.ArgumentParser()
    parser.add_argument("suite")
    parser.add_argument("door", choices=["own", "torch"])
    parser.add_argument("plugin")
    parser.add_argument("--only", default="*")
    parser.add_argument("results", type=Path)
    parser.add_argument("skip", type=Path)
    given = parser.parse_args()

    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    faulthandler.enable()
    skipped = frozenset(given.skip.read_text().split("\n"))
    with given.results.open("a") as file:
        results = ResultFile(file)
        run_cases(
            suites[given.suite](), Door(given.door, given.plugin), results, given.only, skipped
        )
        results.finish()


def run_cases(
    cases: Iterable[Case], door: Door, results: ResultFile, only: str, skipped: Collection[str]
) -> None:
    for case in cases:
        if case.name in skipped or not fnmatch.fnmatchcase(case.name, only):
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
