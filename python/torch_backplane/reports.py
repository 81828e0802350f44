"""What happened: totals, plugins, and an explanation of one call."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import itertools
import re
import textwrap
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

from torch_backplane.errors import public
from torch_backplane.plugin_search import plugins

Report = dict[str, Any]


def _state() -> Any:
    from torch_backplane import account

    return account.STATE


@public("BP-0103")
def stats() -> dict[str, Any]:
    """Totals of the process since it started or the last ``reset()``.

    ``graphs``                  graphs compiled for a plugin; a forward and its backward are two
    ``eager_graphs``            graphs that no plugin could take at all and PyTorch runs
    ``eager_calls``             calls that PyTorch runs because their sizes could not be recorded,
                                a plugin refused their data, or its device was lost
    ``aot_graphs``              captured frames that PyTorch's AOTAutograd traces, as the recorder
                                refused them
    ``recordings``              programs recorded: once for each new set of sizes, invented ones too
    ``record_ns``               time spent recording
    ``structures``              programs that differ in more than sizes; each is compiled apart
    ``class_splits``            sizes that refuted what earlier ones had in common: compiled anew
    ``second_differentiations``  backward calls with ``create_graph=True`` or batched tangents,
                                which PyTorch runs
    ``plugin_nodes``            nodes of the compiled graphs that run on plugins; views do not count
    ``fallback_nodes``          nodes of the compiled graphs that run with ATen on the CPU
    ``compile_ns``              time spent compiling, plugins included
    ``calls``                   calls of compiled graphs that are still alive
    ``verified_calls``          calls of compiled graphs held against PyTorch's results (``verify``)
    ``wrong_results``           those that differed by more than rounding; the device's ``health`` says
                                "distrusted"
    ``refused_calls``           how often a plugin refused at ``execute`` a partition that it had claimed:
                                its nodes run on the CPU at these sizes; ``strict`` raises
    ``restrided_inputs``        inputs of these calls copied because their strides had changed
    ``host_to_device_bytes``    bytes copied to devices, over all plugins that are loaded
    ``device_to_host_bytes``    bytes copied back
    ``transfers``               by device, as ``"reference:0"``: ``host_to_device`` and
                                ``device_to_host`` as ``{cause: (bytes, count)}`` with the causes
                                input, output, weight, fallback, saved and other; ``live_bytes`` and
                                ``peak_bytes`` of device memory; and what the plugin says:
                                ``health`` ("ok", "degraded", "lost", "unknown",
                                "distrusted"), ``internal_bytes`` that nobody asked it for, ``hidden_copy_bytes`` and
                                ``hidden_copy_count``
    ``resident_weight_bytes``   weights that devices keep now, in their own layouts
    ``eager_plugin_ops``        calls of single operators on the torch device that plugins ran
    ``eager_fallback_ops``      calls of single operators on the torch device that ran on the CPU
    ``eager_fallbacks``         the latter by operator: ``(calls, last reason)``

    Of our own front end, over compiled functions that are alive:

    ``captured_entries``        entries they hold now
    ``captured_calls``          calls that an entry served
    ``plain_calls``             calls that ran as plain Python
    ``plain_reasons``           the latter by reason
    ``breaks``                  graph breaks by reason
    ``static_sizes``            why sizes that were to change do not
    """
    from torch_backplane import _C, frontend

    state = _state()
    with state.lock:
        out = dataclasses.asdict(state.totals)
        functions = list(state.functions)
    reports = [(f.report(), getattr(f, "at_reset", (0, 0))) for f in functions]
    out["second_differentiations"] = _C.second_differentiations() - state.second_at_reset
    out["refused_calls"] = _C.refused_calls() - state.refused_at_reset
    for name, count, base in zip(
        ("verified_calls", "wrong_results"),
        _C.verification_counts(),
        state.verified_at_reset,
        strict=True,
    ):
        out[name] = count - base
    out["calls"] = sum(r["calls"] - base[0] for r, base in reports)
    out["restrided_inputs"] = sum(r["restrided_inputs"] - base[1] for r, base in reports)
    out["host_to_device_bytes"] = out["device_to_host_bytes"] = 0
    out["transfers"] = {}
    for entry in plugins():
        if not entry["loaded"]:
            continue
        for device in _C.plugin_info(entry["name"])["devices"]:
            counters = device["counters"]
            out["host_to_device_bytes"] += counters["host_to_device_bytes"]
            out["device_to_host_bytes"] += counters["device_to_host_bytes"]
            out["transfers"][device["label"]] = counters
    out["resident_weight_bytes"] = _C.resident_weight_bytes()
    operators = _C.operator_counts()
    out["eager_plugin_ops"] = operators["plugin_ops"]
    out["eager_fallback_ops"] = operators["fallback_ops"]
    out["eager_fallbacks"] = operators["fallbacks"]
    return out | frontend.totals()


@public("BP-0103")
def reset() -> None:
    """Sets all totals to zero and forgets packed weights."""
    from torch_backplane import _C, account, frontend

    state = _state()
    with state.lock:
        state.totals = account.Totals()
        state.second_at_reset = _C.second_differentiations()
        state.refused_at_reset = _C.refused_calls()
        state.verified_at_reset = _C.verification_counts()
        functions = list(state.functions)
    frontend.reset_totals()
    for function in functions:
        report = function.report()
        function.at_reset = (report["calls"], report["restrided_inputs"])
    _C.clear_packs()
    _C.reset_operator_counts()
    for entry in plugins():
        if entry["loaded"]:
            for index in range(len(_C.plugin_info(entry["name"])["devices"])):
                _C.reset_device_counters(entry["name"], index)


@public("BP-0108")
def invalidate(module: torch.nn.Module | None = None) -> None:
    """Drops the packed weights of a module, or all, so that the next call packs them anew.

    For writes that PyTorch's version counter does not count and that must be seen at once; without
    it, the check of the content sees them within 1024 calls.
    """
    from torch_backplane import _C

    if module is None:
        _C.clear_packs()
        return
    if not isinstance(module, torch.nn.Module):
        raise TypeError(f"expected a torch.nn.Module, got {module!r}")
    tensors = itertools.chain(module.parameters(), module.buffers())
    _C.forget_packs([t.untyped_storage()._cdata for t in tensors if t.layout == torch.strided])


@contextlib.contextmanager
def record() -> Iterator[list[Report]]:
    """Collects a report of every graph that is compiled meanwhile, in any thread.

    A report has ``plugin``, ``role`` ("inference", "forward" or "backward") and ``name``. A graph
    that PyTorch runs instead has ``eager``, the reason. All others have ``nodes``, ``plugin_nodes``,
    ``fallback_nodes``, ``compile_ns``, ``aot_reason`` (why the recorder did not trace it, or empty),
    ``cut`` (of a forward: what it saves for its backward, and what is computed twice),
    ``partitions`` (with ``operators``: name and Python line),
    ``fallback`` (the nodes that no plugin took: ``op``, ``location``, ``reason``) and ``function``,
    whose ``report()`` is the current state: calls, measured times, and of a backward its ``parts``:
    the same of those that were compiled since for calls that differentiate some outputs only.
    """
    reports: list[Report] = []

    def listen(report: Report) -> None:
        reports.append(report)

    state = _state()
    with state.lock:
        state.listeners.append(listen)
    try:
        yield reports
    finally:
        with state.lock:
            state.listeners.remove(listen)


class Explanation:
    """What one call compiled, ran and moved. ``str()`` is text, ``as_dict()`` is JSON-ready."""

    def __init__(
        self,
        plugin: str,
        reports: list[Report],
        transfers: Mapping[str, Any],
        breaks: list[Report],
        break_error: str = "",
        static_sizes: list[str] | None = None,
        backend: str = "",
    ) -> None:
        self.plugin = plugin
        self.reports = reports
        self.transfers = transfers
        self.breaks = breaks
        self.break_error = break_error
        self.static_sizes = static_sizes or []
        self.backend = backend or f"plugin {plugin}"

    def as_dict(self) -> dict[str, Any]:
        graphs = []
        for report in self.reports:
            function = report.get("function")
            current = dict(report) if function is None else {**report, **function.report()}
            current.pop("function", None)
            graphs.append(current)
        return {
            "plugin": self.plugin,
            "backend": self.backend,
            "graphs": graphs,
            "graph_breaks": self.breaks,
            "static_sizes": self.static_sizes,
            "transfers": self.transfers,
        }

    def __str__(self) -> str:
        data = self.as_dict()
        lines: list[str] = []
        for graph in data["graphs"]:
            lines += _graph_lines(graph)
        if not data["graphs"]:
            lines.append(f"Nothing was compiled for {self.plugin!r}: no tensor operation ran.")
        for number, entry in enumerate(self.breaks, 1):
            lines.append(f"graph break {number} at {entry['location']}: {entry['reason']}")
        if self.break_error:
            lines.append(f"graph breaks unknown: {self.break_error}")
        lines += [f"not generalised: {reason}" for reason in self.static_sizes]
        lines += _transfer_lines(self.transfers)
        return "\n".join(lines)

    __repr__ = __str__


# Of saved values, and of nodes computed twice, in the text of an explanation.
_MOST_OF_A_CUT = 8


def _cut_lines(text: str) -> list[str]:
    """What a cut says; of many values the largest, those first that no argument holds anyway."""
    lines: list[str] = []
    for title, items in itertools.groupby(text.splitlines(), lambda line: line[:2] != "  "):
        listed = list(items)
        if title or len(listed) <= _MOST_OF_A_CUT + 1:
            lines += listed
            continue
        found = [re.search(r": (\d+) bytes", line) for line in listed]
        sizes = [int(one[1]) if one else 0 for one in found]
        order = sorted(
            range(len(listed)), key=lambda i: (listed[i].endswith("an argument"), -sizes[i])
        )
        kept, rest = sorted(order[:_MOST_OF_A_CUT]), order[_MOST_OF_A_CUT:]
        lines += [listed[i] for i in kept]
        in_all = sum(sizes[i] for i in rest)
        lines.append(f"  and {len(rest)} more" + (f", {in_all} bytes" if in_all else ""))
    return lines


def _graph_lines(graph: Mapping[str, Any]) -> list[str]:
    if "by" in graph:
        return [f"{graph['name']}: {graph['nodes']} operators: {graph['by']}"]
    if "eager" in graph:
        return [f"{graph['name']}: PyTorch runs all of it: {graph['eager']}"]
    count = len(graph["partitions"])
    lines = [
        f"{graph['name']}: {graph['plugin_nodes']} of {graph['nodes']} nodes on {graph['plugin']} "
        f"in {count} partition{'' if count == 1 else 's'}, compiled in {graph['compile_ns'] / 1e6:.0f} ms"
    ]
    if graph["aot_reason"]:
        lines.append(f"  traced by AOTAutograd: {graph['aot_reason']}")
    lines += [f"  {line}" for line in _cut_lines(graph["cut"])]
    for number, part in enumerate(graph["partitions"]):
        line = f"  partition {number} on {part['device']}: {len(part['nodes'])} nodes with views"
        predicted = part["predicted_ns"] / 1e6
        line += f", predicted {predicted:.3f} ms" if predicted else ", of undeclared speed"
        if part["calls"] and part["measured_ns"]:
            line += f", measured {part['measured_ns'] / part['calls'] / 1e6:.3f} ms"
        lines.append(line + (", from the disk cache" if part["from_cache"] else ""))
        counts = collections.Counter(op.removeprefix("aten.") for op, _ in part["operators"])
        names = [f"{count} {op}" if count > 1 else op for op, count in counts.most_common()]
        lines += textwrap.wrap(
            ", ".join(names), 100, initial_indent="      ", subsequent_indent="      "
        )
    alike: dict[tuple[str, str], list[str]] = {}
    for node in graph["fallback"]:
        key = (node["op"], node["reason"] or "no plugin claimed it")
        alike.setdefault(key, []).append(node["location"])
    for (op, reason), places in alike.items():
        times = "" if len(places) == 1 else f" ({len(places)} times)"
        lines.append(f"  on the CPU: {op}{times}: {reason}")
        lines += [f"      {place}" for place in dict.fromkeys(p for p in places if p)]
    lines += [
        f"  where some outputs are not differentiated: {part['plugin_nodes']} of {part['nodes']} "
        f"nodes on {graph['plugin']}, {part['calls']} calls"
        for part in graph.get("parts", ())
    ]
    return lines


def _transfer_lines(transfers: Mapping[str, Any]) -> list[str]:
    lines = []
    for device, ways in transfers.items():
        for way, text in (("host_to_device", "to"), ("device_to_host", "from")):
            causes = ", ".join(
                f"{cause} {size} B in {count}"
                for cause, (size, count) in ways[way].items()
                if count
            )
            lines.append(f"copied {text} {device} per call: {causes or 'nothing'}")
    return lines


def _difference(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, Any]:
    """What was copied between two stats(), by device and cause."""
    out: dict[str, Any] = {}
    for device, counters in after["transfers"].items():
        out[device] = {}
        for way in ("host_to_device", "device_to_host"):
            old = before["transfers"].get(device, {}).get(way, {})
            out[device][way] = {
                cause: tuple(a - b for a, b in zip(now, old.get(cause, (0, 0)), strict=True))
                for cause, now in counters[way].items()
            }
    return out


def _find_breaks(model: Callable[..., Any], args: Any, kwargs: Any) -> tuple[list[Report], str]:
    """Runs the model once under TorchDynamo alone, which says where it could not go on."""
    torch._dynamo.reset()
    try:
        found = torch._dynamo.explain(model)(*args, **kwargs)
    except Exception as error:
        return [], str(error).strip().partition("\n")[0] or type(error).__name__
    breaks = []
    for entry in found.break_reasons:
        frame = entry.user_stack[-1] if entry.user_stack else None
        where = f"{frame.filename}:{frame.lineno}" if frame else "unknown line"
        breaks.append({"reason": entry.reason.strip().partition("\n")[0], "location": where})
    return breaks, ""


def _original(
    model: Callable[..., Any],
) -> tuple[Callable[..., Any], str | None, Mapping[str, Any]]:
    """What torch.compile wrapped, the plugin it was wrapped for, and the options."""
    original = getattr(model, "_orig_mod", None) or getattr(
        model, "_torchdynamo_orig_callable", None
    )
    if original is None:
        return model, None, {}
    # A module keeps TorchDynamo's callback in an attribute, a function in its closure.
    held = [getattr(getattr(model, "dynamo_ctx", None), "callback", None)]
    for cell in getattr(model, "__closure__", None) or ():
        with contextlib.suppress(ValueError):  # an empty cell
            held += [cell.cell_contents, getattr(cell.cell_contents, "callback", None)]
    for backend in held:
        while backend is not None:
            if name := getattr(getattr(backend, "compiler_fn", backend), "plugin", None):
                return original, name, getattr(backend, "kwargs", {}).get("options", {})
            backend = getattr(backend, "_torchdynamo_orig_backend", None)
    return original, None, {}


def _transfers_of_second_call(
    compiled: Callable[..., Any], args: Any, kwargs: Any, reports: list[Report]
) -> Report:
    """What a call copies once the first has compiled, on the devices of the plugins in ``reports``."""
    compiled(*args, **kwargs)
    before = stats()
    compiled(*args, **kwargs)
    transfers = _difference(before, stats())
    loaded = {report["plugin"] for report in reports}
    return {d: ways for d, ways in transfers.items() if d.rpartition(":")[0] in loaded}


def _explain_captured(compiled: Callable[..., Any], **options: Any) -> Callable[..., Explanation]:
    """As ``explain``, through our own front end."""
    from torch_backplane import frontend
    from torch_backplane.rungs import BY_PYTORCH, find_compiler

    target, how = frontend.original(compiled)

    def run(*args: Any, **kwargs: Any) -> Explanation:
        settings = {**how["options"], "timing": True, "report": False, **options}
        with record() as reports:
            fresh = frontend.compile(target, **{**how, "options": settings})
            transfers = _transfers_of_second_call(fresh, args, kwargs, reports)
        counters = frontend.counters(fresh)
        compiler = find_compiler(how["backend"])
        if not compiler.plugin:
            reports = [
                {
                    "name": entry["name"],
                    "nodes": entry["nodes"],
                    "by": compiler.describe() if entry["is_foreign"] else BY_PYTORCH,
                }
                for entry in frontend.entries(fresh)
            ]
        breaks = [{"reason": reason, "location": "graph break"} for reason in counters["breaks"]]
        breaks += [
            {"reason": reason, "location": "plain Python"} for reason in counters["plain_reasons"]
        ]
        return Explanation(
            compiler.plugin or compiler.name,
            reports,
            transfers,
            breaks,
            static_sizes=list(counters["static_sizes"]),
            backend=compiler.describe(),
        )

    return run


def explain(
    model: Callable[..., Any], plugin: str = "cpu_onednn", **options: Any
) -> Callable[..., Explanation]:
    """``explain(model, plugin)(*args)`` compiles and runs ``model`` and says what happened.

    A model that torch.compile wrapped already is explained with its own back end, one that
    ``torch_backplane.compile`` gave through our own front end. Through TorchDynamo the model runs
    three times: to find graph breaks, to compile, and to measure; its caches are empty afterwards.
    ``options`` go before those that it was compiled with. Copies are those of the last run.
    """
    from torch_backplane import frontend

    if not callable(model):
        raise TypeError(f"expected a function or a torch.nn.Module, got {model!r}")
    if frontend.is_compiled(model):
        return _explain_captured(model, **options)
    model, own, given = _original(model)
    plugin = own or plugin

    def run(*args: Any, **kwargs: Any) -> Explanation:
        breaks, error = _find_breaks(model, args, kwargs)
        torch._dynamo.reset()
        settings = {**given, "timing": True, "report": False, **options}
        with record() as reports:
            compiled = torch.compile(model, backend=f"plugin:{plugin}", options=settings)
            transfers = _transfers_of_second_call(compiled, args, kwargs, reports)
        return Explanation(plugin, reports, transfers, breaks, error)

    return run
