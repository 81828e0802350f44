"""What the CPU refuses the device refuses; what is written is seen at every alias."""

from __future__ import annotations

import contextlib
import copy
import functools
import gc
import warnings
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch_backplane
from device.agreement import Mover, Watch, alias_of, assert_refused_alike, outcome
from device.helpers import PLUGINS, close, counting
from torch import nn

# Each gets `t`, which makes a tensor there.
Make = Callable[..., torch.Tensor]


@pytest.fixture(params=PLUGINS)
def plugin(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def npu(plugin: str) -> torch.device:
    return torch_backplane.device(plugin, 0)


def maker(device: torch.device | str) -> Make:
    return lambda *args, **kwargs: torch.tensor(*args, **kwargs).to(device)


# ---- Refusals

INT = torch.int64
REFUSED: dict[str, Callable[[Make], Any]] = {
    "float @ int64": lambda t: t([[1.0]]) @ t([[1]]),
    "mm of two types": lambda t: t([[1.0]]).mm(t([[1.0]], dtype=torch.float64)),
    "bmm of two types": lambda t: t([[[1.0]]]).bmm(t([[[1]]])),
    "addmm of two types": lambda t: torch.addmm(t([1]), t([[1.0]]), t([[1.0]])),
    "linear of two types": lambda t: nn.functional.linear(t([[1]]), t([[1.0]])),
    "large matmul of two types": lambda t: (
        t([1.0]).expand(100, 200).contiguous() @ t([1]).expand(200, 300).contiguous()
    ),
    "conv of two types": lambda t: nn.functional.conv1d(t([[[1.0, 2.0]]]), t([[[1]]])),
    "integer softmax": lambda t: torch.softmax(t([1, 2]), 0),
    "integer log_softmax": lambda t: torch.log_softmax(t([[1, 2]]), 1),
    "integer mean": lambda t: t([1, 2]).mean(),
    "integer var": lambda t: t([1, 2]).var(),
    "bool minus bool": lambda t: t([True]) - t([False]),
    "negated bool": lambda t: -t([True]),
    "integer gelu": lambda t: nn.functional.gelu(t([1, 2])),
    "integer layer norm": lambda t: nn.functional.layer_norm(t([[1, 2]]), (2,)),
    "float bitwise": lambda t: t([1.0]) & t([1.0]),
    "float shift": lambda t: t([1.0]) << 1,
    "float index": lambda t: t([1.0, 2.0])[t([1.0])],
    "index of gather in floats": lambda t: t([1.0]).gather(0, t([0.0])),
    "float embedding": lambda t: nn.functional.embedding(t([1.0]), t([[1.0]])),
    "lerp of two types": lambda t: torch.lerp(t([1.0]), t([1]), 0.5),
    "where of no bools": lambda t: torch.where(t([1.0]), t([1.0]), t([2.0])),
    "masked_fill by integers": lambda t: t([1.0]).masked_fill(t([1]), 0),
    "shapes that do not fit": lambda t: t([1.0, 2.0]) + t([1.0, 2.0, 3.0]),
    "dim out of range": lambda t: t([1.0]).sum(3),
    "argmax of nothing": lambda t: t([]).argmax(),
    "max of nothing": lambda t: t([]).max(),
    "groups of a part": lambda t: torch.native_group_norm(
        t([[[1.0, 2.0], [3.0, 5.0]]]).transpose(1, 2), None, None, 1, 2, 2, 1, 1e-5
    ),
    "groups of a large part": lambda t: torch.native_group_norm(
        t([[[1.0] * 20] * 40]).transpose(1, 2), None, None, 1, 20, 40, 2, 1e-5
    ),
    "several learning rates": lambda t: fused_steps(t([1.0, 2.0]), t([0.1, 0.2])),
    "a step of integers": lambda t: fused_steps(t([1, 2]), t(0.1)),
    "a step of complex numbers": lambda t: fused_steps(t([1j]), t(0.1)),
    # The written
    "float into integers": lambda t: t([1]).add_(1.5),
    "division into integers": lambda t: t([1]).div_(2),
    "out of integers": lambda t: torch.add(t([1]), 1.5, out=t([1])),
    "out of integers, mul": lambda t: torch.mul(t([1.0]), t([2.0]), out=t([1])),
    "out of another type, mm": lambda t: torch.mm(t([[1.0]]), t([[1.0]]), out=t([[1]])),
    "out of another type, softmax": lambda t: torch.softmax(t([1.0]), 0, out=t([1])),
    "complex into reals": lambda t: t([1.0]).mul_(1j),
    "in place to a larger shape": lambda t: t([1.0]).add_(t([1.0, 2.0])),
    "one element written twice": lambda t: t([1.0]).expand(3).add_(1),
    "one element copied to twice": lambda t: t([1.0]).expand(3).copy_(t([1.0, 2.0, 3.0])),
    "a part of itself": lambda t: (lambda a: a[1:].add_(a[:-1]))(t([1.0, 2.0, 3.0])),
    "a part of itself copied": lambda t: (lambda a: a[1:].copy_(a[:-1]))(t([1.0, 2.0, 3.0])),
    "out over a part of an input": lambda t: (lambda a: torch.add(a[:-1], 1, out=a[1:]))(
        t([1.0, 2.0, 3.0])
    ),
    "index_add_ of itself": lambda t: (lambda a: a.index_add_(0, t([0, 1]), a))(t([1.0, 2.0])),
    # By value
    "integer // 0": lambda t: t([1, 2]) // t([1, 0]),
    "integer // number 0": lambda t: t([1, 2]) // 0,
    "integer // 0-dim 0": lambda t: t([1, 2]) // torch.tensor(0),
    "integer % 0": lambda t: t([1, 2]) % t([0, 1]),
    "integer % number 0": lambda t: t([1, 2]) % 0,
    "number % integer 0": lambda t: 5 % t([0, 1]),
    "integer fmod 0": lambda t: torch.fmod(t([1, 2]), t([0, 1])),
    "integer floor division by 0": lambda t: torch.div(t([1]), t([0]), rounding_mode="floor"),
    "integer truncation by 0": lambda t: torch.div(t([1]), t([0]), rounding_mode="trunc"),
    "in place //": lambda t: t([1]).floor_divide_(t([0])),
    "in place %": lambda t: t([1]).remainder_(t([0])),
    "integer to a negative power": lambda t: t([2]) ** -1,
    # Indices
    "index": lambda t: t([1.0, 2.0])[t([5])],
    "negative index": lambda t: t([1.0, 2.0])[t([-3])],
    "index_select": lambda t: t([1.0, 2.0]).index_select(0, t([5])),
    "gather": lambda t: t([1.0, 2.0]).gather(0, t([5])),
    "take": lambda t: t([1.0, 2.0]).take(t([5])),
    "scatter": lambda t: t([1.0, 2.0]).scatter(0, t([5]), 1.0),
    "index_put_": lambda t: t([1.0, 2.0]).index_put_((t([5]),), t([1.0])),
    "index_add": lambda t: t([1.0, 2.0]).index_add(0, t([5]), t([1.0])),
    "embedding": lambda t: nn.functional.embedding(t([5]), t([[1.0], [2.0]])),
    "nll_loss": lambda t: nn.functional.nll_loss(t([[1.0, 2.0]]), t([5])),
    "cross_entropy": lambda t: nn.functional.cross_entropy(t([[1.0, 2.0]]), t([5])),
}


def fused_steps(parameter: torch.Tensor, rate: torch.Tensor) -> None:
    """By each optimizer that the device has, where the first of them does not refuse."""
    gradient, mean, square = parameter.clone(), parameter * 0, parameter * 0
    errors = []
    adam = {"beta1": 0.9, "beta2": 0.99, "weight_decay": 0.1, "eps": 1e-8}
    for step in (torch._fused_adam_, torch._fused_adamw_):
        lists = ([parameter], [gradient], [mean], [square], [])
        steps = [torch.ones((), device=parameter.device)]
        call = functools.partial(step, *lists, steps, lr=rate, **adam)
        errors.append(outcome(lambda c=call: c(amsgrad=False, maximize=False))[1])
    sgd = {"weight_decay": 0.1, "momentum": 0.9, "dampening": 0.0, "nesterov": False}
    call = functools.partial(torch._fused_sgd_, [parameter], [gradient], [mean], lr=rate, **sgd)
    errors.append(outcome(lambda: call(maximize=False, is_first_step=True))[1])
    if refused := [error for error in errors if error is not None]:
        assert len(refused) == len(errors), errors
        raise refused[0]


@pytest.mark.parametrize("what", REFUSED)
def test_what_the_cpu_refuses_is_refused(npu: torch.device, what: str) -> None:
    _, expected = outcome(lambda: REFUSED[what](maker("cpu")))
    assert expected is not None
    _, actual = outcome(lambda: REFUSED[what](maker(npu)))
    assert_refused_alike(actual, expected)
    # It was told once, and what comes after is right.
    assert (torch.arange(3.0, device=npu) + 1).tolist() == [1, 2, 3]


TAKEN: dict[str, Callable[[Make], Any]] = {
    "float / 0": lambda t: t([1.0, -1.0, 0.0]) / t([0.0, 0.0, 0.0]),
    "float // 0": lambda t: t([1.0, -1.0]) // t([0.0, 0.0]),
    "integer / 0": lambda t: t([1, -1]) / t([0, 0]),
    "integer // 2": lambda t: t([7, -7]) // t([2, 2]),
    "nothing // 0": lambda t: t([], dtype=INT) // t([], dtype=INT),
    "integers by a cast": lambda t: torch.add(t([1]), 1.5, out=t([1.0])),
    "floats summed as integers": lambda t: torch.sum(t([1.7, 1.7]), 0, out=t(1)),
    "shorter floats": lambda t: torch.mul(t([1.0]), 2, out=t([1.0], dtype=torch.bfloat16)),
    "over all of itself": lambda t: (lambda a: torch.add(a, a, out=a))(t([1.0, 2.0])),
    "fill of one element": lambda t: t([1.0]).expand(3).fill_(2),
    "columns": lambda t: (lambda a: a[:, ::2].mul_(a[:, 1::2]))(t([[1.0, 2.0], [3.0, 4.0]])),
}


@pytest.mark.parametrize("what", TAKEN)
def test_what_the_cpu_takes_is_taken(npu: torch.device, what: str) -> None:
    expected, refused = outcome(lambda: TAKEN[what](maker("cpu")))
    assert refused is None
    close(TAKEN[what](maker(npu)), expected)


def test_the_first_read_tells_what_failed(npu: torch.device) -> None:
    reads: dict[str, Callable[[torch.Tensor], Any]] = {
        "item": lambda t: t.item(),
        "cpu": lambda t: t.cpu(),
        "tolist": lambda t: t.tolist(),
        "numpy": lambda t: t.cpu().numpy(),
        "bool": bool,
        "repr": repr,
        "copy_": lambda t: torch.empty(1).copy_(t),
        "synchronize": lambda t: torch.accelerator.synchronize(t.device),
    }
    for name, read in reads.items():
        there, index = torch.arange(4.0, device=npu), torch.tensor([9], device=npu)
        with pytest.raises(IndexError):
            read(there[index] + 1)
        assert there.sum().item() == 6, name


def test_what_a_refused_index_has_spoilt_is_not_read_later(npu: torch.device) -> None:
    """By a device that tells when it comes to it; one that refuses at the call has written nothing."""
    sound = torch.ones(2, device=npu)
    target, bad = torch.arange(6.0, device=npu), torch.tensor([1, 99], device=npu)
    with pytest.raises(IndexError):
        target.index_add_(0, bad, sound)
        sound.cpu()
    assert sound.tolist() == [1, 1]
    with contextlib.suppress(IndexError):
        assert target.tolist() == [0, 1, 2, 3, 4, 5]
    model = torch.nn.Embedding(5, 2).to(npu)
    model.weight.data.fill_(0.5)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(IndexError):
        loss = model(torch.tensor([2, 9], device=npu)).pow(2).mean()
        loss.backward()
        optimizer.step()
        loss.item()
    with contextlib.suppress(IndexError):
        assert torch.equal(model.weight.data.cpu(), torch.full((5, 2), 0.5))
    target.copy_(torch.full((6,), 3.0))  # new content
    assert target.tolist() == [3] * 6


def test_an_event_that_nobody_asks_swallows_no_failure(npu: torch.device) -> None:
    there, index = torch.arange(4.0, device=npu), torch.tensor([9], device=npu)
    stream = torch.accelerator.current_stream(npu)
    with pytest.raises(IndexError):
        picked = there[index]
        for _ in range(40):
            torch.Event(device=npu).record(stream)
        picked.item()
    with pytest.raises(IndexError):
        picked = there[index]
        event = torch.Event(device=npu)
        event.record(stream)
        event.synchronize()
    assert there.sum().item() == 6


@pytest.mark.parametrize("door", ["torch.compile", "own"])
def test_compiled_work_tells_its_failure_too(plugin: str, npu: torch.device, door: str) -> None:
    def pick(x: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
        return (x * 2)[i] + 1

    torch._dynamo.reset()
    options = {"report": False}
    if door == "own":
        compiled = torch_backplane.compile(pick, backend=plugin, options=options)
    else:
        compiled = torch.compile(pick, backend=f"plugin:{plugin}", options=options)
    there = torch.arange(4.0, device=npu)
    good, bad = torch.tensor([1, 2], device=npu), torch.tensor([1, 9], device=npu)
    for _ in range(2):
        assert compiled(there, good).tolist() == [3, 5]
        with pytest.raises(IndexError):
            compiled(there, bad).cpu()
    assert there.sum().item() == 6


def test_a_generator_of_another_device_is_refused(npu: torch.device) -> None:
    for draw in (
        lambda g: torch.randn(3, device=npu, generator=g),
        lambda g: torch.rand(3, device=npu, generator=g),
        lambda g: torch.randint(3, (3,), device=npu, generator=g),
        lambda g: torch.randperm(3, device=npu, generator=g),
        lambda g: torch.ones(3, device=npu).bernoulli_(0.5, generator=g),
        lambda g: torch.multinomial(torch.ones(3, device=npu), 2, generator=g),
    ):
        with pytest.raises(RuntimeError, match="Expected a 'backplane' device type for generator"):
            draw(torch.Generator())
        assert draw(torch.Generator(npu)).device == npu


# ---- Addresses

WRITES: dict[str, Callable[[torch.Tensor], Any]] = {
    "add_": lambda t: t.add_(1),
    "add_ itself": lambda t: t.add_(t),
    "mul_ alpha": lambda t: t.add_(torch.ones_like(t), alpha=3),
    "fill_": lambda t: t.fill_(3),
    "zero_": lambda t: t.zero_(),
    "copy_": lambda t: t.copy_(torch.ones_like(t)),
    "copy_ of a number": lambda t: t.copy_(torch.tensor(2.0)),
    "copy_ of the host": lambda t: t.copy_(torch.full(t.shape, 4.0)),
    "copy_ of its mirror": lambda t: t.copy_(t.flip(0)),
    "copy_ of its transpose": lambda t: t.copy_(t.t().clone()),
    "a row": lambda t: t[1].mul_(3),
    "a column": lambda t: t[:, 1].add_(3),
    "a step": lambda t: t[::2, 1::2].sub_(3),
    "set item": lambda t: t.__setitem__((slice(None), 1), 5.0),
    "set by a mask": lambda t: t.__setitem__(t > 0, 5.0),
    "masked_fill_": lambda t: t.masked_fill_(t > 0, 5.0),
    "index_put_": lambda t: t.index_put_((torch.tensor([0, 1], device=t.device),), t[2:].sum()),
    "index_fill_": lambda t: t.index_fill_(0, torch.tensor([0], device=t.device), 2.0),
    "scatter_": lambda t: t.scatter_(0, torch.zeros_like(t, dtype=INT), 2.0),
    "clamp_": lambda t: t.clamp_(0, 1),
    "transposed": lambda t: t.t().add_(t.sum(1)),
    "sort into": lambda t: torch.sort(t, out=(t, torch.empty_like(t, dtype=INT))),
    "add into": lambda t: torch.add(t, 1, out=t),
    "matmul into": lambda t: torch.matmul(torch.ones_like(t), torch.ones_like(t), out=t),
    "cat into": lambda t: torch.cat([torch.ones_like(t[:2]), torch.zeros_like(t[2:])], out=t),
    "sum into a row": lambda t: torch.sum(torch.ones_like(t), 0, out=t[0]),
    "addmm_": lambda t: t.addmm_(torch.ones_like(t), torch.ones_like(t)),
    "uniform_": lambda t: t.uniform_(),
    "normal_": lambda t: t.normal_(),
    "bernoulli_": lambda t: t.bernoulli_(0.5),
    "random_": lambda t: t.random_(0, 9),
    "random_ of a column": lambda t: t[:, 1].uniform_(),
    "cumsum_": lambda t: t.cumsum_(0),
    "tril_": lambda t: t.tril_(),
    "relu_": nn.functional.relu_,
    "dropout_": lambda t: nn.functional.dropout(t, 0.5, inplace=True),
    "foreach": lambda t: torch._foreach_add_([t, torch.ones_like(t)], 1.0),
    "foreach lists": lambda t: torch._foreach_mul_([t], [torch.full_like(t, 2)]),
    "foreach addcmul": lambda t: torch._foreach_addcmul_([t], [t], [t]),
    "foreach copy": lambda t: torch._foreach_copy_([t], [torch.ones_like(t)]),
    "foreach zero": lambda t: torch._foreach_zero_([t]),
    "foreach lerp": lambda t: torch._foreach_lerp_([t], [torch.ones_like(t)], 0.5),
    "init": nn.init.xavier_uniform_,
    "unsafe view": lambda t: t.view(-1)[3:9].add_(1),
    "other type": lambda t: t.view(torch.int32).bitwise_or_(1),
    "complex": lambda t: torch.view_as_complex(t.view(-1, 2)).mul_(2),
    "data": lambda t: t.data.add_(1),
    "requires grad": lambda t: t.requires_grad_().detach().add_(1),
}


@pytest.mark.parametrize("what", WRITES)
def test_a_written_tensor_keeps_its_address(npu: torch.device, what: str) -> None:
    host = torch.arange(16.0).reshape(4, 4) / 7 - 1
    there = host.to(npu)
    alias, watch = alias_of(there), Watch(there)
    torch.manual_seed(2)
    WRITES[what](host)
    torch.manual_seed(2)
    WRITES[what](there)
    watch.check()
    base = torch.empty(0, device=npu).set_(there.untyped_storage(), 0, (4, 4))
    assert torch.equal(alias.cpu(), base.cpu())
    drawn = any(word in what for word in ("uniform", "normal", "bernoulli", "random", "dropout"))
    if not drawn and what != "init":
        close(there.detach(), host.detach())


@pytest.mark.parametrize(
    "kind",
    [
        lambda p: torch.optim.SGD(p, 0.1, momentum=0.9, nesterov=True, foreach=False),
        lambda p: torch.optim.SGD(p, 0.1, momentum=0.9, foreach=True),
        lambda p: torch.optim.SGD(p, 0.1, momentum=0.9, fused=True),
        lambda p: torch.optim.Adam(p, 0.1, amsgrad=True, foreach=False),
        lambda p: torch.optim.Adam(p, 0.1, foreach=True),
        lambda p: torch.optim.Adam(p, 0.1, fused=True, amsgrad=True),
        lambda p: torch.optim.AdamW(p, 0.1, fused=True),
        lambda p: torch.optim.Adagrad(p, 0.1),
        lambda p: torch.optim.RMSprop(p, 0.1, momentum=0.9),
        lambda p: torch.optim.LBFGS(p, 0.1),
    ],
    ids=[
        *("sgd", "sgd-foreach", "sgd-fused", "adam", "adam-foreach", "adam-fused", "adamw-fused"),
        *("adagrad", "rmsprop", "lbfgs"),
    ],
)
def test_steps_of_optimizers_write_where_parameters_are(npu: torch.device, kind: Any) -> None:
    torch.manual_seed(0)
    host = nn.Linear(4, 4)
    there = copy.deepcopy(host).to(npu)
    x = torch.randn(3, 4)
    watch = Watch(*there.parameters())
    for model, where in ((host, "cpu"), (there, npu)):
        optimizer = kind(model.parameters())
        for _ in range(3):

            def loss(model: Any = model, where: Any = where, optimizer: Any = optimizer) -> Any:
                optimizer.zero_grad()
                value = model(x.to(where)).square().sum()
                value.backward()
                return value

            optimizer.step(loss)
        states = [
            value
            for state in optimizer.state.values()
            for value in state.values()
            if isinstance(value, torch.Tensor) and value.device.type == "backplane"
        ]
        of_states = Watch(*states) if states else Watch()
        optimizer.step(loss)
        of_states.check()
    watch.check()
    for one, other in zip(there.parameters(), host.parameters(), strict=True):
        torch.testing.assert_close(one.detach().cpu(), other.detach(), rtol=1e-3, atol=1e-4)


def test_storages_that_are_set_share_what_is_written(npu: torch.device) -> None:
    there = torch.zeros(6, device=npu)
    other = torch.empty(0, device=npu).set_(there.untyped_storage(), 2, (3,))
    other.add_(1)
    there.mul_(2)
    assert there.tolist() == [0, 0, 2, 2, 2, 0] and other.tolist() == [2, 2, 2]
    part = alias_of(there[1:4])
    part.add_(there[:3])  # they lie over one another, through two storages
    assert there.tolist() == [0, 0, 2, 4, 2, 0]


# ---- Modules that move


@contextlib.contextmanager
def swapping(enabled: bool) -> Iterator[None]:
    torch.__future__.set_swap_module_params_on_conversion(enabled)
    try:
        yield
    finally:
        torch.__future__.set_swap_module_params_on_conversion(False)


def test_modules_move_while_a_graph_lives(npu: torch.device) -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))
    weight = model[0].weight
    weak = weakref.ref(weight)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    x = torch.randn(4, 3)
    kept = model(x).sum()
    kept.backward(retain_graph=True)
    expected = weight.grad.clone()
    model.to(npu)
    assert model[0].weight is weight is weak() and weight.device == npu
    assert weight.grad.device == npu and weight.is_leaf
    torch.testing.assert_close(weight.grad.cpu(), expected)
    model.zero_grad()
    model(x.to(npu)).sum().backward()
    before = weight.detach().cpu().clone()
    optimizer.step()
    assert not torch.equal(weight.detach().cpu(), before)
    model.cpu()
    assert model[0].weight is weight and weight.device.type == "cpu"
    model.to_empty(device=npu)
    assert model[0].weight is weight and weight.device == npu
    del kept


def test_shared_parameters_stay_shared(npu: torch.device) -> None:
    one, two = nn.Linear(3, 3), nn.Linear(3, 3)
    two.weight = one.weight
    model = nn.Sequential(one, two).to(npu)
    assert model[0].weight is model[1].weight
    assert nn.Linear(2, 2).to(npu, torch.bfloat16).weight.dtype == torch.bfloat16


def test_swapping_works_where_it_is_asked_for(npu: torch.device) -> None:
    model = nn.Linear(3, 3)
    weight = model.weight
    with swapping(True):
        model.to(npu)
        assert model.weight is weight and weight.device == npu


def test_data_is_assigned_across_devices(npu: torch.device) -> None:
    parameter = nn.Parameter(torch.ones(2))
    parameter.data = torch.zeros(3, device=npu)
    assert parameter.device == npu and parameter.tolist() == [0, 0, 0]
    parameter.data = torch.ones(2)
    assert parameter.device.type == "cpu" and parameter.tolist() == [1, 1]


def test_lazy_modules(npu: torch.device) -> None:
    x = torch.randn(2, 3, 5, 5)
    for make in (nn.LazyConv2d, lambda n: nn.LazyBatchNorm2d()):
        model = make(*([4, 3] if make is nn.LazyConv2d else [0])).to(npu)
        assert model(x.to(npu)).device == npu
    linear = nn.LazyLinear(4).to(npu)
    result = linear(x.to(npu))
    assert result.shape == (2, 3, 5, 4) and linear.weight.device == npu
    close(result.detach(), copy.deepcopy(linear).cpu()(x).detach())


# ---- What programs ask of a device


def test_norms_without_running_statistics(npu: torch.device) -> None:
    x = torch.randn(3, 4, 5, 5)
    for model in (
        nn.InstanceNorm2d(4),
        nn.InstanceNorm2d(4, affine=True),
        nn.BatchNorm2d(4, track_running_stats=False),
        nn.BatchNorm2d(4, affine=False, track_running_stats=False),
        nn.InstanceNorm2d(4, track_running_stats=True),
    ):
        there = copy.deepcopy(model).to(npu)
        host, moved = x.clone().requires_grad_(), x.to(npu).requires_grad_()
        expected, actual = model(host), there(moved)
        close(actual.detach(), expected.detach())
        (expected.sin().sum()).backward()
        (actual.sin().sum()).backward()
        torch.testing.assert_close(moved.grad.cpu(), host.grad, rtol=1e-4, atol=1e-5)


def test_the_host_cache_and_streams(npu: torch.device) -> None:
    pinned = torch.ones(3).pin_memory()
    assert pinned.is_pinned()
    torch.accelerator.memory.empty_host_cache()
    assert pinned.tolist() == [1, 1, 1]
    there = torch.ones(3, device=npu)
    there.record_stream(torch.accelerator.current_stream(npu))
    there.record_stream(torch.Stream(npu))


def test_deterministic_programs_read_no_old_memory(npu: torch.device) -> None:
    torch.full((64,), 7.0, device=npu)
    makers = (
        lambda d: torch.empty(9, device=d),
        lambda d: torch.empty((2, 3), dtype=torch.int32, device=d),
        lambda d: torch.empty(3, dtype=torch.bool, device=d),
        lambda d: torch.empty_strided((2, 3), (1, 2), device=d),
        lambda d: torch.empty_like(torch.ones(3, device=d)),
        lambda d: torch.ones(2, device=d).new_empty(4),
        lambda d: torch.ones(2, device=d).resize_(5),
    )
    torch.use_deterministic_algorithms(True)
    try:
        for make in makers:
            expected, actual = make("cpu"), make(npu)
            assert actual.device == npu and actual.stride() == expected.stride()
            torch.testing.assert_close(actual.cpu(), expected, equal_nan=True, rtol=0, atol=0)
        torch.utils.deterministic.fill_uninitialized_memory = False
        torch.empty(3, device=npu)
    finally:
        torch.utils.deterministic.fill_uninitialized_memory = True
        torch.use_deterministic_algorithms(False)


def test_encoders_with_padding_use_nested_tensors(npu: torch.device) -> None:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    model = nn.TransformerEncoder(layer, 2).eval()
    x = torch.randn(3, 5, 8)
    padding = torch.tensor([[0, 0, 0, 0, 1], [0, 0, 1, 1, 1], [0, 0, 0, 1, 1]], dtype=torch.bool)
    there = copy.deepcopy(model).to(npu)
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        expected = model(x, src_key_padding_mask=padding)
        with counting() as found:
            actual = there(x.to(npu), src_key_padding_mask=padding.to(npu))
    close(actual, expected)
    assert any("nested" in reason for _, reason in found["eager_fallbacks"].values())


def test_nested_tensors_on_the_device(npu: torch.device) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        host = torch.nested.nested_tensor([torch.ones(2, 3), torch.ones(1, 3)])
        there = host.to(npu)
        assert there.device == npu and there.is_nested
        padded = torch.nested.to_padded_tensor(there * 2, 0.0)
        close(padded, torch.nested.to_padded_tensor(host * 2, 0.0))
        again = there.detach()
        again.mul_(3)
        assert torch.nested.to_padded_tensor(there, 0.0)[0, 0].tolist() == [3, 3, 3]
        assert there.cpu().is_nested and there.clone().device == npu


def test_moved_aliases_stay_aliases(npu: torch.device) -> None:
    """The harness itself: what shares memory on the CPU shares it on the device."""
    base = torch.arange(6.0)
    a, b = Mover(npu)((base[1:], base[:-1]))
    a.add_(1)
    assert b.tolist() == [0, 2, 3, 4, 5]
    assert Mover(npu)(torch.ones(1).expand(3)).stride() == (0,)
    gc.collect()
