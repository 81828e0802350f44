"""One call or one training step of a model of the zoo, and all tensors that it gives."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any

import torch
from models import zoo
from torch import nn

Tensors = dict[str, torch.Tensor | None]


def autocast(enabled: bool) -> contextlib.AbstractContextManager[Any]:
    return torch.autocast("cpu", torch.bfloat16) if enabled else contextlib.nullcontext()


def tensors_of(output: Any) -> Tensors:
    """The tensors of a model's output by name, nested ones too."""
    if isinstance(output, torch.Tensor):
        return {"output": output}
    found: Tensors = {}
    for name, value in output.items() if isinstance(output, Mapping) else enumerate(output):
        if isinstance(value, torch.Tensor):
            found[str(name)] = value
        elif isinstance(value, (tuple, list, Mapping)):
            found |= {f"{name}.{inner}": t for inner, t in tensors_of(value).items()}
    return found


def gradient_step(model: Any, module: nn.Module, inputs: zoo.Inputs, bf16: bool) -> Tensors:
    """Loss, gradients, and what the forward pass wrote into buffers."""
    torch.manual_seed(0)
    with autocast(bf16):
        loss = zoo.ModelCase.loss(model(**inputs))
    loss.backward()
    found: Tensors = {"loss": loss.detach()}
    found |= {f"gradient of {name}": p.grad for name, p in module.named_parameters()}
    return found | {f"buffer {name}": b.clone() for name, b in module.named_buffers()}
