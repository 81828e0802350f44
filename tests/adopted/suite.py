"""Programs over PyTorch's CUDA tensors, compiled for plugin:cuda: results, gradients, where they are,
what crosses to the host and back. The same on the CPU is what is expected.

Run by emulated_torch.py.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch_backplane
from compiling import DOORS, compile_for, mlp, moved
from torch import nn
from torch.nn import functional

CUDA = torch_backplane.device("cuda", 0)


def to(place: Any, value: Any) -> Any:
    return torch.utils._pytree.tree_map_only(torch.Tensor, lambda t: t.to(place), value)


def close(actual: Any, expected: Any, tolerance: float = 1e-4) -> None:
    torch.testing.assert_close(to("cpu", actual), expected, rtol=tolerance, atol=tolerance)


def crossed(work: Callable[[], Any]) -> dict[str, int]:
    """Bytes by way and cause."""
    before = moved("cuda:0")
    work()
    return {k: v - before.get(k, 0) for k, v in moved("cuda:0").items() if v != before.get(k, 0)}


PROGRAMS: dict[str, tuple[Callable[..., Any], Callable[[], tuple[Any, ...]]]] = {
    "products": (lambda x, w, b: torch.relu(x @ w + b), lambda: (R(4, 8), R(8, 16), R(16))),
    "views": (lambda x: (x[1:, ::2].t() + 1, x.view(-1)[:3] * 2), lambda: (R(4, 6),)),
    "a number on the CPU": (lambda x, s: x * s, lambda: (R(5), torch.tensor(3.0))),
    "factories": (
        lambda x: x + torch.ones(3, device=x.device) + torch.arange(3, device=x.device),
        lambda: (R(3),),
    ),
    "reductions": (lambda x: (x.sum(0), x.mean(), x.softmax(-1), x.argmax(1)), lambda: (R(7, 9),)),
    "layer norm": (
        lambda x, w, b: functional.layer_norm(x, (8,), w, b),
        lambda: (R(6, 8), R(8), R(8)),
    ),
    "rms norm": (lambda x, w: functional.rms_norm(x, (8,), w), lambda: (R(6, 8), R(8))),
    "embedding": (
        lambda i, w: functional.embedding(i, w).sum(1),
        lambda: (torch.tensor([[1, 2], [0, 3]]), R(5, 4)),
    ),
    "attention": (
        lambda q, k, v: functional.scaled_dot_product_attention(q, k, v, is_causal=True),
        lambda: (R(2, 2, 5, 8), R(2, 2, 5, 8), R(2, 2, 5, 8)),
    ),
    "attention with a mask": (
        functional.scaled_dot_product_attention,
        lambda: (R(2, 2, 5, 8), R(2, 2, 5, 8), R(2, 2, 5, 8), R(5, 5) > 0),
    ),
    "cross entropy": (
        functional.cross_entropy,
        lambda: (R(6, 5), torch.tensor([0, 1, 2, 3, 4, 0])),
    ),
    "batch norm": (
        functional.batch_norm,
        lambda: (R(2, 3, 4, 4), R(3), R(3).abs(), R(3), R(3)),
    ),
    "convolution": (
        lambda x, w, b: functional.conv2d(x, w, b, padding=1),
        lambda: (R(2, 3, 6, 6), R(4, 3, 3, 3), R(4)),
    ),
    "nothing": (lambda x: x * 2, lambda: (R(0, 4),)),
}


def R(*size: int) -> torch.Tensor:
    return torch.randn(*size)


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("name", PROGRAMS)
def test_programs(name: str, door: str) -> None:
    function, make = PROGRAMS[name]
    inputs = make()
    expected = function(*inputs)
    compiled = compile_for("cuda", function, door=door, dynamic=False)
    placed = tuple(t if t.dim() == 0 else t.to(CUDA) for t in inputs)
    compiled(*placed)
    results: list[Any] = []
    number = {"host_to_device input": 4} if any(t.device.type == "cpu" for t in placed) else {}
    assert crossed(lambda: results.append(compiled(*placed))) == number
    for tensor in torch.utils._pytree.tree_leaves(results):
        assert tensor.device == CUDA
    close(results[0], expected)


def step(model: nn.Module, run: Callable[..., Any], x: torch.Tensor) -> tuple[Any, ...]:
    model.zero_grad()
    x = x.detach().requires_grad_()
    loss = run(x).square().sum()
    loss.backward()
    return loss.detach(), x.grad, *(p.grad for p in model.parameters())


MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "mlp": (mlp, (4, 16)),
    "images": (
        lambda: nn.Sequential(
            nn.Conv2d(3, 4, 3, padding=1),
            nn.BatchNorm2d(4),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
        ),
        (2, 3, 6, 6),
    ),
    "attention": (
        lambda: nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True),
        (2, 5, 16),
    ),
}


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("name", MODELS)
def test_training(name: str, door: str) -> None:
    make, size = MODELS[name]
    model = make()
    placed = copy.deepcopy(model).to(CUDA)
    compiled = compile_for("cuda", placed, door=door, dynamic=False)
    x = R(*size)
    on_cuda = x.to(CUDA)
    for _ in range(2):
        expected = step(model, model, x)
        close(step(placed, compiled, on_cuda), expected)
    assert crossed(lambda: step(placed, compiled, on_cuda)) == {}
    step(model, model, x)
    close(dict(placed.named_buffers()), dict(model.named_buffers()))


class Recurrent(nn.Module):
    def __init__(self, kind: type[nn.Module]) -> None:
        super().__init__()
        self.layer = kind(8, 6, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x)[0]


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
def test_recurrent_layers(kind: type[nn.Module]) -> None:
    model = Recurrent(kind)
    placed = copy.deepcopy(model).to(CUDA)
    compiled = compile_for("cuda", placed, door="own", dynamic=False)
    x = R(2, 4, 8)
    close(step(placed, compiled, x.to(CUDA)), step(model, model, x))


@pytest.mark.parametrize("door", DOORS)
def test_writes_and_aliases_reach_the_callers_tensors(door: str) -> None:
    def f(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x.add_(y)
        y[1:].mul_(2)
        return x, y[:1]

    compiled = compile_for("cuda", f, door=door, dynamic=False)
    for _ in range(2):
        x, y = R(3), R(3)
        on_cuda = x.to(CUDA), y.to(CUDA)
        addresses = [t.data_ptr() for t in on_cuda]
        f(x, y)
        same, view = compiled(*on_cuda)
        assert same is on_cuda[0]
        assert view.data_ptr() == on_cuda[1].data_ptr()
        assert [t.data_ptr() for t in on_cuda] == addresses
        close(on_cuda, (x, y))


@pytest.mark.parametrize("door", DOORS)
def test_sizes_may_change(door: str) -> None:
    model = mlp().eval()
    placed = copy.deepcopy(model).to(CUDA)
    compiled = compile_for("cuda", placed, door=door)
    with torch.no_grad():
        for rows in (3, 5, 8, 13):
            x = R(rows, 16)
            close(compiled(x.to(CUDA)), model(x))


@pytest.mark.parametrize("door", DOORS)
def test_tensors_may_start_anywhere(door: str) -> None:
    compiled = compile_for("cuda", lambda x, y: x * 2 + y, door=door, dynamic=False)
    base = R(40)
    on_cuda = base.to(CUDA)
    for start in (0, 1, 3):
        actual = compiled(on_cuda[start : start + 33], on_cuda[7:40])
        close(actual, base[start : start + 33] * 2 + base[7:40])


@pytest.mark.parametrize("door", DOORS)
def test_what_no_kernel_takes_runs_with_pytorch_and_is_counted(door: str) -> None:
    compiled = compile_for("cuda", lambda x: torch.linalg.inv(x + 3) * 2, door=door, dynamic=False)
    x = R(4, 4)
    with torch_backplane.record() as graphs:
        actual = compiled(x.to(CUDA))
    close(actual, torch.linalg.inv(x + 3) * 2)
    assert actual.device == CUDA
    assert any(graph["fallback"] for graph in graphs)


def test_autocast_is_that_of_cuda() -> None:
    def f(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cuda", dtype=torch.bfloat16):
            return x @ w

    compiled = compile_for("cuda", f, door="own", dynamic=False)
    x, w = R(4, 8), R(8, 4)
    actual = compiled(x.to(CUDA), w.to(CUDA))
    assert actual.dtype == torch.bfloat16
    close(actual.float(), (x.bfloat16() @ w.bfloat16()).float(), 2e-2)


@pytest.mark.parametrize("door", DOORS)
def test_an_index_out_of_range_is_told_by_the_call(door: str) -> None:
    compiled = compile_for("cuda", lambda x, i: x[i] * 2, door=door, dynamic=False)
    x = R(4).to(CUDA)
    close(compiled(x, torch.tensor([1, 3], device=CUDA)), (x.cpu() * 2)[[1, 3]])
    with pytest.raises(IndexError):
        compiled(x, torch.tensor([1, 4], device=CUDA))
    close(compiled(x, torch.tensor([0, 2], device=CUDA)), (x.cpu() * 2)[[0, 2]])


def test_other_streams() -> None:
    compiled = compile_for("cuda", lambda x: (x * 2 + 1).sum(0), door="own", dynamic=False)
    x = R(64, 64)
    on_cuda = x.to(CUDA)
    for _ in range(3):
        close(compiled(on_cuda), (x * 2 + 1).sum(0))
        with torch.Stream(CUDA):
            close(compiled(on_cuda), (x * 2 + 1).sum(0))


def test_a_plugin_of_another_device_leaves_them_to_pytorch() -> None:
    compiled = compile_for("reference", lambda x: x * 2 + 1, door="own", dynamic=False)
    x = R(4)
    close(compiled(x.to(CUDA)), x * 2 + 1)


def test_memory_is_pytorchs() -> None:
    """What a call returns lives as long as it is held, and no longer."""
    compiled = compile_for("cuda", lambda x: x + 1, door="own", dynamic=False)
    x = torch.zeros(1024, device=CUDA)
    kept = [compiled(x) for _ in range(4)]
    assert len({t.data_ptr() for t in kept}) == 4
    close(kept[0], torch.ones(1024))


@pytest.mark.parametrize("door", DOORS)
def test_dropout_draws_one_number_and_its_backward_has_the_same_mask(door: str) -> None:
    compiled = compile_for(
        "cuda", lambda x: functional.dropout(x, 0.3, True), door=door, dynamic=False
    )
    x = torch.ones(256, 300, device=CUDA, requires_grad=True)

    def draw(seed: int) -> tuple[torch.Tensor, torch.Tensor]:
        torch.manual_seed(seed)
        x.grad = None
        y = compiled(x)
        y.sum().backward()
        return y.detach().cpu(), x.grad.cpu()

    y, grad = draw(1)
    assert sorted(set(y.flatten().tolist())) == pytest.approx([0, 1 / 0.7])
    assert torch.equal(y, grad)
    kept = (y != 0).double()
    deviation = (0.3 * 0.7 / kept.numel()) ** 0.5
    assert abs(kept.mean().item() - 0.7) < 4 * deviation
    # Neighbours know nothing of each other, nor do rows and columns.
    for other in (kept[:, 1:] * kept[:, :-1], kept[1:] * kept[:-1]):
        assert abs(other.mean().item() - 0.49) < 0.01
    assert (kept.mean(0) - 0.7).abs().max() < 6 * (0.21 / 256) ** 0.5
    assert torch.equal(draw(1)[0], y)
    assert not torch.equal(draw(2)[0], y)
    moved_bytes = crossed(lambda: draw(3))
    assert sum(moved_bytes.values()) <= 16, moved_bytes


def test_the_plugins_device_is_pytorchs() -> None:
    assert torch.device("cuda:0") == CUDA
