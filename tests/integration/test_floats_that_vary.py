"""torch.compile's door, a float that differs with each call: AOTAutograd traces such frames."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from compiling import compile_for
from torch import nn
from torch.utils.checkpoint import checkpoint

FLOATS = (1.0, 0.5, 0.25, 0.3)


def compiled_or_not(program: Callable[..., Any]) -> list[Callable[..., Any]]:
    return [program, compile_for("cpu_onednn", program)]


def test_buffers_are_written_though_a_checkpoint_stops_early() -> None:
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)), torch.randn(5, 4)
    seen = []
    for run in compiled_or_not(lambda x, b: model(x) * b):
        model[1].reset_running_stats()
        found = []
        for b in FLOATS:
            checkpoint(run, x, b, use_reentrant=False).sum().backward()
            found.append((model[1].num_batches_tracked.item(), model[1].running_mean.clone()))
        seen.append(found)
    torch.testing.assert_close(seen[1], seen[0])


def test_a_graph_may_be_kept() -> None:
    w = torch.randn(4, 4, requires_grad=True)
    x = torch.randn(3, 4)
    gradients = []
    for run in compiled_or_not(lambda x, b: F.silu((x @ w).sigmoid() * b).tanh()):
        found = []
        for b in FLOATS:
            result = run(x, b).sum()
            for _ in range(2):
                found.append(torch.autograd.grad(result, w, retain_graph=True)[0])
        gradients.append(found)
    torch.testing.assert_close(gradients[1], gradients[0])


def test_every_write_is_counted() -> None:
    def program(x: torch.Tensor, b: float) -> torch.Tensor:
        x.mul_(b)
        x.add_(1)
        return x + 0

    versions = []
    for run in compiled_or_not(program):
        tensors = [torch.ones(3) for _ in FLOATS]
        for x, b in zip(tensors, FLOATS, strict=True):
            run(x, b)
        versions.append([(x._version, x.tolist()) for x in tensors])
    assert versions[1] == versions[0]


@pytest.mark.parametrize("name", ["detach", "data", "itself"])
def test_inference_tensors_that_are_written_outside_of_their_mode(name: str) -> None:
    programs: dict[str, Callable[[torch.Tensor], Any]] = {
        "detach": lambda x: x.detach().fill_(3),
        "data": lambda x: x.data.mul_(2),
        "itself": lambda x: x.mul_(2),
    }
    outcomes = []
    for run in compiled_or_not(programs[name]):
        with torch.inference_mode():
            x = torch.ones(3)
        try:
            result = run(x).tolist()
        except RuntimeError as error:
            result = str(error)[:40]
        outcomes.append((result, x.tolist()))
    assert outcomes[1] == outcomes[0]
