"""The rungs between plain Python and a plugin, beside each other."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import torch
from torch.utils import _pytree as pytree

from torch_backplane import frontend
from torch_backplane.compare import Copies, difference, outcome
from torch_backplane.rungs import RUNGS, Backend, find_compiler


@dataclasses.dataclass(frozen=True)
class Rung:
    """One back end's call of the same program with the same values."""

    backend: str
    by: str  # who runs the graphs
    difference: str  # from plain Python: result, gradients, effects, exceptions; empty: none
    entries: int
    breaks: dict[str, int]
    plain_reasons: dict[str, int]


class Ladder(list[Rung]):
    """The rungs in order; the first with a difference is the stage at fault."""

    def __str__(self) -> str:
        lines = []
        for rung in self:
            counts = f"{rung.entries} graphs, {len(rung.breaks)} breaks"
            if rung.plain_reasons:
                counts += f", plain Python: {'; '.join(rung.plain_reasons)}"
            lines.append(f"{rung.backend}: {rung.difference or 'as plain Python'} ({counts})")
        return "\n".join(lines)


def ladder(target: Callable[..., Any], backend: Backend = "eager") -> Callable[..., Ladder]:
    """``ladder(f, backend)(*args)`` calls ``f`` by each rung up to ``backend``, on copies of what it
    works on, and compares each with plain Python, gradients too. ``f`` may be compiled already."""
    if frontend.is_compiled(target):
        target, how = frontend.original(target)
        backend = how["backend"]

    def run(*args: Any, **kwargs: Any) -> Ladder:
        names = ["eager", *([] if backend in RUNGS else [backend])]
        state = torch.get_rng_state()
        expected = _outcome_of(None, target, args, kwargs)[0]
        found = Ladder()
        for name in names:
            torch.set_rng_state(state)
            actual, counters = _outcome_of(name, target, args, kwargs)
            parts = zip(
                ("the result", "the gradients", "what it raises", "the arguments"),
                actual,
                expected,
                strict=True,
            )
            differences = [text for what, a, e in parts if (text := difference(a, e, what))]
            compiler = find_compiler(name)
            found.append(
                Rung(
                    compiler.name,
                    compiler.describe(),
                    "; ".join(differences),
                    counters["entries"],
                    counters["breaks"],
                    counters["plain_reasons"],
                )
            )
        return found

    return run


def _outcome_of(
    backend: Backend | None, target: Any, args: Any, kwargs: Any
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Result, gradients, exception and arguments afterwards; plain Python without a back end."""
    copies = Copies(target, args, kwargs)
    function, counters = copies.target, {}
    if backend is not None:
        function = frontend.compile(function, backend=backend, debug="", options={"report": False})
    own_args, own_kwargs = copies.arguments
    result, error = outcome(function, own_args, own_kwargs)
    if backend is not None:
        counters = frontend.counters(function)
    leaves = [one for one in pytree.tree_leaves(copies.arguments) if isinstance(one, torch.Tensor)]
    if isinstance(copies.target, torch.nn.Module):
        leaves += list(copies.target.parameters())
    leaves = [one for one in leaves if one.requires_grad]
    roots = [one for one in pytree.tree_leaves(result) if isinstance(one, torch.Tensor)]
    roots = [one.abs().sum() for one in roots if one.requires_grad]
    gradients = torch.autograd.grad(roots, leaves, allow_unused=True) if roots and leaves else ()
    raised = "" if error is None else f"{type(error).__name__}: {error}"
    return (result, gradients, raised, copies.arguments), counters
