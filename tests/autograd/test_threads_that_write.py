"""Threads that call one program which writes its buffers: each update counts, as in eager mode."""

from __future__ import annotations

import pytest
import torch
from compiling import DOORS, compile_for
from threads import run_in_threads


class Counts(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros((), dtype=torch.long))
        self.linear = torch.nn.Linear(64, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.count.add_(1)
        for _ in range(4):
            x = self.linear(x).tanh()
        return x


@pytest.mark.parametrize("gradients", (False, True))
@pytest.mark.parametrize("door", DOORS)
def test_no_update_is_lost(door: str, gradients: bool) -> None:
    torch._dynamo.reset()
    model = Counts()
    compiled = compile_for("reference", model, door)
    x = torch.ones(32, 64)
    with torch.set_grad_enabled(gradients):
        compiled(x)
    model.count.zero_()
    calls = []

    def work(seed: int) -> None:
        with torch.set_grad_enabled(gradients):
            for _ in range(50):
                compiled(x)
                calls.append(seed)

    run_in_threads(work)
    assert model.count.item() == len(calls)
