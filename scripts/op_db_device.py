#!/usr/bin/env python3
"""PyTorch's operator database on tensors of the torch device, operator by operator.

scripts/op_db_device.py --plugin opencl                    every operator, float32, 3 samples each
scripts/op_db_device.py --plugin reference --samples 1000 --dtypes float32,int64,bfloat16

Prints wrong results and how many calls ran on the plugin and on the CPU. Exit status 1: some result
was wrong.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SUITE = ROOT / "tests" / "device" / "op_db_suite.py"
CHUNK = 200  # operators in a process: a crash is one chunk's


@dataclasses.dataclass
class Outcome:
    passed: int = 0
    failed: list[str] = dataclasses.field(default_factory=list)
    plugin_calls: int = 0
    fallback_calls: int = 0
    fallbacks: dict[str, int] = dataclasses.field(default_factory=dict)
    text: str = ""  # of the last process that ended badly


def operator_count() -> int:
    """Entries of the database, counted in a process of its own: the import is a heavy one."""
    code = "from torch.testing._internal.common_methods_invocations import op_db; print(len(op_db))"
    return int(subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout)


def passed_of(output: str) -> int:
    """By unittest's summary: a driver's compiler may write between a test's name and its "ok"."""
    ran = re.search(r"^Ran (\d+) tests? in ", output, re.MULTILINE)
    end = re.search(r"^(?:OK|FAILED)(?: \((.*)\))?$", output, re.MULTILINE)
    if not ran or not end:
        return 0
    return int(ran[1]) - sum(int(n) for n in re.findall(r"=(\d+)", end[1] or ""))


def run_chunk(plugin: str, first: int, samples: int, dtypes: str, outcome: Outcome) -> None:
    with tempfile.TemporaryDirectory() as folder:
        counts = Path(folder) / "counts.json"
        done = subprocess.run(
            [sys.executable, str(SUITE), "-v"],
            env={
                # PyTorch's test runner wants the package "xmlrunner" where CI is set.
                **{name: value for name, value in os.environ.items() if name != "CI"},
                "BACKPLANE_DEVICE": plugin,
                "BACKPLANE_QUIET": "1",
                "BACKPLANE_OP_DB_COUNTS": str(counts),
                "BACKPLANE_OP_DB_DTYPES": dtypes,
                "BACKPLANE_OP_DB_RANGE": f"{first}:{first + CHUNK}",
                "BACKPLANE_OP_DB_SAMPLES": str(samples),
            },
            capture_output=True,
            text=True,
            check=False,
        )
        found = json.loads(counts.read_text()) if counts.exists() else None
    output = done.stdout + done.stderr
    outcome.passed += passed_of(output)
    outcome.failed += re.findall(r"^(?:FAIL|ERROR): .*", output, re.MULTILINE)
    if done.returncode != 0:
        outcome.text += output[-20000:]
    if found is None:
        started = re.findall(r"^(test_\S+) .*\.\.\. $", output, re.MULTILINE)
        outcome.failed.append(
            f"the process died with {done.returncode} in {started[-1:] or output[-500:]}"
        )
        return
    outcome.plugin_calls += found["eager_plugin_ops"]
    outcome.fallback_calls += found["eager_fallback_ops"]
    for op, (count, _) in found["eager_fallbacks"].items():
        outcome.fallbacks[op] = outcome.fallbacks.get(op, 0) + count


def run(plugin: str, samples: int = 3, dtypes: str = "float32") -> Outcome:
    outcome = Outcome()
    for first in range(0, operator_count(), CHUNK):
        run_chunk(plugin, first, samples, dtypes, outcome)
    return outcome


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--plugin", default="reference")
    parser.add_argument("--samples", type=int, default=3)
    parser.add_argument("--dtypes", default="float32")
    parser.add_argument("--json", type=Path, help="also writes the outcome there")
    options = parser.parse_args()
    outcome = run(options.plugin, options.samples, options.dtypes)
    if options.json:
        options.json.write_text(json.dumps(dataclasses.asdict(outcome)))
    print(outcome.text)
    for line in outcome.failed:
        print(line)
    for op, count in sorted(outcome.fallbacks.items(), key=lambda item: -item[1]):
        print(f"{count:6d} on the CPU: {op}")
    print(
        f"{outcome.passed} passed, {len(outcome.failed)} failed; "
        f"{outcome.plugin_calls} calls on the plugin, {outcome.fallback_calls} on the CPU"
    )
    return 1 if outcome.failed else 0


if __name__ == "__main__":
    sys.exit(main())
