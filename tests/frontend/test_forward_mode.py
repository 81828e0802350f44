"""A call with plain tensors, then one with a dual tensor or another kind: what hangs on a tensor
must come out as in plain Python, through both doors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.autograd.forward_ad as fwad
from torch import nn
from torch_backplane import frontend

X = torch.linspace(-1, 1, 6)
T = torch.linspace(1, 2, 6)


def program(x: torch.Tensor) -> torch.Tensor:
    return (x * x).sin() + 2 * x


DOORS: dict[str, Callable[[Any], Any]] = {
    "own": lambda f: frontend.compile(f, backend="eager"),
    "own_plugin": lambda f: frontend.compile(f, backend="plugin:reference"),
    "torch_compile": lambda f: torch.compile(f, backend="plugin:reference"),
}


def tangent_of(function: Callable[..., Any], *arguments: Any) -> tuple[torch.Tensor, Any]:
    with fwad.dual_level():
        return tuple(fwad.unpack_dual(function(*arguments)))  # type: ignore[return-value]


@pytest.fixture(autouse=True)
def fresh() -> Any:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.mark.parametrize("door", sorted(DOORS))
@pytest.mark.parametrize("first", ["plain", "dual"])
def test_dual_tensor(door: str, first: str) -> None:
    compiled = DOORS[door](program)
    expected = program(X)
    if first == "plain":
        torch.testing.assert_close(compiled(X), expected)
    for _ in range(2):
        with fwad.dual_level():
            primal, tangent = fwad.unpack_dual(compiled(fwad.make_dual(X, T)))
            _, eager = fwad.unpack_dual(program(fwad.make_dual(X, T)))
            assert tangent is not None
            torch.testing.assert_close(primal, expected)
            torch.testing.assert_close(tangent, eager)
        result = compiled(X)
        torch.testing.assert_close(result, expected)


@pytest.mark.parametrize("door", sorted(DOORS))
def test_dual_parameter(door: str) -> None:
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = T

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * self.scale

    module = Scaled()
    compiled = DOORS[door](module)
    torch.testing.assert_close(compiled(X), X * T)
    with fwad.dual_level():
        module.scale = fwad.make_dual(T, X)
        _, tangent = fwad.unpack_dual(compiled(X))
        assert tangent is not None
        torch.testing.assert_close(tangent, X * X)


@pytest.mark.parametrize("door", ["own", "own_plugin"])
@pytest.mark.parametrize("transform", ["jvp", "vmap", "grad", "vjp", "jacfwd", "jacrev"])
def test_functorch_around(door: str, transform: str) -> None:
    compiled = DOORS[door](program)
    compiled(X)
    transforms: dict[str, Callable[[Any], Any]] = {
        "jvp": lambda f: torch.func.jvp(f, (X,), (T,)),
        "vmap": lambda f: torch.func.vmap(f)(X),
        "grad": lambda f: torch.func.grad(lambda x: f(x).sum())(X),
        "vjp": lambda f: torch.func.vjp(f, X)[1](T),
        "jacfwd": lambda f: torch.func.jacfwd(f)(X),
        "jacrev": lambda f: torch.func.jacrev(f)(X),
    }
    run = transforms[transform]
    torch.testing.assert_close(run(compiled), run(program))
    torch.testing.assert_close(compiled(X), program(X))


class Sub(torch.Tensor):
    pass


class Doubling(torch.overrides.TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        return result * 2 if func is torch.sin or func is torch.Tensor.sin else result


class Counting(torch.utils._python_dispatch.TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += 1
        return func(*args, **(kwargs or {}))


C = torch.complex(X, T)


def kinds() -> dict[str, tuple[Any, Any]]:
    """A plain argument, and one of another kind."""
    with torch.inference_mode():
        inferred = X.clone()
    return {
        "subclass": (X, X.clone().as_subclass(Sub)),
        "inference": (X, inferred),
        "conjugated": (C, C.conj()),
        "negated": (X, C.conj().imag),
        "sparse": (X, X.to_sparse()),
        "zero": (X, torch._efficientzerotensor(6)),
        "nested": (X, torch.nested.nested_tensor([X, T])),
        "gradient": (X, X.clone().requires_grad_()),
        "integer": (X, torch.arange(6)),
    }


@pytest.mark.parametrize("door", sorted(DOORS))
@pytest.mark.parametrize("kind", sorted(kinds()))
def test_other_kind(kind: str, door: str) -> None:
    def double(x: torch.Tensor) -> torch.Tensor:
        return x * 2 + x

    if (kind, door) == ("nested", "torch_compile"):
        pytest.skip("TorchDynamo itself aborts the process, with any back end")
    plain, other = kinds()[kind]
    compiled = DOORS[door](double)
    for value in (plain, other, plain, other):
        actual, expected = compiled(value), double(value)
        assert type(actual) is type(expected)
        assert actual.requires_grad == expected.requires_grad
        if expected.is_nested:
            actual, expected = actual.to_padded_tensor(0), expected.to_padded_tensor(0)
        if expected.is_sparse:
            actual, expected = actual.to_dense(), expected.to_dense()
        torch.testing.assert_close(actual, expected)


@pytest.mark.parametrize("door", sorted(DOORS))
def test_function_mode_later(door: str) -> None:
    compiled = DOORS[door](program)
    compiled(X)
    with Doubling():
        expected = program(X)
        torch.testing.assert_close(compiled(X), expected)
    torch.testing.assert_close(compiled(X), program(X))


@pytest.mark.parametrize("door", sorted(DOORS))
def test_dispatch_mode_later(door: str) -> None:
    compiled = DOORS[door](program)
    compiled(X)
    with Counting() as mode:
        torch.testing.assert_close(compiled(X), program(X))
    assert mode.count >= 4
    torch.testing.assert_close(compiled(X), program(X))


def made_inside(x: torch.Tensor, t: torch.Tensor) -> Any:
    with fwad.dual_level():
        dual = fwad.make_dual(x, t)
        text = str(dual)
        return fwad.unpack_dual(dual * 2 + dual.sin()).tangent, len(text)


def batched_gradient(x: torch.Tensor, t: torch.Tensor) -> Any:
    class Sine(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            ctx.save_for_backward(x)
            return x.sin()

        @staticmethod
        def backward(ctx: Any, g: torch.Tensor) -> torch.Tensor:
            return g * ctx.saved_tensors[0].cos()

    y = x.clone().requires_grad_()
    return torch.autograd.grad(Sine.apply(y), y, torch.eye(6), is_grads_batched=True)[0]


def vectorized_jacobian(x: torch.Tensor, t: torch.Tensor) -> Any:
    return torch.autograd.functional.jacobian(
        torch.sin, x, vectorize=True, strategy="forward-mode"
    ).detach()


@pytest.mark.parametrize("inner", [made_inside, batched_gradient, vectorized_jacobian])
def test_made_inside(inner: Callable[..., Any]) -> None:
    compiled = frontend.compile(inner, backend="plugin:reference")
    torch.testing.assert_close(compiled(X, T), inner(X, T))
