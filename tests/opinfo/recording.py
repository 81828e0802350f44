"""Records the samples of PyTorch's operator database, replays the graphs and compares with eager.

Each sample is one check: forward, with the gradients of its inputs where the entry has some. An
entry runs in a process of its own kind, so that one that dies costs no other.
"""

from __future__ import annotations

import collections
import dataclasses
import multiprocessing
from collections.abc import Iterable, Iterator
from multiprocessing.connection import Connection
from typing import Any

import torch
from autograd.helpers import Recorded, differences, run_once
from record import helpers
from torch_backplane.opinfo import entries

STATUSES = ("wrong", "error", "refused", "excluded", "served")
ENTRY_SECONDS = 120.0
# Our words and PyTorch's, where C++ code asks for values.
DATA_DEPENDENT = ("needs the values of a", "its data is not allocated yet")


@dataclasses.dataclass
class Check:
    """The outcome of one sample."""

    entry: str
    sample: int
    status: str
    reason: str = ""
    note: str = ""  # what was accepted
    nodes: int = 0
    on_plugin: int = 0
    python_shapes: tuple[str, ...] = ()


def without_seeds() -> None:
    """Entries that draw random numbers set the seed first; here the caller does."""
    from torch.testing._internal import common_methods_invocations as database

    database.wrapper_set_seed = lambda op, *args, **kwargs: op(*args, **kwargs)


def same_on_plugin(actual: torch.Tensor, expected: torch.Tensor) -> bool:
    """Other kernels, other roundings: `ctc_loss` sums fifty steps of logarithms."""
    return actual.dtype == expected.dtype and torch.allclose(
        actual, expected, rtol=1e-3, atol=5e-4, equal_nan=True
    )


def check_run(name: str, number: int, sample: entries.Sample, grad: bool, plugin: str) -> Check:
    """The sample as a user's call: recorded, cut, run on the plugin under autograd.

    ``plugin`` "aten": every node by ATen.
    """
    from torch_backplane import _C, account

    account.STATE.search_plugins()
    out = Check(name, number, "error")
    program = sample.call_for_gradients if grad else sample.call
    with torch.set_grad_enabled(grad):
        run = Recorded(program, len(sample.tensors), "" if plugin == "aten" else plugin)
        try:
            ours = run_once(run, sample.tensors, None, helpers.SEED)
        except _C.StatusError as error:
            data = any(words in error.args[1] for words in DATA_DEPENDENT)
            out.status, out.reason = "excluded" if data else "refused", error.args[1]
            return out
        eager = run_once(program, sample.tensors, None, helpers.SEED)
    reports = [function.report() for _, function, *_ in run.stages]
    out.nodes = sum(report["nodes"] for report in reports)
    out.on_plugin = sum(report["plugin_nodes"] for report in reports)
    # PyTorch's shape functions do not know the strides of every kernel.
    strides = (eager.pop("strides"), ours.pop("strides"))
    wrong = differences(eager, ours)
    if name.startswith("unsafe_"):  # its parts may share memory; nobody may rely on it
        wrong = [line for line in wrong if not line.startswith("shared")]
    if not wrong and strides[0] != strides[1]:
        out.note = f"strides {strides[1]}, eager has {strides[0]}"
    elif wrong and name in entries.UNINITIALIZED:
        out.note, wrong = "uninitialized memory: values not compared", []
    elif wrong:
        same = helpers.nearly_same if plugin == "aten" else same_on_plugin
        exact, wrong = wrong, differences(eager, ours, same)
        out.note = "" if wrong else f"nearly the same: {exact[0]}"
    out.status, out.reason = ("wrong", "; ".join(wrong)[:600]) if wrong else ("served", "")
    return out


def check_sample(name: str, number: int, sample: entries.Sample, grad: bool) -> Check:
    from torch_backplane import _C

    out = Check(name, number, "error")
    program = sample.call_for_gradients if grad else sample.call
    with torch.set_grad_enabled(grad):
        recording = _C.record(program, sample.tensors)
        if not recording.ok:
            data = any(words in recording.reason for words in DATA_DEPENDENT)
            out.status = "excluded" if data else "refused"
            out.reason = recording.reason
            return out
        out.nodes = len(recording.operators)
        out.python_shapes = tuple(recording.python_shapes)
        if (fault := recording.verify()) != "ok":
            out.reason = f"no valid graph: {fault}"
            return out
        wrong = helpers.differences(recording, program, sample.tensors)
        if wrong and name in entries.UNINITIALIZED:
            out.note, wrong = "uninitialized memory: values not compared", []
        elif wrong:
            exact, wrong = (
                wrong,
                helpers.differences(recording, program, sample.tensors, helpers.nearly_same),
            )
            out.note = "" if wrong else f"nearly the same: {exact[0]}"
    out.status, out.reason = ("wrong", "; ".join(wrong)[:600]) if wrong else ("served", "")
    return out


def check_entry(
    name: str, limit: int | None, dtype: torch.dtype, plugin: str = ""
) -> Iterator[Check]:
    wanted = entries.cases(entry := entries.database()[name], dtype)
    if not wanted:
        return
    case = wanted[-1]  # with gradients, where there are some
    try:
        for number, sample in enumerate(entries.samples(entry, case, limit)):
            if any(t.layout != torch.strided for t in sample.tensors):
                yield Check(name, number, "refused", "a tensor with a sparse layout")
                continue
            try:
                if plugin:
                    yield check_run(name, number, sample, case.grad, plugin)
                else:
                    yield check_sample(name, number, sample, case.grad)
            except Exception as error:
                text = " ".join(f"{type(error).__name__}: {error}".split())
                yield Check(name, number, "error", f"{text[:300]} [{str(sample)[:200]}]")
    except entries.EagerRefuses:
        return


def _work(
    names: list[str], limit: int | None, dtype: torch.dtype, plugin: str, pipe: Connection
) -> None:
    without_seeds()
    for name in names:
        pipe.send(("begin", name))
        for check in check_entry(name, limit, dtype, plugin):
            pipe.send(("check", check))
    pipe.send(("end", None))


def run(
    names: Iterable[str],
    limit: int | None = None,
    dtype: torch.dtype = torch.float32,
    plugin: str = "",
) -> list[Check]:
    """All checks of the entries, one after the other in a process that is replaced if it dies.

    Without a plugin the recording alone is checked, replayed by ATen.
    """
    context = multiprocessing.get_context("fork")
    rest = list(names)
    checks: list[Check] = []
    while rest:
        receive, send = context.Pipe(duplex=False)
        worker = context.Process(target=_work, args=(rest, limit, dtype, plugin, send), daemon=True)
        worker.start()
        send.close()
        current, ended = rest[0], False
        try:
            while receive.poll(ENTRY_SECONDS):
                kind, value = receive.recv()
                if kind == "begin":
                    current = value
                elif kind == "check":
                    checks.append(value)
                else:
                    ended = True
                    break
        except EOFError:
            pass
        if not ended:
            worker.join(timeout=2.0)
            code = worker.exitcode
            how = f"hung for {ENTRY_SECONDS:.0f} seconds" if code is None else f"ended with {code}"
            worker.kill()
            checks.append(Check(current, -1, "error", f"the process {how}"))
        worker.join()
        rest = [] if ended else rest[rest.index(current) + 1 :]
    return checks


def summary(checks: Iterable[Check]) -> dict[str, Any]:
    """Counts of samples by status, the share served of those that can be, refusals by reason."""
    checks = list(checks)
    counts = collections.Counter(check.status for check in checks)
    possible = sum(counts.values()) - counts["excluded"]
    reasons: dict[str, set[str]] = collections.defaultdict(set)
    for check in checks:
        if check.status != "served":
            reasons[f"{check.status}: {check.reason[:160]}"].add(check.entry)
    return {
        "counts": dict(counts),
        "share": counts["served"] / possible if possible else 0.0,
        "nearly": sum(check.note.startswith("nearly") for check in checks),
        "reasons": {reason: sorted(names) for reason, names in reasons.items()},
        "python_shapes": dict(
            collections.Counter(op for check in checks for op in check.python_shapes)
        ),
    }
