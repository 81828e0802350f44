"""Suites of cases through the doors, each suite and door in a process of its own."""

from __future__ import annotations

import argparse
import concurrent.futures
import itertools
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from peers import exceptions, processes
from peers.results import PASSED, SKIPPED

DOORS = ["own", "torch"]


def check(
    worker: Path, suite: str, door: str, plugin: str, only: str
) -> dict[str, tuple[str, str]]:
    """Outcome and detail of each case, by a name that says suite, door and plugin too."""
    head = f"{suite}.{door}.{plugin}"
    command = [sys.executable, str(worker), suite, door, plugin, "--only", only]
    outcomes = processes.run(command)
    found = {f"{head}.{name}": outcome for name, outcome in outcomes.of.items()}
    if outcomes.trouble:
        found[head] = ("does not end", outcomes.trouble)
    return found


def main(
    about: str,
    worker: Path,
    suites: Sequence[str],
    default: Sequence[tuple[str, str]],
    listed_in: str,
) -> int:
    """``default``: the doors and plugins that are tried where the command line names none."""
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument("suites", nargs="*", choices=[[], *suites])
    parser.add_argument("--door", choices=DOORS, action="append")
    parser.add_argument("--plugin", action="append")
    parser.add_argument("--only", default="*")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()

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
            pool.submit(check, worker, suite, *way, given.only): (suite, *way)
            for suite, way in itertools.product(given.suites or suites, ways)
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
