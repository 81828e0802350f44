"""Masks of attention that are expanded over heads, and with them other strides of what is added."""

from __future__ import annotations

import pytest
import torch
import torch_backplane
from compiling import DOORS, PLUGINS, compile_for
from torch import nn


@pytest.mark.parametrize("plugin", PLUGINS)
@pytest.mark.parametrize("both", [False, True], ids=["padding", "both"])
def test_added_keys(plugin: str, both: bool) -> None:
    attention = nn.MultiheadAttention(6, 3, add_bias_kv=True, add_zero_attn=True)
    x = torch.randn(4, 6)
    padding = torch.tensor([False, False, False, True])
    mask = torch.ones(4, 4).triu(1).bool() if both else None

    def run(x: torch.Tensor) -> torch.Tensor:
        return attention(x, x, x, key_padding_mask=padding, attn_mask=mask)[0]

    found = torch_backplane.compile(run, backend=plugin)(x)
    torch.testing.assert_close(found, run(x), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("plugin", PLUGINS)
def test_what_a_product_adds_may_lie_anyhow(plugin: str) -> None:
    a, b, memory = torch.randn(3, 4, 5), torch.randn(3, 5, 6), torch.randn(200)
    for strides in ((0, 6, 1), (0, 0, 1), (24, 1, 4), (2, 1, 3), (40, 10, 1), (7, 2, 0)):
        added = memory.as_strided((3, 4, 6), strides)
        compiled = torch_backplane.compile(torch.baddbmm, backend=plugin)
        expected = torch.baddbmm(added, a, b)
        torch.testing.assert_close(compiled(added, a, b), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("door", DOORS)
def test_kinds_of_attention_that_are_switched_off_later(door: str) -> None:
    from torch.nn.attention import SDPBackend, sdpa_kernel

    attention = torch.nn.functional.scaled_dot_product_attention
    compiled = compile_for("reference", lambda q: attention(q, q, q), door)
    query = torch.randn(1, 2, 4, 8)
    torch.testing.assert_close(compiled(query), attention(query, query, query))
    with sdpa_kernel(SDPBackend.EFFICIENT_ATTENTION), pytest.raises(RuntimeError) as refused:
        compiled(query)
    assert "No viable backend" in str(refused.value)
    with sdpa_kernel(SDPBackend.MATH):
        torch.testing.assert_close(compiled(query), attention(query, query, query))
