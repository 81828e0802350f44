"""Weights stay on the device; what crosses is counted to the byte; changed weights are noticed."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable

import pytest
import torch
import torch_backplane
from compiling import PLUGINS, close, compile_for, mlp, moved
from models import zoo
from torch import nn


def size(tensors: Iterable[torch.Tensor]) -> int:
    return sum({t.data_ptr(): t.nbytes for t in tensors}.values())


def test_inference_moves_inputs_and_outputs_only() -> None:
    case = zoo.case("bert")
    model, inputs = case.build(), case.inputs()
    with torch.no_grad():
        compiled = compile_for("reference", model)
        torch_backplane.plugins()
        compiled(**inputs)
        torch_backplane.reset()
        output = compiled(**inputs).logits  # the first call after a reset packs anew
        first = moved()
        call = {
            "host_to_device input": size(inputs.values()),
            "device_to_host output": output.nbytes,
        }
        weights = {**first}.pop("host_to_device weight")
        assert first == {**call, "host_to_device weight": weights}
        # Position ids and the like are constants of the graph or buffers: small, but not floats.
        parameters = size(model.parameters())
        assert parameters <= weights <= parameters + size(model.buffers())
        for calls in range(2, 5):
            compiled(**inputs)
            assert moved() == {
                "host_to_device weight": weights,
                **{way: calls * amount for way, amount in call.items()},
            }


def test_weights_are_shared_by_graphs() -> None:
    model = mlp().requires_grad_(False)
    torch_backplane.reset()
    compiled = [compile_for("reference", f) for f in (model, lambda x: model(x) * 2)]
    for run in compiled:
        run(torch.randn(4, 16))
    assert moved()["host_to_device weight"] == size(model.parameters())


def test_memory_is_given_back() -> None:
    torch_backplane.reset()
    live = torch_backplane.stats()["transfers"]["reference:0"]["live_bytes"]
    for _ in range(3):
        model = mlp(hidden=256).requires_grad_(False)
        compiled = compile_for("reference", model)
        compiled(torch.randn(4, 16))
        del model, compiled
        torch._dynamo.reset()
    torch_backplane.reset()
    counters = torch_backplane.stats()["transfers"]["reference:0"]
    assert counters["live_bytes"] <= live
    assert torch_backplane.stats()["resident_weight_bytes"] == 0


# --- weights that change -------------------------------------------------------------------------


def optimizer_step(model: nn.Sequential) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    with torch.enable_grad():
        model(torch.randn(4, 16)).square().sum().backward()
    optimizer.step()


def copy_into(model: nn.Sequential) -> None:
    with torch.no_grad():
        model[0].weight.copy_(torch.randn_like(model[0].weight))


def rebind_data(model: nn.Sequential) -> None:
    model[0].weight.data = torch.randn_like(model[0].weight)


def write_data(model: nn.Sequential) -> None:
    model[0].weight.data.mul_(-1.5)


def write_through_numpy(model: nn.Sequential) -> None:
    model[0].weight.detach().numpy()[:] += 1


def rebind_parameter(model: nn.Sequential) -> None:
    model[0].weight = nn.Parameter(torch.randn_like(model[0].weight), requires_grad=False)


def load_state_dict(model: nn.Sequential) -> None:
    model.load_state_dict({n: torch.randn_like(t) for n, t in model.state_dict().items()})


def load_and_assign(model: nn.Sequential) -> None:
    state = {n: torch.randn_like(t) for n, t in model.state_dict().items()}
    model.load_state_dict(state, assign=True)


def replace_layer(model: nn.Sequential) -> None:
    model[0] = nn.Linear(16, 32)


CHANGES = (
    optimizer_step,
    copy_into,
    rebind_data,
    write_data,
    write_through_numpy,
    rebind_parameter,
    load_state_dict,
    load_and_assign,
    replace_layer,
)


@pytest.mark.parametrize("change", CHANGES, ids=lambda f: f.__name__)
@pytest.mark.parametrize("plugin", PLUGINS)
def test_changed_weights_are_seen(plugin: str, change: Callable[[nn.Sequential], None]) -> None:
    model = mlp()
    compiled = compile_for(plugin, model)
    x = torch.randn(4, 16)

    def exact() -> torch.Tensor:  # float32's own rounding grows in the norm, as hidden values do
        return copy.deepcopy(model).double()(x.double()).float()

    with torch.no_grad():
        for _ in range(3):
            before = compiled(x)
            torch.testing.assert_close(before, exact(), rtol=1e-4, atol=1e-4)
            change(model)
            after = compiled(x)
            torch.testing.assert_close(after, exact(), rtol=1e-4, atol=1e-4)
            assert not torch.allclose(after, before), "the change does not show in the output"


@pytest.mark.parametrize("plugin", PLUGINS)
def test_invalidate(plugin: str) -> None:
    """A write of one value that PyTorch does not count is not always seen at once."""
    model = nn.Linear(256, 256).requires_grad_(False)
    compiled = compile_for(plugin, model)
    x = torch.randn(4, 256)
    compiled(x)
    for row in range(0, 256, 37):
        model.weight.detach().numpy()[row, 33] += 100
        torch_backplane.invalidate(model)
        close(compiled(x), model(x))


@pytest.mark.parametrize("plugin", PLUGINS)
def test_single_elements_of_small_weights(plugin: str) -> None:
    """Up to 64 kB the next call sees any write that PyTorch does not count."""
    model = nn.Sequential(nn.Linear(128, 128), nn.Linear(128, 3)).requires_grad_(False)
    compiled = compile_for(plugin, model)
    x = torch.randn(4, 128)
    for row in range(0, 128, 5):
        close(compiled(x), model(x))
        model[0].weight.detach().numpy()[row, (7 * row) % 128] += 10
        model[1].bias.data[row % 3] -= 10


@pytest.mark.parametrize("plugin", PLUGINS)
def test_single_elements_of_large_weights(plugin: str) -> None:
    """Larger ones are seen within 1024 calls."""
    model = nn.Linear(512, 300).requires_grad_(False)
    compiled = compile_for(plugin, model)
    x = torch.randn(2, 512)
    compiled(x)
    for row in (1, 299):
        model.weight.detach().numpy()[row, 77] += 100
        for _ in range(1025):
            found = compiled(x)
        close(found, model(x))


@pytest.mark.parametrize("plugin", PLUGINS)
def test_inference_tensors(plugin: str) -> None:
    """They count no writes: the next call sees each, whatever their size."""
    with torch.inference_mode():
        model = nn.Linear(512, 300)
        compiled = compile_for(plugin, model)
        x = torch.randn(2, 512)
        for row in (3, 150, 299):
            close(compiled(x), model(x))
            model.weight[row, 77] += 100
        close(compiled(x), model(x))


def test_invalidate_is_for_one_module() -> None:
    first, second = (nn.Linear(16, size).requires_grad_(False) for size in (16, 24))
    compiled = [compile_for("reference", model) for model in (first, second)]
    x = torch.randn(4, 16)
    for call in compiled:
        call(x)
    before = moved()["host_to_device weight"]
    torch_backplane.invalidate(first)
    for call in compiled:
        call(x)
    assert moved()["host_to_device weight"] - before == size(first.parameters())
    torch_backplane.invalidate()
    for call in compiled:
        call(x)
    both = 2 * size(first.parameters()) + size(second.parameters())
    assert moved()["host_to_device weight"] - before == both


def test_pack_weights_off() -> None:
    """A plugin in host memory then reads the weights where they are, whoever wrote them."""
    model = mlp().requires_grad_(False)
    compiled = compile_for("cpu_onednn", model, options={"pack_weights": False})
    x = torch.randn(4, 16)
    for row in range(8):
        torch.testing.assert_close(compiled(x), model(x), rtol=1e-4, atol=1e-4)
        model[0].weight.detach().numpy()[row, 1] += 3


def test_only_the_changed_weight_moves() -> None:
    model = mlp().requires_grad_(False)
    compiled = compile_for("reference", model)
    x = torch.randn(4, 16)
    compiled(x)
    torch_backplane.stats()
    before = moved()["host_to_device weight"]
    model[3].weight.mul_(2)
    close(compiled(x), model(x))
    assert moved()["host_to_device weight"] - before == model[3].weight.nbytes


@pytest.mark.parametrize("plugin", PLUGINS)
def test_two_copies_of_a_model(plugin: str) -> None:
    """Graphs may be shared between modules of one class; their weights must not be."""
    first = mlp().requires_grad_(False)
    second = copy.deepcopy(first)
    second[0].weight.neg_()

    def run(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
        return model(x)

    compiled = compile_for(plugin, run)
    x = torch.randn(4, 16)
    for model in (first, second, first, second):
        close(compiled(model, x), model(x))
