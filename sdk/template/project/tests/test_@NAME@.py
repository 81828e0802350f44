"""The plugin gives what PyTorch gives, and says what it leaves to the CPU."""

import pytest
import torch


@pytest.fixture(autouse=True, scope="module")
def _device():
    """Without the hardware, or its driver, there is nothing to test."""
    try:
        torch.compile(torch.relu, backend="plugin:@NAME@")(torch.ones(1))
    except Exception as error:
        cause = getattr(error, "inner_exception", error)
        if getattr(cause, "code", "") != "BP-0104" and "no device: " not in str(cause):
            raise
        pytest.skip(str(cause))


def trained(model, x, run):
    model.zero_grad()
    result = run(x)
    result.square().mean().backward()
    return [result.detach(), *(p.grad.clone() for p in model.parameters())]


@pytest.mark.parametrize("rows", [1, 4])
def test_a_model_and_its_gradients(rows):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 2))
    x = torch.randn(rows, 8)
    compiled = torch.compile(model, backend="plugin:@NAME@", options={"strict": True})
    for actual, expected in zip(trained(model, x, compiled), trained(model, x, model), strict=True):
        torch.testing.assert_close(actual, expected)


def test_what_it_lacks_runs_on_the_cpu():
    compiled = torch.compile(
        lambda x: torch.linalg.inv(x.relu() + torch.eye(3)), backend="plugin:@NAME@"
    )
    x = torch.rand(3, 3)
    torch.testing.assert_close(compiled(x), torch.linalg.inv(x.relu() + torch.eye(3)))
