"""Compares a compiled function with plain Python: result, exceptions, and what changed outside."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch.utils import _pytree as pytree
from torch_backplane import frontend


def assert_same(actual: Any, expected: Any) -> None:
    """Same structure, same classes, same values; tensors bit for bit."""
    actual_leaves, actual_spec = pytree.tree_flatten(actual)
    expected_leaves, expected_spec = pytree.tree_flatten(expected)
    assert type(actual) is type(expected)
    assert actual_spec == expected_spec
    for a, e in zip(actual_leaves, expected_leaves, strict=True):
        assert type(a) is type(e)
        if isinstance(e, torch.Tensor):
            assert a.dtype == e.dtype and a.shape == e.shape and a.stride() == e.stride()
            assert a.requires_grad == e.requires_grad
            assert torch.equal(a, e) or torch.allclose(a, e, rtol=0, atol=0, equal_nan=True)
        elif type(e).__eq__ is object.__eq__ and hasattr(e, "__dict__") and not callable(e):
            assert_same(vars(a), vars(e))
        else:
            assert a == e or (a != a and e != e)


def outcome(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    try:
        return "value", function(*args, **kwargs)
    except Exception as error:
        return "error", (type(error), str(error))


def check(
    function: Callable[..., Any],
    *calls: Any,
    compiled: Any = None,
    backend: str = "eager",
) -> Any:
    """Runs each call twice, compiled and plain, on copies of its arguments; also compares what the
    call did to its arguments. A call is a tuple of arguments. Returns the compiled function."""
    if compiled is None:
        compiled = frontend.compile(function, backend=backend)
    plain = getattr(compiled, "__wrapped__", function)
    for call in calls:
        for _ in range(2):
            for_plain, for_compiled = copy.deepcopy(call), copy.deepcopy(call)
            seed = torch.get_rng_state()
            expected = outcome(plain, for_plain, {})
            torch.set_rng_state(seed)
            actual = outcome(compiled, for_compiled, {})
            assert actual[0] == expected[0], (actual, expected)
            assert_same(actual[1], expected[1])
            assert_same(for_compiled, for_plain)
    return compiled


def captured(compiled: Any) -> bool:
    """Whether every call so far ran a graph."""
    return frontend.counters(compiled)["plain_calls"] == 0


def tiny_gpt2() -> Any:
    """The configuration of a small model of transformers."""
    from transformers import GPT2Config

    return GPT2Config(
        n_embd=32, n_layer=2, n_head=2, vocab_size=100, bos_token_id=0, eos_token_id=1
    )


def tiny_llama() -> Any:
    """The configuration of a small model of transformers."""
    from transformers import LlamaConfig

    return LlamaConfig(
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        vocab_size=100,
    )
