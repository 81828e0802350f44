"""What an operator refuses raises, also where nobody reads what it gives."""

import pytest
import torch
import torch_backplane
from compiling import PLUGINS, compile_for

F = torch.nn.functional
BAD = torch.tensor([5, 0])


@torch.library.custom_op("backplane_tests::positive", mutates_args=())
def positive(x: torch.Tensor) -> torch.Tensor:
    if not bool((x > 0).all()):
        raise ValueError("not positive")
    return x.clone()


@positive.register_fake
def _(x):
    return torch.empty_like(x)


# Each given (2, 2) floats and two integers; refuses BAD, or numbers that are no probabilities.
OPERATORS = {
    "index": lambda x, i: x[i],
    "index_select": lambda x, i: x.index_select(0, i),
    "gather": lambda x, i: x.gather(0, i.view(1, 2)),
    "take": lambda x, i: x.take(i),
    "embedding": lambda x, i: F.embedding(i, x),
    "scatter": lambda x, i: x.scatter(0, i.view(1, 2), 1.0),
    "index_add": lambda x, i: x.index_add(0, i, x),
    "index_put": lambda x, i: x.index_put((i,), x),
    "nll_loss": F.nll_loss,
    "cross_entropy": F.cross_entropy,
    "multi_margin_loss": F.multi_margin_loss,
    "segment_reduce": lambda x, i: torch.segment_reduce(x, "sum", lengths=2 * i),
    "integer division": lambda x, i: i // (5 - i),
    "remainder": lambda x, i: i % (5 - i),
    "binary_cross_entropy": lambda x, i: F.binary_cross_entropy(i.float().view(1, 2), x[:1]),
    "cholesky": lambda x, i: torch.linalg.cholesky(torch.eye(2) * (1.0 - i.float())),
    "of a library": lambda x, i: positive(1.0 - i.float() / 5),
    "behind another": lambda x, i: (x[i] * 2).exp(),
}
GOOD = torch.tensor([1, 0])


def outcome(function, *args):
    try:
        return function(*args)
    except Exception as error:
        return type(error).__name__, str(error)


@pytest.mark.parametrize("plugin", ["reference", "cpu_onednn"])
@pytest.mark.parametrize("name", OPERATORS)
@pytest.mark.parametrize("reads", [False, True], ids=["unread", "read"])
def test_raises_as_eager(name, plugin, reads):
    operator = OPERATORS[name]

    def program(x, i):
        made = operator(x, i)
        return (x * 2, made) if reads else x * 2

    compiled = torch_backplane.compile(program, backend=f"plugin:{plugin}")
    x = torch.rand(2, 2, requires_grad=True)
    for i in (GOOD, BAD, GOOD, BAD):
        expected, actual = outcome(program, x, i), outcome(compiled, x, i)
        if isinstance(expected, tuple) and isinstance(expected[0], str):
            assert actual == expected
            continue
        torch.testing.assert_close(actual, expected)
        first = (actual[0] if reads else actual).sum()
        assert torch.equal(torch.autograd.grad(first, x)[0], torch.full((2, 2), 2.0))


def test_unread_pointwise_operators_are_dropped():
    compiled = torch_backplane.compile(lambda x: (x.exp(), x * 2)[1], backend="plugin:reference")
    with torch_backplane.record() as found:
        compiled(torch.ones(3))
    assert [report["nodes"] for report in found] == [1]


def test_raises_while_the_plugin_works():
    """The plugin's queue still writes the call's memory when PyTorch raises on the host."""

    def program(x, i):
        made = [x * n for n in range(8)]
        return [*made, i // (5 - i)]

    compiled = torch_backplane.compile(program, backend="plugin:reference")
    x = torch.rand(300, 300)
    for _ in range(40):
        with pytest.raises(RuntimeError, match="ZeroDivisionError"):
            compiled(x, BAD)
    assert len(compiled(x, GOOD)) == 9


@pytest.mark.parametrize("plugin", PLUGINS)
def test_a_gradient_that_nobody_asked_for(plugin: str) -> None:
    """ATen's depthwise conv3d gives the gradient of a weight that needs none."""
    x, bias = torch.randn(2, 4, 5, 8, 4).half(), torch.randn(4).half().requires_grad_()
    weight = torch.randn(4, 1, 1, 1, 1).half()

    def function(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        return torch.conv3d(x, weight, bias, [2, 1, 1], [1, 1, 0], [1, 1, 1], 4)

    gradients = []
    for run in (function, compile_for(plugin, function)):
        (gradient,) = torch.autograd.grad(run(x, weight, bias).sum(), bias)
        gradients.append(gradient)
    torch.testing.assert_close(gradients[1], gradients[0])


@pytest.mark.parametrize("door", ["own", "torch"])
def test_masked_scatter_of_too_few_elements(door: str) -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        y = x * 1
        y.masked_scatter_(y > 0, torch.ones(1))
        return x + 1

    compiled = compile_for("cpu_onednn", program, door)
    for _ in range(2):
        with pytest.raises(RuntimeError, match="Number of elements of source"):
            compiled(torch.ones(3))
        assert torch.equal(compiled(torch.tensor([-1.0, 1.0])), torch.tensor([0.0, 2.0]))
