"""Suites of cases through the doors, each suite and door in a process of its own."""

from __future__ import annotations

import argparse
import concurrent.futures
import fnmatch
import itertools
import json
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from peers import exceptions, processes
from peers.results import PASSED, SKIPPED

DOORS = ["own", "torch"]


Run = Callable[[str, str, str, str], processes.Outcomes]  # suite, door, plugin, pattern of cases


def in_worker(program: str) -> Run:
    """Runs a suite by ``program`` of this folder, which ``case_worker`` makes."""
    worker = Path(__file__).parent / program

    def run(suite: str, door: str, plugin: str, only: str) -> processes.Outcomes:
        return processes.run([sys.executable, str(worker), suite, door, plugin, "--only", only])

    return run


def check(run: Run, suite: str, door: str, plugin: str, only: str) -> dict[str, tuple[str, str]]:
    """Outcome and detail of each case, by a name that says suite, door and plugin too."""
    head = f"{suite}.{door}.{plugin}"
    outcomes = run(suite, door, plugin, only)
    found = {f"{head}.{name}": outcome for name, outcome in outcomes.of.items()}
    if outcomes.trouble:
        found[head] = ("does not end", outcomes.trouble)
    if outcomes.skipped:
        found[head] = (SKIPPED, outcomes.skipped)
    return found


def main(
    about: str,
    run: Run,
    suites: Sequence[str],
    default: Sequence[tuple[str, str]],
    listed_in: str,
    arguments: Sequence[str] | None = None,
) -> int:
    """``default``: the doors and plugins that are tried where the command line names none."""
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument("suites", nargs="*", help=f"names or patterns of: {', '.join(suites[:20])}")
    parser.add_argument("--door", choices=DOORS, action="append")
    parser.add_argument("--plugin", action="append")
    parser.add_argument("--only", default="*")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args(arguments)
    chosen = [s for s in suites if any(fnmatch.fnmatchcase(s, p) for p in given.suites or ["*"])]
    if not chosen:
        parser.error(f"no suite is called {' or '.join(given.suites)}")

    allowed = exceptions.read(listed_in)
    ways = list(default)
    if given.door or given.plugin:
        ways = list(
            itertools.product(
                given.door or dict.fromkeys(door for door, _ in default),
                given.plugin or dict.fromkeys(plugin for _, plugin in default),
            )
        )
    everything: dict[str, tuple[str, str]] = {}
    with concurrent.futures.ThreadPoolExecutor(given.jobs) as pool:
        waiting = {
            pool.submit(check, run, suite, *way, given.only): (suite, *way)
            for suite, way in itertools.product(chosen, ways)
        }
        for done in concurrent.futures.as_completed(waiting):
            found = done.result()
            everything.update(found)
            wrong = {name: what for name, what in found.items() if what[0] not in (PASSED, SKIPPED)}
            listed = [name for name in wrong if exceptions.is_listed(name, allowed)]
            passed = sum(what[0] == PASSED for what in found.values())
            print(
                f"{' '.join(waiting[done])}: {passed} passed, "
                f"{len(found) - passed - len(wrong)} fail in eager, {len(listed)} listed as "
                f"different, {len(wrong) - len(listed)} findings",
                flush=True,
            )
            for name, (outcome, detail) in wrong.items():
                if name not in listed:
                    last = detail.strip().splitlines()[-1:] or [""]
                    print(f"  {name}: {outcome}: {last[0][:200]}", flush=True)
    if given.json:
        given.json.write_text(json.dumps(everything))
    passed = sum(what[0] == PASSED for what in everything.values())
    findings = sum(
        what[0] not in (PASSED, SKIPPED) and not exceptions.is_listed(name, allowed)
        for name, what in everything.items()
    )
    print(f"{passed} cases passed, {findings} findings")
    return 1 if findings or not passed else 0
