"""What TorchDynamo's graphs have beside operators: hooks, assertions, questions about memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import torch_backplane
from compiling import DOORS, compile_for
from torch import nn

PLUGINS = ("reference", "cpu_onednn", "opencl")


def scaled(x: torch.Tensor) -> torch.Tensor:
    y = x * 2
    y.register_hook(lambda g: g * 10)
    return (y * y).sum()


def shown(x: torch.Tensor) -> torch.Tensor:
    y = x * 2
    y.register_hook(lambda g: g * 10)
    return y


def clamped_steps(x: torch.Tensor) -> torch.Tensor:
    h = torch.zeros_like(x)
    for _ in range(3):
        h = torch.tanh(h + x) * 3
        h.register_hook(lambda g: g.clamp(-0.01, 0.01))
    return h.sum()


def reversed_gradient(x: torch.Tensor) -> torch.Tensor:
    y = x.sin()
    y.register_hook(torch.neg)
    return (y * 3).sum()


@pytest.mark.parametrize("plugin", PLUGINS)
@pytest.mark.parametrize("program", [scaled, shown, clamped_steps, reversed_gradient])
def test_hooks_on_tensors_of_the_program(
    program: Callable[[torch.Tensor], torch.Tensor], plugin: str
) -> None:
    torch._dynamo.reset()
    gradients = []
    for function in (compile_for(plugin, program), program):
        x = torch.linspace(-1, 1, 6, requires_grad=True)
        function(x).sum().backward()
        gradients.append(x.grad)
    torch.testing.assert_close(gradients[0], gradients[1])


def test_a_hook_in_a_module() -> None:
    class Normalized(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = self.layer(x)
            y.register_hook(lambda g: g / (g.norm() + 1e-6))
            return y.relu()

    torch.manual_seed(0)
    torch._dynamo.reset()
    module, x = Normalized(), torch.randn(3, 4)
    gradients = []
    for function in (compile_for("cpu_onednn", module), module):
        module.zero_grad()
        function(x).pow(2).sum().backward()
        gradients.append([p.grad.clone() for p in module.parameters() if p.grad is not None])
    torch.testing.assert_close(gradients[0], gradients[1])


def one_hot(a: torch.Tensor) -> torch.Tensor:
    return (F.one_hot(torch.randint(0, 4, (3,)), 4) * a).sum()


def categorical(a: torch.Tensor) -> torch.Tensor:
    chosen = torch.distributions.OneHotCategorical(logits=a, validate_args=False)
    return chosen.log_prob(chosen.sample()).sum()


@pytest.mark.parametrize("plugin", PLUGINS)
@pytest.mark.parametrize("program", [one_hot, categorical])
def test_the_backward_draws_nothing_again(
    program: Callable[[torch.Tensor], torch.Tensor], plugin: str
) -> None:
    torch._dynamo.reset()
    compiled, seen = compile_for(plugin, program), []
    for function in (compiled, program, compiled, program):
        a = torch.zeros(3, 4, requires_grad=True)
        torch.manual_seed(0)
        function(a).backward()
        seen.append((a.grad, torch.rand(2)))
    for (gradient, drawn), (expected, expected_drawn) in zip(seen[::2], seen[1::2], strict=True):
        torch.testing.assert_close(gradient, expected)
        assert torch.equal(drawn, expected_drawn)


def adds(x: torch.Tensor) -> Any:
    x.add_(1)
    return x.stride(), x * x.stride(0)


def through_an_operator(x: torch.Tensor) -> Any:
    x *= 2
    return x * x.stride(0), x.is_contiguous()


@pytest.mark.parametrize("dynamic", [True, None])
@pytest.mark.parametrize("plugin", PLUGINS)
@pytest.mark.parametrize("program", [adds, through_an_operator])
def test_strides_of_a_tensor_that_is_written(
    program: Callable[[torch.Tensor], Any], plugin: str, dynamic: bool | None
) -> None:
    torch._dynamo.reset()
    compiled = compile_for(plugin, program, dynamic=dynamic)
    mine, expected = torch.arange(24.0).view(4, 6), torch.arange(24.0).view(4, 6)
    cuts: list[Callable[[torch.Tensor], torch.Tensor]] = [
        lambda b: b.t(),
        lambda b: b[::2],
        lambda b: b[:, 1::2],
        lambda b: b[:, ::3],
        lambda b: b[1:3, :4],
    ]
    for cut in cuts:
        torch.testing.assert_close(compiled(cut(mine)), program(cut(expected)))
        assert torch.equal(mine, expected)


class Reversed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        return -grad


class Scaled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        return grad * 9


class FirstRow(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x[0]

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        return torch.stack([grad * 10, grad * 0])


def reverses(x: torch.Tensor) -> Any:
    return Reversed.apply(x)


def scales(x: torch.Tensor) -> Any:
    return Scaled.apply(x)


def takes_a_row(x: torch.Tensor) -> Any:
    return FirstRow.apply(x)


def broken(x: torch.Tensor) -> torch.Tensor:
    h = x * 2
    torch._dynamo.graph_break()
    return Reversed.apply(h)


GRADIENTS_OF_THEIR_OWN: dict[str, Callable[[torch.Tensor], Any]] = {
    "reversed": reverses,
    "scaled": scales,
    "row": takes_a_row,
    "of a view": lambda x: Reversed.apply(x.view(3, 2)),
    "of a value": lambda x: Reversed.apply(x * 2),
    "beside its value": lambda x: (lambda y: (y, Reversed.apply(y)))(x * 2),
    "beside another": lambda x: (Scaled.apply(x), x * 2),
    "thrice": lambda x: Reversed.apply(Reversed.apply(Reversed.apply(x))),
    "behind a break": broken,
}


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("plugin", ["cpu_onednn", "reference"])
@pytest.mark.parametrize("name", GRADIENTS_OF_THEIR_OWN)
def test_a_view_with_a_gradient_of_its_own(name: str, plugin: str, door: str) -> None:
    program = GRADIENTS_OF_THEIR_OWN[name]
    torch._dynamo.reset()
    compiled, gradients = compile_for(plugin, program, door), []
    for function in (compiled, program, compiled):
        x = torch.linspace(1, 2, 6).reshape(2, 3).requires_grad_()
        results = function(x)
        torch.stack([r.sum() for r in torch.utils._pytree.tree_leaves(results)]).sum().backward()
        gradients.append(x.grad)
    torch.testing.assert_close(gradients[0], gradients[1])
    torch.testing.assert_close(gradients[2], gradients[1])


@pytest.mark.parametrize("plugin", PLUGINS)
def test_powers_of_a_negative_number(plugin: str) -> None:
    """FX writes ``-2.0 ** x``."""
    torch._dynamo.reset()
    compiled, x = compile_for(plugin, lambda x, k: k**x), torch.tensor([0.5, 2.0, 3.0])
    for k in (2.5, 3.5, -2.0, -3, -2.0):
        torch.testing.assert_close(compiled(x, k), k**x, equal_nan=True)


CLASSES: dict[str, tuple[torch.Tensor, int]] = {
    "of a transposed matrix": (torch.arange(6).view(2, 3).t(), 6),
    "channels last": (
        (torch.arange(120) % 5).view(2, 3, 4, 5).to(memory_format=torch.channels_last),
        5,
    ),
    "of an expanded vector": (torch.tensor([1]).expand(3, 2), 2),
    "of a number": (torch.tensor(2), 3),
    "of nothing": (torch.zeros(0, 3, dtype=torch.long), 4),
    "below zero": (torch.tensor([-1, 9]), 3),
    "too large": (torch.tensor([3]), 3),
    "no classes": (torch.tensor([0]), 0),
    "no classes of nothing": (torch.zeros(0, dtype=torch.long), 0),
    "of short integers": (torch.tensor([0], dtype=torch.int32), 3),
}


def outcome(call: Callable[[], torch.Tensor]) -> tuple[Any, ...]:
    try:
        result = call()
    except Exception as error:
        return type(error), str(error)
    return result.tolist(), result.dtype, result.stride()


@pytest.mark.parametrize("recorder", [True, False])
@pytest.mark.parametrize("name", CLASSES)
def test_one_hot_of_a_given_number_of_classes(name: str, recorder: bool) -> None:
    torch._dynamo.reset()
    compiled = compile_for("cpu_onednn", F.one_hot, options={"recorder": recorder})
    for _ in range(2):
        assert outcome(lambda: compiled(*CLASSES[name])) == outcome(
            lambda: F.one_hot(*CLASSES[name])
        )


def test_one_hot_is_recorded_with_what_stands_beside_it() -> None:
    def program(x: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
        if x.dim():
            torch.rand(2)  # moves the generator
        torch._assert_async(x.sum() > 0)
        sure = F.scaled_dot_product_attention(x, x, x, dropout_p=1.0)  # draws nothing
        return F.one_hot(i, 3).sum() + sure

    torch._dynamo.reset()
    torch_backplane.reset()
    compiled, drawn = compile_for("cpu_onednn", program), []
    for function in (compiled, program):
        torch.manual_seed(0)
        function(torch.ones(1, 2, 2), torch.tensor([1]))
        drawn.append(torch.rand(2))
        with pytest.raises(RuntimeError, match="Expected Tensor with single nonzero value"):
            function(-torch.ones(1, 2, 2), torch.tensor([1]))
    assert torch.equal(*drawn)
    stats = torch_backplane.stats()
    assert stats["aot_graphs"] == stats["eager_graphs"] == 0


def test_one_hot_within_vmap() -> None:
    torch._dynamo.reset()
    compiled = compile_for("cpu_onednn", torch.vmap(lambda i: F.one_hot(i, 3)))
    assert compiled(torch.tensor([2, 0])).tolist() == [[0, 0, 1], [1, 0, 0]]


class Dirty(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.mark_dirty(x)
        x.mul_(2)
        return x

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        return grad * 7


class Fresh(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        return -grad


def writes_a_view(x: torch.Tensor) -> torch.Tensor:
    h = x * 1
    Dirty.apply(h[1:])
    return h.pow(3)


SHARED_WITH_AN_OPERAND: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "itself": lambda x: Scaled.apply(x).pow(3),
    "of a value": lambda x: Scaled.apply(x * 2).pow(3),
    "a view": lambda x: Reversed.apply(x * 1).pow(3),
    "twice": lambda x: Reversed.apply(Scaled.apply(x * 1)).pow(3),
    "written": lambda x: Dirty.apply(x * 1).pow(3),
    "a view that is written": writes_a_view,
    "its own": lambda x: Fresh.apply(x).pow(3),
    "its own, the result": Fresh.apply,
}


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("name", SHARED_WITH_AN_OPERAND)
def test_gradients_with_a_history_through_functions_that_share_memory(name: str, door: str) -> None:
    program = SHARED_WITH_AN_OPERAND[name]
    torch._dynamo.reset()
    compiled, gradients = compile_for("cpu_onednn", program, door), []
    for function in (compiled, program):
        x = torch.linspace(1, 2, 6).requires_grad_()
        gradients.append(torch.autograd.grad(function(x).sum(), x, create_graph=True)[0].detach())
    torch.testing.assert_close(*gradients)


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("create_graph", [False, True])
def test_a_gradient_within_through_a_function_that_writes(create_graph: bool, door: str) -> None:
    def program(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        h = x * 1.5
        y = Dirty.apply(h.clone())
        (gradient,) = torch.autograd.grad(y.square().sum(), h, create_graph=create_graph)
        return y, gradient.detach()

    torch._dynamo.reset()
    x = torch.linspace(1, 2, 6).requires_grad_()
    torch.testing.assert_close(compile_for("cpu_onednn", program, door)(x), program(x))
