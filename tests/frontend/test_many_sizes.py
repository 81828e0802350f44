"""Two hundred batch sizes of real models: two compiled entries, each result as eager's."""

from __future__ import annotations

import pytest
import torch
from models import zoo
from models.steps import tensors_of
from torch_backplane import frontend

SIZES = range(2, 202)


@pytest.mark.parametrize("name", ["bert", "resnet"])
def test_two_entries(name: str) -> None:
    case = zoo.case(name)
    assert case.available(), "install requirements/test.txt"
    model = case.build()
    compiled = frontend.compile(model, backend="cpu_onednn", options={"report": False})
    with torch.no_grad():
        for batch in SIZES:
            inputs = case.inputs(batch=batch)
            ours, plain = tensors_of(compiled(**inputs)), tensors_of(model(**inputs))
            assert list(ours) == list(plain)
            for key, expected in plain.items():
                torch.testing.assert_close(ours[key], expected, rtol=1e-4, atol=1e-5)
    counters = frontend.counters(compiled)
    assert counters["plain_calls"] == 0 and not counters["breaks"]
    assert counters["programs"] <= 2
    assert counters["entries"] == len(SIZES)  # each size has its own guards


def test_training_at_many_sizes() -> None:
    case = zoo.case("bert")
    model, plain = case.build().train(), case.build().train()
    compiled = frontend.compile(model, backend="cpu_onednn", options={"report": False})
    for batch in range(2, 202, 9):
        inputs = case.inputs(batch=batch, labels=True)
        losses = []
        for call, module in ((compiled, model), (plain, plain)):
            module.zero_grad()
            loss = case.loss(call(**inputs))
            loss.backward()
            losses.append(loss.detach())
        torch.testing.assert_close(*losses, rtol=1e-4, atol=1e-5)
        for ours, expected in zip(model.parameters(), plain.parameters(), strict=True):
            torch.testing.assert_close(ours.grad, expected.grad, rtol=1e-3, atol=1e-5)
    counters = frontend.counters(compiled)
    assert counters["plain_calls"] == 0 and counters["programs"] <= 2, counters
