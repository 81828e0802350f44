"""Language models of transformers, from their config classes, captured whole."""

from __future__ import annotations

import copy

import pytest
import torch
from frontend.helpers import captured, tiny_gpt2, tiny_llama
from torch_backplane import frontend

transformers = pytest.importorskip("transformers")


def gpt2() -> torch.nn.Module:
    return transformers.GPT2Model(tiny_gpt2())


def llama() -> torch.nn.Module:
    return transformers.LlamaModel(tiny_llama())


@pytest.mark.parametrize("make", [gpt2, llama])
def test_inference(make) -> None:
    model = make().eval()
    compiled = frontend.compile(model)
    with torch.no_grad():
        for _ in range(3):
            ids = torch.randint(0, 100, (2, 7))
            ours, plain = (m(ids, use_cache=False) for m in (compiled, model))
            assert type(ours) is type(plain) and list(ours) == list(plain)
            torch.testing.assert_close(ours.last_hidden_state, plain.last_hidden_state)
    assert captured(compiled), frontend.counters(compiled)
    assert len(frontend.entries(compiled)) == 1


@pytest.mark.parametrize("make", [gpt2, llama])
def test_gradients(make) -> None:
    model = make().eval()  # no dropout
    plain = copy.deepcopy(model)
    compiled = frontend.compile(model)
    ids = torch.randint(0, 100, (2, 7))
    for _ in range(2):
        for m in (compiled, plain):
            m(ids, use_cache=False).last_hidden_state.square().mean().backward()
    assert captured(compiled), frontend.counters(compiled)
    for ours, expected in zip(model.parameters(), plain.parameters(), strict=True):
        assert (ours.grad is None) == (expected.grad is None)
        if expected.grad is not None:
            torch.testing.assert_close(ours.grad, expected.grad, rtol=1e-4, atol=1e-5)


def test_cache_that_is_returned() -> None:
    model = gpt2().eval()
    compiled = frontend.compile(model)
    ids = torch.randint(0, 100, (1, 5))
    with torch.no_grad():
        ours, plain = compiled(ids, use_cache=True), model(ids, use_cache=True)
    assert captured(compiled), frontend.counters(compiled)
    assert ours.past_key_values.get_seq_length() == plain.past_key_values.get_seq_length() == 5
    with torch.no_grad():  # goes on from our cache, without the compiled model
        token = torch.tensor([[3]])
        torch.testing.assert_close(
            model(token, past_key_values=ours.past_key_values).last_hidden_state,
            model(token, past_key_values=plain.past_key_values).last_hidden_state,
        )
