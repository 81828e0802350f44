"""Equal values: which of them an operator names is what PyTorch's own algorithm makes of them."""

from __future__ import annotations

import pytest
import torch
import torch_backplane


@pytest.mark.parametrize("plugin", ["reference", "cpu_onednn"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64])
def test_topk_names_what_eager_names(plugin: str, dtype: torch.dtype) -> None:
    compiled = torch_backplane.compile(
        lambda x, k, largest: torch.topk(x, k, -1, largest), backend=f"plugin:{plugin}"
    )
    generator = torch.Generator().manual_seed(0)
    for length in (1, 7, 33, 130, 1000):
        x = torch.randint(0, 4, (3, length), generator=generator).to(dtype)
        for k in (0, 1, 2, 15, 33):
            for largest in (True, False):
                if k > length:
                    continue
                values, places = compiled(x, k, largest)
                expected = torch.topk(x, k, -1, largest)
                assert torch.equal(values, expected.values), (length, k)
                assert torch.equal(places, expected.indices), (length, k)
