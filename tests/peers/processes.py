"""Tests in a worker process that may die or hang: the rest of them goes on in another."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

PROCESS_SECONDS = 3600.0
MOST_DEATHS = 30


@dataclasses.dataclass
class Outcomes:
    """Outcome and detail of each test."""

    of: dict[str, tuple[str, str]] = dataclasses.field(default_factory=dict)
    skipped: str = ""  # why nothing runs here
    trouble: str = ""  # why not all of them ran


def environment() -> dict[str, str]:
    kept = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}
    return {**kept, "OMP_NUM_THREADS": "1", "PYTHONHASHSEED": "0"}


def run(command: Sequence[str]) -> Outcomes:
    """Runs a worker, which is given ``RESULTS`` and ``SKIP`` (a file with names of tests to leave
    out) as its last arguments, again and again until no test is left."""
    out = Outcomes()
    for _ in range(MOST_DEATHS):
        with tempfile.TemporaryDirectory(prefix="backplane-peers-") as folder:
            if _run_once([*command], Path(folder), out):
                return out
    out.trouble = f"{MOST_DEATHS} processes died"
    return out


def _run_once(command: list[str], folder: Path, out: Outcomes) -> bool:
    """Whether the worker came to its end."""
    results, skip = folder / "results.jsonl", folder / "skip"
    skip.write_text("\n".join(out.of))
    said = folder / "stderr"
    with said.open("wb") as errors:
        try:
            code: int | None = subprocess.run(
                [*command, str(results), str(skip)],
                cwd=folder,
                env=environment(),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=errors,
                timeout=PROCESS_SECONDS,
                check=False,
            ).returncode
        except subprocess.TimeoutExpired:
            code = None
    return read(results, code, said.read_text(errors="replace")[-3000:], out)


def read(results: Path, code: int | None, tail: str, out: Outcomes) -> bool:
    """Adds what a process wrote that ended with ``code``, or was ended for its time (None); ``tail``
    is the last that it said. Whether it came to its end."""
    end = "no end" if code is None else f"the process ended with {code}"
    running, finished = "", False
    for line in results.read_text().splitlines() if results.exists() else ():
        what = json.loads(line)
        if "skipped" in what:
            out.skipped = what["skipped"]
            return True
        finished = finished or "finished" in what
        if "begin" in what:
            running = what["begin"]
        elif "end" in what:
            out.of[what["end"]] = (what["outcome"], what["detail"])
            running = ""
    if running:
        out.of[running] = (end, tail)
        return False
    if not finished or code != 0:
        out.trouble = f"{end}: {tail}"
    return True
