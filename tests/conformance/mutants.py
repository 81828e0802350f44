"""Plugins with one fault each, and what the kit says of them."""

from __future__ import annotations

import json
import os
import pathlib
import re
import subprocess
import sys

from backplane_conformance.outcome import is_bad

SOURCE = pathlib.Path(__file__).with_name("mutant_plugin.cc")
# Faults of which the plugins here give no sign: each with the reason.
HARMLESS = {
    "swallows-parallel-failures": "reference runs its loops itself, and never asks for threads",
}


def names() -> list[str]:
    """In the order of the source."""
    found = re.findall(r'\bis\("([a-z0-9-]+)"\)', SOURCE.read_text())
    return list(dict.fromkeys(found))


def build(package: pathlib.Path, folder: pathlib.Path) -> pathlib.Path:
    """The library of all mutants."""
    library = folder / "libbackplane_mutant.so"
    subprocess.run(
        [
            "g++", "-std=c++20", "-O1", "-fPIC", "-shared", "-fvisibility=hidden", "-fno-gnu-unique",
            f"-I{package / 'include'}", f"-Wl,--version-script={package / 'cmake/backplane_plugin.map'}",
            "-Wl,-z,relro", str(SOURCE), "-o", str(library),
        ],
        check=True,
    )  # fmt: skip
    return library


def killer(
    library: pathlib.Path, of: pathlib.Path, mutant: str, folder: pathlib.Path, jobs: int = 2
) -> dict[str, str] | None:
    """The first case that does not pass; None where the mutant survives all of level 2."""
    environment = os.environ | {"BACKPLANE_MUTANT": mutant, "BACKPLANE_MUTANT_OF": str(of)}
    done = subprocess.run(
        [
            sys.executable, "-m", "backplane_conformance", "certify", str(library), "--level", "2",
            "--stop", "--timeout", "10", "--jobs", str(jobs), "--out", str(folder), "--again",
        ],
        env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    if done.returncode not in (0, 1):
        raise RuntimeError(done.stderr)
    report = json.loads((folder / "report.json").read_text())
    for case in report["cases"]:
        if is_bad(case):
            return {"case": case["id"], "verdict": case["verdict"], "text": case.get("text", "")}
    if report["reached"] < 2:
        return {"case": "all", "verdict": "no level", "text": "nothing of what a level asks passed"}
    return None
