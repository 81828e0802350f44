"""Gradients of some outputs, where that of another would be NaN: eager mode computes it not."""

import pytest
import torch
import torch_backplane
from compiling import DOORS, compile_for


def root(x):
    return x.sqrt(), (x * 2).sum()


def root_that_is_read_twice(x):
    y = x.sqrt()
    return y, (x * 2).sum(), y + x


def masked_probabilities(x):
    scores = x.masked_fill(torch.tensor([True, False, False, True]), float("-inf"))
    return torch.log_softmax(scores, -1).exp().log() * x.detach(), (x * x).mean()


def meets_in_a_list(x):
    y = torch.cat([x.log(), x * 3])
    first, second = y.split(4)
    return first, second.sum()


def meets_in_a_write(x):
    y = x * 2
    rows = torch.zeros(2, 4)
    rows[0] = x.sqrt()
    rows[1] = y
    return rows[0], (rows[1] * y).sum()


class Clipped(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        return gradient.clamp(0.5, 1) + 1


def function_that_is_not_linear(x):
    return Clipped.apply(x), (x * 2).sum()


def written(x):
    y = x * 1
    z = y.sqrt()
    y.mul_(3)
    return z, y.sum()


PROGRAMS = (
    root,
    root_that_is_read_twice,
    masked_probabilities,
    meets_in_a_list,
    meets_in_a_write,
    function_that_is_not_linear,
    written,
)


def gradient(program, x, ends):
    x = x.clone().requires_grad_()
    results = program(x)
    sum(results[end].sum() for end in ends).backward()
    return x.grad


@pytest.mark.parametrize("plugin", ("reference", "cpu_onednn", "opencl"))
@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.__name__)
def test_gradients_of_some_outputs(program, door, plugin):
    torch._dynamo.reset()
    compiled = compile_for(plugin, program, door)
    x = torch.tensor([0.0, 2.0, 0.5, -1.0])
    for ends in ((1,), (0, 1), (1,), (0,)):
        expected = gradient(program, x, ends)
        torch.testing.assert_close(gradient(compiled, x, ends), expected, equal_nan=True)


@pytest.mark.parametrize("door", DOORS)
def test_who_gets_none(door):
    def program(x, y, z):
        return (x * y).log(), (y * z).sum(), z.exp()

    compiled = compile_for("cpu_onednn", program, door)
    for end in range(3):
        for sizes in ((3,), (5,)):
            inputs = [torch.rand(sizes, requires_grad=True) for _ in range(3)]

            def some(f, inputs=inputs, end=end):
                return torch.autograd.grad(f(*inputs)[end].sum(), inputs, allow_unused=True)

            for expected, actual in zip(some(program), some(compiled), strict=True):
                assert (expected is None) == (actual is None)
                if expected is not None:
                    torch.testing.assert_close(actual, expected)


def test_sizes_that_vary():
    """Zeros that meet a gradient have the call's size."""

    def program(x):
        y = torch.cat([x.sqrt(), x * 3, x.exp()])
        return y[: x.shape[0]], y[x.shape[0] :].sum()

    compiled = torch_backplane.compile(program, backend="plugin:cpu_onednn")
    for size in (4, 7, 9, 1, 5):
        x = torch.rand(size).round()
        for ends in ((1,), (0,)):
            expected = gradient(program, x, ends)
            torch.testing.assert_close(gradient(compiled, x, ends), expected, equal_nan=True)


def test_what_was_compiled_is_shown():
    with torch_backplane.record() as graphs:
        compiled = torch_backplane.compile(root, backend="plugin:reference")
        for ends in ((1,), (0,), (1,), (0, 1)):
            gradient(compiled, torch.tensor([0.0, 2.0]), ends)
    backward = next(graph["function"] for graph in graphs if graph["role"] == "backward").report()
    assert backward["calls"] == 4
    assert sorted(part["calls"] for part in backward["parts"]) == [1, 2]
    assert all(part["nodes"] < backward["nodes"] for part in backward["parts"])


@pytest.mark.parametrize("plugin", ("reference", "opencl"))
def test_on_the_torch_device(plugin):
    """There PyTorch's own thread of the device runs the backward, and compiles it."""
    device = torch_backplane.device(plugin)
    model = torch.nn.Linear(4, 3, device=device)
    compiled = torch_backplane.compile(lambda x: (model(x).sqrt(), model(x * 2).sum()))
    x = torch.randn(2, 4)
    for ends in ((1,), (0, 1), (0,)):
        gradients = []
        for _ in range(2):
            argument = x.to(device).requires_grad_()
            results = compiled(argument)
            sum(results[end].sum() for end in ends).backward()
            gradients.append((argument.grad.cpu(), model.weight.grad.cpu().clone()))
            model.zero_grad()
        host = torch.nn.Linear(4, 3)
        host.load_state_dict({k: v.cpu() for k, v in model.state_dict().items()})
        argument = x.clone().requires_grad_()
        results = host(argument).sqrt(), host(argument * 2).sum()
        sum(results[end].sum() for end in ends).backward()
        for actual in gradients:
            torch.testing.assert_close(
                actual, (argument.grad, host.weight.grad), rtol=1e-4, atol=1e-5, equal_nan=True
            )
