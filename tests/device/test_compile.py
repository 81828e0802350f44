"""Compiled graphs take and return tensors of the device where they are."""

from __future__ import annotations

import copy

import pytest
import torch
import torch_backplane
from autograd.helpers import Recorded
from compiling import backplane_error, compile_for, mlp
from device.helpers import PLUGINS, close, counting
from torch import nn
from torch_backplane import _C


@pytest.fixture(params=PLUGINS)
def plugin(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def npu(plugin: str) -> torch.device:
    return torch_backplane.device(plugin, 0)


def test_nothing_moves_in_inference(plugin: str, npu: torch.device) -> None:
    host = mlp()
    there = compile_for(plugin, copy.deepcopy(host).to(npu))
    x = torch.randn(5, 16)
    on_device = x.to(npu)
    with torch.no_grad():
        there(on_device)
        with counting() as found:
            for _ in range(3):
                result = there(on_device)
        close(result, host(x))
    assert found["calls"] == 3 and not found["eager_plugin_ops"]
    assert found["host_to_device_bytes"] == found["device_to_host_bytes"] == 0


def test_outputs_on_both_sides(plugin: str, npu: torch.device) -> None:
    def both(a: torch.Tensor, host: torch.Tensor) -> tuple[torch.Tensor, ...]:
        b = a * 2
        return b, b.cpu() + 1, (a + host.to(a.device))[1:], a, b.t(), host + 1

    x, y = torch.randn(3, 4), torch.randn(3, 4)
    results = compile_for(plugin, both)(x.to(npu), y)
    expected = both(x, y)
    for actual, wanted, kind in zip(
        results,
        expected,
        ("backplane", "cpu", "backplane", "backplane", "backplane", "cpu"),
        strict=True,
    ):
        assert actual.device.type == kind
        torch.testing.assert_close(actual.cpu(), wanted)


def test_unaligned_views_and_changed_strides(plugin: str, npu: torch.device) -> None:
    compiled = compile_for(plugin, lambda t: t.relu() + 1)
    x = torch.randn(9, 10)
    there = x.to(npu)
    for view in (lambda t: t[1:], lambda t: t[1:, :].t(), lambda t: t.reshape(-1)[3:33].view(5, 6)):
        close(compiled(view(there)), view(x).relu() + 1)


def test_sizes_that_change(plugin: str, npu: torch.device) -> None:
    compiled = compile_for(plugin, lambda t: (t @ t.t()).softmax(-1), dynamic=True)
    for size in (3, 7, 12, 7):
        x = torch.randn(size, 4)
        close(compiled(x.to(npu)), (x @ x.t()).softmax(-1))


def test_fallback_nodes_between(plugin: str, npu: torch.device) -> None:
    def program(t: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        a = t * 2
        return torch.linalg.inv_ex(a)[0] + t, torch.sort(a, stable=True)[0]

    x = torch.randn(4, 4)
    for actual, expected in zip(compile_for(plugin, program)(x.to(npu)), program(x), strict=True):
        torch.testing.assert_close(actual.cpu(), expected, rtol=1e-4, atol=1e-4)
        assert actual.device == npu


def test_tensors_made_in_the_graph(plugin: str, npu: torch.device) -> None:
    def program(t: torch.Tensor) -> torch.Tensor:
        table = torch.tensor([1.0, 2.0, 4.0], device=t.device)
        return t + torch.arange(3, device=t.device) * table + torch.ones_like(t)

    x = torch.randn(2, 3)
    close(compile_for(plugin, program, fullgraph=True)(x.to(npu)), program(x))


def test_draws_are_those_of_eager(plugin: str, npu: torch.device) -> None:
    def program(t: torch.Tensor) -> tuple[torch.Tensor, ...]:
        dropped = nn.functional.dropout(t, 0.3)
        return dropped, torch.rand_like(t), torch.bernoulli(t.sigmoid()), dropped * 2

    x = torch.randn(50, 8).to(npu)
    found = []
    for run in (program, compile_for(plugin, program)):
        torch.manual_seed(7)
        leaf = x.clone().requires_grad_()
        results = run(leaf)
        results[-1].sum().backward()
        found.append([t.detach().cpu() for t in (*results, leaf.grad)])
    for actual, expected in zip(*found, strict=True):
        torch.testing.assert_close(actual, expected, rtol=0, atol=0)
    assert 0.1 < (found[0][0] == 0).float().mean() < 0.5


def test_numbers_on_the_cpu_beside_tensors(plugin: str, npu: torch.device) -> None:
    def program(t: torch.Tensor, scale: torch.Tensor, where: torch.Tensor) -> torch.Tensor:
        return (t * scale + t.new_ones(3))[where] + torch.full((), 2.0)

    x, scale, where = torch.randn(4, 3), torch.tensor(3.0), torch.tensor([2, 0])
    wanted, actual = [], []
    for values, into in (((x, scale), wanted), ((x.to(npu), scale), actual)):
        leaves = [v.clone().requires_grad_() for v in values]
        run = program if into is wanted else compile_for(plugin, program)
        with counting() as found:
            result = run(*leaves, where)
            result.square().sum().backward()
        into += [result.detach(), *(leaf.grad for leaf in leaves)]
    assert found["aot_graphs"] == 0 and found["recordings"] > 0
    assert [t.device.type for t in actual] == ["backplane", "backplane", "cpu"]
    for a, e in zip(actual, wanted, strict=True):
        torch.testing.assert_close(a.cpu(), e, rtol=2e-5, atol=2e-6)


def test_two_devices_in_one_operator_are_the_users_error(plugin: str, npu: torch.device) -> None:
    there, here = torch.ones(3, device=npu), torch.ones(3)
    with pytest.raises(RuntimeError, match="device"):
        compile_for(plugin, lambda a, b: a + b)(there, here)
    recorded = _C.record(lambda a, b: a * 2 + b, [there, here])
    assert not recorded.ok and "aten.add.Tensor reads tensors of two devices" in recorded.reason


def test_a_device_without_index_is_the_current_one() -> None:
    indices = [torch_backplane.device(name) for name in ("reference", "cpu_onednn")]
    recorded = Recorded(lambda x: torch.ones(2, device="backplane") + x, 1, "reference").function
    for index in indices:
        with torch.accelerator.device_index(index.index):
            assert recorded(torch.tensor(1.0)) is None, "made for another device"
            if index == indices[0]:
                recorded.add(torch.tensor(1.0))
                (result,) = recorded(torch.tensor(1.0))
                assert result.device == index
            else:
                with pytest.raises(_C.StatusError, match="not compiled for it"):
                    recorded.add(torch.tensor(1.0))


def test_mutation_in_the_graph(plugin: str, npu: torch.device) -> None:
    def program(t: torch.Tensor, buffer: torch.Tensor) -> torch.Tensor:
        buffer.mul_(0.5).add_(t.sum(0))
        t[1:].zero_()
        return buffer * 2

    hosts = [torch.randn(3, 4), torch.randn(4)]
    theres = [t.to(npu) for t in hosts]
    close(compile_for(plugin, program)(*theres), program(*hosts))
    for there, host in zip(theres, hosts, strict=True):
        close(there, host)


def test_training_equals_the_cpu(plugin: str, npu: torch.device) -> None:
    host = nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(36, 5)
    )
    module = copy.deepcopy(host).to(npu)
    there = compile_for(plugin, module)
    x = torch.randn(2, 3, 5, 5)
    for model, value in ((host, x), (there, x.to(npu))):
        model(value).square().mean().backward()
    for actual, expected in zip(module.parameters(), host.parameters(), strict=True):
        close(actual.grad, expected.grad)
    close(module[1].running_mean, host[1].running_mean)


def test_an_index_is_its_plugins(plugin: str, npu: torch.device) -> None:
    other = next(name for name in PLUGINS if name != plugin)
    with pytest.raises(Exception, match="BP-0110") as raised:
        compile_for(other, lambda t: t + 1)(torch.ones(2, device=npu))
    error = backplane_error(raised.value)
    assert error.code == "BP-0110" and f"{plugin}:0" in str(error) and other in str(error)


@pytest.mark.parametrize("strict", [False, True])
def test_an_index_is_its_plugins_at_the_own_door(
    plugin: str, npu: torch.device, strict: bool
) -> None:
    other = next(name for name in PLUGINS if name != plugin)
    compiled = torch_backplane.compile(
        lambda t: t + 1, backend=f"plugin:{other}", strict=strict, options={"report": False}
    )
    with pytest.raises(torch_backplane.BackplaneError, match="BP-0110") as raised:
        compiled(torch.ones(2, device=npu))
    assert f"{plugin}:0" in str(raised.value)


def test_tensors_of_two_devices_in_one_graph() -> None:
    first, second = (torch_backplane.device(name) for name in ("reference", "cpu_onednn"))
    with pytest.raises(Exception, match="BP-0110"):
        compile_for("reference", lambda a, b: (a + 1, b + 1))(
            torch.ones(2, device=first), torch.ones(2, device=second)
        )


def test_random_numbers_of_a_back_end_that_takes_fx(npu: torch.device) -> None:
    """Making its graph draws nothing."""

    def function(t: torch.Tensor) -> torch.Tensor:
        return t * torch.rand(3, device=t.device)

    compiled = torch_backplane.compile(function, backend=lambda graph, _: graph.forward)
    there = torch.ones(3, device=npu)
    drawn = []
    for run in (function, compiled):
        torch.manual_seed(7)
        drawn.append([run(there).tolist() for _ in range(3)])
    assert drawn[0] == drawn[1]
