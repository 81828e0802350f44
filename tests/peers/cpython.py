"""CPython's own tests, each test method called through ``torch_backplane.compile``.

As a program: ``python -m peers.cpython [MODULE…] [--jobs N] [--json FILE]``. A module is run twice,
each time in a process of its own: as it is, which says what its tests do here, and captured. A test
whose outcome differs is a finding, as is one that kills its process or does not end. What may differ
stands in ``cpython_exceptions.toml``, each with its reason.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import dataclasses
import json
import os
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from peers import exceptions, processes
from peers.results import PASSED, SKIPPED

HERE = Path(__file__).parent
WORKER = HERE / "cpython_worker.py"


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


def modules() -> list[str]:
    """Those that are run by default."""
    lines = (HERE / "cpython_modules.txt").read_text().splitlines()
    return [line for line in lines if line and not line.startswith("#")]


def check_module(module: str, allowed: dict[str, str]) -> ModuleReport:
    def run(how: str) -> processes.Outcomes:
        return processes.run([sys.executable, str(WORKER), module, how])

    report = ModuleReport(module)
    plain = run("plain")
    report.skipped = plain.skipped or plain.trouble
    if report.skipped:
        return report
    captured = run("captured")
    if captured.trouble:
        report.findings.append(Finding(module, module, "ends", "does not end", captured.trouble))
    for test, (outcome, _) in plain.of.items():
        now, detail = captured.of.get(test, ("not run", ""))
        if outcome not in (PASSED, SKIPPED, "expected failure"):
            continue  # fails here as it is
        report.count += 1
        if now == outcome:
            continue
        if exceptions.is_listed(test, allowed):
            report.excepted += 1
        else:
            report.findings.append(Finding(module, test, outcome, now, detail))
    return report


def check_modules(names: Iterable[str], jobs: int) -> Iterator[ModuleReport]:
    allowed = exceptions.read("cpython")
    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        waiting = [pool.submit(check_module, name, allowed) for name in names]
        for done in concurrent.futures.as_completed(waiting):
            yield done.result()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("modules", nargs="*")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()

    reports = []
    for report in check_modules(given.modules or modules(), given.jobs):
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


if __name__ == "__main__":
    sys.exit(main())
