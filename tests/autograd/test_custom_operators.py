"""Operators of Python with a gradient of their own run as PyTorch calls them: with gradients off."""

import pytest
import torch
import torch_backplane


@torch.library.custom_op("backplane_tests::cube", mutates_args=())
def cube(x: torch.Tensor) -> torch.Tensor:
    return torch.from_numpy(x.numpy() ** 3)


cube.register_fake(torch.empty_like)
cube.register_autograd(
    lambda ctx, gradient: gradient * 3 * ctx.saved_tensors[0] ** 2,
    setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs),
)

DOORS = {
    "own": lambda f: torch_backplane.compile(f, backend="cpu_onednn"),
    "torch": lambda f: torch.compile(f, backend="plugin:cpu_onednn"),
}


@pytest.mark.parametrize("door", DOORS)
def test_custom_operator_that_asks_numpy(door):
    torch._dynamo.reset()
    x = torch.randn(4, requires_grad=True)
    y = DOORS[door](lambda x: cube(x) + x)(x)
    torch.testing.assert_close(y, x**3 + x)
    torch.testing.assert_close(torch.autograd.grad(y.sum(), x)[0], 3 * x**2 + 1)
