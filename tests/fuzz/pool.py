"""Tasks over worker processes. One that dies or hangs costs its task, not the run."""

from __future__ import annotations

import contextlib
import logging
import multiprocessing
import os
import signal
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from multiprocessing.connection import Connection, wait
from typing import Any, NamedTuple

import torch

# Time of the processor, so that a busy machine makes nothing hang; a task that waits for good uses
# none at all for as long as STILL_SECONDS.
TASK_SECONDS = 40.0
STILL_SECONDS = 60.0
TASKS_PER_WORKER = 400
TICKS = os.sysconf("SC_CLK_TCK")

# Forked workers start at once with torch imported. The parent must not have run a parallel region
# or loaded a plugin before.
_context = multiprocessing.get_context("fork")

Judge = Callable[[Any], Any]


def prepare() -> None:
    """Once, in the parent: what every worker needs."""
    warnings.filterwarnings("ignore")
    logging.disable(logging.ERROR)
    torch.set_num_threads(1)


class _Raised(NamedTuple):
    text: str


def _work(pipe: Connection, judge: Judge) -> None:
    # What programs print is compared, what libraries print is noise.
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)
    os.dup2(null, 2)
    parent = os.getppid()
    while os.getppid() == parent:
        if not pipe.poll(5.0):
            continue
        try:
            task = pipe.recv()
        except EOFError:
            return
        try:
            said = judge(task)
        except Exception as error:
            said = _Raised(f"judge raised {type(error).__name__}: {error}"[:200])
        pipe.send(said)


def _processor_seconds(pid: int) -> float:
    try:
        with open(f"/proc/{pid}/stat") as file:
            fields = file.read().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / TICKS


class _Worker:
    def __init__(self, judge: Judge) -> None:
        self.pipe, other = _context.Pipe()
        self.process = _context.Process(target=_work, args=(other, judge), daemon=True)
        self.process.start()
        other.close()
        self.task: Any = None
        self.number = -1
        self.done = 0

    def give(self, number: int, task: Any) -> None:
        self.number, self.task = number, task
        self.began = self.used = _processor_seconds(self.process.pid)
        self.moved = time.monotonic()
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self.pipe.send(task)

    def hangs(self) -> bool:
        used = _processor_seconds(self.process.pid)
        if used > self.used:
            self.used, self.moved = used, time.monotonic()
        return used - self.began > TASK_SECONDS or time.monotonic() - self.moved > STILL_SECONDS

    def end(self) -> str:
        """Ends the process; says how it had ended already, if it had."""
        self.process.join(timeout=2.0)
        code = self.process.exitcode
        if code is None:
            self.process.kill()
            self.process.join()
        self.pipe.close()
        if code is not None and code < 0:
            return f"died of {signal.Signals(-code).name}"
        return f"ended with {code}"


class Pool:
    """Workers that each have one task at a time; ``close`` ends them."""

    def __init__(self, judge: Judge, jobs: int, tasks_per_worker: int = TASKS_PER_WORKER) -> None:
        self.judge = judge
        self.jobs = jobs
        self.tasks_per_worker = tasks_per_worker
        self.idle: list[_Worker] = []

    def close(self) -> None:
        for worker in self.idle:
            worker.process.kill()
            worker.end()
        self.idle = []

    def run(self, tasks: Iterable[Any]) -> Iterator[tuple[Any, Any, str]]:
        """``(task, what the judge says, "")`` as they come, or ``(task, None, how it ended)``."""
        waiting = enumerate(tasks)
        busy: list[_Worker] = []
        more = True
        try:
            while True:
                while more and len(busy) < self.jobs:
                    number, task = next(waiting, (None, None))
                    if number is None:
                        more = False
                        break
                    worker = self.idle.pop() if self.idle else _Worker(self.judge)
                    worker.give(number, task)
                    busy.append(worker)
                if not busy:
                    return
                ready = wait([w.pipe for w in busy], timeout=1.0)
                for worker in list(busy):
                    if worker.pipe in ready:
                        busy.remove(worker)
                        yield self._hear(worker)
                    elif worker.hangs():
                        busy.remove(worker)
                        worker.process.kill()
                        worker.end()
                        yield worker.task, None, "hangs"
        finally:
            for worker in busy:
                worker.process.kill()
                worker.end()

    def _hear(self, worker: _Worker) -> tuple[Any, Any, str]:
        task = worker.task
        try:
            said = worker.pipe.recv()
        except (EOFError, ConnectionResetError):
            return task, None, worker.end()
        worker.done += 1
        if worker.done < self.tasks_per_worker:
            self.idle.append(worker)
        else:
            worker.process.kill()
            worker.end()
        return (task, None, said.text) if isinstance(said, _Raised) else (task, said, "")
