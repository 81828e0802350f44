"""Modules: captured whole, for inference and training, and the same object to the rest of PyTorch."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from frontend.helpers import assert_same, captured
from torch import nn
from torch_backplane import frontend


class Block(nn.Module):
    def __init__(self, width: int = 16, heads: int = 2) -> None:
        super().__init__()
        self.heads = heads
        self.norm = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width)
        )
        self.config = {"residual": True}

    def forward(self, a, *, scale=1.0):
        b, n, w = a.shape
        q, k, v = self.qkv(self.norm(a)).view(b, n, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, n, w)
        a = a + self.out(y) * scale if self.config["residual"] else self.out(y)
        return a + self.mlp(a)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(3))
        self.register_buffer("scale", torch.tensor(0.5))

    def forward(self, a):
        states = []
        for i, block in enumerate(self.blocks):
            a = block(a, scale=i + 1)
            states.append(a)
        return {"last": a * self.scale, "states": tuple(states), "count": len(self.blocks)}


MODULES: dict[str, tuple[Callable[[], nn.Module], Callable[[], tuple[Any, ...]]]] = {
    "linear": (lambda: nn.Linear(4, 3), lambda: (torch.rand(2, 4),)),
    "block": (Block, lambda: (torch.rand(2, 5, 16),)),
    "net": (Net, lambda: (torch.rand(2, 5, 16),)),
    "conv": (
        lambda: nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2)),
        lambda: (torch.rand(2, 3, 8, 8),),
    ),
    "encoder": (
        lambda: nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True),
        lambda: (torch.rand(2, 5, 16),),
    ),
    "attention": (
        lambda: nn.MultiheadAttention(16, 2, batch_first=True),
        lambda: (torch.rand(2, 5, 16),) * 3,
    ),
    "embedding": (
        lambda: nn.Sequential(nn.Embedding(10, 4), nn.Linear(4, 2)),
        lambda: (torch.randint(0, 10, (3, 2)),),
    ),
}


@pytest.mark.parametrize("name", MODULES)
def test_inference(name: str) -> None:
    make, arguments = MODULES[name]
    module, args = make().eval(), arguments()
    compiled = frontend.compile(module)
    with torch.no_grad():
        for _ in range(3):
            assert_same(compiled(*args), module(*args))
    assert captured(compiled), frontend.counters(compiled)
    assert len(frontend.entries(compiled)) == 1


def step(module: Any, args: tuple[Any, ...]) -> tuple[torch.Tensor, list[Any], list[Any]]:
    result = module(*args)
    leaves = [t for t in torch.utils._pytree.tree_leaves(result) if isinstance(t, torch.Tensor)]
    loss = sum((t * t).sum() for t in leaves if t.requires_grad)
    loss.backward()
    gradients = [p.grad for p in module.parameters()]
    module.zero_grad()
    return loss.detach(), gradients, [b.clone() for b in module.buffers()]


def close(actual: Any, expected: Any) -> None:
    for a, e in zip(
        torch.utils._pytree.tree_leaves(actual),
        torch.utils._pytree.tree_leaves(expected),
        strict=True,
    ):
        torch.testing.assert_close(a, e, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", MODULES)
def test_training(name: str) -> None:
    make, arguments = MODULES[name]
    module, args = make().train(), arguments()
    plain = copy.deepcopy(module)
    compiled = frontend.compile(module)
    for _ in range(3):
        close(step(compiled, args), step(plain, args))
    assert captured(compiled), frontend.counters(compiled)
    assert len(frontend.entries(compiled)) == 1


def test_results_of_training_share_memory_as_in_eager() -> None:
    class Views(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(4, 4)

        def forward(self, a):
            y = self.linear(a)
            return y, y[:, :2], y.detach(), a.view(-1)

    module = Views()
    compiled = frontend.compile(module)
    a = torch.rand(2, 4)
    y, part, cut, flat = compiled(a)
    assert captured(compiled), frontend.counters(compiled)
    assert part.data_ptr() == y.data_ptr() and flat.data_ptr() == a.data_ptr()
    assert y.requires_grad and part.requires_grad and not cut.requires_grad
    (y.sum() + part.sum()).backward()
    ours = module.linear.weight.grad.clone()
    module.zero_grad()
    y, part, _, _ = module(a)
    (y.sum() + part.sum()).backward()
    torch.testing.assert_close(ours, module.linear.weight.grad)


def test_backward_twice_is_an_error() -> None:
    module = nn.Linear(3, 3)
    compiled = frontend.compile(module)
    loss = compiled(torch.rand(2, 3)).sum()
    loss.backward()
    with pytest.raises(RuntimeError, match="second time"):
        loss.backward()


def test_two_forwards_before_their_backwards() -> None:
    module = nn.Sequential(nn.Linear(3, 3), nn.Tanh())
    plain = copy.deepcopy(module)
    compiled = frontend.compile(module)
    a, b = torch.rand(2, 3), torch.rand(2, 3)
    first, second = compiled(a), compiled(b)
    (first.sum() + (second * 2).sum()).backward()
    (plain(a).sum() + (plain(b) * 2).sum()).backward()
    close([p.grad for p in module.parameters()], [p.grad for p in plain.parameters()])


def test_switching_between_training_and_evaluation() -> None:
    module = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
    plain = copy.deepcopy(module)
    compiled = frontend.compile(module)
    a = torch.rand(3, 4)
    for training in (True, False, True, False):
        compiled.train(training)
        plain.train(training)
        close(compiled(a), plain(a))
        close(list(compiled.buffers()), list(plain.buffers()))
    assert captured(compiled)
    assert len(frontend.entries(compiled)) == 2


def test_the_wrapper_shares_everything() -> None:
    module = Net()
    compiled = frontend.compile(module)
    assert isinstance(compiled, Net)
    assert list(compiled.state_dict()) == list(module.state_dict())
    assert compiled.blocks is module.blocks
    compiled.extra = 3
    assert module.extra == 3
    compiled.eval()
    assert not module.training
    compiled.load_state_dict(Net().state_dict())
    a = torch.rand(1, 2, 16)
    with torch.no_grad():
        assert_same(compiled(a), module(a))


def test_hooks_run() -> None:
    module = nn.Sequential(nn.Linear(3, 3), nn.ReLU())
    compiled = frontend.compile(module)
    a = torch.rand(2, 3)
    with torch.no_grad():
        assert_same(compiled(a), module(a))
        handle = module[0].register_forward_hook(lambda m, args, out: out + 1)
        assert_same(compiled(a), module(a))
        handle.remove()
        assert_same(compiled(a), module(a))
    assert captured(compiled)


def test_parameters_replaced_and_changed() -> None:
    module = nn.Linear(3, 3)
    compiled = frontend.compile(module)
    a = torch.rand(2, 3)
    with torch.no_grad():
        assert_same(compiled(a), module(a))
        module.weight.mul_(2)
        assert_same(compiled(a), module(a))
        module.weight = nn.Parameter(torch.rand(3, 3))
        assert_same(compiled(a), module(a))
        module.bias = None
        assert_same(compiled(a), module(a))
    assert captured(compiled)
    assert len(frontend.entries(compiled)) == 2


def test_tied_weights() -> None:
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.a = nn.Linear(3, 3, bias=False)
            self.b = nn.Linear(3, 3, bias=False)
            self.b.weight = self.a.weight

        def forward(self, x):
            return self.b(self.a(x)), self.a.weight is self.b.weight

    module = Tied()
    compiled = frontend.compile(module)
    x = torch.rand(2, 3)
    with torch.no_grad():
        assert_same(compiled(x), module(x))
        module.b.weight = nn.Parameter(torch.rand(3, 3))
        assert_same(compiled(x), module(x))
    assert captured(compiled)


def test_compiled_inside_of_compiled() -> None:
    inner = frontend.compile(nn.Linear(3, 3))
    function = frontend.compile(lambda a: a + 1)

    def program(a):
        return function(inner(a))

    compiled = frontend.compile(program)
    a = torch.rand(2, 3)
    with torch.no_grad():
        assert_same(compiled(a), program(a))
    assert captured(compiled), frontend.counters(compiled)


def test_method_of_a_class() -> None:
    class Thing:
        scale = 3

        @frontend.compile
        def run(self, a):
            return a * self.scale

    a = torch.rand(3)
    assert_same(Thing().run(a), a * 3)
    assert_same(Thing().run(a=a), a * 3)
    assert Thing.run.__name__ == "run"


def test_plugin() -> None:
    module = Block().eval()
    compiled = frontend.compile(module, backend="plugin:reference")
    a = torch.rand(2, 5, 16)
    with torch.no_grad():
        close(compiled(a), module(a))
    close(step(compiled, (a,)), step(copy.deepcopy(module), (a,)))
    assert captured(compiled), frontend.counters(compiled)
    assert len(frontend.entries(compiled)) == 2


def test_a_compiled_module_is_pickled_as_the_module_itself():
    module = nn.Linear(2, 2)
    compiled = frontend.compile(module, backend="reference")
    compiled(torch.ones(1, 2))
    again = pickle.loads(pickle.dumps({"compiled": compiled, "module": module}))
    assert again["compiled"] is again["module"]
    assert type(again["module"]) is nn.Linear
    assert torch.equal(again["module"].weight, module.weight)


def test_a_shallow_copy_of_a_compiled_module_is_compiled_and_shares_its_weights():
    module = nn.Linear(2, 2)
    compiled = frontend.compile(module, backend="reference")
    copied = copy.copy(compiled)
    assert copied.weight is module.weight
    copied.added = 1
    assert not hasattr(module, "added")
    torch.testing.assert_close(copied(torch.ones(1, 2)), module(torch.ones(1, 2)))
    assert frontend.counters(copied)["entries"] == 1
