"""Registered operators with a gradient of their own: programs with them are differentiated twice."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from compiling import compile_for


@pytest.fixture
def tripled() -> Iterator[torch.library.CustomOpDef]:
    @torch.library.custom_op("registered::tripled", mutates_args=())
    def operator(t: torch.Tensor) -> torch.Tensor:
        return t * 3

    operator.register_fake(torch.empty_like)
    operator.register_autograd(lambda _, gradient: gradient * 3)
    yield operator


@pytest.mark.parametrize("door", ["own", "torch"])
def test_second_gradients(tripled: torch.library.CustomOpDef, door: str) -> None:
    written = torch.zeros(2)

    def program(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y.add_(1)
        return tripled(x) * x, x[None] * y

    x = torch.randn(2, requires_grad=True)
    outcomes = []
    for run in (program, compile_for("cpu_onednn", program, door)):
        results = run(x, written.clone())
        loss = torch.stack([(r * r).sum() for r in results]).sum()
        (first,) = torch.autograd.grad(loss, x, create_graph=True)
        (second,) = torch.autograd.grad(first.sum(), x)
        outcomes.append((first, second))
    torch.testing.assert_close(outcomes[1], outcomes[0])
