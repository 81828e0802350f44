"""Gradients between results of one graph, of which some are computed from others: hooks on them,
`retain_grad` and `torch.autograd.grad` from outside, as with eager mode."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch_backplane

T = torch.Tensor
Check = Callable[[Callable[..., Any], T], Any]


def leaf() -> T:
    return torch.linspace(-1, 1, 8).view(2, 4).clone().requires_grad_()


def chain(x: T) -> tuple[T, T, T]:
    """The last comes of both others, by the second and past it; the loss is before its sources."""
    features = x.sin() * 2
    gate = features.sigmoid()
    return (gate * features).square().sum(), gate, features


def asked_for_a_source(f: Callable[..., Any], x: T) -> Any:
    loss, gate, features = f(x)
    return [
        torch.autograd.grad(loss, features, retain_graph=True),
        torch.autograd.grad(loss, [features, x], retain_graph=True),
        torch.autograd.grad(loss, [gate, features], retain_graph=True),
        torch.autograd.grad(loss + gate.sum(), [gate, features, x], retain_graph=True),
        torch.autograd.grad(gate.sum(), features),
    ]


def retained(f: Callable[..., Any], x: T) -> Any:
    loss, gate, features = f(x)
    gate.retain_grad()
    features.retain_grad()
    (loss + features.sum()).backward()
    return gate.grad, features.grad, x.grad


def changed_by_a_hook(f: Callable[..., Any], x: T) -> Any:
    loss, gate, features = f(x)
    seen = []
    gate.register_hook(lambda g: g * 3)
    features.register_hook(lambda g: seen.append(g.clone()))
    loss.backward()
    return seen, x.grad


def a_hook_on_the_node(f: Callable[..., Any], x: T) -> Any:
    loss, gate, _ = f(x)
    seen = []
    gate.grad_fn.register_prehook(lambda given: seen.append(given[0].clone()))
    loss.backward()
    return seen, x.grad


def second_order(f: Callable[..., Any], x: T) -> Any:
    loss, _, features = f(x)
    (first,) = torch.autograd.grad(loss, features, create_graph=True)
    return first, torch.autograd.grad(first.square().sum(), x)


def nobody_asked(f: Callable[..., Any], x: T) -> Any:
    before = torch_backplane.stats()["second_differentiations"]
    loss, gate, _ = f(x)
    (loss + gate.sum()).backward()
    return x.grad, torch_backplane.stats()["second_differentiations"] - before


def compare(program: Callable[..., Any], check: Check, compiled: Callable[..., Any]) -> None:
    expected = check(program, leaf())
    for _ in range(2):
        torch.testing.assert_close(check(compiled, leaf()), expected)


CHECKS = [
    asked_for_a_source,
    retained,
    changed_by_a_hook,
    a_hook_on_the_node,
    second_order,
    nobody_asked,
]


@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.parametrize("plugin", ["reference", "cpu_onednn"])
def test_at_the_own_door(check: Check, plugin: str) -> None:
    compare(chain, check, torch_backplane.compile(chain, backend=plugin))


@pytest.mark.parametrize("check", CHECKS)
def test_by_torch_compile(check: Check) -> None:
    compare(chain, check, torch.compile(chain, backend="plugin:reference"))


def test_a_module_with_a_head_whose_features_are_retained() -> None:
    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.body = torch.nn.Sequential(
                torch.nn.Linear(4, 6), torch.nn.BatchNorm1d(6), torch.nn.Dropout(0.5)
            )
            self.head = torch.nn.Linear(6, 3)

        def forward(self, x: T) -> dict[str, T]:
            features = self.body(x).relu()
            return {"logits": self.head(features), "features": features}

    def check(net: Callable[..., Any], x: T) -> Any:
        torch.manual_seed(1)
        out = net(x)
        out["features"].retain_grad()
        out["logits"][:, 1].sum().backward()
        return out["features"].grad, x.grad

    expected = check(Net(), leaf())
    torch.testing.assert_close(check(torch_backplane.compile(Net()), leaf()), expected)


def test_what_is_infinite_behind_a_source_stays_there() -> None:
    """Nothing goes past a source to another one, not zeros either, which would be NaN there."""

    def program(x: T) -> tuple[T, T, T]:
        root = x.square()
        other = root.sqrt()  # its derivative at 0 is infinite
        return (other * 0 + root).sum(), root, other

    def check(f: Callable[..., Any], x: T) -> Any:
        total, root, other = f(x)
        return torch.autograd.grad(total, [root, other])

    def at_zero() -> T:
        return torch.zeros(3, requires_grad=True)

    expected = check(program, at_zero())
    compiled = torch_backplane.compile(program, backend="reference")
    torch.testing.assert_close(check(compiled, at_zero()), expected, equal_nan=True)


def test_the_first_result_is_written_before_it_is_asked() -> None:
    def check(f: Callable[..., Any], x: T) -> Any:
        loss, gate, features = f(x)
        with torch.no_grad():
            features.mul_(2)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            torch.autograd.grad(loss, gate)
        return loss

    compare(chain, check, torch_backplane.compile(chain, backend="reference"))


def returns_a_view_of_an_argument(x: T) -> tuple[T, T]:
    turned = x.t()
    return turned.sin().sum(), turned


def returns_a_view_of_a_result(x: T) -> tuple[T, T, T]:
    features = x.sin()
    flat = features.view(-1)
    return (flat.exp() + flat).sum(), flat, features


def writes_an_argument(x: T) -> tuple[T, T]:
    x.cos_().mul_(2)
    return x.square().sum(), x


@pytest.mark.parametrize(
    "program", [returns_a_view_of_an_argument, returns_a_view_of_a_result, writes_an_argument]
)
@pytest.mark.parametrize("door", ["own", "torch"])
def test_other_results_that_one_comes_of(program: Callable[..., Any], door: str) -> None:
    def check(f: Callable[..., Any], start: T) -> Any:
        x = start * 1
        loss, *sources = f(x)
        found = [
            torch.autograd.grad(loss + s.square().sum(), [s, start], retain_graph=True)
            for s in sources
        ]
        if not program.__name__.startswith("writes"):
            found.append(torch.autograd.grad(loss, [*sources, x], retain_graph=True))
        sources[0].register_hook(lambda g: g * 3)
        sources[0].retain_grad()
        loss.backward()
        return found, sources[0].grad, start.grad

    def compiled() -> Callable[..., Any]:
        if door == "torch":
            return torch.compile(program, backend="plugin:reference")
        return torch_backplane.compile(program, backend="reference")

    compare(program, check, compiled())


kept: list[T] = []


def test_asked_in_another_frame() -> None:
    def inner(x: T) -> T:
        kept.append(x.tanh())
        return kept[-1].relu()

    def asks(y: T) -> T:
        return torch.autograd.grad(y.exp().sum(), kept.pop())[0]

    def program(x: T) -> T:
        return asks(inner(x))

    compare(program, lambda f, x: f(x), torch_backplane.compile(program, backend="reference"))


def test_asked_in_a_closure_behind_a_break() -> None:
    def program(x: T) -> T:
        torch._dynamo.graph_break()
        y = x.tanh()
        z = y.relu()

        def inner(value: T) -> T:
            return torch.autograd.grad(value.exp().sum(), [y])[0]

        return inner(z)

    compare(program, lambda f, x: f(x), torch_backplane.compile(program, backend="reference"))
