"""Hooks of leaves, where one graph leads to leaves that a backward has no gradient for. Autograd calls
their hooks with nothing there; eager mode does not come by them."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

Hook = Callable[[torch.Tensor], Any]


def _call_with_gradient(hook: Hook, gradient: torch.Tensor | None) -> Any:
    return None if gradient is None else hook(gradient)


def _call_where_it_has_one(hook: Hook, leaf: torch.Tensor) -> Any:
    return None if leaf.grad is None else hook(leaf)


def spare(leaf: torch.Tensor) -> None:
    """From now on hooks that it has are not called where no gradient comes."""
    for hooks, call in (
        (leaf._backward_hooks, _call_with_gradient),
        (leaf._post_accumulate_grad_hooks, _call_where_it_has_one),
    ):
        for key, hook in list((hooks or {}).items()):
            if getattr(hook, "func", None) is not call:
                # It keeps its attributes, which say how it is saved.
                hooks[key] = functools.update_wrapper(functools.partial(call, hook), hook)
