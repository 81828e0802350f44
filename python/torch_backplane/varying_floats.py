"""Floats that differ from call to call as inputs of a graph.

TorchDynamo hands such a float over as a tensor that the graph reads with ``item()``. Where sums and
products with tensors alone read it, the tensor itself is the operand, in the dtype that a number has
there.
"""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Callable
from typing import Any

import torch
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols

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
    torch.add: "add",
    torch.sub: "sub",
    torch.subtract: "sub",
    torch.mul: "mul",
    torch.multiply: "mul",
    torch.div: "div",
    torch.divide: "div",
    torch.true_divide: "div",
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
}
_METHODS = {"add", "sub", "mul", "div"}
_SCALES = {"mul", "mul_", "div", "div_"}

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
    where it takes others."""

    graph_module: Any
    examples: list[Any]
    derive: Callable[..., tuple[Any, ...]] | None


def floats_as_inputs(graph_module: Any, examples: list[Any]) -> FloatInputs | None:
    """None where there are no such floats, or something else reads them."""
    computed = _computed_numbers(graph_module)
    if not computed:
        return None
    read = {n: [u for u in n.users if u not in computed] for n in computed}
    read = {n: users for n, users in read.items() if users}
    for number, users in read.items():
        if not isinstance(number.meta.get("example_value"), torch.SymFloat):
            return None
        if any(_reading(user, number) is None for user in users):
            return None
    needed = _behind(read)
    if any(_is_computed(n) and n.target not in _OF_NUMBERS for n in needed):
        return None
    return _rewrite(graph_module, examples, computed, list(read))


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


def _reading(node: Any, number: Any) -> tuple[str, Any] | None:
    """A sum or product with the number: the method, and the tensor. No tensor: the method of the
    number's own, where it becomes a tensor."""
    if node.target is torch.scalar_tensor:
        as_number = node.args == (number,) and node.kwargs == {"dtype": torch.float64}
        return ("clone", None) if as_number else None
    if node.kwargs or len(node.args) != 2 or node.args[0] is node.args[1]:
        return None
    first, second = node.args
    name: str | None = None
    if second is number and node.op == "call_function":
        name = _BEHIND.get(node.target)
    elif second is number and node.op == "call_method":
        name = node.target if node.target.removesuffix("_") in _METHODS else None
    elif first is number and node.op == "call_function":
        name = _IN_FRONT.get(node.target)
    tensor = first if second is number else second
    is_tensor = isinstance(tensor, torch.fx.Node) and isinstance(
        tensor.meta.get("example_value"), torch.Tensor
    )
    return (name, tensor) if name is not None and is_tensor else None


def _rewrite(
    graph_module: Any, examples: list[Any], computed: dict[Any, None], read: list[Any]
) -> FloatInputs:
    graph, before = torch.fx.Graph(), graph_module.graph
    placeholders = before.find_nodes(op="placeholder")
    direct = {number.args[0] for number in read if _is_item(number)}
    floats = {item.args[0] for item in computed if _is_item(item)}
    kept = [i for i, node in enumerate(placeholders) if node not in floats or node in direct]
    derived = [number for number in read if not _is_item(number)]
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
        number = next((n for n in node.all_input_nodes if n in computed), None)
        if number is None:
            values[node] = graph.node_copy(node, values.__getitem__)
            continue
        name, tensor = _reading(node, number) or ("", None)
        if tensor is None:
            values[node] = graph.call_method(name, (values[number],))
        else:
            given = (name, values[tensor], values[number])
            values[node] = graph.call_function(compute_with_number, given)
        values[node].meta = dict(node.meta)
    made = torch.fx.GraphModule(graph_module, graph)
    examples = [examples[i] for i in kept]
    if len(kept) == len(placeholders) and not derived:
        return FloatInputs(made, examples, None)
    examples += [torch.zeros((), dtype=torch.float64) for _ in derived]
    return FloatInputs(made, examples, _make_derive(placeholders, kept, derived))


def _make_derive(placeholders: list[Any], kept: list[int], derived: list[Any]) -> Any:
    graph = torch.fx.Graph()
    values = {node: graph.placeholder(node.name) for node in placeholders}
    needed = _behind(derived)
    for node in placeholders[0].graph.nodes if placeholders else ():
        if node in needed and node not in values:
            values[node] = graph.node_copy(node, values.__getitem__)
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
    dtype = tensor.dtype
    is_short = dtype in (torch.float16, torch.bfloat16)
    if is_short:
        number = number.to(torch.float32 if name in _SCALES else dtype)
    elif not (dtype.is_floating_point or dtype.is_complex):
        number = number.to(torch.get_default_dtype())
    elif tensor.dim() == 0:  # else a tensor without dimensions gives way as numbers do
        number = number.to(dtype.to_real())
    if is_short and tensor.dim() == 0 and name in ("mul", "div"):
        return getattr(tensor.to(torch.float32), name)(number).to(dtype)
    return getattr(tensor, name)(number)  # type: ignore[no-any-return]
