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


def test_kthvalue_names_what_eager_names() -> None:
    compiled = torch_backplane.compile(
        lambda x, k: torch.kthvalue(x, k, -1), backend="plugin:reference"
    )
    generator = torch.Generator().manual_seed(0)
    for length in (1, 2, 3, 5, 8, 64, 100):
        for dtype in (torch.float32, torch.int64):
            x = torch.randint(0, 4, (5, length), generator=generator).to(dtype)
            if dtype == torch.float32:
                x[0, 0] = torch.nan
            for k in {1, (length + 1) // 2, length}:
                expected = torch.kthvalue(x, k, -1)
                assert torch.equal(compiled(x, k).indices, expected.indices), (length, k)


@pytest.mark.parametrize("plugin", ["reference", "cpu_onednn"])
@pytest.mark.parametrize("pairs", [True, False])
def test_the_largest_difference_has_the_gradient(plugin: str, pairs: bool) -> None:
    """It is found again by its value, which was rounded."""

    def distances(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        if pairs:
            return torch.nn.functional.pdist(x, p=torch.inf)
        return torch.cdist(x, y, p=torch.inf)

    torch.manual_seed(0)
    x, y = torch.randn(30, 7, requires_grad=True), torch.randn(20, 7)
    compiled = torch_backplane.compile(distances, backend=f"plugin:{plugin}")
    (gradient,) = torch.autograd.grad(compiled(x, y).sum(), x)
    (expected,) = torch.autograd.grad(distances(x, y).sum(), x)
    assert torch.equal(gradient, expected)
