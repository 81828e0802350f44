"""What a forward saves for its backward alone stays in the memory of a device that has its own."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch_backplane
from autograd.helpers import Recorded, record
from compiling import moved, run_python
from torch_backplane import _C

PLUGIN = "reference"
DEVICE = f"{PLUGIN}:0"


@pytest.fixture(autouse=True)
def loaded() -> None:
    torch_backplane.plugins()


def program(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return (x @ w).exp().tanh().softmax(-1)


def arguments(rows: int = 12) -> list[torch.Tensor]:
    torch.manual_seed(0)
    return [torch.randn(rows, 8, requires_grad=True), torch.randn(8, 16, requires_grad=True)]


def live_bytes() -> int:
    return _C.device_counters(PLUGIN, 0)["live_bytes"]


def saved_bytes(leaves: list[torch.Tensor]) -> tuple[int, int]:
    """Of arguments, and of what the forward computes."""
    saved = _C.record(program, leaves).cut().saved
    return tuple(
        sum(s["bytes"] for s in saved if s["is_argument"] is kind) for kind in (True, False)
    )


def gradients(run: Callable[..., Any], leaves: list[torch.Tensor]) -> list[torch.Tensor]:
    result = run(*leaves)
    result = result if isinstance(result, torch.Tensor) else result[0]
    return list(torch.autograd.grad(result, leaves, torch.arange(16.0).expand_as(result)))


def check_gradients(function: Recorded, leaves: list[torch.Tensor]) -> None:
    for actual, expected in zip(
        gradients(function, leaves), gradients(program, leaves), strict=True
    ):
        torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-6)


def test_no_saved_byte_crosses() -> None:
    leaves = arguments()
    of_arguments, computed = saved_bytes(leaves)
    assert of_arguments and computed
    function = record(program, 2, PLUGIN)
    function(*leaves)
    torch_backplane.reset()
    (result,) = function(*leaves)
    own = sum(t.nbytes for t in leaves)
    # The result is saved as well, and is the program's.
    assert moved(DEVICE) == {
        "host_to_device input": own,
        "device_to_host output": result.nbytes,
    }
    torch_backplane.reset()
    found = torch.autograd.grad(result, leaves, torch.ones_like(result))
    crossed = moved(DEVICE)
    assert crossed.pop("device_to_host output") == sum(t.nbytes for t in found)
    assert crossed == {"host_to_device input": of_arguments + 2 * result.nbytes}
    assert computed > result.nbytes, "nothing but the result was saved"
    check_gradients(function, leaves)


def test_memory_goes_with_the_backward() -> None:
    """In a process of its own: a device keeps memory that the graphs of other tests had."""
    tests = str(Path(__file__).parents[1])
    paths = os.pathsep.join([tests, *filter(None, [os.environ.get("PYTHONPATH")])])
    code = "from autograd import test_saved_on_device as this; this.look_at_memory()"
    ran = run_python(code, {"PYTHONPATH": paths})
    assert ran.returncode == 0, ran.stderr


def look_at_memory() -> None:
    torch_backplane.plugins()
    function = record(program, 2, PLUGIN)
    leaves = arguments(256)
    kept = []
    sizes = []
    for _ in range(6):
        (result,) = function(*leaves)
        result.sum().backward()
        kept.append(result)  # its node lives on, what it saved does not
        sizes.append(live_bytes())
    assert sizes[1:] == sizes[:1] * 5
    held = [function(*leaves) for _ in range(6)]
    assert live_bytes() > sizes[0]
    most = live_bytes()
    del held
    again = [function(*leaves) for _ in range(6)]
    assert live_bytes() == most and again


def test_a_kept_graph_is_differentiated_again() -> None:
    function, leaves = record(program, 2, PLUGIN), arguments()
    (result,) = function(*leaves)
    first = torch.autograd.grad(result, leaves, torch.ones_like(result), retain_graph=True)
    second = torch.autograd.grad(result, leaves, torch.ones_like(result))
    for a, b in zip(first, second, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=0)
    with pytest.raises(RuntimeError, match="second time"):
        torch.autograd.grad(result, leaves, torch.ones_like(result))


def test_hooks_see_tensors_on_the_host() -> None:
    function, leaves = record(program, 2, PLUGIN), arguments()
    (result,) = function(*leaves)
    seen: list[torch.Tensor] = []

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        assert tensor.device.type == "cpu" and tensor.isfinite().all()
        seen.append(tensor)
        return tensor.clone()

    expected = gradients(program, leaves)
    torch_backplane.reset()
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda packed: packed):
        actual = gradients(function, leaves)
    for ours, theirs in zip(actual, expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-6)
    shared = {t.untyped_storage().data_ptr() for t in leaves}
    # Of the program's own are the arguments and the result, which is saved as well.
    computed = [t for t in seen if t.untyped_storage().data_ptr() not in shared]
    kept = sum(t.nbytes for t in computed) - result.nbytes
    crossed = moved(DEVICE)
    assert kept > 0
    assert crossed["device_to_host saved"] == crossed["host_to_device saved"] == kept
    with torch.autograd.graph.save_on_cpu():
        check_gradients(function, leaves)


def test_a_written_argument_is_an_error() -> None:
    function, (x, w) = record(program, 2, PLUGIN), arguments()
    (result,) = function(x, w)
    with torch.no_grad():
        w.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        result.sum().backward()


def test_gradients_of_gradients() -> None:
    function, leaves = record(program, 2, PLUGIN), arguments()
    found = []
    for run in (lambda *a: function(*a)[0], program):
        first = torch.autograd.grad(run(*leaves).square().sum(), leaves, create_graph=True)
        found.append(torch.autograd.grad(sum(g.square().sum() for g in first), leaves))
    for actual, expected in zip(*found, strict=True):
        torch.testing.assert_close(actual, expected, rtol=1e-3, atol=1e-5)


def test_backward_in_another_thread() -> None:
    function, leaves = record(program, 2, PLUGIN), arguments()
    (result,) = function(*leaves)
    thread = threading.Thread(target=lambda: result.square().sum().backward())
    thread.start()
    thread.join()
    expected = torch.autograd.grad(program(*leaves).square().sum(), leaves)
    for leaf, gradient in zip(leaves, expected, strict=True):
        torch.testing.assert_close(leaf.grad, gradient, rtol=1e-4, atol=1e-6)


def test_what_the_cpu_makes_stays_there() -> None:
    def mixed(x: torch.Tensor) -> torch.Tensor:
        inverse = torch.linalg.inv_ex(x)[0]  # no plugin's
        return (inverse * 2).sin().exp()

    function = record(mixed, 1, PLUGIN)
    x = (torch.eye(4) * 3 + torch.rand(4, 4)).requires_grad_()
    function(x)
    torch_backplane.reset()
    (gradient,) = torch.autograd.grad(function(x)[0].sum(), x)
    torch.testing.assert_close(
        gradient, torch.autograd.grad(mixed(x).sum(), x)[0], rtol=1e-4, atol=1e-5
    )
    assert not {"device_to_host saved", "host_to_device saved"} & set(moved(DEVICE))


def test_the_device_is_not_taken_for_it() -> None:
    """PyTorch's slot for a device is taken on request only; other tests of this process may have."""
    before = _C.device_count()
    check_gradients(record(program, 2, PLUGIN), arguments())
    assert _C.device_count() == before


def test_saved_values_are_laid_out_anew_without_the_torch_device() -> None:
    """In a process of its own: PyTorch knows no copy between such tensors there."""
    code = (
        "import torch, torch_backplane\n"
        "run = torch.compile(torch.angle, backend='plugin:reference', options={'report': False})\n"
        "x = torch.tensor([-1.0, 2.0], requires_grad=True)\n"
        "run(x).sum().backward()\n"
        "assert x.grad.tolist() == [0.0, 0.0]\n"
    )
    done = run_python(code)
    assert done.returncode == 0, done.stderr
