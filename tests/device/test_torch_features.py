"""PyTorch's own machinery on the device: files, random numbers, autograd, AMP, layers, streams."""

from __future__ import annotations

import copy
import io
import pickle
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import torch_backplane
from compiling import run_python
from device.helpers import PLUGINS, close, counting
from torch import nn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, TensorDataset


# These compile a program for every operator and shape: their models are enough.
@pytest.fixture(params=[plugin for plugin in PLUGINS if plugin not in ("opencl", "cuda")])
def npu(request: pytest.FixtureRequest) -> torch.device:
    return torch_backplane.device(request.param, 0)


# ---- Files


def save_and_load(value: Any, **how: Any) -> Any:
    file = io.BytesIO()
    torch.save(value, file)
    file.seek(0)
    return torch.load(file, **how)


def test_saved_tensors_come_back_to_their_device(npu: torch.device) -> None:
    there = torch.randn(4, 8).to(npu)
    loaded = save_and_load({"whole": there, "part": there[1:]})
    assert loaded["whole"].device == npu
    assert torch.equal(loaded["part"].cpu(), there[1:].cpu())
    shared = [loaded[name].untyped_storage().data_ptr() for name in ("whole", "part")]
    assert shared[0] == shared[1]
    assert save_and_load(there, map_location="cpu").device == torch.device("cpu")
    assert save_and_load(there.cpu(), map_location=npu).device == npu
    assert torch.equal(pickle.loads(pickle.dumps(there)).cpu(), there.cpu())


def test_state_dicts_go_both_ways(npu: torch.device, tmp_path: Path) -> None:
    there, host = nn.Linear(3, 2).to(npu), nn.Linear(3, 2)
    torch.save(there.state_dict(), tmp_path / "weights")
    host.load_state_dict(torch.load(tmp_path / "weights", map_location="cpu"))
    assert torch.equal(host.weight, there.weight.cpu())
    fresh = nn.Linear(3, 2, device=npu)
    fresh.load_state_dict(host.state_dict())
    assert torch.equal(fresh.weight.cpu(), host.weight) and fresh.weight.device == npu
    assert copy.deepcopy(there).weight.device == npu


def test_moving_a_module_keeps_its_parameters(npu: torch.device) -> None:
    module = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    module[1].weight = module[0].weight  # shared
    optimizer = torch.optim.SGD(module.parameters(), lr=0.5)
    before = list(module.parameters())
    for move in (lambda: module.to(npu), module.cpu, module.backplane, lambda: module.to("cpu")):
        move()
        assert all(a is b for a, b in zip(module.parameters(), before, strict=True))
        assert module[0].weight is module[1].weight
    module.to(npu)
    assert optimizer.param_groups[0]["params"][0].device == npu
    old = module[0].weight.detach().cpu().clone()
    module(torch.ones(2, 4, device=npu)).sum().backward()
    optimizer.step()
    assert not torch.equal(module[0].weight.cpu(), old)


# ---- Random numbers


def test_seeds_and_states(npu: torch.device) -> None:
    torch.manual_seed(5)
    expected, following = torch.rand(3), torch.rand(3)
    torch.manual_seed(5)
    first = torch.rand(3, device=npu)
    # The device's stream of numbers is its own: the CPU's has not moved.
    assert torch.equal(torch.rand(3), expected)
    assert torch.equal(first.cpu(), expected)
    with torch.accelerator.device_index(npu.index):
        state = torch.backplane.get_rng_state()
        second = torch.rand(3, device=npu)
        torch.backplane.set_rng_state(state)
    assert torch.equal(second.cpu(), following)
    assert torch.equal(torch.rand(3, device=npu).cpu(), following)


def test_all_states(npu: torch.device) -> None:
    torch.backplane.seed_all()
    states = torch.backplane.get_rng_state_all()
    first = torch.rand(3, device=npu)
    torch.backplane.set_rng_state_all(states)
    assert torch.equal(torch.rand(3, device=npu).cpu(), first.cpu())


def test_streams_and_memory_of_the_module(npu: torch.device) -> None:
    module = torch.backplane
    with torch.accelerator.device_index(npu.index):
        default, other = module.default_stream(), torch.Stream(npu)
        with module.stream(other), module.stream(None):
            assert module.current_stream() == other
        assert module.current_stream() == default == module.default_stream(npu)
        module.set_stream(other)
        assert module.current_stream() == other
        module.set_stream(default)
        before = module.memory_allocated()
        held = torch.zeros(1024, device=npu)
        assert module.memory_allocated() - before == held.nbytes
        assert module.max_memory_allocated() >= before + held.nbytes
        free, total = module.mem_get_info()  # zeros where the plugin names no size
        assert free <= total
    assert module.is_bf16_supported()


def test_generators_of_the_device(npu: torch.device) -> None:
    generator = torch.Generator(device=npu)
    assert generator.device == npu
    drawn = [torch.randn(4, device=npu, generator=generator.manual_seed(3)).cpu() for _ in range(2)]
    assert torch.equal(drawn[0], drawn[1])
    order = torch.randperm(50, device=npu, generator=generator)
    assert order.sort()[0].cpu().tolist() == list(range(50))


def test_dropout_and_recomputation_agree(npu: torch.device) -> None:
    there = torch.ones(64, device=npu, requires_grad=True)
    kept: list[torch.Tensor] = []

    def block(x: torch.Tensor) -> torch.Tensor:
        y = F.dropout(x * 2, 0.5)
        kept.append(y.detach().cpu())
        return y

    checkpoint(block, there, use_reentrant=False).sum().backward()
    assert 0 < (kept[0] == 0).sum() < 64
    assert torch.equal(there.grad.cpu(), kept[0])


# ---- Autograd


def test_gradients_equal_those_of_the_cpu(npu: torch.device) -> None:
    def loss(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return (F.gelu(x @ w).softmax(-1)[:, 1:] ** 2).sum() + w.abs().mean()

    hosts = [torch.randn(5, 4, requires_grad=True), torch.randn(4, 6, requires_grad=True)]
    theres = [t.detach().to(npu).requires_grad_() for t in hosts]
    loss(*hosts).backward()
    loss(*theres).backward()
    for host, there in zip(hosts, theres, strict=True):
        close(there.grad, host.grad)


def test_second_derivatives_and_transforms(npu: torch.device) -> None:
    x = torch.randn(4)
    there = x.to(npu)
    cube = lambda t: (t**3).sum()  # noqa: E731
    close(torch.func.hessian(cube)(there), torch.func.hessian(cube)(x))
    close(
        torch.func.vmap(lambda t: t * t.sum())(there.view(2, 2)),
        torch.func.vmap(lambda t: t * t.sum())(x.view(2, 2)),
    )


def test_a_write_to_a_saved_tensor_is_noticed(npu: torch.device) -> None:
    weight = torch.ones(3, device=npu, requires_grad=True)
    hidden = weight * 2
    loss = (hidden * hidden).sum()
    hidden.data.add_(0)  # hidden from the version counter, as everywhere
    hidden.detach().add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


# ---- Layers


LAYERS = {
    "lstm": (lambda: nn.LSTM(6, 5, num_layers=2, bidirectional=True), (7, 3, 6)),
    "gru": (lambda: nn.GRU(6, 5), (7, 3, 6)),
    "rnn": (lambda: nn.RNN(6, 5), (7, 3, 6)),
    "conv": (
        lambda: nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(inplace=True), nn.MaxPool2d(2)),
        (2, 3, 9, 9),
    ),
    "attention": (lambda: nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0), (5, 2, 8)),
    "embedding_norm": (lambda: nn.Sequential(nn.LayerNorm(6), nn.Linear(6, 3)), (4, 6)),
}


@pytest.mark.parametrize("layer", LAYERS)
def test_layers_train_as_on_the_cpu(npu: torch.device, layer: str) -> None:
    make, shape = LAYERS[layer]
    host = make()
    there = copy.deepcopy(host).to(npu)
    x = torch.randn(shape)
    results = []
    for module, value in ((host, x), (there, x.to(npu))):
        value = value.clone().requires_grad_()
        out = module(value)
        out = out[0] if isinstance(out, tuple) else out
        out.square().mean().backward()
        results.append([out.detach(), value.grad, *(p.grad for p in module.parameters())])
    for expected, actual in zip(*results, strict=True):
        close(actual, expected)


def test_batch_norm_keeps_its_statistics(npu: torch.device) -> None:
    host = nn.BatchNorm2d(3)
    there = copy.deepcopy(host).to(npu)
    for _ in range(3):
        x = torch.randn(4, 3, 5, 5)
        close(there(x.to(npu)), host(x))
    close(there.running_mean, host.running_mean)
    close(there.running_var, host.running_var)
    assert there.num_batches_tracked.item() == 3
    host.eval()
    there.eval()
    x = torch.randn(4, 3, 5, 5)
    close(there(x.to(npu)), host(x))


# ---- AMP


def test_autocast(npu: torch.device) -> None:
    layer = nn.Linear(8, 4).to(npu)
    with torch.autocast("backplane"):
        low = layer(torch.randn(2, 8, device=npu))
        high = low.softmax(-1)
    assert low.dtype == torch.bfloat16 and high.dtype == torch.float32
    high.square().sum().backward()
    assert layer.weight.grad.dtype == torch.float32


def test_cross_entropy_of_bits_is_unsafe_to_autocast(npu: torch.device) -> None:
    bits = torch.rand(4, device=npu)
    with torch.autocast("backplane"), pytest.raises(RuntimeError, match="unsafe to autocast"):
        nn.functional.binary_cross_entropy(bits, bits)


def test_grad_scaler_skips_an_overflow(npu: torch.device) -> None:
    layer = nn.Linear(4, 1).to(npu)
    before = layer.weight.detach().cpu().clone()
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("backplane", init_scale=4.0)
    for value, moves in ((float("inf"), False), (1.0, True)):
        optimizer.zero_grad()
        scaler.scale(layer(torch.full((2, 4), value, device=npu)).sum()).backward()
        scaler.step(optimizer)
        scaler.update()
        assert torch.equal(layer.weight.detach().cpu(), before) != moves
    assert scaler.get_scale() == 2.0


# ---- Optimizers


OPTIMIZERS = {
    "adamw": lambda p: torch.optim.AdamW(p, lr=1e-2),
    "adamw_single": lambda p: torch.optim.AdamW(p, lr=1e-2, foreach=False, amsgrad=True),
    "adamw_fused": lambda p: torch.optim.AdamW(p, lr=1e-2, fused=True),
    "adam_fused": lambda p: torch.optim.Adam(
        p, lr=torch.tensor(1e-2), weight_decay=0.1, amsgrad=True, maximize=True, fused=True
    ),
    "sgd": lambda p: torch.optim.SGD(p, lr=1e-2, momentum=0.9, weight_decay=0.1),
    "sgd_fused": lambda p: torch.optim.SGD(
        p, lr=1e-2, momentum=0.9, weight_decay=0.1, dampening=0.1, fused=True
    ),
    "nesterov_fused": lambda p: torch.optim.SGD(
        p, lr=1e-2, momentum=0.9, nesterov=True, fused=True
    ),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=1e-2),
    "adagrad": lambda p: torch.optim.Adagrad(p, lr=1e-2),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optimizers_follow_those_of_the_cpu(npu: torch.device, name: str) -> None:
    host = nn.Linear(5, 3)
    there = copy.deepcopy(host).to(npu)
    x = torch.randn(8, 5)
    on_host, on_device = (OPTIMIZERS[name](m.parameters()) for m in (host, there))
    for _ in range(6):
        for module, optimizer, value in ((host, on_host, x), (there, on_device, x.to(npu))):
            optimizer.zero_grad()
            module(value).square().mean().backward()
            nn.utils.clip_grad_norm_(module.parameters(), 1.0)
            with counting() as found:
                optimizer.step()
    close(there.weight.detach(), host.weight.detach())
    if name.endswith("_fused"):
        assert not found["eager_fallbacks"] and not found["device_to_host_bytes"]


@pytest.mark.parametrize("fused", [False, True])
def test_a_fused_step_with_an_overflow_changes_nothing(fused: bool) -> None:
    npu = torch_backplane.device("reference")
    host = nn.Linear(4, 1)
    there = copy.deepcopy(host).to(npu)
    optimizers = [torch.optim.AdamW(m.parameters(), lr=0.1, fused=fused) for m in (host, there)]
    scalers = [torch.amp.GradScaler(kind, init_scale=4.0) for kind in ("cpu", "backplane")]
    for value in (1.0, float("inf"), 2.0):
        for module, optimizer, scaler in zip((host, there), optimizers, scalers, strict=True):
            optimizer.zero_grad()
            x = torch.full((2, 4), value, device=module.weight.device)
            scaler.scale(module(x).sum()).backward()
            scaler.step(optimizer)
            scaler.update()
        close(there.weight.detach(), host.weight.detach())


def test_a_step_size_that_changes_needs_no_new_executable() -> None:
    npu = torch_backplane.device("reference")
    weight, gradient = torch.ones(4, device=npu), torch.full((4,), 0.5, device=npu)
    expected = torch.ones(4)
    with counting() as found:
        for step in range(1, 200):
            weight.add_(gradient, alpha=-1.0 / step)
            weight.mul_(1 - 1e-3 * step)
            expected.add_(torch.full((4,), 0.5), alpha=-1.0 / step).mul_(1 - 1e-3 * step)
    close(weight, expected)
    assert found["eager_plugin_ops"] == 2 * 199 and not found["eager_fallbacks"]
    from torch_backplane import _C

    before = _C.operation_count()
    weight.add_(gradient, alpha=0.123).mul_(0.77)
    assert _C.operation_count() == before


def test_operators_of_many_sizes_are_not_kept_for_ever() -> None:
    """As many as are wanted, whoever asks for them from several threads at once."""
    program = """
import threading, torch, torch_backplane
from torch_backplane import _C

npu, most = torch_backplane.device("reference", 0), 0

def sizes(first):
    global most
    for n in range(first, first + 150):
        x = torch.arange(float(n), device=npu)
        y = (x + x).neg().cpu()
        torch.testing.assert_close(y, -2 * torch.arange(float(n)))
        most = max(most, _C.operation_count())

threads = [threading.Thread(target=sizes, args=(first,)) for first in (1, 100, 200)]
for thread in threads: thread.start()
for thread in threads: thread.join()
assert 8 <= most <= 64, most
sizes(1)
print("done", most)
"""
    said = run_python(program, {"BACKPLANE_DEVICE_OPERATIONS": "64"})
    assert said.returncode == 0, said.stderr
    assert "done" in said.stdout


# ---- The accelerator's API


def test_current_device_and_contexts(npu: torch.device) -> None:
    accelerator = torch.accelerator
    assert accelerator.current_accelerator() == torch.device("backplane")
    assert accelerator.is_available() and accelerator.device_count() >= 1
    with accelerator.device_index(npu.index):
        assert accelerator.current_device_index() == npu.index
        assert torch.empty(1, device="backplane").device == npu
    with torch.backplane.device(npu):
        assert torch.empty(1, device="backplane").device == npu
    with torch.device(npu):
        assert torch.ones(1).device == npu


def test_streams_and_events(npu: torch.device) -> None:
    stream = torch.Stream(device=npu)
    start, end = (torch.Event(device=npu, enable_timing=True) for _ in range(2))
    with stream:
        assert torch.accelerator.current_stream() == stream
        start.record()
        there = torch.ones(64, 64, device=npu)
        for _ in range(5):
            there = there @ there / 64
        end.record()
    assert torch.accelerator.current_stream(npu) != stream
    torch.accelerator.current_stream(npu).wait_event(end)
    end.synchronize()
    stream.synchronize()
    torch.accelerator.synchronize(npu)
    assert end.query() and stream.query() and start.elapsed_time(end) >= 0
    assert there.cpu().unique().tolist() == [1.0]
    untimed = torch.Event(device=npu)
    untimed.record()
    with pytest.raises(ValueError, match="enable_timing"):
        untimed.elapsed_time(untimed)


def test_pinned_memory_and_loaders(npu: torch.device) -> None:
    pinned = torch.randn(6, 2).pin_memory()
    assert pinned.is_pinned() and not torch.randn(2).is_pinned()
    assert torch.equal(pinned.to(npu, non_blocking=True).cpu(), pinned)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        batches = list(DataLoader(TensorDataset(pinned), batch_size=2, pin_memory=True))
    assert all(batch.is_pinned() for (batch,) in batches)
    assert torch.equal(torch.cat([b.to(npu) for (b,) in batches]).cpu(), pinned)


def test_what_the_device_does_not_hold_is_said(npu: torch.device) -> None:
    with pytest.raises(TypeError, match=r"Use Tensor\.cpu"):
        torch.ones(2, device=npu).numpy()
    with pytest.raises(NotImplementedError, match="has no sparse tensors"):
        torch.ones(2, 2, device=npu).to_sparse()


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64])
def test_histograms_count_integers(npu: torch.device, dtype: torch.dtype) -> None:
    """As every accelerator's do, by which programs choose (mixtures of experts in transformers); the
    CPU's do not."""
    x = torch.tensor([0, 3, 3, 7, 1, 100, 3], dtype=dtype)
    for bins, low, high in ((8, 0, 7), (3, 1, 10), (4, 0, 0)):
        counts = torch.histc(x.to(npu), bins, low, high)
        assert counts.device == npu and counts.dtype == dtype
        torch.testing.assert_close(counts.cpu(), torch.histc(x.double(), bins, low, high).to(dtype))
    with pytest.raises(NotImplementedError):
        torch.histc(x.to(npu).bool(), 2)


def test_an_error_of_the_users_is_pytorchs_own(npu: torch.device) -> None:
    there = torch.ones(2, 3, device=npu)
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        there @ there
    with pytest.raises(RuntimeError, match="can't be cast"):
        torch.ones(2, dtype=torch.int64, device=npu).add_(0.5)
    with pytest.raises(IndexError):
        there.sum(5)


UNKNOWN: dict[str, Callable[[], Any]] = {
    "current stream": lambda: torch.backplane.current_stream(127),
    "of torch": lambda: torch.accelerator.current_stream(63),
    "default stream": lambda: torch.backplane.default_stream(70),
    "new stream": lambda: torch.Stream(device="backplane:63"),
    "context": lambda: torch.backplane.device(63).__enter__(),
    "exchange": lambda: torch.backplane._exchange_device(999),
    "set": lambda: torch.backplane.set_device(999),
    "name": lambda: torch.backplane.get_device_name(63),
    "properties": lambda: torch.backplane.get_device_properties(256),
    "generator": lambda: torch.Generator("backplane:63"),
    "state": lambda: torch.backplane.get_rng_state(63),
}


@pytest.mark.parametrize("name", UNKNOWN)
def test_a_device_that_there_is_not_is_named(name: str, npu: torch.device) -> None:
    before = torch.accelerator.current_device_index()
    with pytest.raises(RuntimeError, match=r"no device backplane:.*; backplane:0 is "):
        UNKNOWN[name]()
    assert torch.accelerator.current_device_index() == before


def test_generators_are_copied_and_pickled(npu: torch.device) -> None:
    generator = torch.Generator(npu).manual_seed(7)
    torch.rand(3, device=npu, generator=generator)
    copies = [copy.deepcopy(generator), pickle.loads(pickle.dumps(generator))]
    expected = torch.rand(3, device=npu, generator=generator).cpu()
    for made in copies:
        assert made.device == npu
        assert torch.equal(torch.rand(3, device=npu, generator=made).cpu(), expected)


def test_generators_share_a_state(npu: torch.device) -> None:
    generator, other = torch.Generator(npu).manual_seed(7), torch.Generator(npu)
    other.graphsafe_set_state(generator.graphsafe_get_state())
    drawn = [torch.rand(3, device=npu, generator=g).cpu() for g in (generator, other)]
    assert not torch.equal(*drawn)
    generator.manual_seed(7)
    assert torch.equal(torch.rand(3, device=npu, generator=other).cpu(), drawn[0])
    with pytest.raises(RuntimeError, match="another device"):
        generator.graphsafe_set_state(torch.Generator())
