"""Which operators reach a plugin: those of the op table, and those of a model, as the plugin is asked to
run them."""

from __future__ import annotations

import collections
import dataclasses
import fnmatch
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch

from torch_backplane import _C, reports


def attributes_of(name: str, operands: str) -> list[str]:
    """``name: type=default`` of each argument of PyTorch's schema that is no operand."""
    namespace, _, rest = name.partition(".")
    base, _, overload = rest.partition(".")
    try:
        schema = getattr(
            getattr(getattr(torch.ops, namespace), base), overload or "default"
        )._schema
    except AttributeError:
        return ["(not in this PyTorch)"]
    taken = {part.strip().rstrip("?").removesuffix("[]") for part in operands.split(",")}
    out = []
    for argument in schema.arguments:
        if argument.name in taken:
            continue
        text = f"{argument.name}: {argument.type}"
        if argument.has_default_value():
            text += f"={argument.default_value}"
        out.append(text)
    return out


def table(pattern: str = "*") -> list[dict[str, Any]]:
    """Rows of the op table whose name fits ``pattern`` (``*softmax*``; ``aten.`` may be left out)."""
    rows = []
    for row in _C.op_table():
        short = row["name"].removeprefix("aten.")
        if fnmatch.fnmatchcase(row["name"], pattern) or fnmatch.fnmatchcase(short, pattern):
            rows.append({**row, "attributes": attributes_of(row["name"], row["operands"])})
    return sorted(rows, key=lambda row: row["name"])


def table_line(row: Mapping[str, Any]) -> str:
    notes = [row["class"]]
    notes += ["effects"] if row["has_effects"] else []
    notes += ["gradient"] if row["is_gradient"] else []
    given = "".join(f"; {text}" for text in row["attributes"])
    return f"{row['name']}({row['operands']}{given})  {', '.join(notes)}"


def attribute_texts(text: str) -> list[str]:
    """``name=value`` of a node's text: ``%2 = aten.sum(%1, dim=[0, 1], keepdim=true) : f32[]``."""
    inside = text[text.index("(") + 1 :]
    parts, depth, start = [], 0, 0
    quoted = False
    for i, letter in enumerate(inside):
        if letter == '"':
            quoted = not quoted
        elif quoted:
            continue
        elif letter in "[(":
            depth += 1
        elif letter in "])" and depth:
            depth -= 1
        elif letter == ")" or (letter == "," and not depth):
            parts.append(inside[start:i].strip())
            start = i + 1
            if letter == ")":
                break
    return [part for part in parts if re.match(r"\w+=", part)]


def form_of(types: Iterable[tuple[str, int, int] | None]) -> str:
    """Element type and rank of each: ``f32:2 f32:1 -``."""
    out = []
    for one in types:
        if one is None:
            out.append("-")
            continue
        dtype, _, dims = one[0].partition("[")
        inner = dims.partition("]")[0].strip()
        out.append(f"{dtype}:{inner.count(',') + 1 if inner else 0}")
    return " ".join(out)


@dataclasses.dataclass
class Use:
    """One operator of a model."""

    op: str
    count: int = 0
    taken: int = 0  # nodes that the plugin runs
    is_view: bool = False
    forms: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)
    attributes: dict[str, set[str]] = dataclasses.field(default_factory=dict)
    reasons: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)
    crossing_bytes: int = 0  # from and to the plugin's nodes, for those that it leaves

    def lines(self) -> list[str]:
        left = "" if self.taken == self.count else f", {self.count - self.taken} left"
        out = [f"{self.op}  {self.count} node{'s' * (self.count != 1)}{left}"]
        out += [f"    {count} x {form}" for form, count in self.forms.most_common()]
        for name, values in sorted(self.attributes.items()):
            shown = sorted(values)
            more = f" and {len(shown) - 4} more" if len(shown) > 4 else ""
            out.append(f"    {name} = {' | '.join(shown[:4])}{more}")
        out += [f"    left: {reason} ({count})" for reason, count in self.reasons.most_common()]
        if self.crossing_bytes:
            out.append(f"    copied for it per call: {self.crossing_bytes:,} bytes")
        return out


class Uses:
    """What one call of a model asks of a plugin. ``str()`` is text, ``as_dict()`` is JSON-ready."""

    def __init__(self, plugin: str, nodes: list[list[dict[str, Any]]]) -> None:
        self.plugin = plugin
        self.graphs = len(nodes)
        self.partitions = sum(len({n["partition"] for n in g} - {None}) for g in nodes)
        uses: dict[str, Use] = {}
        for graph in nodes:
            for number, node in enumerate(graph):
                use = uses.setdefault(node["op"], Use(node["op"], is_view=node["is_view"]))
                _add(use, node, number, graph)
        self.uses = sorted(uses.values(), key=lambda use: (use.taken - use.count, use.op))

    def as_dict(self) -> dict[str, Any]:
        rows = [
            {**vars(use), "attributes": {n: sorted(v) for n, v in use.attributes.items()}}
            for use in self.uses
        ]
        return {"plugin": self.plugin, "partitions": self.partitions, "operators": rows}

    def __str__(self) -> str:
        count = sum(use.count for use in self.uses)
        left = sum(use.count - use.taken for use in self.uses if not use.is_view)
        copied = sum(use.crossing_bytes for use in self.uses)
        head = (
            f"nodes {count}, operators {len(self.uses)}, graphs {self.graphs}: {self.plugin} leaves {left} "
            f"to PyTorch, partitions {self.partitions}"
        )
        head += f"; {copied:,} bytes are copied per call for what it leaves" if copied else ""
        return "\n".join([head, *(line for use in self.uses for line in use.lines())])

    __repr__ = __str__


def _add(use: Use, node: dict[str, Any], number: int, graph: list[dict[str, Any]]) -> None:
    use.count += 1
    use.forms[form_of(node["operands"]) + " -> " + form_of(node["results"])] += 1
    for text in attribute_texts(node["text"]):
        name, _, value = text.partition("=")
        use.attributes.setdefault(name, set()).add(value)
    if node["partition"] is not None:
        use.taken += 1
        return
    if use.is_view:  # PyTorch's arithmetic on a tensor of its own
        use.taken += not node["reason"]
        return
    use.reasons[node["reason"] or "no plugin claimed it"] += 1
    for one in node["operands"]:  # from the plugin
        if one and one[2] < len(graph) and graph[one[2]]["partition"] is not None:
            use.crossing_bytes += one[1]
    for reader in graph:  # to the plugin
        if reader["partition"] is not None:
            use.crossing_bytes += sum(o[1] for o in reader["operands"] if o and o[2] == number)


def uses(model: Callable[..., Any], plugin: str, train: bool = False) -> Callable[..., Uses]:
    """``uses(model, plugin)(*args)`` compiles and runs ``model`` once, with ``train`` its backward too, and
    says which operators the plugin was asked to run, in which forms, and what it left."""

    def run(*args: Any, **kwargs: Any) -> Uses:
        torch._dynamo.reset()
        with reports.record() as found:
            compiled = torch.compile(model, backend=f"plugin:{plugin}", options={"report": False})
            with torch.enable_grad() if train else torch.no_grad():
                compiled(*args, **kwargs)
        torch._dynamo.reset()
        functions = [r["function"] for r in found if r.get("function") is not None]
        return Uses(plugin, [function.nodes() for function in functions])

    return run


def describe_node(function: Any, number: int) -> list[str]:
    """One node of a compiled graph: its text, what it reads and makes, where it runs and why; and which of
    its neighbours run elsewhere."""
    nodes = function.nodes()
    node = nodes[number]
    out = [f"node {number}: {node['text']}"]
    out += [f"    at {node['location']}"] if node["location"] else []
    where = f"partition {node['partition']} on {node['device']}"
    out.append(f"    runs in {where}" if node["partition"] is not None else "    PyTorch runs it")
    if node["reason"]:
        out.append(f"    because {node['reason']}")
    for one in node["operands"]:
        if one and one[2] < len(nodes):
            out += _border(node, nodes[one[2]], one, "reads", one[2])
    for other, reader in enumerate(nodes):
        for one in reader["operands"]:
            if one and one[2] == number:
                out += _border(node, reader, one, "gives", other)
    return out


def _border(
    node: Mapping[str, Any], other: Mapping[str, Any], value: Any, verb: str, number: int
) -> list[str]:
    if node["partition"] == other["partition"]:
        return []
    side = "from" if verb == "reads" else "to"
    place = f"partition {other['partition']}" if other["partition"] is not None else "PyTorch"
    return [
        f"    {verb} {value[0]} ({value[1]:,} bytes) {side} {place}: node {number}, {other['op']}"
    ]
