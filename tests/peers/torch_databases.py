"""PyTorch's own databases of modules, optimizers, functions and examples through both doors.

As a program: ``python -m peers.torch_databases [SUITE…] [--door own|torch] [--plugin NAME]
[--only PATTERN] [--jobs N] [--json FILE]``. A case that differs from eager, kills its process or
does not end is a finding, unless ``torch_exceptions.toml`` lists it with a reason.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import itertools
import json
import os
import sys
from pathlib import Path

from peers import exceptions, processes
from peers.results import PASSED, SKIPPED

WORKER = Path(__file__).parent / "torch_worker.py"
SUITES = [
    "modules", "optimizers", "autograd_functions", "custom_operators", "higher_order_operators",
    "export_examples",
]  # fmt: skip
DOORS = ["own", "torch"]
PLUGINS = ["cpu_onednn", "opencl"]


def check(suite: str, door: str, plugin: str, only: str) -> dict[str, tuple[str, str]]:
    """Outcome and detail of each case, by a name that says suite, door and plugin too."""
    head = f"{suite}.{door}.{plugin}"
    command = [sys.executable, str(WORKER), suite, door, plugin, "--only", only]
    outcomes = processes.run(command)
    found = {f"{head}.{name}": outcome for name, outcome in outcomes.of.items()}
    if outcomes.trouble:
        found[head] = ("does not end", outcomes.trouble)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("suites", nargs="*", choices=[[], *SUITES])
    parser.add_argument("--door", choices=DOORS, action="append")
    parser.add_argument("--plugin", action="append")
    parser.add_argument("--only", default="*")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()

    allowed = exceptions.read("torch")
    work = list(
        itertools.product(
            given.suites or SUITES, given.door or DOORS, given.plugin or PLUGINS, [given.only]
        )
    )
    everything: dict[str, tuple[str, str]] = {}
    with concurrent.futures.ThreadPoolExecutor(given.jobs) as pool:
        waiting = {pool.submit(check, *one): one for one in work}
        for done in concurrent.futures.as_completed(waiting):
            found = done.result()
            everything.update(found)
            wrong = {name: what for name, what in found.items() if what[0] not in (PASSED, SKIPPED)}
            listed = [name for name in wrong if exceptions.is_listed(name, allowed)]
            passed = sum(what[0] == PASSED for what in found.values())
            print(
                f"{' '.join(waiting[done][:3])}: {passed} passed, "
                f"{len(found) - passed - len(wrong)} fail in eager, {len(listed)} listed as "
                f"different, {len(wrong) - len(listed)} findings",
                flush=True,
            )
            for name, (outcome, detail) in wrong.items():
                if name not in listed:
                    last = detail.strip().splitlines()[-1:] or [""]
                    print(f"  {name}: {outcome}: {last[0][:200]}")
    if given.json:
        given.json.write_text(json.dumps(everything))
    passed = sum(what[0] == PASSED for what in everything.values())
    findings = sum(
        what[0] not in (PASSED, SKIPPED) and not exceptions.is_listed(name, allowed)
        for name, what in everything.items()
    )
    print(f"{passed} cases passed, {findings} findings")
    return 1 if findings or not passed else 0


if __name__ == "__main__":
    sys.exit(main())
