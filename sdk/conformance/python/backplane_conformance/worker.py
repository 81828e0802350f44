"""Processes that run cases, and what becomes of those that end one or never answer."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import pathlib
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from typing import Any

from backplane_conformance import files

CASE_SECONDS = 120.0
# A worker that holds more is replaced: drivers may keep something of each program that they built.
WORKER_BYTES = 4 << 30


@dataclasses.dataclass(frozen=True)
class Target:
    """What is tested: a library and one of its devices."""

    plugin: pathlib.Path
    device: int
    corpus: pathlib.Path

    def command(self, *more: str, door: str = "any") -> list[str]:
        if door == "torch":
            return [
                sys.executable, "-m", "backplane_conformance.torch_worker", str(self.plugin),
                "--device", str(self.device), *more,
            ]  # fmt: skip
        return [
            str(files.worker()), str(self.plugin), "--oracle", str(self.corpus / files.ORACLE),
            "--corpus", str(self.corpus), "--device", str(self.device), *more,
        ]  # fmt: skip


def abi_version(target: Target) -> str:
    """The version of the ABI that the kit speaks."""
    done = subprocess.run(target.command("--abi"), capture_output=True, text=True, check=False)
    return done.stdout.strip()


def list_cases(target: Target, level: int) -> list[dict[str, Any]]:
    """All of that level and below; those with PyTorch are asked for where they are wanted."""
    out = []
    for door in ("any", "torch")[: 1 + (level > 2)]:
        command = target.command("--list", door=door)
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise files.KitMissing(done.stderr.strip())
        out += [json.loads(line) for line in done.stdout.splitlines()]
    return [case for case in out if case["level"] <= level]


class Lines:
    """Lines of a pipe, each within a time."""

    def __init__(self, pipe: Any) -> None:
        self.pipe = pipe
        self.buffer = b""
        self.selector = selectors.DefaultSelector()
        self.selector.register(pipe, selectors.EVENT_READ)

    def next(self, seconds: float) -> str | None:
        """None when the pipe has ended."""
        end = time.monotonic() + seconds
        while b"\n" not in self.buffer:
            left = end - time.monotonic()
            if left <= 0 or not self.selector.select(left):
                raise TimeoutError
            more = self.pipe.read1(1 << 16)
            if not more:
                return None
            self.buffer += more
        line, self.buffer = self.buffer.split(b"\n", 1)
        return line.decode(errors="replace")


class Worker:
    """One process that runs cases until it ends."""

    def __init__(self, target: Target, log: Any, door: str) -> None:
        # What an earlier run has compiled is no test of this one.
        environment = os.environ | {"BACKPLANE_CACHE": "0", "BACKPLANE_QUARANTINE": "off"}
        self.process = subprocess.Popen(
            target.command(door=door), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log,
            env=environment,
        )  # fmt: skip
        self.lines = Lines(self.process.stdout)

    def run(self, case: str, seconds: float) -> dict[str, Any]:
        """The outcome of one case; a worker that did not survive it answers no more."""
        assert self.process.stdin is not None
        begun = time.monotonic()
        try:
            self.process.stdin.write(f"{case}\n".encode())
            self.process.stdin.flush()
            while True:
                line = self.lines.next(seconds)
                if line is None:
                    break
                answer = json.loads(line)
                if answer.get("end") == case:
                    answer["id"] = answer.pop("end")
                    return answer
        except TimeoutError:
            self.process.kill()
            self.process.wait()
            return self._lost(case, "timeout", f"no answer within {seconds:.0f} s", begun)
        except BrokenPipeError:
            pass
        status = self.process.wait()
        if status < 0:
            try:
                text = f"the process ended by {signal.Signals(-status).name}"
            except ValueError:
                text = f"the process ended by signal {-status}"
        else:
            text = f"the process ended with status {status}"
        return self._lost(case, "crash", text, begun)

    def _lost(self, case: str, verdict: str, text: str, begun: float) -> dict[str, Any]:
        spent = time.monotonic() - begun
        return {"id": case, "verdict": verdict, "text": text, "seconds": spent, "share": 0.0}

    @property
    def is_alive(self) -> bool:
        return self.process.poll() is None

    @property
    def is_full(self) -> bool:
        try:
            pages = int(pathlib.Path(f"/proc/{self.process.pid}/statm").read_text().split()[1])
        except (OSError, IndexError):  # it has ended, or the system has no such file
            return False
        return pages * os.sysconf("SC_PAGE_SIZE") > WORKER_BYTES

    def close(self) -> None:
        if self.process.stdin is not None and not self.process.stdin.closed:
            with contextlib.suppress(BrokenPipeError):
                self.process.stdin.close()
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()


def run_cases(
    target: Target,
    cases: Sequence[dict[str, Any]],
    emit: Callable[[dict[str, Any]], bool],
    seconds: float = CASE_SECONDS,
) -> None:
    """All of one list, in its order, until ``emit`` wants no more. Cases of one door share a worker, those that want to be alone
    have their own. Emits each outcome, with what the process said where it was lost."""
    worker: Worker | None = None
    door = ""
    with tempfile.TemporaryFile() as log:
        for case in cases:
            alone = case["door"] == "alone"
            if worker is not None and (alone or door != case["door"] or not worker.is_alive):
                worker.close()
                worker = None
            if worker is None:
                log.seek(0)
                log.truncate()
                door = case["door"]
                worker = Worker(target, log, door)
            outcome = worker.run(case["id"], seconds)
            if outcome["verdict"] in ("crash", "timeout"):
                log.seek(0)
                outcome["said"] = log.read()[-2000:].decode(errors="replace").strip()
            outcome["level"] = case["level"]
            goes_on = emit(outcome)
            if alone or outcome["verdict"] in ("crash", "timeout") or worker.is_full:
                worker.close()
                worker = None
            if not goes_on:
                break
        if worker is not None:
            worker.close()
