"""Checks one entry on plugins: trace once, compile and run on each, compare with eager."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import torch

from torch_backplane.opinfo import compare, entries, tracing
from torch_backplane.opinfo.entries import Case, Sample

# From bad to good; an entry has the worst status of its checks.
STATUSES = (
    "wrong",  # another result than eager: a bug
    "error",  # a failed compilation or call, a crash, a time limit: a bug
    "untraceable",  # PyTorch gives no graph, and no exclusion applies
    "import-refused",  # the core declines the graph; torch.compile would run it with PyTorch
    "fallback",  # right, but some operators ran on the CPU
    "pass",  # right, and all computation was the plugin's
    "excluded",  # cannot be compiled ahead of the values, or needs a GPU
)
BUGS = ("wrong", "error")
NO_PLUGIN = "none"  # everything falls back: checks the core alone


@dataclasses.dataclass
class Result:
    """The outcome of one check."""

    entry: str
    column: str
    dtype: str
    sample: int
    plugin: str
    status: str
    reason: str = ""
    note: str = ""  # what was accepted, and why
    nodes: int = 0
    fallback: dict[str, str] = dataclasses.field(default_factory=dict)  # operator to reason
    taken: list[str] = dataclasses.field(default_factory=list)  # operators that the plugin ran
    inputs: str = ""  # of a wrong or failed check
    data_dependent: bool = False


def one_line(error: BaseException) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())}"[:400]


@functools.cache
def table() -> dict[Any, Any]:
    return tracing.decompositions()


class NoGradients(Exception):
    """No result of this call is differentiable."""


class NoTensors(Exception):
    """The call gives numbers, not tensors."""


class Problem:
    """A sample as a graph, with the results that eager gives."""

    def __init__(self, sample: Sample, case: Case) -> None:
        self.sample = sample
        self.case = case
        self.cotangents: list[torch.Tensor] = []
        results, inputs = self.eager(sample)
        if not results:
            raise NoTensors
        self.graph, self.changed = tracing.trace(
            self.function(sample), [*sample.copies(), *self.cotangents], table(), case.grad
        )
        self.expected = results + [inputs[i] for i in self.changed]
        output = next(iter(reversed(self.graph.graph.nodes)))
        self.recorded = [node.meta["val"] for node in output.args[0]]
        self.random = tracing.is_random(self.graph.graph)
        self.trivial = all(node.op != "call_function" for node in self.graph.graph.nodes)

    def function(self, sample: Sample) -> tracing.Function:
        """Results of the call; for a backward case, then gradients of the inputs."""
        if not self.case.grad:
            return sample.call
        count = len(sample.tensors)

        def joint(*arguments: torch.Tensor) -> list[torch.Tensor]:
            inputs, cotangents = arguments[:count], arguments[count:]
            results = sample.call_for_gradients(*inputs)
            gradients = torch.autograd.grad(
                [r for r in results if r.requires_grad],
                [i for i in inputs if i.requires_grad],
                list(cotangents),
                allow_unused=True,
            )
            return results + [g for g in gradients if g is not None]

        return joint

    def eager(self, sample: Sample) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        """What the function returns, and its inputs afterwards."""
        inputs = sample.copies()
        if self.case.grad and not self.cotangents:
            entries.seed()
            for result in sample.call_for_gradients(*inputs):
                if result.requires_grad:
                    self.cotangents.append(torch.randn_like(result.detach()))
            if not self.cotangents:
                raise NoGradients
            inputs = sample.copies()
        wide = [c.to(torch.promote_types(c.dtype, torch.float64)) for c in self.cotangents]
        cotangents = self.cotangents if sample is self.sample else wide
        entries.seed()
        with torch.set_grad_enabled(self.case.grad):
            results = self.function(sample)(*inputs, *cotangents)
        return [r.detach() for r in results], [i.detach() for i in inputs]

    def arguments(self) -> list[torch.Tensor]:
        return [t.detach() for t in self.sample.copies()] + self.cotangents

    def run_graph(self) -> list[torch.Tensor]:
        """The same graph, run by PyTorch."""
        entries.seed()
        with torch.no_grad():
            return list(self.graph(*self.arguments()))

    def record(self, devices: list[tuple[str, int]]) -> tuple[Any, Any]:
        """The graph for these devices, and what is compiled for the sample's sizes."""
        from torch_backplane import _C

        names = [node.name for node in self.graph.graph.find_nodes(op="placeholder")]
        graph = _C.RecordedGraph(
            self.graph, len(names), devices, "opinfo", False, False, 1.0, names, []
        )
        with torch.no_grad():
            ((_, function, *_),) = graph.add(*self.arguments())
        return graph, function

    def exact(self) -> list[torch.Tensor]:
        try:
            results, inputs = self.eager(self.sample.in_float64())
            return results + [inputs[i] for i in self.changed]
        except Exception:
            return []  # not every operator knows float64

    def difference(self, actual: list[torch.Tensor | None]) -> tuple[str, str]:
        """What is wrong with results, empty if nothing; and what had to be accepted."""
        wrong = compare.metadata_difference(actual, self.expected, self.recorded)
        if wrong:
            graph = self.run_graph()
            if compare.metadata_difference(actual, graph):
                return wrong, ""
            return "", f"PyTorch's own decomposition differs from eager: {wrong}"
        if self.sample.entry.name in entries.UNINITIALIZED:
            return "", "uninitialized memory: values not compared"
        tensors = [tensor for tensor in actual if tensor is not None]
        allowed = compare.tolerances(entries.wider_tolerances(self.sample.entry))
        wrong = compare.value_difference(tensors, self.expected, allowed)
        if not wrong:
            return "", ""
        graph = self.run_graph()
        if not compare.value_difference(tensors, graph, allowed):
            if self.random:
                return "", ""
            return "", f"PyTorch's own decomposition differs from eager: {wrong}"
        if self.random:
            alike = compare.looks_alike(tensors, graph)
            return ("", "random: other numbers, alike") if alike else (wrong, "")
        if compare.as_exact_as(tensors, self.expected, self.exact(), allowed):
            return "", f"as near to float64 as eager: {wrong}"
        return self._unspecified(tensors, wrong, allowed)

    def _unspecified(
        self, actual: list[torch.Tensor], wrong: str, allowed: compare.Tolerances
    ) -> tuple[str, str]:
        """Accepts what PyTorch leaves open: signs of vectors, order of equal elements."""
        sample = self.sample
        if self.case.grad:
            return wrong, ""
        if sample.entry.name in entries.TIES and compare.breaks_ties_otherwise(
            sample.tensors[0], actual, self.expected
        ):
            return "", "names other elements of the same value"
        if sample.entry.name in compare.FACTORS:
            fixed = compare.FACTORS[sample.entry.name]
            try:
                wrong = compare.value_difference(fixed(actual), fixed(self.expected), allowed)
            except RuntimeError as error:
                return f"the factors do not fit: {error}", ""
            if not wrong:
                return "", "another factorization of the same matrix"
        return wrong, ""


def run_on_plugin(problem: Problem, plugin: str, result: Result) -> None:
    """Fills in the outcome of one graph on one plugin."""
    from torch_backplane import _C

    devices = [] if plugin == NO_PLUGIN else [(plugin, 0)]
    arguments = problem.arguments()
    try:
        graph, function = problem.record(devices)
    except _C.StatusError as error:
        kind, message = error.args
        result.status = "import-refused" if kind == "unsupported" else "error"
        text = " ".join(message.split())
        result.reason = text if kind == "unsupported" else f"compile: {text} ({kind})"
        return
    report = function.report()
    result.nodes = report["nodes"]
    result.taken = sorted({op for p in report["partitions"] for op, _ in p["operators"]})
    for node in report["fallback"]:
        result.fallback.setdefault(node["op"], node["reason"] or "no plugin claimed it")
    if broken := [r for r in result.fallback.values() if r.startswith("compile failed")]:
        result.status, result.reason = "error", f"claimed, then given back: {broken[0]}"
        return
    before = [entries.copy_tensor(a) for a in arguments]
    entries.seed()
    try:
        with torch.no_grad():
            actual = list(graph(*arguments))
    except _C.StatusError as error:
        kind, message = error.args
        result.status, result.reason = "error", f"call: {message} ({kind})"
        return
    wrong, result.note = problem.difference(actual)
    exactly: compare.Tolerances = {}
    if not wrong and (changed := compare.value_difference(arguments, before, exactly)):
        wrong = f"an input was written: {changed}"
    result.status = "wrong" if wrong else "fallback" if result.fallback else "pass"
    result.reason = wrong


Emit = Callable[[str, Any], None]
Step = tuple[str, int, str]  # column, sample, and plugin or one of those below
SAMPLING, TRACING = "sampling", "tracing"
# A sample whose graph is empty, such as dropout with p=0, is replaced by one of the next so many.
SPARE_SAMPLES = 3


@dataclasses.dataclass(frozen=True)
class Request:
    """What to check of every entry."""

    plugins: tuple[str, ...]
    samples: int | None = 1  # of each case; None: all
    dtype: torch.dtype | None = None
    backward: bool = True


def new_result(name: str, step: Step, dtype: str) -> Result:
    column, sample, plugin = step
    return Result(name, column, dtype.removeprefix("torch."), sample, plugin, "error")


class EntryCheck:
    """All checks of one entry.

    Emits ("begin", step) before each step, and ("result", Result) for each plugin. Steps in
    ``skip`` are left out: an earlier worker did them, or died in them. ``show`` is told inputs and
    graphs.
    """

    def __init__(
        self,
        name: str,
        request: Request,
        skip: frozenset[Step],
        emit: Emit,
        show: Callable[[str], None] | None = None,
    ) -> None:
        self.name = name
        self.entry = entries.database()[name]
        self.request = request
        self.skip = skip
        self.emit = emit
        self.show = show

    def run(self) -> None:
        cases = entries.cases(self.entry, self.request.dtype, self.request.backward)
        if not cases and self.request.dtype is None:
            self._report("float", 0, "", "excluded", "supports no dtype on a CPU")
        for case in cases:
            step: Step = (case.column, 0, SAMPLING)
            if step in self.skip:
                continue
            self.emit("begin", step)
            try:
                self._run_samples(case)
            except entries.EagerRefuses as error:
                gpu = self.name.startswith(entries.GPU_ONLY_PREFIX)
                status = "excluded" if gpu else "untraceable"
                reason = f"eager refuses the samples: {error}"
                self._report(case.column, 0, str(case.dtype), status, reason)

    def _run_samples(self, case: Case) -> None:
        limit = self.request.samples
        found = entries.samples(self.entry, case, None if limit is None else limit + SPARE_SAMPLES)
        checked = 0
        trivial: list[tuple[int, Problem]] = []
        for number, sample in enumerate(found):
            problem = self._trace(case, number, sample)
            if problem is not None and problem.trivial and limit is not None:
                trivial.append((number, problem))
                continue
            if problem is not None:
                self._run_on_plugins(number, problem)
            checked += 1
            if checked == limit:
                return
        for number, problem in trivial[: None if limit is None else limit - checked]:
            self._run_on_plugins(number, problem)

    def _trace(self, case: Case, number: int, sample: Sample) -> Problem | None:
        """None when that failed and was reported, or when it is in ``skip``."""
        step: Step = (case.column, number, TRACING)
        if step in self.skip or all(
            (case.column, number, plugin) in self.skip for plugin in self.request.plugins
        ):
            return None
        self.emit("begin", step)
        try:
            problem = Problem(sample, case)
        except NoGradients:
            return None
        except Exception as error:
            data = tracing.depends_on_data(error)
            status, reason = "untraceable", one_line(error)
            if data:
                status, reason = "excluded", f"tracing needs values: {reason}"
            elif isinstance(error, NoTensors):
                status, reason = "excluded", "gives no tensor"
            self._report(case.column, number, str(case.dtype), status, reason, data)
            return None
        if self.show is not None:
            self.show(f"inputs: {sample}")
            self.show(problem.graph.print_readable(print_output=False))
        return problem

    def _run_on_plugins(self, number: int, problem: Problem) -> None:
        case = problem.case
        for plugin in self.request.plugins:
            step: Step = (case.column, number, plugin)
            if step in self.skip:
                continue
            result = new_result(self.name, step, str(case.dtype))
            self.emit("begin", step)
            try:
                run_on_plugin(problem, plugin, result)
            except Exception as error:
                result.status, result.reason = "error", one_line(error)
            if result.status in BUGS:
                result.inputs = str(problem.sample)
            self.emit("result", result)

    def _report(
        self, column: str, number: int, dtype: str, status: str, reason: str, data: bool = False
    ) -> None:
        for plugin in self.request.plugins:
            result = new_result(self.name, (column, number, plugin), dtype)
            result.status, result.reason, result.data_dependent = status, reason, data
            self.emit("result", result)
