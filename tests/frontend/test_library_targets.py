"""PyTorch's own functions as what is compiled: the program's frames, where they break too."""

from __future__ import annotations

import torch
import torch_backplane
from compiling import compile_for


def test_a_library_function_that_breaks_is_captured_in_parts() -> None:
    distribution = torch.distributions.Normal(torch.rand(3), 1.0, validate_args=True)
    log_prob = compile_for("reference", distribution.log_prob, "own")
    before = torch_backplane.stats()["plugin_nodes"]
    for value in (torch.rand(3), torch.rand(3)):
        torch.testing.assert_close(log_prob(value), distribution.log_prob(value))
    counters = torch_backplane.counters(log_prob)
    assert counters["breaks"], "validates its values"
    assert counters["entries"] > 1
    assert torch_backplane.stats()["plugin_nodes"] > before


def test_an_optimizer_s_step_is_captured_behind_its_decorators() -> None:
    results = []
    for is_compiled in (False, True):
        weight = torch.arange(3.0).requires_grad_()
        optimizer = torch.optim.RMSprop([weight], lr=0.1)
        step = compile_for("reference", optimizer.step, "own") if is_compiled else optimizer.step
        for factor in (1.0, -2.0, 0.5):
            weight.grad = torch.full((3,), factor)
            step()
        results.append(weight.detach())
    counters = torch_backplane.counters(step)
    assert counters["entries"] + counters["plain_calls"] > 0
    torch.testing.assert_close(*results)


def test_what_a_library_decorates_is_captured_without_the_decorator() -> None:
    @torch.no_grad()
    def branch(x: torch.Tensor) -> torch.Tensor:
        x = x * 2
        return x + 1 if x.sum() > 0 else x - 1

    compiled = compile_for("reference", branch, "own")
    for value in (torch.ones(3), -torch.ones(3)):
        torch.testing.assert_close(compiled(value), branch(value))
    counters = torch_backplane.counters(compiled)
    assert counters["plain_calls"] == 0
    assert list(counters["breaks"].values()) == [2]


def test_decorators_in_a_circle_run_as_they_are() -> None:
    @torch.no_grad()
    def branch(x: torch.Tensor) -> torch.Tensor:
        return x + 1 if x.sum() > 0 else x - 1

    branch.__wrapped__ = branch
    compiled = compile_for("reference", branch, "own")
    torch.testing.assert_close(compiled(torch.ones(3)), torch.full((3,), 2.0))
