"""Modules of unit tests, each run twice in processes of its own: as it is, and captured.

A test whose outcome differs is a finding, as is one that kills its process or does not end.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import dataclasses
import json
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from peers import exceptions, processes
from peers.results import PASSED, SKIPPED

Run = Callable[[str, str], processes.Outcomes]  # module, how


@dataclasses.dataclass(frozen=True)
class Finding:
    module: str
    test: str
    plain: str
    captured: str
    detail: str

    def __str__(self) -> str:
        return f"{self.test}: {self.plain} plain, {self.captured} captured\n{self.detail}"


@dataclasses.dataclass
class ModuleReport:
    module: str
    skipped: str = ""  # why the module does not run here at all
    count: int = 0  # tests that were compared
    findings: list[Finding] = dataclasses.field(default_factory=list)
    excepted: int = 0


def check_module(
    run: Run, module: str, allowed: dict[str, str], hows: tuple[str, str], may_skip: bool = False
) -> ModuleReport:
    """``hows``: what the worker calls the two runs, the plain one first. ``may_skip``: the other run
    leaves tests out by design."""
    report = ModuleReport(module)
    plain = run(module, hows[0])
    report.skipped = plain.skipped or plain.trouble
    if report.skipped:
        return report
    captured = run(module, hows[1])
    if captured.trouble:
        report.findings.append(Finding(module, module, "ends", "does not end", captured.trouble))
    for test, (outcome, _) in plain.of.items():
        now, detail = captured.of.get(test, ("not run", ""))
        if outcome not in (PASSED, SKIPPED, "expected failure"):
            continue  # fails here as it is
        if may_skip and (outcome == SKIPPED or now in (SKIPPED, "not run")):
            continue
        report.count += 1
        if now == outcome:
            continue
        if exceptions.is_listed(test, allowed):
            report.excepted += 1
        else:
            report.findings.append(Finding(module, test, outcome, now, detail))
    return report


def check_modules(
    run: Run,
    names: Iterable[str],
    jobs: int,
    allowed: dict[str, str],
    hows: tuple[str, str],
    may_skip: bool = False,
) -> Iterator[ModuleReport]:
    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        waiting = [pool.submit(check_module, run, name, allowed, hows, may_skip) for name in names]
        for done in concurrent.futures.as_completed(waiting):
            yield done.result()


def read_modules(suite: str) -> list[str]:
    """Those that are run by default, of ``<suite>_modules.txt``."""
    lines = (Path(__file__).parent / f"{suite}_modules.txt").read_text().splitlines()
    return [line for line in lines if line and not line.startswith("#")]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("modules", nargs="*")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--json", type=Path)


def report_on(
    given: argparse.Namespace,
    run: Run,
    names: Sequence[str],
    allowed: dict[str, str],
    hows: tuple[str, str],
    may_skip: bool = False,
) -> int:
    """Checks the modules and prints what is found; the exit status. ``given`` has the arguments of
    ``add_arguments``."""
    reports = []
    for report in check_modules(run, names, given.jobs, allowed, hows, may_skip):
        reports.append(report)
        state = f"not run here: {report.skipped}" if report.skipped else f"{report.count} tests"
        if report.excepted:
            state += f", {report.excepted} listed as different"
        print(f"{report.module}: {state}, {len(report.findings)} findings", flush=True)
        for finding in report.findings:
            print(f"  {finding.test}: {finding.plain} plain, {finding.captured} captured")
    if given.json:
        given.json.write_text(json.dumps([dataclasses.asdict(report) for report in reports]))
    ran = [report for report in reports if not report.skipped]
    tests = sum(report.count for report in ran)
    findings = sum(len(report.findings) for report in ran)
    print(f"{len(ran)} modules, {tests} tests, {findings} findings")
    return 1 if findings or not tests else 0
