"""Graphs with operators that call others. Of TorchDynamo's graphs those that call graphs, such as
``cond``: what lies between them is compiled, and each of them is a frame of its own. Of AOTAutograd's
those that keep effects in order.
"""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Callable
from typing import Any

import torch
from torch._ops import HigherOrderOperator
from torch.fx.node import map_arg

# The recorder or AOTAutograd takes these apart.
_EXPANDED = ("autograd_function_apply", "register_hook", "tag_activation_checkpoint", "wrap")
# What these switch would have to be switched in each part.
_SWITCHES = (
    torch._C._set_grad_enabled,
    torch.amp._enter_autocast,
    torch.amp._exit_autocast,
    torch.autograd.grad_mode._enter_inference_mode,
    torch.autograd.grad_mode._exit_inference_mode,
)

Compile = Callable[[Any, list[Any]], Callable[..., Any]]  # of a graph and examples of its inputs


def compile_parts(
    graph_module: Any, examples: list[Any], compile_part: Compile
) -> Callable[..., Any] | None:
    """A callable as the graph, of parts that ``compile_part`` compiles. None where it would be one
    part that is no choice, or the parts would have to know of each other."""
    whole = _inline_regions(graph_module)
    parts = _take_apart(whole) if any(map(_calls_graphs, whole.graph.nodes)) else []
    known = {node: node.meta.get("example_value") for node in whole.graph.nodes}
    known.update(zip(whole.graph.find_nodes(op="placeholder"), examples, strict=True))
    is_part = "is_part" in graph_module.meta  # what it lies in is not seen in it
    if len(parts) < 2 and (is_part or not any(_is_choice(part, known) for part in parts)):
        return None if whole is graph_module else compile_part(whole, examples)
    if any(node.target in _SWITCHES for node in whole.graph.nodes):
        return None
    if any(_is_list(node) for part in parts for node in part.left):  # results are single values
        return None
    return _join(whole, parts, known, compile_part)


@dataclasses.dataclass(eq=False)
class _Part:
    """Nodes that lie behind each other, or one that calls graphs. ``given``: what they read of others;
    ``left``: what others read of them."""

    nodes: list[Any] = dataclasses.field(default_factory=list)
    given: dict[Any, None] = dataclasses.field(default_factory=dict)
    left: dict[Any, None] = dataclasses.field(default_factory=dict)


def _calls_graphs(node: Any) -> bool:
    return isinstance(node.target, HigherOrderOperator) and str(node.target) not in _EXPANDED


def _is_list(node: Any) -> bool:
    return isinstance(node.meta.get("example_value"), (tuple, list))


def _take_apart(whole: Any) -> list[_Part]:
    parts: list[_Part] = []
    of: dict[Any, _Part] = {}
    for node in whole.graph.nodes:
        if not node.op.startswith("call_"):
            continue
        if node.target is operator.getitem and node.args[0] in of and _is_list(node.args[0]):
            part = of[node.args[0]]
        elif not parts or _calls_graphs(node) or _calls_graphs(parts[-1].nodes[0]):
            part = _Part()
            parts.append(part)
        else:
            part = parts[-1]
        of[node] = part
        part.nodes.append(node)
        for read in node.all_input_nodes:
            if read.op != "get_attr" and of.get(read) is not part:
                part.given[read] = None
    for part in parts:
        for node in part.nodes:
            if any(of.get(user) is not part for user in node.users):
                part.left[node] = None
    return parts


def _join(
    whole: Any, parts: list[_Part], known: dict[Any, Any], compile_part: Compile
) -> Callable[..., Any]:
    inputs = whole.graph.find_nodes(op="placeholder")
    graph = torch.fx.Graph()
    values = {node: graph.node_copy(node) for node in inputs}
    owned: dict[str, Any] = {}
    for number, part in enumerate(parts):
        name = f"part_{number}"
        if _is_choice(part, known):
            owned[name] = _Compiled(_choice(whole, part, known, compile_part))
        else:
            given = [known[node] for node in part.given]
            owned[name] = _Compiled(compile_part(_module_of(whole, part), given))
        results = graph.call_module(name, tuple(values[node] for node in part.given))
        for i, node in enumerate(part.left):
            values[node] = graph.call_function(operator.getitem, (results, i))
    (output,) = whole.graph.find_nodes(op="output")
    for node in output.all_input_nodes:
        if node.op == "get_attr":
            values[node] = graph.node_copy(node)
            owned[node.target] = operator.attrgetter(node.target)(whole)
    graph.output(map_arg(output.args[0], values.__getitem__))
    return torch.fx.GraphModule(owned, graph).forward


class _Compiled(torch.nn.Module):
    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.forward = function


def _is_choice(part: _Part, known: dict[Any, Any]) -> bool:
    """Not where gradients are needed: of what a branch leaves alone PyTorch's are zeros, not None. Not
    within torch.vmap, where both branches run."""
    first = part.nodes[0]
    if first.target is not torch.ops.higher_order.cond or len(first.args) != 4:
        return False
    read = (first.args[0], *first.args[3])
    if first in part.left or not all(node in part.given for node in read):
        return False
    names = (getattr(node.target, "__name__", "") for node in first.graph.nodes)
    if any(name.endswith("_increment_nesting") for name in names):
        return False
    return not torch.is_grad_enabled() or not any(
        isinstance(known[node], torch.Tensor) and known[node].requires_grad for node in part.given
    )


def _choice(
    whole: Any, part: _Part, known: dict[Any, Any], compile_part: Compile
) -> Callable[..., Any]:
    """The branch that a predicate chooses, each a frame of its own."""
    predicate, if_true, if_false, operands = part.nodes[0].args
    places = [list(part.given).index(node) for node in (predicate, *operands)]
    left = [node.args[1] for node in part.left]
    examples = [known[node] for node in operands]
    branches = [
        compile_part(whole.get_submodule(branch.target), examples) for branch in (if_false, if_true)
    ]

    def choose(*arguments: Any) -> Any:
        chooses, *given = (arguments[i] for i in places)
        results = branches[bool(chooses)](*given)
        return tuple(results[i] for i in left)

    return choose


def _module_of(whole: Any, part: _Part) -> Any:
    graph = torch.fx.Graph()
    values: dict[Any, Any] = {}
    for node in part.given:
        values[node] = graph.placeholder(node.name)
        values[node].meta = dict(node.meta)
    for node in part.nodes:
        for read in node.all_input_nodes:
            if read.op == "get_attr" and read not in values:
                values[read] = graph.node_copy(read)
        values[node] = graph.node_copy(node, values.__getitem__)
    graph.output(tuple(values[node] for node in part.left))
    made = torch.fx.GraphModule(whole, graph)
    made.meta["is_part"] = True
    return made


def _inline_regions(graph_module: Any) -> Any:
    """Regions that are to be compiled once (``invoke_subgraph``) become what they call."""
    region = torch.ops.higher_order.invoke_subgraph
    if not graph_module.graph.find_nodes(op="call_function", target=region):
        return graph_module
    graph = torch.fx.Graph()

    def copy(source: Any, prefix: str, values: dict[Any, Any]) -> Any:
        for node in source.nodes:
            if node.op == "output":
                return map_arg(node.args[0], values.__getitem__)
            if node in values:
                continue
            if node.target is region:
                name = prefix + node.args[0].target
                inside = graph_module.get_submodule(name).graph
                given = map_arg(tuple(node.args[2:]), values.__getitem__)
                local = dict(zip(inside.find_nodes(op="placeholder"), given, strict=True))
                values[node] = copy(inside, name + ".", local)
            elif node.target is operator.getitem and isinstance(values[node.args[0]], tuple):
                values[node] = values[node.args[0]][node.args[1]]
            else:
                values[node] = graph.node_copy(node, values.__getitem__)
                if node.op == "get_attr":
                    values[node].target = prefix + node.target
        return None

    graph.output(copy(graph_module.graph, "", {}))
    for node in graph.find_nodes(op="get_attr"):
        if not node.users:
            graph.erase_node(node)
    return torch.fx.GraphModule(graph_module, graph)


def without_tokens(graph_module: Any) -> Any:
    """A graph of AOTAutograd's whose operators with effects are called as the program calls them.
    AOTAutograd hands a token from each to the next, so that none is left out and all keep their order;
    a recording does that anyway. Who calls the graph gives no tokens and looks at none."""
    ordered = torch.ops.higher_order.with_effects
    calls = graph_module.graph.find_nodes(op="call_function", target=ordered)
    if not calls or any(isinstance(call.args[1], HigherOrderOperator) for call in calls):
        return graph_module
    graph = torch.fx.Graph()
    values: dict[Any, Any] = {}
    results: dict[Any, list[Any]] = {}  # of each call, less its token
    tokens = {call.args[0] for call in calls}
    for node in graph_module.graph.nodes:
        if node.target is operator.getitem and node.args[0] in results:
            i = node.args[1]
            values[node] = results[node.args[0]][i - 1] if i > 0 else None
            tokens.update([node] if i == 0 else [])
        elif node.target is ordered:
            _, called, *arguments = map_arg(node.args, values.get)
            made = graph.call_function(called, tuple(arguments), map_arg(node.kwargs, values.get))
            made.meta = dict(node.meta)
            count = len(called._schema.returns)
            made_parts = (graph.call_function(operator.getitem, (made, k)) for k in range(count))
            results[node] = [made] if count == 1 else list(made_parts)
        elif node.op == "output":
            graph.output(map_arg(node.args[0], lambda n: None if n in tokens else values[n]))
        else:
            values[node] = graph.node_copy(node, values.__getitem__)
    return torch.fx.GraphModule(graph_module, graph)
