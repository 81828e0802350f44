"""Views of what wants gradients, made where gradients are off: they want them too, without history."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch_backplane

PROGRAMS: dict[str, Callable[[torch.Tensor], tuple[torch.Tensor, ...]]] = {
    "of the argument": lambda x: (x.t(), x[0], x.view(-1)[2:], x * 2),
    "of a view": lambda x: (x.t()[1], x.unsqueeze(0)),
    "detached": lambda x: (x.detach().t(), x.data[0]),
    "of a result": lambda x: ((x * 2).t(), x),
    "of two": lambda x: x.chunk(2),
}
DOORS = {
    "own": lambda f: torch_backplane.compile(f, backend="plugin:reference"),
    "torch": lambda f: torch.compile(f, backend="plugin:reference"),
    "traced": lambda f: torch.compile(f, backend="plugin:reference", options={"recorder": False}),
}


def facts(results: tuple[torch.Tensor, ...], x: torch.Tensor) -> list[tuple[object, ...]]:
    place = x.untyped_storage().data_ptr()
    return [
        (r.requires_grad, r.grad_fn is None, r.untyped_storage().data_ptr() == place, r.tolist())
        for r in results
    ]


@pytest.mark.parametrize("leaf", [True, False])
@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("door", DOORS)
def test_without_gradients(door: str, name: str, leaf: bool) -> None:
    torch._dynamo.reset()
    torch_backplane.reset()
    compiled = DOORS[door](PROGRAMS[name])
    x = torch.randn(4, 3, requires_grad=True)
    x = x if leaf else x * 3
    for _ in range(2):
        with torch.no_grad():
            assert facts(compiled(x), x) == facts(PROGRAMS[name](x), x)
    stats = torch_backplane.stats()
    assert stats["eager_graphs"] == stats["eager_calls"] == stats["plain_calls"] == 0, stats


@pytest.mark.parametrize("door", ["own", "torch"])
def test_written_later(door: str) -> None:
    """With gradients on again, PyTorch refuses."""
    torch._dynamo.reset()
    x = torch.randn(4, 3, requires_grad=True)
    view = torch.no_grad()(DOORS[door](lambda x: x.t()))(x)
    with pytest.raises(RuntimeError, match="no_grad mode"):
        view.mul_(2)
