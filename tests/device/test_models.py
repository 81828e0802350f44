"""The models of the zoo with everything on the device: outputs, gradients, training, bytes."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
import torch_backplane
from backplane_conformance.torch_agreement import FLOAT32, assert_as_good, to_float64
from device.helpers import PLUGINS, counting
from models import zoo
from models.choice import representative_names
from models.test_models import (
    OPTIMIZERS,
    STEPS,
    compile_for,
    gradient_step,
    loaded,
    sensitivity,
    tensors_of,
    train,
)
from torch import nn

# All models compiled on one plugin; some of them on the others, and operator by operator where that
# needs no compiler.
SOME = ("bert", "resnet")
RUNS = [
    pytest.param("cpu_onednn", True, *case.values, marks=case.marks)
    for case in representative_names()
]
RUNS += [(plugin, True, name) for plugin in PLUGINS if plugin != "cpu_onednn" for name in SOME]
RUNS += [(plugin, False, name) for plugin in ("reference", "cpu_onednn") for name in SOME]


def moved(value: Any, device: torch.device) -> Any:
    if isinstance(value, dict):
        return {name: moved(item, device) for name, item in value.items()}
    return value.to(device) if isinstance(value, torch.Tensor) else value


def on_cpu(tensors: dict[str, torch.Tensor | None]) -> dict[str, torch.Tensor | None]:
    assert all(t is None or t.device.type == "backplane" for t in tensors.values())
    return {name: None if t is None else t.cpu() for name, t in tensors.items()}


@pytest.mark.parametrize(("plugin", "compiled", "name"), RUNS)
def test_outputs_and_gradients(plugin: str, compiled: bool, name: str) -> None:
    case = zoo.case(name)
    npu = torch_backplane.device(plugin)
    inputs, labelled = case.inputs(), case.inputs(labels=True)
    with loaded(case):
        oracle, eager = to_float64(case.build()), case.build()
        module = case.build().to(npu)
        model = compile_for(plugin, module) if compiled else module
        with torch.no_grad():
            exact, expected = (
                tensors_of(m(**i)) for m, i in ((oracle, to_float64(inputs)), (eager, inputs))
            )
            actual = on_cpu(tensors_of(model(**moved(inputs, npu))))
        assert_as_good(actual, expected, exact, FLOAT32)
        if case.stochastic:
            return  # dropout on the device draws from the device's own generator
        for m in (oracle, eager, module):
            m.train()
        exact = gradient_step(oracle, oracle, to_float64(labelled), bf16=False)
        expected = gradient_step(eager, eager, labelled, bf16=False)
        actual = on_cpu(gradient_step(model, module, moved(labelled, npu), bf16=False))
    assert_as_good(actual, expected, exact, FLOAT32)


@pytest.mark.parametrize("name", ["bert", "gpt2", "resnet"])
@pytest.mark.parametrize("plugin", PLUGINS)
def test_training_follows_eager(plugin: str, name: str) -> None:
    case = zoo.case(name)
    npu = torch_backplane.device(plugin)
    inputs = case.inputs(labels=True)
    with loaded(case):
        eager, module = case.build().train(), case.build().train()
        module = module.to(npu)
        expected = train(eager, eager, inputs, "adamw")
        with counting() as found:
            actual = train(compile_for(plugin, module), module, moved(inputs, npu), "adamw")
        assert found["aot_graphs"] == 0 and found["recordings"] > 0
        change = abs(expected[0] - expected[-1])
        assert change > 1e-3
        gaps = [abs(a - b) for a, b in zip(actual, expected, strict=True)]
        allowed = [1e-3 * max(change, *map(abs, expected))] * STEPS
        if max(gaps) > allowed[0]:  # deep batch norms at random weights amplify roundings
            strayed = sensitivity(case.build, inputs, "adamw", expected)
            allowed = [a + 3 * s for a, s in zip(allowed, strayed, strict=True)]
        wrong = [i for i in range(STEPS) if not gaps[i] <= allowed[i]]
    assert not wrong, f"steps {wrong}: {actual} instead of {expected}"


class Broken(nn.Module):
    """A graph break after the embeddings."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: torch.Tensor, **settings: Any) -> Any:
        torch._dynamo.graph_break()
        return self.inner(x, **settings)


@pytest.mark.parametrize("has_break", [False, True])
# Operator by operator OpenCL would compile a program for each, which takes minutes.
@pytest.mark.parametrize(
    ("plugin", "compiled"), [("reference", True), ("reference", False), ("opencl", True)]
)
def test_a_training_step_moves_the_batch_and_the_loss(
    plugin: str, has_break: bool, compiled: bool
) -> None:
    case = zoo.case("bert")
    npu = torch_backplane.device(plugin)
    batch = case.inputs(labels=True)
    with loaded(case):
        module = case.build().train()
        if has_break:
            module.bert.encoder = Broken(module.bert.encoder)
        module = module.to(npu)
        model = compile_for(plugin, module) if compiled else module
        optimizer = OPTIMIZERS["adamw"](module.parameters())

        def step(read: bool) -> float | None:
            loss = model(**moved(batch, npu)).loss
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            return loss.item() if read else None

        with counting() as found:
            for _ in range(2):
                step(read=True)
        assert found["aot_graphs"] == 0 and (found["recordings"] > 0) == compiled
        with torch_backplane.record() as graphs:
            for read in (True, False, True):
                with counting() as found:
                    step(read)
                inputs = sum(t.nbytes for t in batch.values())
                # Without a compiler transformers asks whether the mask masks anything: one bool.
                own = 0 if compiled else 1
                results = (4 if read else 0) + own
                if plugin == "reference":
                    assert found["host_to_device_bytes"] == inputs
                    assert found["device_to_host_bytes"] == results
                else:  # a device that shares the host's memory copies less
                    assert found["host_to_device_bytes"] <= inputs
                    assert found["device_to_host_bytes"] <= results
                assert not found["eager_fallbacks"]
        assert not graphs, "compiled anew in the steady state"


def test_a_broken_module_has_two_graphs() -> None:
    """Else the break of the test above would test nothing."""
    case = zoo.case("bert")
    npu = torch_backplane.device("reference")
    with loaded(case), torch_backplane.record() as graphs, torch.no_grad():
        module = copy.deepcopy(case.build())
        module.bert.encoder = Broken(module.bert.encoder)
        compile_for("reference", module.to(npu))(**moved(case.inputs(), npu))
    assert len(graphs) >= 2
