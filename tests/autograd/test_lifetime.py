"""Many calls, many threads: nothing grows, nothing is mixed up."""

from __future__ import annotations

import gc
import resource
import threading
import weakref

import pytest
import torch
from autograd.helpers import record
from threads import run_in_threads
from torch.nn import functional as F
from torch_backplane import _C


def program(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    h = (x @ w).exp()
    return h, h.sum(0)


class Box:
    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor


def resident_bytes() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize()


@pytest.mark.host_memory
@pytest.mark.parametrize("plugin", ["", "cpu_onednn", "reference"])
def test_ten_thousand_calls_do_not_grow(plugin: str) -> None:
    if plugin:
        import torch_backplane

        torch_backplane.plugins()
    function = record(program, 2, plugin)
    x, w = torch.randn(16, 64), torch.randn(64, 64, requires_grad=True)

    def step() -> None:
        h, s = function(x, w)
        (h.mean() + s.mean()).backward()
        w.grad = None

    for _ in range(500):
        step()
    gc.collect()
    objects, memory = len(gc.get_objects()), resident_bytes()
    device = _C.device_counters(plugin, 0)["live_bytes"] if plugin else 0
    for _ in range(10_000 if plugin != "reference" else 1_000):
        step()
    gc.collect()
    assert len(gc.get_objects()) - objects < 100
    # A leak of one saved value a call would be 40 MB.
    assert resident_bytes() - memory < 8 << 20
    if plugin:
        assert _C.device_counters(plugin, 0)["live_bytes"] == device


def test_forward_without_backward_frees_what_it_saved() -> None:
    function = record(program, 2)
    x, w = torch.randn(4, 8), torch.randn(8, 8, requires_grad=True)
    kept: list[weakref.ref[Box]] = []

    def pack(tensor: torch.Tensor) -> Box:
        box = Box(tensor)
        kept.append(weakref.ref(box))
        return box

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda box: box.tensor):
        h, s = function(x, w)
    assert kept and all(box() for box in kept)
    del h, s
    assert not any(box() for box in kept)


def test_saved_values_go_with_the_backward() -> None:
    function = record(lambda x, w: (x * 2) @ w, 2)
    x, w = torch.randn(4, 8, requires_grad=True), torch.randn(8, 8, requires_grad=True)
    (y,) = function(x, w)
    y.sum().backward()
    with pytest.raises(RuntimeError, match="second time"):
        y.sum().backward()


@pytest.mark.parametrize("plugin", ["", "cpu_onednn"])
def test_threads(plugin: str) -> None:
    if plugin:
        import torch_backplane

        torch_backplane.plugins()
    function = record(lambda x, w: F.gelu(x @ w).softmax(-1), 2, plugin)
    w = torch.randn(8, 8)

    def work(seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        for i in range(60):
            x = torch.randn(2 + (i + seed) % 5, 8, generator=generator)
            leaf, other = w.clone().requires_grad_(), w.clone().requires_grad_()
            results = function.function(x, leaf)
            if results is None:
                function.function.add(x, leaf)
                results = function.function(x, leaf)
            expected = F.gelu(x @ other).softmax(-1)
            torch.testing.assert_close(results[0], expected)
            weights = torch.randn(expected.shape, generator=generator)
            results[0].backward(weights)
            expected.backward(weights)
            torch.testing.assert_close(leaf.grad, other.grad, rtol=1e-4, atol=1e-5)

    run_in_threads(work)
    # Five sizes, recorded once each but for threads that met at the same new one.
    assert function.function.counts()["structures"] == 1


def test_backward_from_another_thread() -> None:
    x = torch.randn(3, requires_grad=True)
    (y,) = record(lambda x: x.exp(), 1)(x)
    thread = threading.Thread(target=lambda: y.sum().backward())
    thread.start()
    thread.join(timeout=60)
    torch.testing.assert_close(x.grad, x.detach().exp())


@pytest.mark.parametrize("plugin", ["", "reference"])
def test_gradients_share_no_memory(plugin: str) -> None:
    if plugin:
        import torch_backplane

        torch_backplane.plugins()
    function = record(lambda a, b, c: a + b.view(3) + c, 3, plugin)
    leaves = [torch.zeros(shape, requires_grad=True) for shape in ((3,), (1, 3), (3,))]
    (out,) = function(*leaves)
    out.sum().backward()
    with torch.no_grad():
        leaves[0].grad.mul_(5)
        leaves[1].grad.add_(1)
    assert torch.equal(leaves[2].grad, torch.ones(3))
    assert torch.equal(leaves[1].grad, torch.full((1, 3), 2.0))
