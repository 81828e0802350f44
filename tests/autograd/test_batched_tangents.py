"""The backward of a compiled graph, by several tangents at once: ``vmap`` in its several coats."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch_backplane
from torch.autograd.functional import hessian, jacobian

DOORS: dict[str, Callable[..., Any]] = {
    "own": lambda f: torch_backplane.compile(f, backend="cpu_onednn"),
    "torch": lambda f: torch.compile(f, backend="plugin:cpu_onednn"),
}
Program = Callable[[torch.Tensor], torch.Tensor]


def grads_batched(f: Program, x: torch.Tensor) -> torch.Tensor:
    y = f(x)
    return torch.autograd.grad(y, x, torch.eye(3), is_grads_batched=True, retain_graph=True)[0]


def vmap_of_gradients(f: Program, x: torch.Tensor) -> torch.Tensor:
    y = f(x)

    def one(v: torch.Tensor) -> torch.Tensor:
        return torch.autograd.grad(y, x, v, retain_graph=True)[0]

    return torch.func.vmap(one)(torch.eye(3))


def vmap_of_vmap(f: Program, x: torch.Tensor) -> torch.Tensor:
    y = f(x)

    def one(v: torch.Tensor) -> torch.Tensor:
        return torch.autograd.grad(y, x, v, retain_graph=True)[0]

    return torch.func.vmap(torch.func.vmap(one))(torch.eye(3).repeat(2, 1, 1))


def vectorized_jacobian(f: Program, x: torch.Tensor) -> torch.Tensor:
    return jacobian(f, x.detach(), vectorize=True)


def vectorized_hessian(f: Program, x: torch.Tensor) -> torch.Tensor:
    return hessian(lambda v: f(v).sum(), x.detach(), vectorize=True)


def gradcheck(f: Program, x: torch.Tensor) -> torch.Tensor:
    x = x.detach().double().requires_grad_()
    assert torch.autograd.gradcheck(f, x, check_batched_grad=True)
    return x


WAYS = [
    grads_batched,
    vmap_of_gradients,
    vmap_of_vmap,
    vectorized_jacobian,
    vectorized_hessian,
    gradcheck,
]


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("way", WAYS)
def test_as_in_eager_mode(way: Callable[[Program, torch.Tensor], torch.Tensor], door: str) -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return x.sin() * x.sum() + x.cos() ** 2

    compiled = DOORS[door](f)
    for _ in range(2):
        x = torch.randn(3).requires_grad_()
        torch.testing.assert_close(way(compiled, x), way(f, x))
    before = torch_backplane.stats()["second_differentiations"]
    grads_batched(compiled, x)
    assert torch_backplane.stats()["second_differentiations"] == before + 1
