#!/usr/bin/env python3
"""Records PyTorch's operator samples, replays the graphs and compares with eager PyTorch.

    scripts/opinfo_record.py                    every sample of every entry
    scripts/opinfo_record.py --op 'linalg*' --samples 2
    scripts/opinfo_record.py --plugin cpu_onednn          as a user's calls, on a plugin ("aten": by ATen)

Exits with 1 when a result is wrong or a check fails.
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import sys
import time
import warnings
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

import torch
from opinfo import recording
from torch_backplane.opinfo import entries


def arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--op", action="append", help="entries by name or pattern")
    parser.add_argument("--samples", type=int, help="of each entry; all if not given")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--plugin", default="", help="run calls on it instead of replaying graphs")
    parser.add_argument("--json", type=Path, help="file for the summary and every single check")
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> int:
    options = arguments(argv)
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    names = list(entries.database())
    if options.op:
        names = [n for n in names if any(fnmatch.fnmatch(n, pattern) for pattern in options.op)]
    started = time.monotonic()
    checks = recording.run(names, options.samples, getattr(torch, options.dtype), options.plugin)
    found = recording.summary(checks)
    if options.json:
        found["checks"] = [vars(check) for check in checks]
        options.json.write_text(json.dumps(found, indent=1) + "\n")
    for reason, entry_names in sorted(found["reasons"].items()):
        print(f"{reason}\n    {', '.join(entry_names)}")
    print(
        f"{len(names)} entries, {len(checks)} samples: {found['counts']}, "
        f"{found['share']:.2%} of the possible served, {found['nearly']} nearly the same; "
        f"{time.monotonic() - started:.0f} seconds"
    )
    bugs = found["counts"].get("wrong", 0) + found["counts"].get("error", 0)
    return 1 if bugs else 0


if __name__ == "__main__":
    sys.exit(main())
