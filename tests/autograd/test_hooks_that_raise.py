"""A hook of saved tensors that raises stops a program behind what it has written: a checkpoint stops
its second run that way."""

from __future__ import annotations

import pytest
import torch
import torch_backplane
from compiling import compile_for
from torch.utils.checkpoint import checkpoint


class CountsFirst(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(3, 3)
        self.calls, self.ends, self.kept, self.register = 0, 0, [], {}

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        self.kept.append(self.calls)
        return self.linear(x).sin()


class CountsLast(CountsFirst):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.linear(x).sin()
        self.calls += 1
        self.kept.append("end")
        return y


class CountsBoth(CountsFirst):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        self.register["calls"] = self.calls
        y = self.linear(x).sin()
        self.calls += 10
        self.ends += 1
        self.register["calls"] = -self.calls
        return y


class Breaks(CountsFirst):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        y = self.linear(x)
        print(end="")
        self.ends += 1
        return y.exp()


def state(model: CountsFirst) -> list[object]:
    return [model.calls, model.ends, list(model.kept), dict(model.register)]


@pytest.mark.parametrize("kind", (CountsFirst, CountsLast, CountsBoth, Breaks))
def test_a_checkpoint_around_a_module_that_writes_what_is_outside(kind: type) -> None:
    seen = []
    for compiles in (False, True):
        torch.manual_seed(0)
        model = kind()
        run = compile_for("reference", model, "own") if compiles else model
        x = torch.randn(2, 3, requires_grad=True)
        for _ in range(3):
            checkpoint(run, x, use_reentrant=False).sum().backward()
            seen.append((state(model), x.grad.clone(), model.linear.weight.grad.clone()))
    for eager, ours in zip(seen[:3], seen[3:], strict=True):
        assert ours[0] == eager[0]
        torch.testing.assert_close(ours[1:], eager[1:])
    assert not torch_backplane.counters(run)["plain_reasons"]


def test_what_raises_comes_where_the_program_stands() -> None:
    def refuse(saved: torch.Tensor) -> torch.Tensor:
        raise ValueError("kept nowhere")

    for compiles in (False, True):
        model = CountsFirst()
        run = compile_for("reference", model, "own") if compiles else model
        x = torch.randn(2, 3, requires_grad=True)
        run(x)
        for calls in (2, 3):
            hooks = torch.autograd.graph.saved_tensors_hooks(refuse, lambda saved: saved)
            with hooks, pytest.raises(ValueError, match="kept nowhere"):
                run(x)
            assert model.calls == calls
        run(x).sum().backward()


def test_what_was_not_saved_is_not_differentiated() -> None:
    """A written argument has its new history by then."""

    def program(cache: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        cache.mul_(x.exp())
        return x.sin()

    def refuse(saved: torch.Tensor) -> torch.Tensor:
        raise ValueError("kept nowhere")

    compiled = compile_for("reference", program, "own")
    x, cache = torch.ones(2, requires_grad=True), torch.zeros(2)
    hooks = torch.autograd.graph.saved_tensors_hooks(refuse, lambda saved: saved)
    with hooks, pytest.raises(ValueError, match="kept nowhere"):
        compiled(cache, x)
    with pytest.raises(RuntimeError, match="hook of saved tensors has raised"):
        cache.sum().backward()
