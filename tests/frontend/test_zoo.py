"""Every model of the zoo through our front end: outputs, gradients, and that graphs ran."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest
import torch
from backplane_conformance.torch_agreement import FLOAT32, assert_as_good, to_float64
from models import zoo
from models.steps import gradient_step, tensors_of
from torch_backplane import frontend

BACKENDS = ("eager", "cpu_onednn")
ON_OPENCL = ("bert", "llama", "resnet")
CASES = [(b, name) for b in BACKENDS for name in zoo.names()] + [("opencl", n) for n in ON_OPENCL]
# The first step with labels writes the kind of problem into the model's config: an effect, and an
# entry of its own.
WRITES_ITS_CONFIG = ("bert_dropout", "distilbert", "vit", "resnet", "convnext", "mobilenet")


@contextlib.contextmanager
def loaded(case: zoo.ModelCase) -> Iterator[None]:
    missing = [p for p in case.requires if not case.available()]
    assert not missing, f"install requirements/test.txt: {missing}"
    yield


def assert_captured(compiled: torch.nn.Module, entries: int = 1) -> None:
    counters = frontend.counters(compiled)
    assert counters["plain_calls"] == 0, counters["plain_reasons"]
    assert not counters["breaks"]
    assert counters["entries"] == entries


@pytest.mark.parametrize(("backend", "name"), CASES)
def test_inference(backend: str, name: str) -> None:
    case = zoo.case(name)
    with loaded(case), torch.no_grad():
        model, inputs = case.build(), case.inputs()
        exact = tensors_of(to_float64(model)(**to_float64(inputs)))
        eager = tensors_of(model(**inputs))
        compiled = frontend.compile(model, backend=backend, options={"report": False})
        for _ in range(2):
            output = compiled(**inputs)
            assert_as_good(tensors_of(output), eager, exact, FLOAT32)
    assert type(output) is type(model(**inputs))
    assert_captured(compiled)


@pytest.mark.parametrize(("backend", "name"), CASES)
def test_gradients(backend: str, name: str) -> None:
    case = zoo.case(name)
    inputs = case.inputs(labels=True)
    with loaded(case):
        oracle, eager, module = to_float64(case.build()), case.build(), case.build()
        if not case.stochastic:  # dropout would draw other masks in float64
            oracle.train()
        eager.train()
        module.train()
        exact = gradient_step(oracle, oracle, to_float64(inputs), bf16=False)
        compiled = frontend.compile(module, backend=backend, options={"report": False})
        for _ in range(2):
            for one in (eager, module):
                one.zero_grad()
            expected = gradient_step(eager, eager, inputs, bf16=False)
            actual = gradient_step(compiled, module, inputs, bf16=False)
            if case.stochastic:
                exact = {key: None if t is None else t.double() for key, t in expected.items()}
            gradients = {k: t for k, t in exact.items() if not k.startswith("buffer")}
            assert_as_good(
                {key: actual[key] for key in gradients},
                {key: expected[key] for key in gradients},
                gradients,
                FLOAT32,
            )
    assert_captured(compiled, entries=2 if name in WRITES_ITS_CONFIG else 1)
