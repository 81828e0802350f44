"""What is no number, or infinite, in queries, keys, values and masks of an attention shows where PyTorch shows it."""

from __future__ import annotations

import itertools

import pytest
import torch
from compiling import PLUGINS, compile_for
from torch.nn import functional as F

VALUES = (torch.nan, torch.inf, -torch.inf)


def attention(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor | None
) -> torch.Tensor:
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)


def by_definition(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor | None
) -> torch.Tensor:
    """PyTorch's own kernels for the CPU differ among themselves: here and there they hide what is no number."""
    scores = q @ k.mT / q.shape[-1] ** 0.5
    if mask is not None:
        scores = scores + mask
    sees_none = (scores == -torch.inf).all(-1, keepdim=True)
    return torch.where(sees_none, 0.0, scores.softmax(-1)) @ v


@pytest.mark.parametrize("plugin", PLUGINS)
@pytest.mark.parametrize("place", ["query", "key", "value", "mask"])
def test_what_is_no_number_shows(place: str, plugin: str) -> None:
    for value, masked, keys in itertools.product(VALUES, (False, True), (5, 70)):
        torch.manual_seed(0)
        q, k, v = torch.randn(1, 2, 4, 8), torch.randn(1, 2, keys, 8), torch.randn(1, 2, keys, 8)
        mask = torch.zeros(4, keys) if masked or place == "mask" else None
        if mask is not None:
            mask[1, 2] = -torch.inf
            mask[3] = -torch.inf  # sees no key
        target = {"query": q, "key": k, "value": v, "mask": mask}[place]
        assert target is not None
        target[..., 1, 3] = value
        got = compile_for(plugin, attention, "own")(q, k, v, mask)
        expected = by_definition(q, k, v, mask)
        torch.testing.assert_close(got, expected, equal_nan=True)
