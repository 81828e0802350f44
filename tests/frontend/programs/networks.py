"""Modules: nested, with hooks and state, switched between training and evaluation."""

from __future__ import annotations

import collections
import dataclasses
from typing import Any

import torch
import torch.nn.functional as F
from frontend.programs.catalog import attempt, scenario, x
from torch import nn
from torch.utils.checkpoint import checkpoint


def seeded(module: nn.Module) -> nn.Module:
    with torch.no_grad():
        for number, parameter in enumerate(module.parameters()):
            parameter.copy_(x(*parameter.shape) * (number + 1) / 4)
    return module


def plain(make, *inputs, train: bool = False):
    """A scenario: the module in evaluation mode twice, then its gradients."""

    def run(compile):
        module = seeded(make()).train(train)
        compiled = compile(module)
        for _ in range(2):
            torch.manual_seed(0)
            yield compiled(*inputs)
        out = compiled(*inputs)
        out.sum().backward()
        yield [p.grad for p in module.parameters()], list(module.buffers())

    return run


class Residual(nn.Module):
    def __init__(self, width: int = 4) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(3))
        self.scale = 0.5

    def forward(self, a, *, bias=None):
        for i, layer in enumerate(self.layers):
            b = layer(self.norm(a))
            a = a + b * self.scale if i % 2 == 0 else a - F.gelu(b)
        return a if bias is None else a + bias


@scenario
def sequential_network_program(compile):
    yield from plain(lambda: nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)), x(3, 4))(
        compile
    )


@scenario
def residual_network_program(compile):
    yield from plain(Residual, x(3, 4))(compile)


@scenario
def convolution_network_program(compile):
    make = lambda: nn.Sequential(nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten())
    yield from plain(make, x(2, 2, 5, 5))(compile)


@scenario
def batch_norm_in_training_program(compile):
    yield from plain(lambda: nn.BatchNorm1d(4), x(3, 4), train=True)(compile)


@scenario
def transformer_layer_program(compile):
    make = lambda: nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
    yield from plain(make, x(2, 3, 8), train=True)(compile)


@scenario
def lstm_network_program(compile):
    class Reader(nn.Module):
        def __init__(self):
            super().__init__()
            self.lstm = nn.LSTM(4, 5, batch_first=True)

        def forward(self, a):
            out, (h, c) = self.lstm(a)
            return out[:, -1] + h[0] + c[0]

    yield from plain(Reader, x(2, 3, 4))(compile)


@scenario
def embedding_network_program(compile):
    compiled = compile(seeded(nn.Embedding(10, 4)))
    yield compiled(torch.tensor([[1, 2], [3, 9]]))
    yield compiled(torch.tensor([1]))


@scenario
def module_keywords_program(compile):
    compiled = compile(seeded(Residual()).eval())
    yield compiled(x(2, 4))
    yield compiled(x(2, 4), bias=x(4))
    yield compiled(a=x(2, 4), bias=None)


@scenario
def training_flag_program(compile):
    class Flagged(nn.Module):
        def forward(self, a):
            return a * 2 if self.training else a

    module = Flagged()
    compiled = compile(module)
    yield compiled(x(3))
    module.eval()
    yield compiled(x(3))
    module.train()
    yield compiled(x(3))


@scenario
def dropout_mode_program(compile):
    module = nn.Dropout(0.5)
    compiled = compile(module)
    for train in (True, False, True):
        module.train(train)
        torch.manual_seed(1)
        yield compiled(x(8))


@scenario
def module_attribute_changed_program(compile):
    module = seeded(Residual()).eval()
    compiled = compile(module)
    yield compiled(x(2, 4))
    module.scale = 2.0
    yield compiled(x(2, 4))
    del module.layers[2]
    yield compiled(x(2, 4))
    module.layers.append(seeded(nn.Linear(4, 4)))
    yield compiled(x(2, 4))


@scenario
def submodule_replaced_program(compile):
    module = nn.Sequential(seeded(nn.Linear(3, 3)), nn.ReLU())
    compiled = compile(module)
    yield compiled(x(2, 3))
    module[1] = nn.Sigmoid()
    yield compiled(x(2, 3))
    module[0] = nn.Identity()
    yield compiled(x(2, 3))


@scenario
def parameter_replaced_program(compile):
    module = seeded(nn.Linear(3, 3))
    compiled = compile(module)
    yield compiled(x(2, 3))
    module.weight = nn.Parameter(x(3, 3) * 7)
    yield compiled(x(2, 3))
    with torch.no_grad():
        module.weight.mul_(2)
    yield compiled(x(2, 3))
    module.bias = None
    yield compiled(x(2, 3))


@scenario
def parameter_frozen_program(compile):
    module = seeded(nn.Linear(3, 3))
    compiled = compile(module)
    compiled(x(2, 3)).sum().backward()
    yield module.weight, module.bias
    module.weight.requires_grad_(False)
    module.zero_grad()
    compiled(x(2, 3)).sum().backward()
    yield module.weight, module.bias


@scenario
def state_dict_loaded_program(compile):
    module = seeded(nn.Linear(3, 3))
    compiled = compile(module)
    yield compiled(x(2, 3))
    module.load_state_dict({"weight": x(3, 3), "bias": x(3)})
    yield compiled(x(2, 3))


@scenario
def one_function_two_modules_program(compile):
    class A(nn.Module):
        def forward(self, a):
            return a + 1

    class B(nn.Module):
        def forward(self, a):
            return a * 2

    compiled = compile(lambda a, module: module(a) + 1)
    yield compiled(x(3), A())
    yield compiled(x(3), B())
    yield compiled(x(3), A())


@scenario
def two_instances_program(compile):
    one, two = seeded(nn.Linear(3, 3)), nn.Linear(3, 3)
    two.load_state_dict(one.state_dict())
    with torch.no_grad():
        two.weight.mul_(2)
    compiled = compile(lambda a, module: module(a))
    for module in (one, two, one, two):
        yield compiled(x(2, 3), module)


@scenario
def shared_parameters_program(compile):
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.one = nn.Linear(3, 3, bias=False)
            self.two = nn.Linear(3, 3, bias=False)
            self.two.weight = self.one.weight

        def forward(self, a):
            return self.two(self.one(a))

    module = seeded(Tied())
    compiled = compile(module)
    compiled(x(2, 3)).sum().backward()
    yield module.one.weight, module.one.weight is module.two.weight
    module.two.weight = nn.Parameter(x(3, 3))
    yield compiled(x(2, 3))


@scenario
def module_containers_program(compile):
    class Many(nn.Module):
        def __init__(self):
            super().__init__()
            self.by_name = nn.ModuleDict({"a": nn.Linear(3, 3), "b": nn.ReLU()})
            self.weights = nn.ParameterList([nn.Parameter(x(3)) for _ in range(2)])
            self.table = nn.ParameterDict({"w": nn.Parameter(x(3))})
            self.plain = [nn.Sigmoid(), nn.Tanh()]

        def forward(self, a, name):
            a = self.by_name[name](a) if name in self.by_name else a
            for weight in self.weights:
                a = a * weight
            for module in self.plain:
                a = module(a)
            return a + self.table["w"], len(self.by_name), list(self.by_name.keys())

    compiled = compile(seeded(Many()))
    for name in ("a", "b", "none"):
        yield compiled(x(2, 3), name)


@scenario
def module_list_queries_program(compile):
    class Stack(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.ModuleList(nn.Linear(3, 3) for _ in range(3))

        def forward(self, a):
            first, last = self.layers[0], self.layers[-1]
            for layer in self.layers[1:]:
                a = layer(a)
            for i, (one, two) in enumerate(zip(self.layers, reversed(self.layers), strict=True)):
                a = one(a) + two(a) * i
            return first(a) + last(a), len(self.layers), [type(m).__name__ for m in self.layers]

    compiled = compile(seeded(Stack()))
    yield compiled(x(2, 3))


@scenario
def parameters_iterated_program(compile):
    class Penalty(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(3, 3)
            self.register_buffer("mean", torch.ones(3))

        def forward(self, a):
            total = sum(p.square().sum() for p in self.parameters())
            names = [n for n, _ in self.named_parameters()]
            kinds = [type(m).__name__ for m in self.modules()]
            for name, child in self.named_children():
                a = child(a) + len(name)
            return a + total + sum(b.sum() for b in self.buffers()), names, kinds

    compiled = compile(seeded(Penalty()))
    yield compiled(x(2, 3))
    yield compiled(x(2, 3))


@scenario
def buffers_program(compile):
    class Shift(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("offset", torch.ones(3))
            self.register_buffer("cache", torch.zeros(3), persistent=False)

        def forward(self, a):
            self.cache.copy_(a.detach())
            self.offset += 1
            return a + self.offset

    module = Shift()
    compiled = compile(module)
    yield compiled(x(3)), module
    yield compiled(x(3)), module, module.cache


@scenario
def buffer_replaced_program(compile):
    class Running(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("total", torch.zeros(3))

        def forward(self, a):
            self.total = self.total + a
            return self.total * 2

    module = Running()
    compiled = compile(module)
    yield compiled(x(3)), module
    yield compiled(x(3)), module


@scenario
def forward_hooks_program(compile):
    module = seeded(nn.Linear(3, 3))
    module.register_forward_hook(lambda m, args, out: out * 2)
    module.register_forward_pre_hook(lambda m, args: (args[0] + 1,))
    compiled = compile(module)
    yield compiled(x(2, 3))
    handle = module.register_forward_hook(lambda m, args, out: out + 100)
    yield compiled(x(2, 3))
    handle.remove()
    yield compiled(x(2, 3))


@scenario
def hooks_with_keywords_program(compile):
    module = seeded(Residual()).eval()
    module.register_forward_pre_hook(
        lambda m, args, kwargs: (args, kwargs | {"bias": x(4)}), with_kwargs=True
    )
    compiled = compile(module)
    yield compiled(x(2, 4))


@scenario
def hooks_of_submodules_program(compile):
    module = nn.Sequential(seeded(nn.Linear(3, 3)), nn.ReLU())
    compiled = compile(module)
    yield compiled(x(2, 3))
    handle = module[0].register_forward_hook(lambda m, args, out: -out)
    yield compiled(x(2, 3))
    handle.remove()
    yield compiled(x(2, 3))


@scenario
def backward_hooks_program(compile):
    module = seeded(nn.Linear(3, 3))
    seen: list[Any] = []
    module.register_full_backward_hook(lambda m, gi, go: seen.append(go[0].sum()))
    compiled = compile(module)
    compiled(x(2, 3)).sum().backward()
    yield seen, module.weight


@scenario
def tensor_hooks_program(compile):
    def function(a):
        b = a * 2
        b.register_hook(lambda gradient: gradient * 10)
        return b.sum()

    compiled = compile(function)
    a = x(3).requires_grad_()
    compiled(a).backward()
    yield a


@scenario
def gradient_checkpoint_program(compile):
    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(3, 3)

        def forward(self, a):
            return checkpoint(lambda b: F.relu(self.layer(b)), a, use_reentrant=False)

    module = seeded(Block())
    compiled = compile(module)
    a = x(2, 3).requires_grad_()
    compiled(a).sum().backward()
    yield a, module.layer.weight


class Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx, a, n):
        ctx.save_for_backward(a)
        ctx.n = n
        return a**n

    @staticmethod
    def backward(ctx, gradient):
        (a,) = ctx.saved_tensors
        return gradient * ctx.n * a * 100, None


@scenario
def autograd_function_program(compile):
    compiled = compile(lambda a: Square.apply(a, 2).sum())
    a = x(3).requires_grad_()
    compiled(a).backward()
    yield a


@dataclasses.dataclass
class Output(collections.OrderedDict):
    loss: torch.Tensor | None = None
    logits: torch.Tensor | None = None

    def __post_init__(self):
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if value is not None:
                self[field.name] = value

    def __getitem__(self, key):
        return super().__getitem__(key) if isinstance(key, str) else list(self.values())[key]


@scenario
def model_output_program(compile):
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(3, 2)

        def forward(self, a, labels=None, return_dict=True):
            logits = self.layer(a)
            loss = None if labels is None else F.cross_entropy(logits, labels)
            if not return_dict:
                return (loss, logits) if loss is not None else (logits,)
            output = Output(loss=loss, logits=logits)
            return Output(loss=output.loss, logits=output[-1] * 2)

    compiled = compile(seeded(Model()))
    yield compiled(x(2, 3))
    yield compiled(x(2, 3), torch.tensor([0, 1]))
    yield compiled(x(2, 3), return_dict=False)


@scenario
def dtype_of_module_program(compile):
    class Caster(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(3, 3)

        @property
        def dtype(self):
            return next(self.parameters()).dtype

        def forward(self, a):
            return self.layer(a.to(self.dtype)).to(a.dtype)

    module = seeded(Caster())
    compiled = compile(module)
    yield compiled(x(2, 3))
    module.double()
    yield compiled(x(2, 3))


@scenario
def module_without_parameters_program(compile):
    class Activation(nn.Module):
        def __init__(self, kind):
            super().__init__()
            self.function = {"relu": F.relu, "silu": F.silu}[kind]
            self.kind = kind

        def extra_repr(self):
            return self.kind

        def forward(self, a):
            return self.function(a)

    for kind in ("relu", "silu"):
        yield compile(Activation(kind))(x(3))


@scenario
def missing_module_attribute_program(compile):
    class Wrong(nn.Module):
        def forward(self, a):
            return self.absent(a)

    yield attempt(compile(Wrong()), x(3))


@scenario
def optional_submodule_program(compile):
    class Maybe(nn.Module):
        def __init__(self):
            super().__init__()
            self.extra = None
            self.layer = nn.Linear(3, 3)

        def forward(self, a):
            a = self.layer(a)
            return a if self.extra is None else self.extra(a)

    module = seeded(Maybe())
    compiled = compile(module)
    yield compiled(x(2, 3))
    module.extra = nn.Tanh()
    yield compiled(x(2, 3))


@scenario
def key_value_cache_program(compile):
    class Cache:
        def __init__(self):
            self.keys = None

        def update(self, keys):
            self.keys = keys if self.keys is None else torch.cat([self.keys, keys], dim=1)
            return self.keys

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(3, 3)

        def forward(self, a, cache=None):
            cache = Cache() if cache is None else cache
            keys = cache.update(self.layer(a))
            return a @ keys.transpose(1, 2), cache

    compiled = compile(seeded(Model()))
    yield compiled(x(1, 2, 3))


@scenario
def method_of_module_program(compile):
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(3, 3)

        def encode(self, a):
            return self.layer(a).relu()

        def forward(self, a):
            return self.encode(a) + 1

    module = seeded(Model())
    compiled = compile(module.encode)
    yield compiled(x(2, 3))
    yield compile(module)(x(2, 3))


@scenario
def parametrized_program(compile):
    module = seeded(nn.Linear(3, 3))

    class Double(nn.Module):
        def forward(self, w):
            return w * 2

    nn.utils.parametrize.register_parametrization(module, "weight", Double())
    compiled = compile(module)
    yield compiled(x(2, 3))


@scenario
def module_call_replaced_program(compile):
    module = seeded(nn.Linear(3, 3))
    compiled = compile(lambda a: module(a))
    yield compiled(x(2, 3))
    module.forward = lambda a: a * 3
    yield compiled(x(2, 3))
    del module.forward
    yield compiled(x(2, 3))


@scenario
def optimizer_between_calls_program(compile):
    module = seeded(nn.Linear(3, 1))
    compiled = compile(module)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9)
    for _ in range(3):
        loss = compiled(x(4, 3)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        yield loss, module.weight


@scenario
def shared_submodule_appears_program(compile):
    class Pair(nn.Module):
        def __init__(self):
            super().__init__()
            self.one = nn.Linear(3, 3)
            self.two = nn.Linear(3, 3)

        def forward(self, a):
            return self.two(self.one(a)), len(list(self.modules())), len(list(self.parameters()))

    module = seeded(Pair())
    compiled = compile(module)
    yield compiled(x(2, 3))
    module.two = module.one
    yield compiled(x(2, 3))
