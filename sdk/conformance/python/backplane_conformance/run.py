"""One certification run: which cases, in which order, what came of them, and where it is kept."""

from __future__ import annotations

import fnmatch
import json
import os
import pathlib
import platform
import sys
import threading
import time
from typing import Any, TextIO

from backplane_conformance import KIT_VERSION, files, worker
from backplane_conformance.outcome import GOOD, family, is_bad


class Journal:
    """Outcomes as they come, a line each; another run of the same library goes on behind them."""

    def __init__(self, path: pathlib.Path, head: dict[str, Any]) -> None:
        self.path = path
        self.outcomes: dict[str, dict[str, Any]] = {}
        self.resumed = False
        if path.is_file():
            lines = path.read_text().splitlines()
            if lines and _load(lines[0]) == head:
                self.resumed = True
                for line in lines[1:]:
                    outcome = _load(line)
                    if outcome is not None:  # the last line may be cut off
                        self.outcomes[outcome["id"]] = outcome
        if not self.resumed:
            path.write_text(json.dumps(head) + "\n")
        self.file = path.open("a")
        self.lock = threading.Lock()

    def add(self, outcome: dict[str, Any]) -> None:
        with self.lock:
            self.outcomes[outcome["id"]] = outcome
            self.file.write(json.dumps(outcome) + "\n")
            self.file.flush()

    def close(self) -> None:
        self.file.close()


def _load(line: str) -> Any:
    try:
        return json.loads(line)
    except ValueError:
        return None


class Progress:
    """One line on a terminal; every so often a line elsewhere."""

    def __init__(self, total: int, stream: TextIO) -> None:
        self.total, self.stream = total, stream
        self.done = self.bad = 0
        self.begun = self.shown = time.monotonic()
        self.terminal = stream.isatty()

    def count(self, outcome: dict[str, Any]) -> None:
        self.done += 1
        self.bad += outcome["verdict"] not in GOOD
        now = time.monotonic()
        if now - self.shown < (0.2 if self.terminal else 30) and self.done != self.total:
            return
        self.shown = now
        left = (now - self.begun) / self.done * (self.total - self.done)
        text = f"{self.done} of {self.total} cases, {self.bad} not passed, {left:.0f} s left"
        end = "\n" if not self.terminal or self.done == self.total else ""
        print(
            ("\r" if self.terminal else "") + text.ljust(70), end=end, file=self.stream, flush=True
        )


def host_facts() -> dict[str, str]:
    model = ""
    try:
        for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                model = line.split(":", 1)[1].strip()
                break
    except OSError:
        pass
    return {
        "cpu": model or platform.processor(),
        "cores": str(os.cpu_count()),
        "system": f"{platform.system()} {platform.release()}",
        "libc": " ".join(platform.libc_ver()),
        "python": platform.python_version(),
    }


DOORS = ("any", "alone", "table", "host", "torch")


def share_out(cases: list[dict[str, Any]], jobs: int) -> list[list[dict[str, Any]]]:
    """A list per job: level after level, and in each the cases of one door together, as a process of
    their own costs time."""
    out: list[list[dict[str, Any]]] = [[] for _ in range(jobs)]
    in_order = sorted(cases, key=lambda case: (case["level"], DOORS.index(case["door"])))
    for number, case in enumerate(in_order):
        out[number % jobs].append(case)
    return [part for part in out if part]


def run(
    target: worker.Target,
    level: int,
    folder: pathlib.Path,
    jobs: int,
    patterns: list[str],
    seconds: float = worker.CASE_SECONDS,
    stream: TextIO | None = None,
    stops: bool = False,
) -> dict[str, Any]:
    """Runs what is missing, or until a case does not pass where it ``stops``. Returns the run: facts
    and outcomes in the order of the cases."""
    stream = stream or sys.stderr
    cases = worker.list_cases(target, level)
    if patterns:
        cases = [c for c in cases if any(fnmatch.fnmatchcase(c["id"], p) for p in patterns)]
        if not cases:
            raise files.KitMissing(f"no case of level {level} fits {', '.join(patterns)}")
    head = {
        "kit": KIT_VERSION,
        "plugin": str(target.plugin),
        "sha256": files.sha256(target.plugin),
        "device": target.device,
        "abi": worker.abi_version(target),
        "corpus": [files.sha256(target.corpus / f"{s}.txt") for s in files.SECTIONS],
    }
    folder.mkdir(parents=True, exist_ok=True)
    journal = Journal(folder / "journal.jsonl", head)
    todo = [case for case in cases if case["id"] not in journal.outcomes]
    if journal.resumed and len(todo) < len(cases):
        print(f"goes on behind {len(cases) - len(todo)} cases of an earlier run", file=stream)
    begun = time.monotonic()
    progress = Progress(len(todo), stream)
    lock = threading.Lock()
    errors: list[BaseException] = []

    def emit(outcome: dict[str, Any]) -> bool:
        journal.add(outcome)
        with lock:
            progress.count(outcome)
            return not (stops and progress.bad)

    def work(part: list[dict[str, Any]]) -> None:
        try:
            worker.run_cases(target, part, emit, seconds)
        except BaseException as error:
            errors.append(error)

    threads = [
        threading.Thread(target=work, args=(part,), daemon=True)
        for part in share_out(todo, max(1, jobs))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    journal.close()
    if errors:
        raise errors[0]
    outcomes = [journal.outcomes[case["id"]] for case in cases if case["id"] in journal.outcomes]
    return {
        "schema": 1,
        **head,
        "level": level,
        "complete": not patterns and len(outcomes) == len(cases),
        "host": host_facts(),
        "date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "seconds": round(time.monotonic() - begun, 1),
        "cases": outcomes,
    }


PROOFS = ("operators", "model")


def reached(result: dict[str, Any]) -> int:
    """The highest level of which every case passed, is not claimed or is waived; -1: none. A run of
    chosen cases reaches none; from level 1 on some operator, or model, has to be right."""
    if not result["complete"]:
        return -1
    out = -1
    for level in range(result["level"] + 1):
        here = [c for c in result["cases"] if c["level"] == level]
        bad = [c for c in here if is_bad(c)]
        right = [c for c in here if c["verdict"] == "pass"]
        if bad or not any(level == 0 or family(c["id"]) in PROOFS for c in right):
            break
        out = level
    return out
