"""What torch.compile users do, on every plugin: results must be eager's, whatever runs where."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import torch_backplane
from compiling import PLUGINS, close, compile_for, mlp
from threads import run_in_threads
from torch import nn

pytestmark = pytest.mark.parametrize("plugin", PLUGINS)


def check(plugin: str, function: Callable[..., Any], *args: Any, **settings: Any) -> Any:
    """Compares with eager, three calls each with arguments of their own; returns the last result."""
    compiled = compile_for(plugin, function, **settings)
    for _ in range(3):
        expected_args, actual_args = copy.deepcopy(args), copy.deepcopy(args)
        expected, actual = function(*expected_args), compiled(*actual_args)
        close(actual, expected)
        close(actual_args, expected_args)
    return actual


# --- ways to compile and call --------------------------------------------------------------------


@pytest.mark.parametrize("dynamic", [True, None, False])
def test_sizes(plugin: str, dynamic: bool | None) -> None:
    model = mlp()
    compiled = compile_for(plugin, model, dynamic=dynamic, fullgraph=True)
    for batch in (4, 7, 2, 1, 0, 4, 33):
        x = torch.randn(batch, 16)
        close(compiled(x), model(x))


def test_size_as_value(plugin: str) -> None:
    def function(x: torch.Tensor) -> tuple[torch.Tensor, int]:
        return x.reshape(x.shape[0] // 2, 2, -1) * x.shape[0], x.numel() + 1

    compiled = compile_for(plugin, function, dynamic=True, fullgraph=True)
    for batch in (2, 4, 6, 10):
        x = torch.randn(batch, 3)
        actual, expected = compiled(x), function(x)
        close(actual[0], expected[0])
        assert actual[1] == expected[1]


def test_integer_argument(plugin: str) -> None:
    def function(x: torch.Tensor, count: int) -> torch.Tensor:
        return (x * count).narrow(0, 0, count)

    compiled = compile_for(plugin, function, dynamic=True)
    for count in (2, 3, 5, 4):
        x = torch.randn(6, 3)
        close(compiled(x, count), function(x, count))


def test_float_argument(plugin: str) -> None:
    def function(x: torch.Tensor, scale: float) -> torch.Tensor:
        return x * scale + scale

    compiled = compile_for(plugin, function)
    for scale in (0.5, -1.25, 3.0, 0.0):
        x = torch.randn(4)
        close(compiled(x, scale), function(x, scale))


def test_no_grad_and_inference_mode(plugin: str) -> None:
    model = mlp()
    compiled = compile_for(plugin, model)
    x = torch.randn(4, 16)
    expected = model(x).detach()
    outside = compiled(x)
    assert outside.requires_grad
    with torch.no_grad():
        inside = compiled(x)
    assert not inside.requires_grad and not inside.is_inference()
    with torch.inference_mode():
        inferred = compiled(x)
        assert inferred.is_inference()
        close(inferred, expected)
    close(outside.detach(), expected)
    close(inside, expected)
    outside.sum().backward()


def test_inference_tensors_as_weights(plugin: str) -> None:
    with torch.inference_mode():
        model = mlp()
        compiled = compile_for(plugin, model)
        x = torch.randn(4, 16)
        close(compiled(x), model(x))
        model[0].weight.mul_(2)
        close(compiled(x), model(x))


def test_autocast(plugin: str) -> None:
    model = mlp()
    compiled = compile_for(plugin, model)
    x = torch.randn(4, 16)
    with torch.autocast("cpu", torch.bfloat16):
        expected, actual = model(x), compiled(x)
    assert actual.dtype == expected.dtype == torch.bfloat16
    torch.testing.assert_close(actual, expected, rtol=2e-2, atol=2e-2)
    actual.float().sum().backward()
    assert model[0].weight.grad.dtype == torch.float32


def test_graph_break(plugin: str) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        y = x.sin() + 1
        if y.sum().item() > 0:
            y = y * 2
        torch._dynamo.graph_break()
        return y - x

    check(plugin, function, torch.randn(5))


def test_closure_and_constants(plugin: str) -> None:
    weights = torch.randn(3)
    check(plugin, lambda x: x * weights + torch.tensor([1.0, 2.0, 3.0]), torch.randn(2, 3))


def test_no_tensor_operation(plugin: str) -> None:
    compiled = compile_for(plugin, lambda x: (x, 3, None))
    x = torch.randn(2)
    assert compiled(x)[0] is x and compiled(x)[1:] == (3, None)


# --- arguments -----------------------------------------------------------------------------------


def test_strides_of_inputs(plugin: str) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return F.gelu(x).sum(-1) + x.amax(-1)

    base = torch.randn(6, 8, 10)
    compiled = compile_for(plugin, function)
    for x in (
        base,
        base.transpose(0, 2),
        base.permute(1, 2, 0),
        base[::2, 1:5, ::3],
        base[:, :, 3:4].expand(6, 8, 7),
        base.flatten()[5:].as_strided((4, 3), (2, 5)),
        torch.randn(1, 1, 5).expand(3, 4, 5),
    ):
        close(compiled(x), function(x))


def test_strides_that_change(plugin: str) -> None:
    model = nn.Linear(8, 4)
    compiled = compile_for(plugin, model)
    x = torch.randn(8, 8)
    with torch.no_grad():
        for y in (x, x.t(), x, x[:, :8].t(), torch.randn(16, 8)[::2]):
            close(compiled(y), model(y))


def test_channels_last(plugin: str) -> None:
    model = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU()).eval()
    model = model.to(memory_format=torch.channels_last)
    x = torch.randn(2, 3, 9, 7).to(memory_format=torch.channels_last)
    with torch.no_grad():
        actual = check(plugin, model, x)
    assert actual.is_contiguous(memory_format=torch.channels_last)


def test_scalars_and_empty_tensors(plugin: str) -> None:
    def function(x: torch.Tensor, s: torch.Tensor, e: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return x * s, s.exp(), e.sum(), e + 1, torch.cat([e, x]), e.mean(), x.sum() + s

    check(plugin, function, torch.randn(3), torch.tensor(2.5), torch.empty(0))


def test_empty_matrices(plugin: str) -> None:
    def function(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return a @ b, b.t() @ a.t(), a.softmax(-1)

    check(plugin, function, torch.empty(3, 0), torch.empty(0, 4))
    check(plugin, function, torch.empty(0, 3), torch.empty(3, 4))


@pytest.mark.parametrize(
    "dtype",
    [torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.uint8],
    ids=str,
)
def test_dtypes(plugin: str, dtype: torch.dtype) -> None:
    def function(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return x + y, x * 3, (x > y).to(dtype), torch.where(x > 2, x, y), x.sum(), x.amax()

    values = torch.arange(12).reshape(3, 4)
    check(plugin, function, values.to(dtype), values.flip(0).contiguous().to(dtype))


def test_complex(plugin: str) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return (x * x.conj()).real + torch.view_as_real(x).sum(-1)

    check(plugin, function, torch.randn(3, 4, dtype=torch.complex64))


def test_large_integers(plugin: str) -> None:
    check(plugin, lambda x: (x + 1, x // 3, x % 7), torch.tensor([2**53 + 1, -(2**60) - 1, 5]))


# --- mutation and aliasing -----------------------------------------------------------------------


def test_input_mutation(plugin: str) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        x.add_(1)
        x[0].mul_(3)
        return x * 2

    check(plugin, function, torch.randn(3, 4))
    x = torch.randn(3, 4)
    version = x._version
    compile_for(plugin, function)(x)
    assert x._version > version


def test_mutation_of_a_view(plugin: str) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        x.mul_(2)
        return x.sum()

    compiled = compile_for(plugin, function)
    for _ in range(2):
        base = torch.randn(6, 4)
        expected = base.clone()
        close(compiled(base[::2, 1:3]), function(expected[::2, 1:3]))
        close(base, expected)


def test_two_inputs_of_one_storage(plugin: str) -> None:
    def function(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x.add_(1)
        return x + y

    compiled = compile_for(plugin, function)
    for _ in range(2):
        base = torch.randn(6)
        expected = base.clone()
        close(compiled(base[:4], base[2:]), function(expected[:4], expected[2:]))
        close(base, expected)


def test_mutation_inside(plugin: str) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        y = x.clone()
        y[0] = 1
        y[:, 1].add_(2)
        z = y.view(-1)
        z.relu_()
        y.masked_fill_(y > 1, 0.5)
        return y + z.view_as(y)

    check(plugin, function, torch.randn(3, 4))


def test_inplace_on_a_leaf_is_an_error(plugin: str) -> None:
    compiled = compile_for(plugin, lambda x: x.add_(1))
    with pytest.raises(RuntimeError, match="leaf Variable"):
        compiled(torch.randn(3, requires_grad=True))


def test_batch_norm_buffers(plugin: str) -> None:
    model = nn.Sequential(nn.Conv2d(3, 6, 3), nn.BatchNorm2d(6), nn.ReLU()).train()
    other = copy.deepcopy(model)
    compiled = compile_for(plugin, model)
    for _ in range(3):
        x = torch.randn(4, 3, 6, 6)
        close(compiled(x), other(x))
    close(dict(model.named_buffers()), dict(other.named_buffers()))
    assert model[1].num_batches_tracked == 3


def test_output_is_an_input(plugin: str) -> None:
    compiled = compile_for(plugin, lambda x, y: (x, y + 1, y))
    x, y = torch.randn(3), torch.randn(3)
    for _ in range(2):
        first, second, third = compiled(x, y)
        assert first is x and third is y
        close(second, y + 1)


def test_views_as_outputs(plugin: str) -> None:
    def function(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = x + 1
        return x.view(-1), x[1], y, y.t(), y[0, 1:], y.unsqueeze(0).expand(2, 3, 4)

    actual = check(plugin, function, torch.randn(3, 4))
    assert actual[0].data_ptr() < actual[1].data_ptr()
    assert actual[0]._base is not None
    y = actual[2]
    assert y.data_ptr() == actual[3].data_ptr() == actual[5].data_ptr()
    y.fill_(7)
    assert (actual[3] == 7).all() and (actual[4] == 7).all()


def test_one_tensor_twice(plugin: str) -> None:
    def function(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = x * 2
        return y, y, x.detach()

    actual = check(plugin, function, torch.randn(3))
    assert actual[0] is actual[1]


def test_results_outlive_later_calls(plugin: str) -> None:
    model = mlp().requires_grad_(False)
    compiled = compile_for(plugin, model)
    inputs = [torch.randn(4, 16) for _ in range(5)]
    outputs = [compiled(x) for x in inputs]
    for x, y in zip(inputs, outputs, strict=True):
        close(y, model(x))


def test_integer_and_bool_outputs(plugin: str) -> None:
    def function(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        order = x.argsort(stable=True, dim=-1)
        return x.argmax(-1), x > 0, (x > 0).sum(), x.isnan(), order, x.to(torch.int32), x.any()

    check(plugin, function, torch.randn(4, 5))


# --- gradients -----------------------------------------------------------------------------------


def gradients(run: Any, model: nn.Module, x: torch.Tensor) -> dict[str, torch.Tensor]:
    model.zero_grad()
    x = x.clone().requires_grad_()
    run(x).square().sum().backward()
    return {"input": x.grad, **{n: p.grad for n, p in model.named_parameters()}}


def test_gradients(plugin: str) -> None:
    model = mlp()
    compiled = compile_for(plugin, model)
    for batch in (4, 4, 6, 2):
        x = torch.randn(batch, 16)
        expected = gradients(model, model, x)
        close(gradients(compiled, model, x), expected)


def test_two_forwards_before_backward(plugin: str) -> None:
    model = mlp()
    compiled = compile_for(plugin, model)
    inputs = [torch.randn(4, 16, requires_grad=True) for _ in range(3)]
    expected = [torch.autograd.grad(model(x).square().sum(), x)[0] for x in inputs]
    losses = [compiled(x).square().sum() for x in inputs]
    for x, loss, want in reversed(list(zip(inputs, losses, expected, strict=True))):
        close(torch.autograd.grad(loss, x, retain_graph=True)[0], want)
        close(torch.autograd.grad(loss, x)[0], want)


def test_some_outputs_without_gradient(plugin: str) -> None:
    def function(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return x * y, (x + y).detach(), y.argmax(), x.exp()

    compiled = compile_for(plugin, function)
    results = []
    for run in (function, compiled):
        x, y = torch.arange(4.0, requires_grad=True), torch.ones(4, requires_grad=True)
        product, *_ = run(x, y)
        product.sum().backward()
        results.append((x.grad, y.grad))
    close(results[1], results[0])


def test_tied_weights(plugin: str) -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding = nn.Embedding(11, 6)
            self.head = nn.Linear(6, 11, bias=False)
            self.head.weight = self.embedding.weight

        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            return self.head(self.embedding(ids).tanh())

    model = Tied()
    compiled = compile_for(plugin, model)
    ids = torch.randint(0, 11, (3, 5))
    for _ in range(2):
        model.zero_grad()
        model(ids).square().mean().backward()
        expected = model.embedding.weight.grad.clone()
        model.zero_grad()
        compiled(ids).square().mean().backward()
        close(model.embedding.weight.grad, expected)
        with torch.no_grad():
            model.embedding.weight -= 0.1 * expected
            close(compiled(ids), model(ids))


def test_checkpoint(plugin: str) -> None:
    from torch.utils.checkpoint import checkpoint

    class Checkpointed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = mlp()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return checkpoint(self.inner, x, use_reentrant=False)

    model = Checkpointed()
    x = torch.randn(4, 16)
    expected = gradients(model, model, x)
    close(gradients(compile_for(plugin, model), model, x), expected)


def test_gradient_accumulates(plugin: str) -> None:
    model, x = mlp(), torch.randn(4, 16)
    compiled = compile_for(plugin, model)
    compiled(x).sum().backward()
    once = {n: p.grad.clone() for n, p in model.named_parameters()}
    compiled(x).sum().backward()
    close({n: p.grad for n, p in model.named_parameters()}, {n: 2 * g for n, g in once.items()})


# --- random numbers ------------------------------------------------------------------------------


def test_dropout_draws_what_eager_draws(plugin: str) -> None:
    model = nn.Sequential(nn.Linear(8, 64), nn.Dropout(0.3), nn.ReLU(), nn.Dropout(0.5)).train()
    compiled = compile_for(plugin, model)
    x = torch.randn(4, 8)
    for seed in range(3):
        torch.manual_seed(seed)
        expected = gradients(model, model, x)
        after = torch.get_rng_state()
        torch.manual_seed(seed)
        close(gradients(compiled, model, x), expected)
        assert torch.equal(torch.get_rng_state(), after)


def test_random_functions(plugin: str) -> None:
    def function(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (
            torch.rand_like(x) + x,
            torch.randn(3, 4),
            torch.randint(0, 9, (5,)),
            torch.bernoulli(x.sigmoid()),
            x.clone().uniform_(-1, 1),
            torch.multinomial(x.softmax(-1), 2),
            torch.randperm(7),
        )

    compiled = compile_for(plugin, function)
    x = torch.randn(3, 4)
    for seed in range(2):
        torch.manual_seed(seed)
        expected = function(x)
        torch.manual_seed(seed)
        close(compiled(x), expected)


# --- several models, threads, errors -------------------------------------------------------------


def test_several_models(plugin: str) -> None:
    models = [mlp(hidden=hidden).requires_grad_(False) for hidden in (8, 32, 32)]
    compiled = [compile_for(plugin, model) for model in models]
    x = torch.randn(4, 16)
    for _ in range(2):
        for run, model in zip(compiled, models, strict=True):
            close(run(x), model(x))


def test_threads(plugin: str) -> None:
    model = mlp(hidden=64)
    compiled = compile_for(plugin, model, dynamic=True)
    inputs = [torch.randn(2 + i % 5, 16) for i in range(8)]
    expected = [gradients(model, copy.deepcopy(model), x)["input"] for x in inputs]
    outputs = [model(x).detach() for x in inputs]
    compiled(inputs[0]).sum().backward()

    def work(number: int) -> None:
        torch.set_num_threads(1)
        for _ in range(25):
            x = inputs[number].clone().requires_grad_()
            y = compiled(x)
            close(y.detach(), outputs[number])
            close(torch.autograd.grad(y.square().sum(), x)[0], expected[number])
            with torch.no_grad():
                close(compiled(inputs[number]), outputs[number])

    run_in_threads(work, range(len(inputs)))


def test_model_that_raises(plugin: str) -> None:
    class Picky(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = mlp()

        def forward(self, x: torch.Tensor, fail: bool) -> torch.Tensor:
            y = self.inner(x)
            if fail:
                raise ValueError("not today")
            return y

    model = Picky()
    compiled = compile_for(plugin, model)
    x = torch.randn(4, 16)
    for _ in range(2):
        with pytest.raises(ValueError, match="not today"):
            compiled(x, True)
        close(compiled(x, False), model(x, False))


def test_products_over_no_elements(plugin: str) -> None:
    def function(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> tuple[torch.Tensor, ...]:
        linear = torch.nn.functional.linear(a, b.t(), c[0])
        return a @ b, torch.addmm(c, a, b, beta=0.5).relu(), linear.tanh(), a[None] @ b[None]

    check(plugin, function, torch.randn(5, 0), torch.randn(0, 10), torch.randn(5, 10))


def test_integers_from_fractions(plugin: str) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return x + torch.arange(2.1, -2.9, -1.0, dtype=torch.int64)

    check(plugin, function, torch.zeros(4, dtype=torch.int64))


def test_embedding_bag_with_its_last_offset(plugin: str) -> None:
    bag = nn.EmbeddingBag(5, 5, mode="sum", include_last_offset=True).requires_grad_(False)
    compiled = compile_for(plugin, bag)
    indices, offsets = torch.tensor([0, 1, 2, 3, 4, 0]), torch.tensor([0, 2, 6])
    close(compiled(indices, offsets), bag(indices, offsets))


def test_linear_of_rows_far_apart(plugin: str) -> None:
    """The first token of every sequence, as classifiers read it."""
    model = nn.Linear(64, 32).requires_grad_(False)
    compiled = compile_for(plugin, lambda x: model(x[:, 0]))
    for batch in (1, 4):
        x = torch.randn(batch, 37, 64)
        close(compiled(x), model(x[:, 0]))


def test_wrong_shapes_raise_as_in_eager(plugin: str) -> None:
    compiled = compile_for(plugin, mlp())
    compiled(torch.randn(4, 16))
    with pytest.raises(RuntimeError):
        compiled(torch.randn(4, 15))
    compiled(torch.randn(4, 16))


def test_index_out_of_range(plugin: str) -> None:
    model = nn.Embedding(5, 3)
    compiled = compile_for(plugin, model)
    good = torch.tensor([0, 4, 2])
    close(compiled(good), model(good))
    with pytest.raises((IndexError, RuntimeError), match=r"(?i)(index|range)"):
        compiled(torch.tensor([0, 5, 2]))
    with pytest.raises((IndexError, RuntimeError), match=r"(?i)(index|range)"):
        compiled(torch.tensor([0, -1, 2]))
    close(compiled(good), model(good))


ROW = torch.ones(1, 3)
INDEXED = {
    "index_select": lambda t, i: t.index_select(0, i),
    "gather": lambda t, i: t.gather(0, i[:, None]),
    "scatter": lambda t, i: t.scatter(0, i[:, None], ROW),
    "scatter_add": lambda t, i: t.scatter_add(0, i[:, None], ROW),
    "index_add": lambda t, i: t.index_add(0, i, ROW),
    "index_copy": lambda t, i: t.index_copy(0, i, ROW),
    "index": lambda t, i: t[i],
    "index_put": lambda t, i: t.index_put((i,), ROW),
    "index_fill": lambda t, i: t.index_fill(0, i, 2.0),
    "take": lambda t, i: t.take(i),
}


@pytest.mark.parametrize("name", INDEXED)
def test_negative_indices_as_in_eager(plugin: str, name: str) -> None:
    function = INDEXED[name]
    compiled = compile_for(plugin, function)
    table = torch.arange(12.0).reshape(4, 3)
    for index in (2, -1, -5, 4):
        i = torch.tensor([index])
        try:
            expected = function(table, i)
        except (IndexError, RuntimeError):
            if name in ("index_add", "index_copy") and index == -1:
                continue  # PyTorch's decomposition of these wraps
            with pytest.raises((IndexError, RuntimeError), match=r"(?i)(index|range)"):
                compiled(table, i)
        else:
            close(compiled(table, i), expected)


def test_both_plugins_in_one_process(plugin: str) -> None:
    model, x = mlp().requires_grad_(False), torch.randn(4, 16)
    runs = [compile_for(name, model) for name in (plugin, *PLUGINS)]
    for _ in range(2):
        for run in runs:
            close(run(x), model(x))


def test_functions_of_torch_func(plugin: str) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return torch.func.vmap(torch.func.grad(lambda v: (v.sin() * v).sum()))(x)

    check(plugin, function, torch.randn(3, 4))


def test_whole_training_step(plugin: str) -> None:
    results = []
    for compiled in (False, True):
        torch.manual_seed(3)
        model, x = mlp(), torch.randn(4, 16)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)

        def step(model=model, x=x, optimizer=optimizer) -> torch.Tensor:
            optimizer.zero_grad()
            loss = model(x).square().mean()
            loss.backward()
            optimizer.step()
            return loss.detach()

        run = compile_for(plugin, step) if compiled else step
        results.append(torch.stack([run() for _ in range(4)]))
    close(results[1], results[0])


def test_custom_operator(plugin: str) -> None:
    x = torch.randn(3)
    with torch_backplane.record() as graphs:
        check(plugin, lambda v: torch.ops.backplane_test.twice(v) + 1, x)
    assert any(node["op"].startswith("backplane_test.twice") for node in graphs[0]["fallback"])


@torch.library.custom_op("backplane_test::twice", mutates_args=())
def twice(x: torch.Tensor) -> torch.Tensor:
    return x * 2


@twice.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


def test_gradients_that_the_program_turns_on(plugin: str) -> None:
    model = nn.Linear(6, 3)

    def program(x: torch.Tensor) -> torch.Tensor:
        with torch.enable_grad():
            return model(x)

    compiled = compile_for(plugin, program)
    x = torch.ones(2, 6)
    with torch.no_grad():
        result = compiled(x)
    assert result.requires_grad
    close(torch.autograd.grad(result.sum(), model.weight)[0], x.sum(0).expand(3, 6))
