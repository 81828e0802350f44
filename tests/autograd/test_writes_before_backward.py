"""Writes between forward and backward: an error where eager mode has saved what was written, and for
the outputs that are differentiated alone."""

import pytest
import torch
import torch_backplane
from compiling import DOORS, compile_for
from torch.utils.checkpoint import checkpoint


def product_and_sum(x, y):
    return (x * y).sum(), (x + y).sum()


def computed_anew(x, y):
    z = x + 0
    return z, torch.relu(z) * z + x.sin()


def part_of_what_is_computed_anew(x, y):
    z = x + 0
    return z[1:], torch.relu(z) * z + x.sin()


def written_and_read(x, y):
    y.add_(1)
    return y, x * y


def written_and_not_read(x, y):
    z = x * y.neg()
    y.add_(1)
    return y, z


def shown_and_not_read(x, y):
    z = x * 2
    return z.view(-1), z + x.exp()


def quotient(x, y):
    z = x / (y + 1)
    return z, z * 2


def quotient_of_two(x, y):
    z = x / (x * x + 1)
    return z[0], (z * 2).exp()


def larger(x, y):
    return x * 2, torch.maximum(x, y)


def clamped_below(x, y):
    return x * 2, x.clamp(min=y)


def copy_of_what_is_written(x, y):
    return x * 2, torch.maximum(x, y.clone())


def larger_in_checkpoint(x, y):
    return x * 2, checkpoint(torch.maximum, x, y, use_reentrant=False)


PROGRAMS = (
    larger,
    clamped_below,
    copy_of_what_is_written,
    larger_in_checkpoint,
    quotient,
    quotient_of_two,
    product_and_sum,
    computed_anew,
    part_of_what_is_computed_anew,
    written_and_read,
    written_and_not_read,
    shown_and_not_read,
)


def write_argument(y, results):
    y.mul_(2)


def write_result(y, results):
    with torch.no_grad():
        results[0].mul_(2)


def outcome(program, write, ends):
    x = (torch.arange(8.0).reshape(2, 4) - 2).requires_grad_()
    y = torch.arange(4.0)
    results = program(x, y)
    write(y, results)
    try:
        sum(results[end].sum() for end in ends).backward()
    except RuntimeError as error:
        return str(error).partition(":")[0]
    return x.grad


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("plugin", ("reference", "opencl"))
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.__name__)
@pytest.mark.parametrize("write", (write_argument, write_result))
def test_writes_before_backward(program, write, plugin, door):
    torch._dynamo.reset()
    compiled = compile_for(plugin, program, door)
    for ends in ((1,), (0, 1)):
        expected = outcome(program, write, ends)
        actual = outcome(compiled, write, ends)
        if isinstance(expected, torch.Tensor):
            torch.testing.assert_close(actual, expected)
        else:
            assert actual == expected


def test_a_program_that_writes_is_called_twice_before_backward():
    """Eager mode has saved what the second call writes."""
    outcomes = []
    for program in (written_and_read, torch_backplane.compile(written_and_read)):
        x, y = torch.ones(4, requires_grad=True), torch.ones(4)
        first = program(x, y)[1].sum()
        program(x, y)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            first.backward()
        outcomes.append(x.grad)
    assert outcomes == [None, None]


class Normed(torch.nn.Module):
    """Power iteration writes buffers that the gradients depend on; eager mode saves copies."""

    def __init__(self):
        super().__init__()
        self.linear = torch.nn.utils.spectral_norm(torch.nn.Linear(4, 4))

    def forward(self, x):
        z = self.linear(x) / (self.linear.bias + 3)
        return z, z * 2


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("plugin", ("reference", "opencl"))
@pytest.mark.parametrize("is_written", (False, True))
def test_what_is_saved_of_written_arguments_outlives_the_next_call(plugin, door, is_written):
    outcomes = []
    torch._dynamo.reset()
    for is_compiled in (False, True):
        torch.manual_seed(0)
        module = Normed()
        called = compile_for(plugin, module, door) if is_compiled else module
        x = torch.rand(3, 4)
        results = [called(x), called(x + 1)]
        if is_written:
            with torch.no_grad():
                results[0][0].mul_(2)
        sum(result.sum() for pair in results for result in pair[is_written:]).backward()
        outcomes.append([p.grad for p in module.parameters()] + list(module.buffers()))
    torch.testing.assert_close(outcomes[1], outcomes[0])


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("plugin", ["eager", "reference"])
def test_nothing_of_a_checkpoint_is_saved(plugin, reentrant):
    def program(x):
        y = checkpoint(torch.tanh, x, use_reentrant=reentrant)
        print(end="")  # a break
        return y.clamp_(-0.5, 0.5)

    def once(function):
        x = torch.linspace(-1, 1, 4).requires_grad_()
        y = function(x)
        y.sum().backward()
        return y.detach(), x.grad

    compiled = torch_backplane.compile(program, backend=plugin)
    for _ in range(2):
        torch.testing.assert_close(once(compiled), once(program))


def fills(x: torch.Tensor, noise: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    noise.data.fill_(value)
    return (x * noise).sum()


def scales(x: torch.Tensor, noise: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    noise.data.mul_(value)
    return (x.view(1, -1) * noise.view(1, -1)).sum()


def draws(x: torch.Tensor, noise: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    noise.data.normal_()
    return (x * noise).sum() * value


def fills_twice(x: torch.Tensor, noise: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    total = torch.zeros(())
    for _ in range(2):
        noise.data.fill_(value)
        total = total + (x * noise).sum()
        print(end="")
        value = value + 1
    return total


@pytest.mark.parametrize("program", [fills, scales, draws, fills_twice])
@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("plugin", ["reference", "cpu_onednn"])
def test_writes_through_data_are_read_by_what_was_saved(program, plugin, door) -> None:
    """As layers with noise do: several forwards, then one backward."""
    compiled = compile_for(plugin, program, door)
    for _ in range(2):
        gradients = []
        for run in (program, compiled):
            torch.manual_seed(0)
            x, noise = torch.ones(3, requires_grad=True), torch.ones(3)
            total = run(x, noise, torch.tensor(2.0)) + run(x, noise, torch.tensor(3.0))
            noise.data.add_(0.5)
            total.backward()
            gradients.append(x.grad)
        torch.testing.assert_close(*gradients)


@pytest.mark.parametrize("door", DOORS)
def test_parameters_are_swapped_beside_results(door: str) -> None:
    one, other = torch.nn.Parameter(torch.ones(2)), torch.nn.Parameter(torch.zeros(3))
    compiled = compile_for("reference", lambda: one * 2, door)
    result = compiled()
    torch.utils.swap_tensors(one, other)
    assert one.shape == (3,)
    with pytest.raises(RuntimeError, match="poisoned by swap_tensors"):
        result.sum().backward()


@pytest.mark.parametrize("door", DOORS)
def test_versions_count_each_write(door: str) -> None:
    def program(x: torch.Tensor) -> tuple[torch.Tensor, int]:
        y = x * 1
        y[0] = 5
        y += 1
        x.mul_(2)
        x.add_(1)
        return y, y._version

    compiled = compile_for("reference", program, door)
    for _ in range(2):
        versions = []
        for run in (program, compiled):
            x = torch.ones(2)
            y, inside = run(x)
            versions.append((x._version, y._version, inside))
        assert versions[0] == versions[1]


WEIGHT_FUNCTIONS = {
    "relu": torch.relu,
    "exp": lambda w: w.exp().exp(),
    "scaled": lambda w: w * 2,
    "softmax": lambda w: w.softmax(-1),
}


@pytest.mark.parametrize("name", WEIGHT_FUNCTIONS)
@pytest.mark.parametrize("door", DOORS)
def test_what_is_computed_of_a_weight_is_saved(name: str, door: str) -> None:
    class Layer(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.tensor([[0.5, 0.25, 0.75]]))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.nn.functional.linear(x, WEIGHT_FUNCTIONS[name](self.weight))

    def gradient(run: torch.nn.Module, layer: Layer, through_data: bool) -> torch.Tensor:
        with torch.no_grad():
            layer.weight.copy_(torch.tensor([[0.5, 0.25, 0.75]]))
        x = torch.ones(2, 3, requires_grad=True)
        result = run(x).sum()
        with torch.no_grad():
            (layer.weight.data if through_data else layer.weight.detach()).mul_(3)
        return torch.autograd.grad(result, x)[0]

    layer = Layer()
    compiled = compile_for("reference", layer, door)
    for through_data in (True, False, True):
        expected = gradient(layer, layer, through_data)
        torch.testing.assert_close(gradient(compiled, layer, through_data), expected)


@pytest.mark.parametrize("door", DOORS)
def test_a_written_argument_whose_gradient_is_awaited_later(door: str) -> None:
    def program(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        x.mul_(w)
        return x * 3

    compiled = compile_for("reference", program, door)
    for retains in (False, True):
        gradients = []
        for run in (program, compiled):
            leaf = torch.ones(3, requires_grad=True)
            x, w = leaf * 1, torch.full((3,), 2.0, requires_grad=True)
            if retains:
                x.retain_grad()
            run(x, w).sum().backward()
            gradients.append((leaf.grad.tolist(), x.grad.tolist() if retains else None))
        assert gradients[0] == gradients[1]


@pytest.mark.parametrize("door", DOORS)
def test_tangents_that_are_sparse(door: str) -> None:
    compiled = compile_for("reference", lambda w: w * 2, door)
    for _ in range(2):
        w = torch.ones(4, 2, requires_grad=True)
        rows = torch.tensor([1, 1, 3])
        torch.nn.functional.embedding(rows, compiled(w), sparse=True).sum().backward()
        assert w.grad.layout == torch.sparse_coo
        assert w.grad.to_dense().tolist() == [[0, 0], [4, 4], [0, 0], [2, 2]]


@pytest.mark.parametrize("door", DOORS)
def test_a_program_takes_no_others_checkpoint(door: str) -> None:
    def program(x: torch.Tensor, again: bool) -> torch.Tensor:
        return checkpoint(torch.exp, x, use_reentrant=False) if again else torch.exp(x)

    compiled = compile_for("reference", program, door)
    compiled(torch.ones(3, requires_grad=True), True)
    result = compiled(torch.ones(3, requires_grad=True), False)
    with torch.no_grad():
        result.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        result.sum().backward()
