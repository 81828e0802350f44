"""Random graphs of operators. Each operator is called eagerly while the graph is made, so that what
comes behind it knows its sizes, and what PyTorch refuses is left out."""

from __future__ import annotations

import dataclasses
import math
import random
import warnings
from typing import Any

import torch
from torch.utils import _pytree as pytree

from fuzz import graph_check

SIZES = {"n": 5, "m": 7}  # of the first call; other sizes in a graph are never these
FIXED = (1, 2, 3, 4, 6)
MOST_ELEMENTS = 4096
# Of the statistics that it gives beside its result, PyTorch has gradients beside the result's alone.
FIRST_ALONE = "native_group_norm"
MOST_VALUE = 1e3
TRIES = 12
FLOATS = (torch.float32,) * 12 + (torch.bfloat16, torch.bfloat16, torch.float16, torch.float64)
OTHERS = (torch.int64, torch.int64, torch.int32, torch.bool, torch.uint8, torch.int8, torch.int16)
LAYOUTS = ("plain",) * 8 + ("transposed", "transposed", "sliced", "sliced")
LAYOUTS += ("channels_last", "reversed", "stepped", "expanded")


DOORS = ("graph", "graph", "frame")
EDGES = 0.1  # of the inputs that any operator takes


class Refused(Exception):
    """This operator cannot be called on what there is."""


@dataclasses.dataclass
class Value:
    name: str
    tensor: torch.Tensor
    used: bool = False


def overload(name: str) -> Any:
    """The operator of a row of the op table."""
    parts = name.removeprefix("aten.").split(".")
    packet = getattr(torch.ops.aten, parts[0])
    return getattr(packet, parts[1] if len(parts) > 1 else "default")


def named(name: str) -> str:
    return f"torch.ops.{name}" + ("" if name.count(".") > 1 else ".default")


class Graph:
    """A graph in the making."""

    def __init__(self, rng: random.Random, ops: list[str]) -> None:
        self.rng = rng
        self.ops = ops
        self.values: list[Value] = []
        self.inputs: list[str] = []
        self.lines: list[str] = []
        self.space: dict[str, Any] = {"torch": torch, "inf": math.inf, "nan": math.nan, **SIZES}
        self.edges: set[str] = set()  # inputs with numbers that kernels treat as special
        self.count = 0
        self.dtype = rng.choice(FLOATS)
        self.door = rng.choice(DOORS)
        # Frames alone meet it: in a graph the casts are nodes.
        self.autocast = self.door == "frame" and rng.random() < 0.15

    # --- values ------------------------------------------------------------------------------------

    def text(self, size: int) -> str:
        """A size as the graph writes it."""
        for name, value in SIZES.items():
            if size == value:
                return name
            if size == value * 2 and size > 8:
                return f"2 * {name}"
        return str(size)

    def shape_text(self, shape: Any) -> str:
        texts = [self.text(int(s)) for s in shape]
        return f"({', '.join(texts)}{',' if len(texts) == 1 else ''})"

    def input(
        self,
        shape: Any,
        dtype: torch.dtype | None = None,
        low: float = -2.0,
        high: float = 2.0,
        high_text: str | None = None,
        layout: str | None = None,
        edges: bool = False,
    ) -> Value:
        dtype = dtype or self.dtype
        layout = layout or self.rng.choice(LAYOUTS)
        if not dtype.is_floating_point and low == -2.0:
            low, high = (0, 4) if dtype is torch.uint8 else (-3, 4)
        bounds = "" if (low, high) == (-2.0, 2.0) else f", low={low}, high={high_text or high}"
        kind = "" if layout == "plain" else f", {layout!r}"
        tail = ", edges=True" if edges else ""
        self.inputs.append(f"make({self.shape_text(shape)}, {dtype}{kind}{bounds}{tail})")
        name = f"x{len(self.inputs) - 1}"
        value = Value(name, graph_check.make(shape, dtype, layout, low, high, edges))
        if edges:
            self.edges.add(name)
        self.space[name] = value.tensor
        self.values.append(value)
        return value

    def shape(self, rank: int | None = None) -> tuple[int, ...]:
        rank = self.rng.choice((0, 1, 2, 2, 3, 3, 4)) if rank is None else rank
        return tuple(self.rng.choice((*SIZES.values(), *FIXED)) for _ in range(rank))

    def pick(
        self,
        rank: int | None = None,
        least: int = 0,
        dtype: str | None = None,
        fresh: float = 0.15,
    ) -> Value:
        """A value there is, or a new input. ``dtype``: "float", "int", "bool" or "same"."""

        def fits(v: Value) -> bool:
            t = v.tensor
            if (rank is not None and t.dim() != rank) or t.dim() < least:
                return False
            if (
                t.is_floating_point()
                and t.numel()
                and v.name not in self.edges
                and not bool(t.detach().abs().max() < MOST_VALUE)
            ):
                return False
            if dtype == "float":
                return t.is_floating_point()
            if dtype == "same":
                return t.dtype == self.dtype
            if dtype == "int":
                return not t.is_floating_point() and not t.is_complex() and t.dtype != torch.bool
            return dtype != "bool" or t.dtype == torch.bool

        able = [v for v in self.values if fits(v)]
        if able and self.rng.random() > fresh:
            unused = [v for v in able if not v.used]
            value = self.rng.choice(unused if unused and self.rng.random() < 0.5 else able)
        else:
            kinds = {"int": OTHERS[:3], "bool": (torch.bool,), None: (self.dtype,) * 5 + OTHERS}
            kind = self.rng.choice(kinds.get(dtype, (self.dtype,)))
            shape = self.shape(rank if rank is not None else max(least, self.rng.choice((1, 2, 3))))
            value = self.input(shape, kind, edges=self.rng.random() < EDGES)
        return value

    def like(self, value: Value, dtype: torch.dtype | None = None) -> Value:
        """A value that broadcasts with this one."""
        dtype = dtype or value.tensor.dtype
        shape = tuple(value.tensor.shape)
        able = [
            v for v in self.values if v.tensor.dtype == dtype and _broadcasts(v.tensor.shape, shape)
        ]
        if able and self.rng.random() < 0.7:
            return self.rng.choice(able)
        kept = [s if self.rng.random() < 0.8 else 1 for s in shape]
        return self.input(kept[self.rng.choice((0, 0, 0, 1)) :], dtype)

    def index(self, size: int, shape: Any, dtype: torch.dtype = torch.int64) -> Value:
        """Integers from 0 up to ``size``."""
        if size < 1:
            raise Refused
        return self.input(shape, dtype, 0, size, self.text(size))

    def dim(self, value: Value) -> int:
        rank = value.tensor.dim()
        return self.rng.randrange(-rank, rank) if rank else 0

    def dims(self, value: Value, least: int = 1) -> list[int]:
        rank = value.tensor.dim()
        count = self.rng.randint(min(least, rank), rank)
        return self.rng.sample(range(rank), count)

    # --- lines -------------------------------------------------------------------------------------

    def add(self, expression: str) -> list[Value]:
        """A line that defines what the expression gives. Raises Refused."""
        name = f"v{self.count}"
        line = f"{name} = {expression}"
        before = {v.name: v.tensor._version for v in self.values}
        try:
            with torch.no_grad(), torch.autocast("cpu", torch.bfloat16, enabled=self.autocast):
                made = eval(expression, self.space)
        except Exception as error:
            raise Refused(str(error)) from None
        tensors = [t for t in pytree.tree_leaves(made) if isinstance(t, torch.Tensor)]
        if self.writes_unseen(before):
            raise Refused
        if any(t.layout != torch.strided or t.numel() > MOST_ELEMENTS for t in tensors):
            raise Refused
        if not tensors and any(v.tensor._version != before[v.name] for v in self.values):
            self.lines.append(expression)
            return []
        if not tensors:
            raise Refused
        self.count += 1
        self.space[name] = made
        self.lines.append(line)
        out = []
        if isinstance(made, torch.Tensor):
            out.append(Value(name, made))
        elif isinstance(made, (list, tuple)):
            for i, item in enumerate(made):
                if isinstance(item, torch.Tensor) and not (i and FIRST_ALONE in expression):
                    out.append(Value(f"{name}[{i}]", item))
        self.values += out
        return out

    def writes_unseen(self, before: dict[str, int]) -> bool:
        """Whether memory was written that a value shows whose version did not change: of what
        unsafe_split and its like give, PyTorch says that nobody writes it."""
        written, kept = set(), set()
        for value in self.values:
            if value.tensor._is_zerotensor():
                continue
            changed = value.tensor._version != before[value.name]
            (written if changed else kept).add(value.tensor.untyped_storage().data_ptr())
        return bool(written & kept - {0})

    def call(self, op: str) -> list[Value]:
        """One more call of this operator. Raises Refused."""
        from fuzz.graph_rules import RULES, generic

        marks = len(self.values), len(self.inputs), len(self.lines)
        rule = RULES.get(op)
        try:
            arguments = rule(self) if rule is not None else generic(self, op)
            made = self.add(f"{named(op)}({arguments})")
            for value in self.values[: marks[0]]:
                if value.name in arguments.replace("[", " [").split(" ") or value.name in arguments:
                    value.used = True
            return made
        except Refused:
            del self.values[marks[0] :], self.inputs[marks[1] :], self.lines[marks[2] :]
            raise

    def grow(self, length: int) -> None:
        for _ in range(length):
            for _ in range(TRIES):
                try:
                    self.call(self.rng.choice(self.ops))
                    break
                except Refused:
                    continue


def _broadcasts(shape: Any, to: Any) -> bool:
    pairs = zip(reversed(tuple(shape)), reversed(tuple(to)), strict=False)
    return len(shape) <= len(to) and all(a in (1, b) for a, b in pairs)


CALLS = (
    [{"n": 5, "m": 7}],
    [{"n": 5, "m": 7}, {"n": 6, "m": 7}],
    [{"n": 5, "m": 7}, {"n": 3, "m": 9}, {"n": 5, "m": 7}],
    [{"n": 5, "m": 7}, {"n": 1, "m": 7}],
    [{"n": 5, "m": 7}, {"n": 0, "m": 7}],
    [{"n": 1, "m": 7}, {"n": 8, "m": 1}],
    [{"n": 16, "m": 33}, {"n": 17, "m": 8}],
)


def gradients(graph: Graph, calls: int) -> bool | list[str]:
    """Of all inputs, of none, or for each call the names of some."""
    how = graph.rng.random()
    if how < 0.7:
        return how < 0.3
    names = [f"x{i}" for i in range(len(graph.inputs))]
    some = [" ".join(n for n in names if graph.rng.random() < 0.5) for _ in range(calls)]
    # Guards, which alone know the difference, are those of frames.
    return some if graph.door == "frame" else some[:1]


def text_of(graph: Graph, calls: list[dict[str, int]], plugin: str, grad: bool | list[str]) -> str:
    names = ", ".join(f"x{i}" for i in range(len(graph.inputs)))
    outputs = [v.name for v in graph.values if not v.used and not v.name.startswith("x")]
    outputs = outputs[-6:] or [graph.values[-1].name]
    if graph.rng.random() < 0.1:  # an input, or a result twice
        outputs.append(graph.rng.choice([*outputs, *(v.name for v in graph.values)]))
    lines = [*graph.lines, f"return [{', '.join(outputs)}]"]
    if graph.autocast:
        head = 'with torch.autocast("cpu", torch.bfloat16):'
        lines = [head, *("    " + line for line in lines)]
    return "\n".join(
        [
            "import torch",
            "from torch import inf, nan",
            "",
            f"PLUGIN = {plugin!r}",
            f"CALLS = {calls}",
            f"GRAD = {grad}",
            f"DOOR = {graph.door!r}",
            "",
            "def inputs(n, m):",
            "    return {",
            *(f'        "x{i}": {made},' for i, made in enumerate(graph.inputs)),
            "    }",
            "",
            f"def f({names}):",
            "    n, m = x0.size(0), x0.size(1)",
            *("    " + line for line in lines),
            "",
        ]
    )


def make_graph(seed: str, ops: list[str], plugin: str) -> str:
    """The text of the graph of this seed."""
    rng = random.Random(seed)
    torch.manual_seed(rng.randrange(1 << 30))
    graph = Graph(rng, ops)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        graph.input((SIZES["n"], SIZES["m"]))
        graph.grow(rng.choice((2, 3, 4, 6, 8, 12)))
    calls = rng.choice(CALLS)
    return text_of(graph, calls, plugin, gradients(graph, len(calls)))
