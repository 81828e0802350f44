"""Floats that differ from call to call as inputs of a graph.

TorchDynamo hands such a float over as a tensor that the graph reads with ``item()``. Where operators
alone read it for which a tensor does bit by bit what the number does, the tensor itself is the
operand, in the dtype that a number has there.
"""

from __future__ import annotations

import dataclasses
import inspect
import math
import operator
from collections.abc import Callable
from typing import Any

import torch
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols
from torch.fx.node import map_arg

# By what the graph calls: the method of the tensor, with the float behind it and in front of it.
_BEHIND = {
    operator.add: "add",
    operator.iadd: "add_",
    operator.sub: "sub",
    operator.isub: "sub_",
    operator.mul: "mul",
    operator.imul: "mul_",
    operator.truediv: "div",
    operator.itruediv: "div_",
    operator.gt: "gt",
    operator.ge: "ge",
    operator.lt: "lt",
    operator.le: "le",
    operator.eq: "eq",
    operator.ne: "ne",
    torch.add: "add",
    torch.sub: "sub",
    torch.subtract: "sub",
    torch.mul: "mul",
    torch.multiply: "mul",
    torch.div: "div",
    torch.divide: "div",
    torch.true_divide: "div",
    torch.gt: "gt",
    torch.ge: "ge",
    torch.lt: "lt",
    torch.le: "le",
    torch.eq: "eq",
    torch.ne: "ne",
}
_IN_FRONT = {
    operator.add: "add",
    operator.iadd: "add",
    operator.sub: "__rsub__",
    operator.isub: "__rsub__",
    operator.mul: "mul",
    operator.imul: "mul",
    operator.truediv: "__rtruediv__",
    operator.itruediv: "__rtruediv__",
    operator.gt: "lt",
    operator.ge: "le",
    operator.lt: "gt",
    operator.le: "ge",
    operator.eq: "eq",
    operator.ne: "ne",
}
_METHODS = {"add", "sub", "mul", "div", "gt", "ge", "lt", "le", "eq", "ne"}
_SCALES = {"mul", "mul_", "div", "div_"}
_SHORT = (torch.float16, torch.bfloat16)

# Of numbers, as Python computes them.
_OF_NUMBERS = {
    operator.add,
    operator.iadd,
    operator.sub,
    operator.isub,
    operator.mul,
    operator.imul,
    operator.truediv,
    operator.itruediv,
    operator.neg,
    operator.pos,
    operator.abs,
    operator.pow,
    pow,
    torch._sym_sqrt,
}


@dataclasses.dataclass
class FloatInputs:
    """A graph whose floats are inputs. ``derive``: its arguments from those of the graph before,
    where it takes others, or not every number; raises NumberRefusedError then."""

    graph_module: Any
    examples: list[Any]
    derive: Callable[..., tuple[Any, ...]] | None


class NumberRefusedError(Exception):
    """A tensor does not do there what this number does."""


def floats_as_inputs(graph_module: Any, examples: list[Any]) -> FloatInputs | None:
    """None where there are no such floats, or something else reads them."""
    computed = _computed_numbers(graph_module)
    if not computed:
        return None
    read = {n: [u for u in n.users if u not in computed] for n in computed}
    read = {n: users for n, users in read.items() if users}
    if not all(isinstance(n.meta.get("example_value"), torch.SymFloat) for n in read):
        return None
    readings: dict[Any, _Reading] = {}
    for user in dict.fromkeys(user for users in read.values() for user in users):
        reading = _reading(user, computed)
        if reading is None:
            return None
        readings[user] = reading
    needed = _behind(read)
    if any(_is_computed(n) and n.target not in _OF_NUMBERS for n in needed):
        return None
    return _rewrite(graph_module, examples, computed, list(read), readings)


def floats_in_tensors(placeholders: list[Any]) -> list[int]:
    """Arguments that are floats in a tensor, which the graph reads at once with ``item()``."""
    return [i for i, node in enumerate(placeholders) if _is_read_at_once(node)]


def _is_read_at_once(placeholder: Any) -> bool:
    value = placeholder.meta.get("example_value")
    return (
        isinstance(value, torch.Tensor)
        and value.dim() == 0
        and bool(placeholder.users)
        and all(map(_calls_item, placeholder.users))
    )


def _is_float(placeholder: Any) -> bool:
    if not _is_read_at_once(placeholder):
        return False
    value = placeholder.meta["example_value"]
    return (
        value.dtype is torch.float64
        and value.device.type == "cpu"
        and not value.requires_grad
        and all(map(_is_item, placeholder.users))
    )


def _calls_item(node: Any) -> bool:
    return bool(node.op == "call_method" and node.target == "item")


def _is_item(node: Any) -> bool:
    """Not of a tensor of the program's own, whose value TorchDynamo does not know."""
    value = node.meta.get("example_value")
    return (
        _calls_item(node) and isinstance(value, torch.SymFloat) and not free_unbacked_symbols(value)
    )


def _is_computed(node: Any) -> bool:
    return node.op != "placeholder" and not _is_item(node)


def _is_pure(node: Any) -> bool:
    module = getattr(node.target, "__module__", "")
    return node.op == "call_function" and (
        node.target in _OF_NUMBERS or module in ("_operator", "math")
    )


def _computed_numbers(graph_module: Any) -> dict[Any, None]:
    """The floats that TorchDynamo handed over, and what follows from them and other numbers."""
    numbers: dict[Any, None] = {}
    known: set[Any] = set()
    for node in graph_module.graph.nodes:
        value = node.meta.get("example_value")
        if node.op == "placeholder":
            if isinstance(value, (torch.SymInt, torch.SymFloat)):
                known.add(node)
        elif _is_item(node) and _is_float(node.args[0]):
            numbers[node] = None
        elif (
            _is_pure(node)
            and any(n in numbers for n in node.all_input_nodes)
            and all(n in numbers or n in known for n in node.all_input_nodes)
        ):
            numbers[node] = None
        elif _is_pure(node) and node.all_input_nodes and known.issuperset(node.all_input_nodes):
            known.add(node)
    return numbers


def _behind(numbers: Any) -> set[Any]:
    """Those, and what they are computed of."""
    found: set[Any] = set()
    pending = list(numbers)
    while pending:
        node = pending.pop()
        if node in found:
            continue
        found.add(node)
        if _is_computed(node):
            pending.extend(node.all_input_nodes)
    return found


@dataclasses.dataclass
class _Reading:
    """A call with tensors in the place of floats. ``limits``: what is asked of these floats first, as
    arguments of ``_check``."""

    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any] = dataclasses.field(default_factory=dict)
    limits: list[tuple[Any, ...]] = dataclasses.field(default_factory=list)


def _reading(node: Any, numbers: Any) -> _Reading | None:
    if node.target is torch.scalar_tensor:
        as_number = len(node.args) == 1 and node.kwargs == {"dtype": torch.float64}
        return _Reading(torch.clone, node.args) if as_number else None
    if node.op in ("call_function", "call_method") and node.target in _FILTERS:
        return _reading_of_filter(node, numbers)
    if node.kwargs or len(node.args) != 2:
        return None
    first, second = (_as_node(argument) for argument in node.args)
    if first in numbers and second in numbers:
        return None
    name: str | None = None
    if second in numbers and node.op == "call_function":
        name = _BEHIND.get(node.target)
    elif second in numbers and node.op == "call_method":
        name = node.target if node.target.removesuffix("_") in _METHODS else None
    elif first in numbers and node.op == "call_function":
        name = _IN_FRONT.get(node.target)
    tensor, number = (first, second) if second in numbers else (second, first)
    if name is None or not _is_tensor(tensor):
        return None
    return _Reading(compute_with_number, (name, tensor, number))


def _as_node(argument: Any) -> Any:
    return argument if isinstance(argument, torch.fx.Node) else None


def _is_tensor(node: Any) -> bool:
    return isinstance(node, torch.fx.Node) and isinstance(
        node.meta.get("example_value"), torch.Tensor
    )


def _reading_of_filter(node: Any, numbers: Any) -> _Reading | None:
    """Their numbers are of the dtype of what they make, and PyTorch raises where they do not fit."""
    function = _FILTERS[node.target]
    try:
        given = inspect.signature(function).bind(*node.args, **node.kwargs).arguments
    except TypeError:
        return None
    places = [name for name in _PLACES if _as_node(given.get(name)) in numbers]
    if {given[name] for name in places} != {n for n in node.all_input_nodes if n in numbers}:
        return None
    made = node if node.target is not operator.setitem else node.args[0]
    operands = [given[name] for name in ("input", "other") if name in given and name not in places]
    if not all(map(_is_tensor, [made, *operands])):
        return None
    if function is _where:
        function = _where if places == ["other"] else _where_not
    value = made.meta["example_value"]
    if not value.dtype.is_floating_point or value.device.type != "cpu":
        return None
    if given.get("options", {}).get("requires_grad"):
        return None
    others = [given[n] for n in _PLACES if n in given and isinstance(given[n], (int, float))]
    greatest = torch.finfo(value.dtype).max
    if not all(_fits(other, greatest) for other in others):
        return None
    # Of zeros of both signs a number as the only bound leaves another than a tensor does.
    is_only_bound = sum(given.get(name) is not None for name in ("min", "max")) == 1
    limits = [(given[name], greatest, is_only_bound) for name in places]
    return _Reading(function, node.args, dict(node.kwargs), limits)


def _fits(number: float, greatest: float) -> bool:
    return not math.isfinite(number) or abs(number) <= greatest


def _check(number: float, greatest: float, is_only_bound: bool) -> None:
    if not _fits(number, greatest) or (is_only_bound and number == 0):
        raise NumberRefusedError


def _rewrite(
    graph_module: Any,
    examples: list[Any],
    computed: dict[Any, None],
    read: list[Any],
    readings: dict[Any, _Reading],
) -> FloatInputs:
    graph, before = torch.fx.Graph(), graph_module.graph
    placeholders = before.find_nodes(op="placeholder")
    direct = {number.args[0] for number in read if _is_item(number)}
    floats = {item.args[0] for item in computed if _is_item(item)}
    kept = [i for i, node in enumerate(placeholders) if node not in floats or node in direct]
    derived = [number for number in read if not _is_item(number)]
    limits: dict[tuple[Any, ...], None] = {}
    values: dict[Any, Any] = {}
    for i in kept:
        values[placeholders[i]] = graph.node_copy(placeholders[i])
    for number in derived:
        values[number] = graph.placeholder(number.name)
        values[number].meta = {"example_value": next(iter(floats)).meta["example_value"]}
    for number in read:
        if _is_item(number):
            values[number] = values[number.args[0]]
    for node in before.nodes:
        if node.op == "placeholder" or node in computed:
            continue
        reading = readings.get(node)
        if reading is None:
            values[node] = graph.node_copy(node, values.__getitem__)
            continue
        limits.update(dict.fromkeys(reading.limits))
        args, kwargs = map_arg((reading.args, reading.kwargs), values.__getitem__)
        values[node] = graph.call_function(reading.function, args, kwargs)
        values[node].meta = dict(node.meta)
    made = torch.fx.GraphModule(graph_module, graph)
    examples = [examples[i] for i in kept]
    if len(kept) == len(placeholders) and not derived and not limits:
        return FloatInputs(made, examples, None)
    examples += [torch.zeros((), dtype=torch.float64) for _ in derived]
    return FloatInputs(made, examples, _make_derive(placeholders, kept, derived, list(limits)))


def _make_derive(
    placeholders: list[Any], kept: list[int], derived: list[Any], limits: list[tuple[Any, ...]]
) -> Any:
    graph = torch.fx.Graph()
    values = {node: graph.placeholder(node.name) for node in placeholders}
    needed = _behind([*derived, *(number for number, *_ in limits)])
    for node in placeholders[0].graph.nodes if placeholders else ():
        if node in needed and node not in values:
            values[node] = graph.node_copy(node, values.__getitem__)
    for number, *limit in limits:
        graph.call_function(_check, (values[number], *limit))
    results = [values[placeholders[i]] for i in kept]
    for number in derived:
        made = graph.call_function(
            torch.scalar_tensor, (values[number],), {"dtype": torch.float64, "device": "cpu"}
        )
        results.append(made)
    graph.output(tuple(results))
    return torch.fx.GraphModule({}, graph).forward


def compute_with_number(name: str, tensor: torch.Tensor, number: torch.Tensor) -> torch.Tensor:
    """As the tensor's method computes it with a Python float: in a dtype that leaves promotion to
    the tensor, rounded first where PyTorch's kernels do that (``bridge/number``)."""
    if name == "__rtruediv__":
        tensor, name = tensor.reciprocal(), "mul"
    number = _beside(tensor, number, torch.float32 if name in _SCALES else tensor.dtype)
    if tensor.dtype in _SHORT and tensor.dim() == 0 and name in ("mul", "div"):
        return getattr(tensor.to(torch.float32), name)(number).to(tensor.dtype)
    return getattr(tensor, name)(number)  # type: ignore[no-any-return]


def _beside(tensor: torch.Tensor, number: torch.Tensor, short: torch.dtype) -> torch.Tensor:
    """``short``: the number's dtype beside a tensor of 16 bits."""
    if tensor.dtype in _SHORT:
        return number.to(short)
    if not (tensor.dtype.is_floating_point or tensor.dtype.is_complex):
        return number.to(torch.get_default_dtype())
    if tensor.dim() == 0:  # else a tensor without dimensions gives way as numbers do
        return number.to(tensor.dtype.to_real())
    return number


def _clamp(input: torch.Tensor, min: Any = None, max: Any = None) -> torch.Tensor:
    def bound(number: Any) -> Any:
        if isinstance(number, (int, float)):
            number = torch.scalar_tensor(number, dtype=torch.float64)
        return None if number is None else _beside(input, number, input.dtype)

    return torch.clamp(input, bound(min), bound(max))


def _clamp_min(input: torch.Tensor, min: Any) -> torch.Tensor:
    return torch.clamp_min(input, _beside(input, min, input.dtype))


def _clamp_max(input: torch.Tensor, max: Any) -> torch.Tensor:
    return torch.clamp_max(input, _beside(input, max, input.dtype))


def _where(condition: torch.Tensor, input: Any, other: Any) -> torch.Tensor:
    return torch.where(condition, input, _beside(input, other, input.dtype))


def _where_not(condition: torch.Tensor, input: Any, other: Any) -> torch.Tensor:
    return torch.where(condition, _beside(other, input, other.dtype), other)


def _masked_fill(input: torch.Tensor, mask: torch.Tensor, value: Any) -> torch.Tensor:
    return input.masked_fill(mask, value.to(input.dtype))


def _masked_fill_(input: torch.Tensor, mask: torch.Tensor, value: Any) -> torch.Tensor:
    return input.masked_fill_(mask, value.to(input.dtype))


def _fill_(input: torch.Tensor, value: Any) -> torch.Tensor:
    return input.fill_(value)


def _full(size: Any, fill_value: Any, **options: Any) -> torch.Tensor:
    return torch.full(size, 0.0, **options).fill_(fill_value)


def _full_like(input: torch.Tensor, fill_value: Any, **options: Any) -> torch.Tensor:
    return torch.full_like(input, 0.0, **options).fill_(fill_value)


def _setitem(input: torch.Tensor, index: Any, value: Any) -> None:
    input[index] = value.to(input.dtype)


# By what the graph calls. Their parameters have PyTorch's names; of these may be numbers:
_FILTERS: dict[Any, Callable[..., Any]] = {
    torch.clamp: _clamp,
    torch.clip: _clamp,
    "clamp": _clamp,
    "clip": _clamp,
    torch.clamp_min: _clamp_min,
    "clamp_min": _clamp_min,
    torch.clamp_max: _clamp_max,
    "clamp_max": _clamp_max,
    torch.where: _where,
    torch.masked_fill: _masked_fill,
    "masked_fill": _masked_fill,
    "masked_fill_": _masked_fill_,
    "fill_": _fill_,
    torch.full: _full,
    torch.full_like: _full_like,
    operator.setitem: _setitem,
}
_PLACES = ("min", "max", "input", "other", "value", "fill_value")
