"""Tokens generated with a static cache of keys and values: one entry for the prompt, one for all
later tokens, and no more graph breaks than TorchDynamo has."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from frontend.helpers import tiny_gpt2, tiny_llama
from torch_backplane import frontend

transformers = pytest.importorskip("transformers")
PROMPT, STEPS, CACHE = 5, 8, 16


def gpt2() -> torch.nn.Module:
    return transformers.GPT2LMHeadModel(tiny_gpt2())


def llama() -> torch.nn.Module:
    return transformers.LlamaForCausalLM(tiny_llama())


def generate(model: torch.nn.Module, step: Any, prompt: torch.Tensor) -> tuple[torch.Tensor, Any]:
    """The tokens, and the cache that they leave."""
    cache = transformers.StaticCache(config=model.config, max_cache_len=CACHE)
    tokens = [prompt]
    for i in range(STEPS):
        start = 0 if i == 0 else PROMPT + i - 1
        position = torch.arange(start, start + tokens[-1].shape[1])
        out = step(
            input_ids=tokens[-1], past_key_values=cache, use_cache=True, cache_position=position
        )
        tokens.append(out.logits[:, -1:].argmax(-1))
    return torch.cat(tokens, 1), cache


def breaks_of_torchdynamo(model: torch.nn.Module, prompt: torch.Tensor) -> int:
    from torch._dynamo.utils import counters

    torch._dynamo.reset()
    counters.clear()
    generate(model, torch.compile(model, backend="eager"), prompt)
    return sum(counters["graph_break"].values())


@pytest.mark.parametrize("make", [gpt2, llama])
@pytest.mark.parametrize("backend", ["cpu_onednn", "opencl"])
def test_static_cache(backend: str, make: Any) -> None:
    torch.manual_seed(0)
    model = make().eval()
    prompt = torch.randint(2, 100, (2, PROMPT))
    compiled = frontend.compile(model, backend=backend, options={"report": False})
    with torch.no_grad():
        expected, plain_cache = generate(model, model, prompt)
        for _ in range(2):
            tokens, cache = generate(model, compiled, prompt)
            assert torch.equal(tokens, expected)
            for ours, plain in zip(cache.layers, plain_cache.layers, strict=True):
                torch.testing.assert_close(ours.keys, plain.keys, rtol=1e-4, atol=1e-5)
                torch.testing.assert_close(ours.values, plain.values, rtol=1e-4, atol=1e-5)
        counters = frontend.counters(compiled)
        assert counters["plain_calls"] == 0, counters["plain_reasons"]
        assert sum(counters["breaks"].values()) <= breaks_of_torchdynamo(model, prompt)
    assert counters["programs"] == counters["entries"] == 2
    assert counters["hits"] == 2 * STEPS - 2


@pytest.mark.parametrize("make", [gpt2, llama])
def test_generate_of_the_library(make: Any) -> None:
    torch.manual_seed(0)
    model = make().eval()
    prompt = torch.randint(2, 100, (2, PROMPT))
    compiled = frontend.compile(model, backend="cpu_onednn", options={"report": False})
    settings = {"max_new_tokens": STEPS, "do_sample": False, "cache_implementation": "static"}
    expected = model.generate(prompt, **settings)
    assert torch.equal(compiled.generate(prompt, **settings), expected)
    counters = frontend.counters(compiled)
    assert counters["plain_calls"] == 0 and counters["hits"] > 0, counters
