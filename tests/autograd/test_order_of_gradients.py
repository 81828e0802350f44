"""Who hears when a parameter's gradient is there hears in eager mode's order, the last layer first:
whoever sums gradients of several processes, or steps a parameter at once, builds on it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from compiling import DOORS, compile_for
from torch import nn


def _hear(kind: str, parameter: nn.Parameter, name: str, heard: list[str]) -> Any:
    if kind == "hook":
        return parameter.register_hook(lambda _: heard.append(name))
    if kind == "accumulated":
        return parameter.register_post_accumulate_grad_hook(lambda _: heard.append(name))
    accumulates = parameter.view_as(parameter).grad_fn.next_functions[0][0]
    accumulates.register_hook(lambda *_: heard.append(name))
    return accumulates  # lives as long as somebody holds it


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("plugin", ["cpu_onednn", "reference"])
@pytest.mark.parametrize("kind", ["hook", "accumulated", "hook of the node"])
def test_hooks_are_called_in_eager_s_order(kind: str, plugin: str, door: str) -> None:
    torch._dynamo.reset()
    heard: list[str] = []
    layers = [nn.Linear(4, 4), nn.LayerNorm(4), nn.Linear(4, 4), nn.Linear(4, 4, bias=False)]
    model = nn.Sequential(*layers, nn.PReLU(), nn.Linear(4, 2))
    held = [_hear(kind, p, name, heard) for name, p in model.named_parameters()]
    x, orders = torch.ones(3, 4), []
    for call in (compile_for(plugin, model, door), model):
        for _ in range(2):
            heard.clear()
            model.zero_grad()
            call(x).sum().backward()
            orders.append(list(heard))
    assert all(order == orders[-1] for order in orders), orders
    assert len(held) == len(orders[-1])
