"""What is timed: a model of the zoo under one back end, as a call without arguments."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import functools
import os
import pathlib
import sys
from collections.abc import Callable, Iterator
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("BACKPLANE_QUIET", "1")
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "tests"))

import torch
from models import zoo
from torch import nn

# The zoo's other models are variations of these.
MODELS = (
    "minilm",
    "bert",
    "distilbert",
    "gpt2",
    "llama",
    "t5",
    "vit",
    "resnet",
    "convnext",
    "mobilenet",
    "unet",
    "lstm",
)
MODES = ("inference", "training")
# Largest difference to eager, relative to the largest value of the tensor.
LIMIT = 1e-3
# Gradients of networks with kinks (ReLU) jump where a rounding changes a sign: there the distance to
# float64 counts, in norm, which may be so much or this many times eager's.
KINKS = 1e-2
EXACT_FACTOR = 4.0


@dataclasses.dataclass(frozen=True)
class Backend:
    """How to compile for it; `inference_only`: it does not differentiate."""

    name: str
    settings: dict[str, Any] | None  # of torch.compile; None: eager
    inference_only: bool = False

    def compile(self, model: nn.Module) -> nn.Module:
        return model if self.settings is None else torch.compile(model, **self.settings)


def backends(plugin: str) -> dict[str, Backend]:
    """All that are known, by name. What is not installed fails at its first call."""
    known = [
        Backend("eager", None),
        Backend(plugin, {"backend": f"plugin:{plugin}"}),
        Backend("inductor", {"backend": "inductor"}),
        Backend(
            "inductor-best",
            {"backend": "inductor", "options": {"freezing": True, "max_autotune": True}},
            inference_only=True,
        ),
        Backend(
            "openvino",
            {
                "backend": "openvino",
                "options": {"device": "CPU", "config": {"INFERENCE_PRECISION_HINT": "f32"}},
            },
            inference_only=True,
        ),
    ]
    return {backend.name: backend for backend in known}


class Subject:
    """A model at one size with fixed inputs; builds one independent copy per back end."""

    def __init__(self, name: str, mode: str, size: str = "base") -> None:
        self.case = zoo.case(name, size)
        self.mode = mode
        self.training = mode == "training"
        self.inputs = self.case.inputs(labels=self.training)

    @contextlib.contextmanager
    def environment(self) -> Iterator[None]:
        with self.case.capture_config(), torch.set_grad_enabled(self.training):
            yield

    def build(self) -> nn.Module:
        model = self.case.build()
        return model.train() if self.training else model.requires_grad_(False)

    def call(self, model: nn.Module, run: nn.Module) -> Callable[[], Any]:
        """Inference, or forward and backward of a training step without the optimizer."""
        if not self.training:
            return lambda: run(**self.inputs)

        def step() -> None:
            model.zero_grad()
            self.case.loss(run(**self.inputs)).backward()

        return step

    def result(self, model: nn.Module, run: nn.Module) -> dict[str, torch.Tensor]:
        """What to compare: the output, or loss and gradients."""
        if not self.training:
            return {"output": zoo.main_output(run(**self.inputs)).clone()}
        model.zero_grad()
        loss = self.case.loss(run(**self.inputs))
        loss.backward()
        gradients = {n: p.grad for n, p in model.named_parameters() if p.grad is not None}
        return {"loss": loss.detach(), **gradients}

    def find_fault(self, actual: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> str:
        """What is wrong about ``actual``, where eager gave ``expected``; empty where it is right."""
        found = difference(actual, expected)
        if found <= LIMIT or not self.training:
            return "" if found <= LIMIT else f"wrong by {found:.1e}"
        ours, eagers = distance(actual, self.exact), distance(expected, self.exact)
        if ours <= max(KINKS, EXACT_FACTOR * eagers):
            return ""
        return f"wrong by {ours:.1e} in norm, eager by {eagers:.1e}"

    @functools.cached_property
    def exact(self) -> dict[str, torch.Tensor]:
        """The result in float64."""
        other = copy.copy(self)
        other.inputs = {
            name: value.double()
            if isinstance(value, torch.Tensor) and value.is_floating_point()
            else value
            for name, value in self.inputs.items()
        }
        model = other.build().double()
        return other.result(model, model)


def distance(actual: dict[str, torch.Tensor], exact: dict[str, torch.Tensor]) -> float:
    """In norm, relative to each tensor's; the largest over all."""
    norms = {name: value.norm().item() for name, value in exact.items()}
    least = 1e-3 * max(norms.values())
    return max(
        (actual[name].double() - value).norm().item() / max(norms[name], least)
        for name, value in exact.items()
    )


def difference(actual: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> float:
    """The largest over all tensors, relative to each tensor's largest value."""
    if actual.keys() != expected.keys():
        return float("inf")
    worst = 0.0
    overall = max(t.abs().max().item() for t in expected.values())
    for name, want in expected.items():
        # A gradient that is zero but for rounding has no size of its own.
        scale = max(want.abs().max().item(), 1e-3 * overall)
        fault = (actual[name].float() - want.float()).abs().max().item() / max(scale, 1e-30)
        worst = max(worst, fault if fault == fault else float("inf"))
    return worst
