"""Hooks of leaves that a backward does not reach are not called, as in eager mode."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from compiling import DOORS, compile_for


def two_heads(x: torch.Tensor, w: torch.Tensor, u: torch.Tensor, v: torch.Tensor) -> Any:
    h = (x @ w).tanh()
    return h @ u, h @ v


def steps(called: Callable[..., Any], is_hooked_before: bool, create_graph: bool) -> Any:
    seen: list[Any] = []
    leaves = [torch.linspace(-1, 1 + i, 9).view(3, 3) for i in range(4)]
    named = dict(zip("wuv", leaves[1:], strict=True))

    def add_hooks() -> list[Any]:
        handles = []
        for name, leaf in named.items():
            handles.append(leaf.register_hook(lambda g: g.clamp(-0.1, 0.1)))
            leaf.register_hook(lambda g, name=name: seen.append((name, round(g.sum().item(), 3))))
            leaf.register_post_accumulate_grad_hook(
                lambda p, name=name: seen.append((f"{name} has", round(p.grad.sum().item(), 3)))
            )
        return handles

    for leaf in named.values():
        leaf.requires_grad_()
    handles = add_hooks() if is_hooked_before else []
    results = called(*leaves)
    handles = handles or add_hooks()
    for number, result in enumerate((*results, *called(*leaves))):
        if number == 2:  # they can be taken away and added
            handles[2].remove()
            named["v"].register_hook(lambda g: g * 2)
        for leaf in named.values():
            leaf.grad = None
        result.sum().backward(retain_graph=True, create_graph=create_graph)
        seen.append([leaf.grad is None for leaf in named.values()])
    return sorted(map(str, seen)), [leaf.grad for leaf in named.values()]


@pytest.mark.parametrize("create_graph", (False, True))
@pytest.mark.parametrize("is_hooked_before", (False, True))
@pytest.mark.parametrize("door", DOORS)
def test_hooks_of_leaves(door: str, is_hooked_before: bool, create_graph: bool) -> None:
    torch._dynamo.reset()
    compiled = compile_for("reference", two_heads, door)
    ours, gradients = steps(compiled, is_hooked_before, create_graph)
    seen, expected = steps(two_heads, is_hooked_before, create_graph)
    assert ours == seen
    torch.testing.assert_close(gradients, expected)
