"""Programs that ask autograd for something themselves: leaves that they make, hooks, two backwards,
writes that give an argument a history. Gradients as in plain Python."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch_backplane

T = torch.Tensor


def factory_leaf(x: T) -> Any:
    w = torch.ones(3, requires_grad=True)
    (w * x.detach()).sum().backward()
    return w.is_leaf, w.grad


def two_backwards(x: T) -> Any:
    w = x.detach().requires_grad_()
    v = (x.detach() * 2).requires_grad_()
    a, b = (w * 2).sum(), (v * v).sum()
    a.backward()
    b.backward()
    return w.grad, v.grad


def retained(x: T) -> Any:
    h = x * 3
    out = (h * h).sum()
    h.retain_grad()
    out.backward()
    return h.grad


def gradient_of_intermediate(x: T) -> Any:
    h = x * 3
    return torch.autograd.grad((h * h).sum(), h)


def hook_that_scales(x: T) -> Any:
    h = x * 3
    out = (h * h).sum()
    h.register_hook(lambda g: g * 5)
    return torch.autograd.grad(out, x)


def detached_in_place(x: T) -> Any:
    y = x * 2
    z = y.detach_().mul_(2)
    return z.requires_grad, z is y, z


def part_of_a_view(x: T) -> Any:
    return torch.autograd.grad(x[1:].as_strided((2,), (1,), 0).sum(), x)


def retained_views_and_write(x: T) -> Any:
    base = x.clone()
    view, other = base[:], base[:]
    view.retain_grad()
    other.retain_grad()
    view.mul_(2)
    (view + other).sum().backward()
    return view.grad, other.grad, x.grad


def hook_on_a_view_before_its_write(x: T) -> Any:
    log: list[T] = []
    view = x.clone()[:]
    view.register_hook(log.append)
    view.mul_(2)
    view.sum().backward()
    return log, x.grad


def hook_behind_an_earlier_break(x: T) -> Any:
    log: list[T] = []
    view = x.clone()[:]
    print(end="")
    view.register_hook(log.append)
    view.mul_(2)
    view.sum().backward()
    return log, x.grad


def hook_on_a_base_before_its_write(x: T) -> Any:
    log: list[T] = []
    base = x.clone()
    view = base[1:]
    base.register_hook(log.append)
    view.mul_(2)
    base.sum().backward()
    return log, x.grad


PROGRAMS: list[Callable[[T], Any]] = [
    factory_leaf,
    two_backwards,
    retained,
    gradient_of_intermediate,
    hook_that_scales,
    detached_in_place,
    part_of_a_view,
    retained_views_and_write,
    hook_on_a_view_before_its_write,
    hook_behind_an_earlier_break,
    hook_on_a_base_before_its_write,
]


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.__name__)
def test_as_in_plain_python(program: Callable[[T], Any]) -> None:
    compiled = torch_backplane.compile(program, backend="reference")
    for _ in range(2):
        expected = program(torch.arange(1.0, 4.0).requires_grad_())
        found = compiled(torch.arange(1.0, 4.0).requires_grad_())
        torch.testing.assert_close(found, expected)


def test_a_second_backward_of_the_same_part_is_refused() -> None:
    compiled = torch_backplane.compile(
        lambda x: ((x * x).sum(), x.exp().sum()), backend="reference"
    )
    x = torch.arange(3.0).requires_grad_()
    squares, powers = compiled(x)
    squares.backward()
    powers.backward()
    torch.testing.assert_close(x.grad, (2 * x + x.exp()).detach())
    with pytest.raises(RuntimeError, match="second time"):
        squares.backward()


def list_in_place(x: T, y: T) -> T:
    torch._foreach_mul_([x], 2.0)
    return x


def view_of_what_is_written(x: T, y: T) -> T:
    v = x.view(-1)
    x.add_(y)
    return v


def detached_and_written(x: T, y: T) -> T:
    d = x.detach()
    d.add_(y)
    return d


def strided_part(x: T, y: T) -> T:
    return x[1:].as_strided((2,), (1,), 0)


@pytest.mark.parametrize("door", ["own", "torch"])
@pytest.mark.parametrize("needs", ["x", "y"])
@pytest.mark.parametrize(
    "program", [list_in_place, view_of_what_is_written, detached_and_written, strided_part]
)
def test_history_of_arguments(program: Callable[[T, T], T], needs: str, door: str) -> None:
    torch._dynamo.reset()
    if door == "own":
        compiled = torch_backplane.compile(program, backend="reference")
    else:
        compiled = torch.compile(program, backend="plugin:reference")

    def run(function: Callable[[T, T], T]) -> Any:
        leaf = torch.ones(3, requires_grad=needs == "x")
        y = torch.ones(3, requires_grad=needs == "y")
        out = function(leaf * 1, y)
        if out.requires_grad:
            (out * torch.arange(1.0, 1 + out.numel())).sum().backward()
        return out.detach(), out.requires_grad, leaf.grad, y.grad

    torch.testing.assert_close(run(compiled), run(program))


def retained_and_written(x: T) -> Any:
    a = x.clone()
    a.retain_grad()
    a.mul_(2)
    a.sum().backward()
    return a.grad


@torch.library.custom_op("backplane_tests::no_gradient", mutates_args=())
def no_gradient(x: T) -> T:
    return x.clone()


@no_gradient.register_fake
def _(x: T) -> T:
    return torch.empty_like(x)


@pytest.mark.parametrize(
    "program", [retained_and_written, lambda x: no_gradient(x).detach() + x], ids=["kept", "custom"]
)
def test_again_as_in_plain_python(program: Callable[[T], Any]) -> None:
    test_as_in_plain_python(program)


@pytest.mark.parametrize("door", ["own", "torch"])
def test_batched_tangents_behind_dropout(door: str) -> None:
    def program(x: T) -> T:
        return torch.nn.functional.dropout(x, 0.5)

    torch._dynamo.reset()
    if door == "own":
        compiled = torch_backplane.compile(program, backend="reference")
    else:
        compiled = torch.compile(program, backend="plugin:reference")

    def run(function: Callable[[T], T]) -> T:
        torch.manual_seed(0)
        x = torch.ones(8, requires_grad=True)
        return torch.autograd.grad(function(x), x, torch.eye(8), is_grads_batched=True)[0]

    torch.testing.assert_close(run(compiled), run(program))
