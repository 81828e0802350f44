"""The OpenCL plugin's products of few rows, which read the right factor where it lies, beside eager."""

from __future__ import annotations

import pytest
import torch
from compiling import compile_for
from torch.nn import functional as F

# Depth and columns: whole vectors and tiles, ends of both, less than one vector.
SIZES = ((32, 64), (41, 48), (17, 100), (6, 30))


@pytest.mark.parametrize("rows", [1, 2, 3, 5, 6, 7, 8, 9])
def test_products_of_few_rows(rows: int) -> None:
    generator = torch.Generator().manual_seed(rows)

    def rand(*dims: int) -> torch.Tensor:
        return torch.randn(*dims, generator=generator)

    inputs = [
        (rand(rows, depth), rand(columns, depth), rand(columns), rand(depth, columns))
        for depth, columns in SIZES
    ]

    def products(inputs: list[tuple[torch.Tensor, ...]]) -> list[torch.Tensor]:
        out = []
        for x, weight, bias, matrix in inputs:
            by_columns = x.t().contiguous().t()
            out += [F.linear(x, weight, bias), torch.mm(x, weight.t()), torch.mm(x, matrix)]
            out += [torch.addmm(bias, x, matrix).relu()]
            out += [torch.mm(by_columns, matrix), torch.mm(by_columns, weight.t())]
        return out

    exact = products([tuple(t.double() for t in tensors) for tensors in inputs])
    for ours, best in zip(
        compile_for("opencl", products, dynamic=False)(inputs), exact, strict=True
    ):
        torch.testing.assert_close(ours.double(), best, rtol=0, atol=2e-6 * best.abs().max().item())


@pytest.mark.parametrize("rows", [1, 4, 8])
def test_batches_of_few_rows(rows: int) -> None:
    generator = torch.Generator().manual_seed(rows)
    x = torch.randn(3, 2, rows, 40, generator=generator)
    y = torch.randn(3, 2, 40, 64, generator=generator)
    w = torch.randn(2, 64, 40, generator=generator)

    def products(x: torch.Tensor, y: torch.Tensor, w: torch.Tensor) -> list[torch.Tensor]:
        shared = y[:, :1].expand(3, 2, 40, 64)
        return [x @ y, x @ w.transpose(-1, -2), x @ shared, x @ w.mT.expand(3, 2, 40, 64)]

    exact = products(x.double(), y.double(), w.double())
    ours = compile_for("opencl", products, dynamic=False)(x, y, w)
    for mine, best in zip(ours, exact, strict=True):
        torch.testing.assert_close(mine.double(), best, rtol=0, atol=2e-6 * best.abs().max().item())
