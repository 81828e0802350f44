"""Gradients that lie in what the forward saved on a device of its own."""

import pytest
import torch
import torch_backplane

PROGRAMS = {
    "transposed": lambda x: x.t().pow(0),
    "permuted": lambda x: x.view(2, 2, 6).permute(2, 0, 1).pow(0),
    "sliced": lambda x: x[1:, ::2].pow(0),
    "expanded": lambda x: x[:1].expand(4, 6).pow(0),
    "added": lambda x: x.t().pow(0) + x.t(),
}


@pytest.mark.parametrize("plugin", ["reference", "cpu_onednn"])
@pytest.mark.parametrize("door", ["own", "torch"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_as_eager(name, door, plugin):
    torch._dynamo.reset()
    compile = torch_backplane.compile if door == "own" else torch.compile
    compiled = compile(PROGRAMS[name], backend=f"plugin:{plugin}")
    x = torch.rand(4, 6, requires_grad=True)
    for _ in range(2):
        expected, actual = PROGRAMS[name](x), compiled(x)
        assert torch.equal(actual, expected)
        tangent = torch.rand(expected.shape)
        (wanted,) = torch.autograd.grad(expected, x, tangent)
        (found,) = torch.autograd.grad(actual, x, tangent)
        assert torch.equal(found, wanted)
