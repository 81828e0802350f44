"""The gradient of a gradient: a captured backward is differentiated at both doors."""

from __future__ import annotations

import copy
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch_backplane import _C, frontend

DOORS: dict[str, Callable[[Any], Any]] = {
    "own": lambda target: frontend.compile(target, backend="eager"),
    "own, cpu_onednn": lambda target: frontend.compile(target, backend="cpu_onednn"),
    "torch.compile": lambda target: torch.compile(target, backend="plugin:reference"),
}


class Residual(nn.Module):
    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.layers = nn.Sequential(*layers)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.layers(x)


class Breaks(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.first(x).tanh()
        return self.second(y * (1 if y.sum().item() > -1e9 else 2)).sin()


class Stops(nn.Module):
    """What detach and no_grad cut off has no gradient the second time either."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.linear(x).tanh()
        with torch.no_grad():
            scale = y.exp()
        return y * y.detach() + y * scale + (x * x.detach()).sin()


class InPlace(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.linear(x)
        z = y * 2
        z[:, 1:3] = y[:, :2] ** 2
        z[..., 0].mul_(y[..., 1].sin())
        return z.exp_().log1p()


def linear() -> nn.Module:
    return nn.Linear(4, 4)


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.parts = nn.Linear(4, 12)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.parts(x).chunk(3, -1)
        return (q @ k.T / 2).softmax(-1) @ v


class Cast(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y = self.linear(x)
        return y.float().tanh()


class Factories(nn.Module):
    """Tensors that the program makes, one of them written."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.linear(x) + torch.zeros(5, 4, dtype=x.dtype)
        held = torch.zeros_like(y)
        held[1:] = y[:-1].sin()
        held += torch.arange(4, dtype=x.dtype) + torch.eye(5, 4, dtype=x.dtype)
        return held * torch.full((5, 1), 0.5, dtype=x.dtype) * torch.ones_like(y) + y.tanh()


class Recurrent(nn.Module):
    def __init__(self, cell: type[nn.RNNBase]) -> None:
        super().__init__()
        self.cell = cell(4, 4, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.cell(x.unsqueeze(0))[0]


MODELS: dict[str, Callable[[], nn.Module]] = {
    "linear": linear,
    "mlp": lambda: nn.Sequential(linear(), nn.GELU(), linear(), nn.Softplus()),
    "batch norm": lambda: nn.Sequential(linear(), nn.BatchNorm1d(4), nn.Tanh(), linear()),
    "batch norm without statistics": lambda: nn.Sequential(
        linear(), nn.BatchNorm1d(4, track_running_stats=False), nn.Tanh()
    ),
    "layer norm": lambda: nn.Sequential(linear(), nn.LayerNorm(4), nn.SiLU(), linear()),
    "dropout": lambda: nn.Sequential(linear(), nn.Dropout(0.4), nn.Tanh(), nn.Dropout(0.2)),
    "residual": lambda: Residual(linear(), nn.Tanh(), nn.BatchNorm1d(4), nn.Dropout(0.3)),
    "breaks": Breaks,
    "stops": Stops,
    "in place": InPlace,
    "attention": Attention,
    "autocast": Cast,
    "factories": Factories,
    "recurrent": lambda: Recurrent(nn.RNN),
    "gru": lambda: Recurrent(nn.GRU),
    "lstm": lambda: Recurrent(nn.LSTM),
}


def penalty(model: Callable[[torch.Tensor], torch.Tensor], leaves: list[torch.Tensor], x: Any):
    """Gradients of a gradient penalty, and those of the model."""
    out = model(x)
    first = torch.autograd.grad(out.square().sum(), [x, *leaves], create_graph=True)
    loss = sum(g.square().sum() for g in first) + out.sum()
    second = torch.autograd.grad(loss, [x, *leaves], allow_unused=True)
    return out, first, second


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("name", MODELS)
def test_gradient_penalty(name: str, door: str) -> None:
    torch.manual_seed(1)
    dtype = torch.float32 if name == "autocast" else torch.float64
    plain = MODELS[name]().to(dtype)
    model = copy.deepcopy(plain)
    compiled = DOORS[door](model)
    before = _C.second_differentiations()
    for seed in range(3):
        x = torch.randn(5, 4, generator=torch.Generator().manual_seed(seed), dtype=dtype)
        results = []
        for run, module in ((plain, plain), (compiled, model)):
            torch.manual_seed(seed)
            own = x.clone().requires_grad_()
            results.append(penalty(run, list(module.parameters()), own))
            results[-1] += (torch.rand(2),)  # draws go on as if there had been one run
        rough = {"rtol": 0.05, "atol": 0.5} if name == "autocast" else {"rtol": 1e-6, "atol": 1e-8}
        torch.testing.assert_close(results[1], results[0], **rough)
        for a, e in zip(model.buffers(), plain.buffers(), strict=True):
            torch.testing.assert_close(a, e)
    # TorchDynamo leaves recurrent layers to eager mode.
    if door != "torch.compile" or name not in ("recurrent", "gru", "lstm"):
        assert _C.second_differentiations() > before
    if door != "torch.compile":
        assert frontend.counters(compiled)["plain_calls"] == 0


@pytest.mark.parametrize("door", DOORS)
def test_third_derivative(door: str) -> None:
    def f(x):
        return (x**4).sin()

    compiled = DOORS[door](f)
    results = []
    for run in (f, compiled):
        x = torch.linspace(0.1, 1, 5, dtype=torch.float64).requires_grad_()
        y = run(x).sum()
        for _ in range(3):
            (y,) = torch.autograd.grad(y.sum(), x, create_graph=True)
        results.append(y)
    torch.testing.assert_close(results[1], results[0])


@pytest.mark.parametrize("door", DOORS)
def test_an_argument_that_is_gone_and_not_needed(door: str) -> None:
    def f(x, y, z):
        return (x * y).tanh() + z

    compiled = DOORS[door](f)
    results = []
    for run in (f, compiled):
        x, y = torch.linspace(-1, 1, 6).requires_grad_(), torch.linspace(1, 2, 6).requires_grad_()
        out = run(x, y, y * 2)
        first = torch.autograd.grad(out.square().sum(), [x, y], create_graph=True)
        results.append(torch.autograd.grad(first[0].square().sum() + first[1].sum(), [x, y]))
    torch.testing.assert_close(results[1], results[0])


@pytest.mark.parametrize("door", DOORS)
def test_an_argument_that_is_gone_and_needed(door: str) -> None:
    """Held as eager mode holds what it saves, and let go by the last backward."""

    def f(x):
        return (x + 1).square().sin()

    compiled = DOORS[door](f)
    results = []
    for run in (f, compiled):
        x = torch.linspace(-1, 1, 6).requires_grad_()
        (first,) = torch.autograd.grad(run(x * 2).sum(), x, create_graph=True)
        results.append(torch.autograd.grad(first.square().sum(), x))
        y = x * 2
        out = run(y)
        gone = weakref.ref(y)
        del y
        out.sum().backward()
        assert gone() is None
    torch.testing.assert_close(results[1], results[0])


@pytest.mark.parametrize("door", DOORS)
def test_one_tensor_as_two_arguments(door: str) -> None:
    def f(x, y):
        return x.sin() * y

    compiled = DOORS[door](f)
    results = []
    for run in (f, compiled):
        x = torch.linspace(-1, 1, 6).requires_grad_()
        (first,) = torch.autograd.grad(run(x, x).sum(), x, create_graph=True)
        results.append(torch.autograd.grad(first.square().sum(), x))
    torch.testing.assert_close(results[1], results[0])


def test_an_argument_that_was_changed() -> None:
    compiled = frontend.compile(torch.sin)
    x = torch.rand(4, requires_grad=True)
    y = compiled(x).sum()
    with torch.no_grad():
        x.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        torch.autograd.grad(y, x, create_graph=True)


def test_gradcheck_twice() -> None:
    def f(x, w):
        return F.gelu(x @ w).softmax(-1)

    compiled = frontend.compile(f)
    x = torch.rand(3, 4, dtype=torch.float64, requires_grad=True)
    w = torch.rand(4, 2, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradgradcheck(compiled, (x, w))


@pytest.mark.parametrize("door", DOORS)
def test_outputs_that_nobody_differentiates(door: str) -> None:
    """Of them comes no gradient at all, once and twice: a leaf's .grad stays None."""

    def program(x, w, v):
        return (x * 2).sin(), x * w.sum(), (w * v).exp()

    def leaves():
        return [torch.linspace(-1, 1, 4).requires_grad_() for _ in range(3)]

    for used in ((0,), (1,), (2,), (0, 2), (0, 1, 2)):
        for twice in (False, True):
            found = []
            for function in (program, DOORS[door](program)):
                given = leaves()
                outputs = function(*given)
                loss = sum(outputs[i].sum() for i in used)
                first = torch.autograd.grad(loss, given, create_graph=twice, allow_unused=True)
                found.append([g if g is None else g.detach() for g in first])
                if twice:
                    total = sum(g.square().sum() for g in first if g is not None)
                    found[-1] += torch.autograd.grad(total, given, allow_unused=True)
            assert [g is None for g in found[1]] == [g is None for g in found[0]], used
            torch.testing.assert_close(found[1], found[0])
