"""Programs recorded, cut and run by ATen node by node, beside the same programs in eager."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from record.helpers import copy_tensor, same_bits, tensors_in
from torch_backplane import _C

Program = Callable[..., Any]
SEED = 5


class Recorded:
    """A program of tensors as the back end runs it; ``plugin`` empty: every node by ATen."""

    def __init__(self, program: Program, argument_count: int, plugin: str = "") -> None:
        self.function = _C.RecordedGraph(
            program,
            argument_count,
            [(plugin, 0)] if plugin else [],
            name="program",
            pack_inference=False,
            pack_training=False,
            memory_budget=1.0,
            argument_names=[],
            static_arguments=[],
            dynamic_sizes=[],
        )
        self.stages: list[Any] = []

    def __call__(self, *arguments: Any) -> tuple[Any, ...]:
        results = self.function(*arguments)
        if results is None:
            self.stages += self.function.add(*arguments)
            results = self.function(*arguments)
        assert results is not None, "these sizes were just recorded"
        return results


def record(program: Program, argument_count: int, plugin: str = "") -> Recorded:
    return Recorded(program, argument_count, plugin)


def clone_arguments(arguments: Sequence[torch.Tensor]) -> tuple[list[torch.Tensor], list[Any]]:
    """Copies that share memory where the originals do; leaves, and what the program is given."""
    copies: dict[int, torch.Tensor] = {}
    leaves, given = [], []
    for argument in arguments:
        if id(argument) in copies:
            given.append(copies[id(argument)])
            continue
        leaf = copy_tensor(argument).requires_grad_(argument.requires_grad)
        leaves.append(leaf)
        copies[id(argument)] = leaf if argument.is_leaf else leaf.clone()
        given.append(copies[id(argument)])
    return leaves, given


def run_once(
    run: Program, arguments: Sequence[torch.Tensor], after: Any, seed: int
) -> dict[str, Any]:
    """All that a caller can tell of one call: results, changed arguments, gradients."""
    leaves, given = clone_arguments(arguments)
    torch.manual_seed(seed)
    outputs = tensors_in(run(*given))
    identities = [next((i for i, g in enumerate(given) if g is o), -1) for o in outputs]
    starts = [o.untyped_storage().data_ptr() for o in outputs]
    extra = tensors_in(after(outputs)) if after else []
    wanted = [t for t in [*outputs, *given, *extra] if t.requires_grad and not t.is_leaf]
    torch.manual_seed(SEED + 1)
    weights = [torch.randn(t.shape, dtype=t.dtype) for t in wanted]  # whatever the strides are
    gradients: list[Any] = []
    differentiable = [leaf for leaf in leaves if leaf.requires_grad]
    if wanted and differentiable:
        gradients = list(torch.autograd.grad(wanted, differentiable, weights, allow_unused=True))
    return {
        "outputs": [o.detach().resolve_conj().resolve_neg() for o in outputs],
        "requires_grad": [o.requires_grad for o in outputs],
        "strides": [o.stride() if o.numel() else () for o in outputs],
        "identities": identities,
        "shared": [[a == b and a != 0 for b in starts] for a in starts],
        "arguments": [g.detach() for g in given],
        "arguments_require_grad": [g.requires_grad for g in given],
        "gradients": [g if g is None else g.resolve_conj().resolve_neg() for g in gradients],
    }


def differences(
    eager: dict[str, Any],
    ours: dict[str, Any],
    same: Callable[[torch.Tensor, torch.Tensor], bool] = same_bits,
) -> list[str]:
    """A line for all that a caller could tell apart."""
    wrong = []
    for key, expected in eager.items():
        actual = ours[key]
        if key in ("requires_grad", "strides", "identities", "shared") or key.endswith("_grad"):
            if actual != expected:
                wrong.append(f"{key}: {actual}, eager has {expected}")
            continue
        if len(actual) != len(expected):
            wrong.append(f"{len(actual)} {key}, eager has {len(expected)}")
            continue
        for i, (a, e) in enumerate(zip(actual, expected, strict=True)):
            if a is None or e is None:
                other = a if e is None else e
                if other is not None and other.count_nonzero():
                    wrong.append(f"{key} {i}: {a}, eager has {e}")
            elif a.shape != e.shape or not same(a, e):
                wrong.append(f"{key} {i}: {a}, eager has {e}")
    return wrong


def check(
    program: Program,
    *arguments: torch.Tensor,
    after: Callable[[list[torch.Tensor]], Any] | None = None,
    calls: int = 2,
    same: Callable[[torch.Tensor, torch.Tensor], bool] = same_bits,
) -> Recorded:
    """Results, gradients and changed arguments are eager's, bit for bit, in each of some calls.

    ``after`` gets the outputs and may write to them; what it returns is differentiated too.
    """
    recorded = Recorded(program, len(arguments))
    for call in range(calls):
        eager = run_once(program, arguments, after, SEED + call)
        wrong = differences(eager, run_once(recorded, arguments, after, SEED + call), same)
        assert not wrong, "\n".join(wrong)
    return recorded
