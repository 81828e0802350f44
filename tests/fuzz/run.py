"""What both fuzzers share: seeds to workers, findings made smaller and told apart, a summary."""

from __future__ import annotations

import argparse
import collections
import contextlib
import dataclasses
import itertools
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from fuzz.findings import Collection, make_smaller
from fuzz.judge import Finding
from fuzz.pool import Pool

PER_KIND = 6  # findings of one kind that are made smaller; the others are counted


@dataclasses.dataclass(frozen=True)
class Fuzzer:
    """``make``: a seed to a text. ``judge``: a text to a finding, or None. ``plainly``: a text, run
    without what is tested. All run in workers, as PyTorch's own kernels may die."""

    name: str
    make: Callable[[str], str]
    judge: Callable[[str], Finding | None]
    plainly: Callable[[str], Any]
    write: Callable[[Finding, str], str]

    def step(self, task: str) -> Any:
        """A task is a text, or a seed, which has no line's end in it."""
        return self.judge(task if "\n" in task else self.make(task))


@dataclasses.dataclass
class Outcome:
    programs: int = 0
    seconds: float = 0.0
    pytorch_died: int = 0
    kinds: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)
    findings: list[Finding] = dataclasses.field(default_factory=list)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--seed", type=int, default=0, help="the same seed makes the same (0)")
    parser.add_argument("--minutes", type=float, help="how long to make new ones")
    parser.add_argument("--count", type=int, help="how many to make")
    parser.add_argument("--start", type=int, default=0, help="the number of the first (0)")
    parser.add_argument("--out", type=Path, help="a folder for files that show what was found")
    parser.add_argument("--jobs", type=int, default=2, help="worker processes (2)")
    parser.add_argument("--tries", type=int, default=1500, help="to make a finding smaller (1500)")
    parser.add_argument("--per-kind", type=int, default=PER_KIND, help=f"made smaller ({PER_KIND})")
    parser.add_argument("--show", type=int, help="print this one and stop")


def seeds(options: argparse.Namespace) -> Iterator[str]:
    minutes = options.minutes
    if minutes is None and options.count is None:
        minutes = 1.0
    end = None if minutes is None else time.monotonic() + 60 * minutes
    for number in itertools.count(options.start):
        if options.count is not None and number >= options.start + options.count:
            return
        if end is not None and time.monotonic() >= end:
            return
        yield f"{options.seed}:{number}"


def run(fuzzer: Fuzzer, options: argparse.Namespace, say: Callable[[str], None]) -> Outcome:
    out = Outcome()
    began = time.monotonic()
    pool = Pool(fuzzer.step, options.jobs)
    alone = Pool(fuzzer.step, options.jobs, tasks_per_worker=1)
    raw: dict[str, list[tuple[str, Finding]]] = collections.defaultdict(list)
    try:
        with stopped_by_signals(say, out):
            for seed, said, ended in pool.run(seeds(options)):
                out.programs += 1
                found = said
                if ended:
                    found = death(fuzzer, seed, ended)
                    out.pytorch_died += found is None
                if found is None:
                    continue
                if not out.kinds[found.kind]:
                    say(f"{seed}: {found.kind}: {found.difference}")
                out.kinds[found.kind] += 1
                raw[found.kind].append((seed, found))
        out.seconds = time.monotonic() - began
        collection = Collection(options.out, f"./dev fuzz {fuzzer.name}", fuzzer.write)
        for kind in raw:
            for seed, found in raw[kind][: options.per_kind]:
                judges = alone if _is_death(found) else pool
                small = make_smaller(found, judges, options.tries)
                if collection.add(small, seed):
                    say(f"{seed}: {small.kind}: {small.difference}")
                    out.findings.append(small)
    finally:
        pool.close()
        alone.close()
    return out


@contextlib.contextmanager
def stopped_by_signals(say: Callable[[str], None], out: Outcome) -> Iterator[None]:
    """Ctrl-C and SIGTERM end the search; what was found until then is told."""
    handler = None
    if threading.current_thread() is threading.main_thread():
        handler = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    except KeyboardInterrupt:
        say(f"stopped after {out.programs}")
    finally:
        if handler is not None:
            signal.signal(signal.SIGTERM, handler)


def death(fuzzer: Fuzzer, seed: str, ended: str) -> Finding | None:
    """None where PyTorch alone dies of it as well."""

    def once(step: Callable[[str], Any], task: str) -> tuple[Any, str]:
        with contextlib.closing(Pool(step, 1, tasks_per_worker=1)) as pool:
            ((_, said, how),) = pool.run([task])
        return said, how

    text, how = once(fuzzer.make, seed)
    if how or once(fuzzer.plainly, text)[1]:
        return None
    return Finding(ended, ended, text)


def _is_death(finding: Finding) -> bool:
    return finding.kind.startswith(("died", "ended", "hangs"))


def summary(fuzzer: Fuzzer, out: Outcome) -> str:
    rate = out.programs / out.seconds if out.seconds else 0.0
    lines = [f"{count:6} {kind}" for kind, count in out.kinds.most_common()]
    lines.append(
        f"{fuzzer.name}: {out.programs} in {out.seconds:.0f} s ({rate:.1f} a second), "
        f"{sum(out.kinds.values())} with a difference, {len(out.findings)} distinct findings"
    )
    if out.pytorch_died:
        lines.append(f"left out: {out.pytorch_died} that PyTorch alone dies of")
    return "\n".join(lines)
