"""Programs that switch inference mode on, or run in it: on the plugin, and with the mode as before."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch_backplane
from compiling import DOORS, compile_for


class Counting(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)
        self.register_buffer("calls", torch.zeros(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls.add_(1)
        return self.linear(x) + self.calls


@torch.inference_mode()
def generate(module: Counting, x: torch.Tensor) -> Any:
    for _ in range(2):
        x = torch.cat([x, module(x)[-1:]])
    return x, module.linear.weight.t()


@torch.inference_mode()
def nested(module: Counting, x: torch.Tensor) -> Any:
    with torch.inference_mode():
        y = module(x)
    with torch.enable_grad():
        return y, module(y)


@torch.inference_mode()
def left_inside(module: Counting, x: torch.Tensor) -> Any:
    with torch.inference_mode(False):
        z = module(x)
    return z * 2


def plain(module: Counting, x: torch.Tensor) -> Any:
    return module(x)


def saved_for_backward(module: Counting, x: torch.Tensor) -> Any:
    with torch.inference_mode():
        z = module(x)
    return z * module.linear.weight.sum()


def outcomes(called: Callable[..., Any], within: bool) -> Any:
    torch.manual_seed(0)
    module = Counting()
    for rows in (2, 3, 2):
        with torch.inference_mode(within):
            try:
                result = called(module, torch.ones(rows, 4))
            except RuntimeError as error:
                yield str(error)
                continue
        assert not torch.is_inference_mode_enabled()
        assert torch.is_grad_enabled()
        for tensor in result if isinstance(result, tuple) else (result,):
            yield tensor.detach().clone(), tensor.requires_grad, tensor.is_inference()
        yield module.calls.clone()


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("within", (False, True))
@pytest.mark.parametrize("program", (generate, nested, plain))
def test_runs_on_the_plugin(program: Callable[..., Any], within: bool, door: str) -> None:
    torch._dynamo.reset()
    torch_backplane.reset()
    expected = list(outcomes(program, within))
    actual = list(outcomes(compile_for("reference", program, door), within))
    torch.testing.assert_close(actual, expected)
    stats = torch_backplane.stats()
    assert (stats["eager_graphs"], stats["eager_calls"], stats["aot_graphs"]) == (0, 0, 0)


@pytest.mark.parametrize("program", (left_inside, saved_for_backward))
def test_the_mode_ends_with_the_call(program: Callable[..., Any]) -> None:
    """Also where PyTorch runs it. Of ``left_inside`` the plugin's results are no inference tensors."""
    torch._dynamo.reset()
    expected = list(outcomes(program, False))
    actual = list(outcomes(compile_for("reference", program, "torch"), False))
    for one, other in zip(actual, expected, strict=True):
        if isinstance(other, str):
            assert one == other
        else:
            torch.testing.assert_close(one[0], other[0])


def multiplies(w: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    return (w * x).sum()


def multiplies_a_view(w: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    return (w * x.view(-1)[:2]).sum()


def multiplies_a_copy(w: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    return (w * x.clone()).sum()


def multiplies_a_result(w: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    return (w * x.sin()).sum()


def adds(w: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    return (w.exp() + x).sum()


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize(
    ("program", "saves"),
    [
        (multiplies, True),
        (multiplies_a_view, True),
        (multiplies_a_copy, False),
        (multiplies_a_result, False),
        (adds, False),
    ],
)
def test_an_inference_tensor_that_autograd_would_save(program: Any, saves: bool, door: str) -> None:
    torch._dynamo.reset()
    torch_backplane.reset()
    compiled = compile_for("cpu_onednn", program, door)
    with torch.inference_mode():
        made_within = torch.linspace(1, 2, 2)
    # First where its structure is known already.
    for x in (made_within.clone(), made_within):
        gradients = []
        for function in (compiled, program):
            w = torch.ones(2, requires_grad=True)
            if saves and x is made_within:
                with pytest.raises(RuntimeError, match="Inference tensors cannot be saved"):
                    function(w, x)
            else:
                function(w, x).backward()
            gradients.append(w.grad)
        torch.testing.assert_close(*gradients)
    assert torch_backplane.stats()["eager_graphs"] == (saves and door == "torch")


def doubles(x: torch.Tensor) -> torch.Tensor:
    return x * 2


def switches_gradients_on(x: torch.Tensor) -> tuple[bool, torch.Tensor]:
    with torch.set_grad_enabled(True):
        return torch.is_grad_enabled(), x * 2


@pytest.mark.parametrize("door", DOORS)
def test_gradients_that_are_on_in_inference_mode_stay_on(door: str) -> None:
    torch._dynamo.reset()
    compiled = compile_for("cpu_onednn", doubles, door)
    with torch.inference_mode(), torch.enable_grad():
        for _ in range(2):
            assert compiled(torch.ones(1)).equal(torch.tensor([2.0]))
            assert torch.is_grad_enabled()
    compiled = compile_for("cpu_onednn", switches_gradients_on, door)
    with torch.inference_mode():
        for _ in range(2):
            is_on, result = compiled(torch.ones(1))
            assert is_on and result.is_inference()
        assert not torch.is_grad_enabled()


def shows_what_the_mode_made(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    with torch.inference_mode():
        within = x + 1
    return x * 2, within


def reads_what_the_mode_made(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    with torch.inference_mode():
        within = x + 1
    return x * 2, within.clone()


@pytest.mark.parametrize("program", [shows_what_the_mode_made, reads_what_the_mode_made])
@pytest.mark.parametrize("door", DOORS)
def test_results_of_a_part_in_the_mode(program: Any, door: str) -> None:
    torch._dynamo.reset()
    compiled = compile_for("cpu_onednn", program, door)
    for _ in range(2):
        x = torch.ones(2, requires_grad=True)
        for got, wanted in zip(compiled(x), program(x), strict=True):
            assert got.equal(wanted) and got.is_inference() == wanted.is_inference()
            assert got.requires_grad == wanted.requires_grad
