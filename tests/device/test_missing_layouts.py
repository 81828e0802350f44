"""What the torch device does not have, sparse and quantized tensors, is told in a sentence; results that
the CPU's kernels lay out otherwise than densely lie so on the device too."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch_backplane


@pytest.fixture(scope="module")
def where() -> torch.device:
    return torch_backplane.device("reference")


def _pairs(where: torch.device) -> torch.Tensor:
    return torch.sparse_coo_tensor(torch.zeros(2, 1).long(), torch.ones(1), (3, 3), device=where)


def _sparse_gradient(where: torch.device) -> None:
    layer = torch.nn.Embedding(4, 2, sparse=True, device=where)
    layer(torch.tensor([1], device=where)).sum().backward()


SPARSE = {
    "moved": lambda where: torch.eye(3).to_sparse().to(where),
    "made there": lambda where: torch.eye(3).to(where).to_sparse(),
    "of indices": _pairs,
    "empty": lambda where: torch.empty(3, 3, layout=torch.sparse_coo, device=where),
    "a product": lambda where: torch.eye(3).to_sparse() @ torch.eye(3).to(where),
    "a sum": lambda where: torch.eye(3).to(where) + torch.eye(3).to_sparse(),
    "a copy": lambda where: torch.eye(3).to(where).copy_(torch.eye(3).to_sparse()),
    "a gradient": _sparse_gradient,
    "a product of rows": lambda where: (
        torch.eye(3).to_sparse_csr().to(where) @ torch.eye(3).to(where)
    ),
}
QUANTIZED = {
    "moved": lambda where: torch.quantize_per_tensor(torch.eye(3), 0.1, 0, torch.qint8).to(where),
    "made there": lambda where: torch.quantize_per_tensor(
        torch.eye(3).to(where), 0.1, 0, torch.qint8
    ),
    "empty": lambda where: torch.empty(3, dtype=torch.qint8, device=where),
}


@pytest.mark.parametrize(
    ("kind", "make"),
    [("sparse", make) for make in SPARSE.values()]
    + [("quantized", make) for make in QUANTIZED.values()],
    ids=[f"sparse: {name}" for name in SPARSE] + [f"quantized: {name}" for name in QUANTIZED],
)
def test_it_is_told_in_a_sentence(kind: str, make: Any, where: torch.device) -> None:
    with pytest.raises(NotImplementedError) as raised:
        make(where)
    assert f"the torch device 'backplane' has no {kind} tensors" in str(raised.value)
    assert (torch.ones(2, device=where) + 1).tolist() == [2.0, 2.0]


@pytest.mark.parametrize("driver", ["gels", "gelsy", "gelsd", "gelss"])
@pytest.mark.parametrize(
    ("rows", "wanted"), [((5, 3), (5, 2)), ((3, 5), (3, 2)), ((2, 5, 3), (2, 5, 2)), ((5, 3), (5,))]
)
def test_least_squares_lie_as_on_the_cpu(
    rows: tuple[int, ...], wanted: tuple[int, ...], driver: str, where: torch.device
) -> None:
    a, b = torch.randn(rows), torch.randn(wanted)
    expected = torch.linalg.lstsq(a, b, driver=driver)
    found = torch.linalg.lstsq(a.to(where), b.to(where), driver=driver)
    for one, other in zip(expected, found, strict=True):
        assert (one.shape, one.stride(), one.dtype) == (other.shape, other.stride(), other.dtype)
        torch.testing.assert_close(other.cpu(), one)
