"""Every model of the zoo on every plugin: outputs, gradients, training, and how much ran there."""

from __future__ import annotations

import contextlib
import copy
import itertools
import re
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch_backplane
from backplane_conformance.torch_agreement import (
    BFLOAT16,
    FLOAT32,
    Tolerance,
    assert_as_good,
    to_float64,
)
from compiling import DOORS, compile_for
from models import zoo
from models.choice import representative_names
from models.steps import autocast, gradient_step, tensors_of
from torch import nn

pytestmark = pytest.mark.slow

PLUGINS = ("cpu_onednn", "opencl", "cuda", "reference")
STEPS = 30
# These draw from PyTorch's generator, or their output's size depends on data: they stay with ATen.
EXEMPT = re.compile(
    r"aten\.(native_dropout|bernoulli|rand|normal|uniform|multinomial|exponential|geometric"
    r"|nonzero|masked_select|unique|_unique|_local_scalar_dense|item|bincount)"
)


def assert_on_plugin(graphs: list[dict[str, Any]]) -> None:
    """At least 99 % of the compute nodes ran on the plugin."""
    assert graphs, "nothing was compiled"
    eager = [f"{g['name']}: {g['eager']}" for g in graphs if "eager" in g]
    assert not eager, "PyTorch runs whole graphs: " + "; ".join(eager)
    left = [n for g in graphs for n in g["fallback"] if not EXEMPT.match(n["op"])]
    exempt = sum(len(g["fallback"]) for g in graphs) - len(left)
    nodes = sum(g["nodes"] for g in graphs) - exempt
    kinds = Counter((n["op"], n["reason"]) for n in left)
    text = "; ".join(
        f"{count} x {op} ({why or 'not claimed'})" for (op, why), count in kinds.items()
    )
    assert len(left) <= 0.01 * nodes, f"{len(left)} of {nodes} nodes on the CPU: {text}"


@contextlib.contextmanager
def loaded(case: zoo.ModelCase) -> Iterator[None]:
    missing = [p for p in case.requires if not case.available()]
    assert not missing, f"install requirements/test.txt: {missing}"
    with case.capture_config():
        yield


NO_PRIMITIVE = "could not create a primitive descriptor"


def unless_refused(run: Callable[[], Any], bf16: bool) -> Any:
    """None where PyTorch itself has no kernel: oneDNN's bfloat16 LSTM on CPUs below AVX-512."""
    try:
        return run()
    except RuntimeError as error:
        if not bf16 or torch.cpu._is_avx512_supported() or NO_PRIMITIVE not in str(error):
            raise
        return None


def check_inference(name: str, plugin: str, bf16: bool, tolerance: Tolerance) -> None:
    case = zoo.case(name)
    with loaded(case), torch.no_grad():
        model, inputs = case.build(), case.inputs()
        exact = tensors_of(to_float64(model)(**to_float64(inputs)))
        with autocast(bf16), torch_backplane.record() as graphs:
            eager = unless_refused(lambda: tensors_of(model(**inputs)), bf16)
            if eager is None:
                eager = {key: value.bfloat16() for key, value in exact.items()}
            compiled = compile_for(plugin, model)
            first = tensors_of(compiled(**inputs))
            second = tensors_of(compiled(**inputs))
    assert_as_good(first, eager, exact, tolerance)
    assert_as_good(second, eager, exact, tolerance)
    if plugin != "reference":
        assert_on_plugin(graphs)


def check_gradients(name: str, plugin: str, bf16: bool, tolerance: Tolerance) -> None:
    case = zoo.case(name)
    inputs = case.inputs(labels=True)
    with loaded(case), torch_backplane.record() as graphs:
        oracle, eager, module = to_float64(case.build()), case.build(), case.build()
        if not case.stochastic:  # dropout would draw other masks in float64
            oracle.train()
        eager.train()
        module.train()
        exact = gradient_step(oracle, oracle, to_float64(inputs), bf16=False)
        expected = unless_refused(lambda: gradient_step(eager, eager, inputs, bf16), bf16)
        if expected is None:
            expected = {k: None if t is None else t.bfloat16().float() for k, t in exact.items()}
        elif case.stochastic:
            exact = {key: None if t is None else t.double() for key, t in expected.items()}
        actual = gradient_step(compile_for(plugin, module), module, inputs, bf16)
    assert_as_good(actual, expected, exact, tolerance)
    if plugin != "reference":
        assert_on_plugin(graphs)


@pytest.mark.parametrize(
    ("plugin", "name"),
    [("cpu_onednn", name) for name in zoo.names()]
    + [
        pytest.param(plugin, *case.values, marks=case.marks)
        for plugin in PLUGINS
        if plugin != "cpu_onednn"
        for case in representative_names()
    ],
)
def test_inference(plugin: str, name: str) -> None:
    check_inference(name, plugin, bf16=False, tolerance=FLOAT32)


@pytest.mark.parametrize("name", zoo.names())
@pytest.mark.parametrize("plugin", PLUGINS)
def test_gradients(plugin: str, name: str) -> None:
    check_gradients(name, plugin, bf16=False, tolerance=FLOAT32)


@pytest.mark.parametrize("name", zoo.names())
def test_inference_bf16(name: str) -> None:
    check_inference(name, "cpu_onednn", bf16=True, tolerance=BFLOAT16)


@pytest.mark.parametrize("name", zoo.names())
def test_gradients_bf16(name: str) -> None:
    check_gradients(name, "cpu_onednn", bf16=True, tolerance=BFLOAT16)


OPTIMIZERS = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=0.01, momentum=0.9),
    "adamw": lambda parameters: torch.optim.AdamW(parameters, lr=1e-3),
}


def train(model: Any, module: nn.Module, inputs: zoo.Inputs, optimizer: str) -> list[float]:
    torch.manual_seed(0)
    step = OPTIMIZERS[optimizer](module.parameters())
    losses = []
    for _ in range(STEPS):
        loss = zoo.ModelCase.loss(model(**inputs))
        step.zero_grad()
        loss.backward()
        step.step()
        losses.append(loss.item())
    return losses


def sensitivity(
    build: Callable[[], nn.Module], inputs: zoo.Inputs, optimizer: str, expected: list[float]
) -> list[float]:
    """How far eager itself strays up to each step, when the weights start a rounding away."""
    strayed = [0.0] * STEPS
    for seed in range(3):
        generator = torch.Generator().manual_seed(seed)
        module = build().train()
        with torch.no_grad():
            for weight in module.parameters():
                noise = torch.randn(weight.shape, generator=generator)
                weight.add_(noise * weight.abs() * torch.finfo(torch.float32).eps)
        losses = train(module, module, inputs, optimizer)
        gaps = [abs(a - b) for a, b in zip(losses, expected, strict=True)]
        strayed = list(map(max, strayed, itertools.accumulate(gaps, max)))
    return strayed


def check_training(name: str, plugin: str, door: str = "torch") -> None:
    """One compiled model, trained from the same start with one optimizer after the other."""
    case = zoo.case(name)
    inputs = case.inputs(labels=True)
    with loaded(case):
        eager, module = case.build().train(), case.build().train()
        start = copy.deepcopy(eager.state_dict())
        compiled = compile_for(plugin, module, door=door)
        for optimizer in OPTIMIZERS:
            eager.load_state_dict(start)
            module.load_state_dict(start)
            expected = train(eager, eager, inputs, optimizer)
            actual = train(compiled, module, inputs, optimizer)
            moved = abs(expected[0] - expected[-1])
            assert moved > 1e-3, "the loss does not move: the test would pass without training"
            gaps = [abs(a - b) for a, b in zip(actual, expected, strict=True)]
            allowed = [1e-3 * max(moved, *map(abs, expected))] * STEPS
            if max(gaps) > allowed[0]:  # deep batch norms at random weights amplify roundings
                strayed = sensitivity(case.build, inputs, optimizer, expected)
                allowed = [a + 3 * s for a, s in zip(allowed, strayed, strict=True)]
            wrong = [i for i in range(STEPS) if not gaps[i] <= allowed[i]]
            assert not wrong, f"{optimizer}, steps {wrong}: {actual} instead of {expected}"


@pytest.mark.parametrize("name", representative_names())
def test_training_follows_eager(name: str) -> None:
    check_training(name, "cpu_onednn")


@pytest.mark.parametrize("name", ["bert", "gpt2"])
def test_training_on_opencl(name: str) -> None:
    check_training(name, "opencl")


@pytest.mark.parametrize(
    ("name", "door"),
    [
        pytest.param(name, door, marks=[pytest.mark.long] * ((name, door) != ("minilm", "own")))
        for name in zoo.names()
        for door in DOORS
    ],
)
def test_training_on_cuda(name: str, door: str) -> None:
    check_training(name, "cuda", door)


@pytest.mark.long
@pytest.mark.parametrize("name", ["bert", "resnet"])
def test_training_on_reference(name: str) -> None:
    check_training(name, "reference")
