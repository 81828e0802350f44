"""Entries over worker processes. A worker that dies or hangs costs one step, not the run."""

from __future__ import annotations

import contextlib
import logging
import multiprocessing
import os
import time
import warnings
from collections.abc import Callable, Iterable
from multiprocessing.connection import Connection, wait
from typing import Any

import torch

from torch_backplane.opinfo import check, entries, watched
from torch_backplane.opinfo.check import Request, Result, Step

STEP_SECONDS = 60.0
ATTEMPTS = 20  # workers that may die over one entry

# Forked workers start at once with torch and the database imported. The parent must not have run
# a parallel region or loaded a plugin before. Where torch has CUDA, a backward counts its devices,
# and CUDA does not survive a fork: workers start anew there.
_FORKS = not torch.backends.cuda.is_built()
_context = multiprocessing.get_context("fork" if _FORKS else "spawn")


class PluginMissing(Exception):
    """A plugin that was asked for cannot be loaded."""


def prepare() -> None:
    """Imports and warms up what every worker needs: once, in the parent, where workers are forked."""
    warnings.filterwarnings("ignore")
    logging.disable(logging.ERROR)
    torch.set_num_threads(1)
    entries.database()
    check.table()
    if not _FORKS and multiprocessing.parent_process() is None:
        return
    entry = entries.database()["nn.functional.linear"]
    case = entries.Case("backward", torch.float32)
    check.Problem(next(entries.samples(entry, case, 1)), case)


def load(plugins: Iterable[str]) -> None:
    """Raises PluginMissing. In workers only: a plugin's threads do not survive a fork."""
    try:
        from torch_backplane import _C, account
    except ImportError as error:
        raise PluginMissing(f"{error}; ./dev build installs it") from None

    account.STATE.search_plugins()
    for plugin in plugins:
        if plugin == check.NO_PLUGIN:
            continue
        try:
            _C.plugin_info(plugin)
        except _C.StatusError as error:
            raise PluginMissing(error.args[1]) from None


def _work(pipe: Connection, request: Request) -> None:
    def emit(kind: str, value: Any) -> None:
        pipe.send((kind, value))

    if not _FORKS:
        prepare()
    watched.begin_process()
    try:
        load(request.plugins)
    except PluginMissing as error:
        emit("missing", str(error))
        return
    emit("end", None)
    # Every worker holds copies of its elders' pipes, so the parent's death closes none of them.
    parent = os.getppid()
    while os.getppid() == parent:
        if not pipe.poll(5.0):
            continue
        task = pipe.recv()
        if task is None:
            return
        name, skip = task
        check.EntryCheck(name, request, skip, emit).run()
        emit("end", None)


class _Worker:
    """A process with the entry that it has and what it said about it."""

    def __init__(self, request: Request) -> None:
        self.pipe, other = _context.Pipe()
        self.process = _context.Process(target=_work, args=(other, request), daemon=True)
        self.process.start()
        other.close()
        self.task: _Task | None = None
        self.step: Step | None = None
        self.since = time.monotonic()

    def give(self, task: _Task) -> None:
        self.task, self.step, self.since = task, None, time.monotonic()
        with contextlib.suppress(BrokenPipeError):
            self.pipe.send((task.name, frozenset(task.skip)))

    def stop(self) -> str:
        """Ends the process; says how it had ended already, if it had."""
        self.process.join(timeout=2.0)
        code = self.process.exitcode
        if code is None:
            self.process.kill()
            self.process.join()
        self.pipe.close()
        if code is not None and code < 0:
            return f"the process died with signal {-code}"
        return f"the process ended with {code}"


class _Task:
    def __init__(self, name: str) -> None:
        self.name = name
        self.skip: set[Step] = set()
        self.deaths = 0


class Pool:
    """Runs entries; call ``run`` once."""

    def __init__(
        self,
        request: Request,
        jobs: int,
        step_seconds: float = STEP_SECONDS,
        listener: Callable[[Result], None] | None = None,
    ) -> None:
        self.request = request
        self.jobs = jobs
        self.step_seconds = step_seconds
        self.listener = listener
        self.results: list[Result] = []

    def run(self, names: Iterable[str]) -> list[Result]:
        """Results in the order of ``names``, whoever was done first."""
        order = {name: number for number, name in enumerate(names)}
        waiting = [_Task(name) for name in reversed(order)]
        workers = [_Worker(self.request) for _ in range(min(self.jobs, len(waiting)))]
        try:
            while workers:
                ready = wait([w.pipe for w in workers], timeout=1.0)
                for worker in list(workers):
                    if worker.pipe in ready:
                        alive = self._hear(worker, waiting)
                    else:
                        alive = time.monotonic() - worker.since < self.step_seconds
                        if not alive:
                            worker.process.kill()
                            self._lost(worker, waiting, f"over {self.step_seconds:.0f} seconds")
                    if not alive:
                        workers.remove(worker)
                        if waiting:
                            workers.append(_Worker(self.request))
        finally:
            for worker in workers:
                worker.process.kill()
        columns = ("float", "int", "backward")
        self.results.sort(
            key=lambda r: (
                order[r.entry],
                columns.index(r.column),
                r.sample,
                self.request.plugins.index(r.plugin),
            )
        )
        return self.results

    def _add(self, result: Result) -> None:
        self.results.append(result)
        if self.listener is not None:
            self.listener(result)

    def _hear(self, worker: _Worker, waiting: list[_Task]) -> bool:
        """Takes one message; False when the worker is gone or has nothing left to do."""
        try:
            kind, value = worker.pipe.recv()
        except (EOFError, ConnectionResetError):
            how = worker.stop()
            self._lost(worker, waiting, how)
            return False
        worker.since = time.monotonic()
        if kind == "missing":
            raise PluginMissing(value)
        if kind == "begin":
            worker.step = value
        elif kind == "result":
            assert worker.task is not None
            worker.task.skip.add((value.column, value.sample, value.plugin))
            self._add(value)
        elif kind == "end":
            if not waiting:
                worker.pipe.send(None)
                worker.stop()
                return False
            worker.give(waiting.pop())
        return True

    def _lost(self, worker: _Worker, waiting: list[_Task], how: str) -> None:
        """Blames the step that the worker was in, and hands the rest of the entry on."""
        task, step = worker.task, worker.step
        if task is None:
            raise RuntimeError(f"a worker could not start: {how}")
        task.deaths += 1
        if step is None or task.deaths > ATTEMPTS:
            step, how = ("float", 0, check.SAMPLING), f"given up: {how}"
            again = False
        else:
            again = True
        column, sample, what = step
        task.skip.add(step)
        mine = what in self.request.plugins
        for plugin in [what] if mine else self.request.plugins:
            result = check.new_result(task.name, (column, sample, plugin), "")
            result.dtype = self._dtype(task.name, column)
            # A plugin that crashes or hangs is at fault; else PyTorch was.
            result.status = "error" if mine or not again else "untraceable"
            result.reason = how if mine else f"{what}: {how}"
            self._add(result)
        if again:
            waiting.append(task)

    def _dtype(self, name: str, column: str) -> str:
        cases = entries.cases(entries.database()[name], self.request.dtype, self.request.backward)
        found = next((case.dtype for case in cases if case.column == column), None)
        return str(found).removeprefix("torch.")


def default_jobs() -> int:
    return min(2, os.cpu_count() or 1)
