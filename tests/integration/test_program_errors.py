"""Calls that PyTorch itself refuses raise its own error at both doors, and the next call that is good
runs on the plugin."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import torch_backplane
from compiling import compile_for

INDEX = torch.ones(1, 7, dtype=torch.long)
ROW = torch.ones(1, 7)
ONE = torch.tensor([1])
# Of tensors [n, 7]: refused where n is 0.
PROGRAMS: dict[str, Callable[[torch.Tensor], Any]] = {
    "scatter_add": lambda x: x.scatter_add(-2, INDEX, ROW),
    "scatter": lambda x: x.scatter(0, INDEX, ROW),
    "scatter of a number": lambda x: x.scatter(0, INDEX, 2.0),
    "scatter_reduce": lambda x: x.scatter_reduce(0, INDEX, ROW, "sum"),
    "gather": lambda x: x.gather(0, INDEX),
    "index": lambda x: x[ONE],
    "index_put": lambda x: x.index_put((ONE,), ROW),
    "index_select": lambda x: x.index_select(0, ONE),
    "index_copy": lambda x: x.index_copy(0, ONE, ROW),
    "take": lambda x: torch.take(x, ONE),
    "put": lambda x: x.put(ONE, torch.tensor([2.0])),
    "embedding": lambda x: torch.nn.functional.embedding(ONE, x),
    "max": lambda x: x.max(),
    "max along rows": lambda x: x.max(0),
    "mode": lambda x: x.mode(0),
    "as_strided_copy": lambda x: torch.as_strided_copy(x, (2, 3), (3, 1)),
}


@pytest.mark.parametrize("plugin", ["reference", "cpu_onednn"])
@pytest.mark.parametrize("door", ["own", "torch"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_refused_call_raises_pytorchs_error(name: str, door: str, plugin: str) -> None:
    program = PROGRAMS[name]
    torch._dynamo.reset()
    if door == "own":
        compiled = torch_backplane.compile(program, backend=plugin)
    else:
        compiled = torch.compile(program, backend=f"plugin:{plugin}", dynamic=False)
    empty, rows = torch.empty(0, 7), torch.arange(21.0).view(3, 7)
    for _ in range(2):
        with pytest.raises((RuntimeError, IndexError)) as expected:
            program(empty)
        with pytest.raises((RuntimeError, IndexError)) as found:
            compiled(empty)
        assert type(found.value) is type(expected.value)
        assert str(found.value).startswith(str(expected.value))  # TorchDynamo may add a place
    torch.testing.assert_close(compiled(rows), program(rows))


def out(*of: torch.dtype) -> tuple[torch.Tensor, ...]:
    return tuple(torch.empty(0, dtype=dtype) for dtype in of)


# Of three floats: PyTorch has no kernel for the dtypes, or casts no result into such an out=.
REFUSED_DTYPES: dict[str, Callable[[torch.Tensor], Any]] = {
    "cumsum": lambda x: torch.cumsum(x, 0, out=torch.empty(3, dtype=torch.bool)),
    "max_pool1d": lambda x: F.max_pool1d(x.long().reshape(1, 1, 3), 2),
    "interpolate": lambda x: F.interpolate(x.long().reshape(1, 1, 3), scale_factor=2),
    "sort": lambda x: torch.sort(x, out=out(torch.float64, torch.int64)),
    "mode": lambda x: torch.mode(x, out=out(torch.float64, torch.int64)),
    "cummax": lambda x: torch.cummax(x, 0, out=out(torch.float64, torch.int64)),
    "kthvalue": lambda x: torch.kthvalue(x, 1, out=out(torch.float64, torch.int64)),
    "matmul": lambda x: torch.matmul(x, x, out=torch.empty((), dtype=torch.float64)),
    "index_select": lambda x: torch.index_select(x, 0, ONE, out=out(torch.float64)[0]),
    "tril": lambda x: torch.tril(x[None], out=torch.empty(1, 3, dtype=torch.float64)),
    "any": lambda x: torch.any(x, 0, out=torch.empty((), dtype=torch.float32)),
    "take": lambda x: torch.take(x, ONE, out=torch.empty(1, dtype=torch.float64)),
    "mask of more rows": lambda x: F.scaled_dot_product_attention(
        x.view(1, 1, 3, 1), x.view(1, 1, 3, 1), x.view(1, 1, 3, 1), torch.zeros(2, 1, 3, 3)
    ),
}


@pytest.mark.parametrize("plugin", ["reference", "cpu_onednn"])
@pytest.mark.parametrize("door", ["own", "torch"])
@pytest.mark.parametrize("name", REFUSED_DTYPES)
def test_what_kernels_of_pytorch_refuse_is_refused(name: str, door: str, plugin: str) -> None:
    program = REFUSED_DTYPES[name]
    compiled = compile_for(plugin, program, door)
    x = torch.tensor([3.0, 1.0, 2.0])
    for _ in range(2):
        with pytest.raises(RuntimeError) as expected:
            program(x)
        with pytest.raises(RuntimeError) as found:
            compiled(x)
        assert type(found.value) is type(expected.value)
        assert str(found.value).startswith(str(expected.value))


def test_a_frame_whose_first_call_failed_is_recorded_at_the_next() -> None:
    def program(x: torch.Tensor, sizes: torch.Tensor) -> torch.Tensor:
        return torch.ops.aten.as_strided_copy(x, (2, 3), (3, 1)) * sizes

    compiled = torch.compile(program, backend="plugin:reference", dynamic=True)
    short, long, one = torch.ones(2), torch.ones(9), torch.ones(())
    with pytest.raises(RuntimeError, match="out of bounds for storage"):
        compiled(short, one)
    before = torch_backplane.stats()["structures"]
    torch.testing.assert_close(compiled(long, one), program(long, one))
    assert torch_backplane.stats()["structures"] == before + 1


def windows_of_nothing(x):
    parts = x.sign().unfold(-1, 2, 1)
    parts.mul_(2)
    return parts + 1


def filled_where_nobody_says(x):
    return x.index_fill(0, torch.tensor([], dtype=torch.int64), x.sum())


@pytest.mark.parametrize("program", (windows_of_nothing, filled_where_nobody_says))
def test_what_pytorch_s_tracing_refuses_runs_with_pytorch(program):
    """Its functionalization raises for the first, its gradient's shape depends on data."""
    torch._dynamo.reset()
    compiled = torch.compile(program, backend="plugin:reference")
    for sizes in ((0, 7), (3, 7), (0, 7)):
        x = torch.randn(sizes)
        inputs = [x.clone().requires_grad_(program is filled_where_nobody_says) for _ in range(2)]
        results = [f(i) for f, i in zip((compiled, program), inputs, strict=True)]
        torch.testing.assert_close(*results)
        if results[0].requires_grad:
            for result in results:
                result.sum().backward()
            torch.testing.assert_close(inputs[0].grad, inputs[1].grad)


@pytest.mark.parametrize("plugin", ("reference", "cpu_onednn"))
@pytest.mark.parametrize("dtype", (torch.float32, torch.bfloat16), ids=str)
def test_images_of_no_elements(plugin, dtype):
    """The kernels of PyTorch refuse them in some types."""

    def program(x, weight):
        return torch.nn.functional.conv_transpose2d(x, weight, padding=1)

    compiled = torch_backplane.compile(program, backend=f"plugin:{plugin}")
    for sizes in ((2, 4, 4, 4), (2, 4, 4, 1), (0, 4, 4, 4)):
        arguments = [torch.ones(sizes, dtype=dtype), torch.ones(4, 2, 3, 2, dtype=dtype)]
        try:
            expected = program(*arguments)
        except RuntimeError as error:
            with pytest.raises(RuntimeError, match=str(error)[:30].replace("(", ".")):
                compiled(*arguments)
            continue
        torch.testing.assert_close(compiled(*arguments), expected)


def test_a_copy_of_what_is_larger():
    def program(x, y):
        return torch.ops.aten.copy(x, y)

    compiled = torch_backplane.compile(program, backend="plugin:reference")
    with pytest.raises(RuntimeError, match="doesn't match the broadcast shape"):
        compiled(torch.ones(1, 1), torch.ones(5, 5))
    assert torch.equal(compiled(torch.ones(5, 5), torch.zeros(1, 5)), torch.zeros(5, 5))


WRITES: dict[str, Callable[[torch.Tensor, torch.Tensor], Any]] = {
    "one index": lambda x, v: x.index_put((ONE,), v),
    "two": lambda x, v: x.index_put((ONE, ONE), v[0, :1]),
    "two apart": lambda x, v: torch.ops.aten.index_put(x.view(3, -1, 1), [ONE, None, ONE - 1], v),
    "in place": lambda x, v: x.clone().index_put_((ONE,), v),
    "assigned": lambda x, v: x.clone().__setitem__(ONE, v),
    "unsafe": lambda x, v: torch.ops.aten._unsafe_index_put(x, [ONE], v),
    "accumulated": lambda x, v: x.index_put((ONE,), v, accumulate=True),
    "unread": lambda x, v: (x.index_put((ONE,), v), x * 2)[1],
}


@pytest.mark.parametrize("plugin", ["reference", "cpu_onednn"])
@pytest.mark.parametrize("name", WRITES)
def test_values_that_do_not_fit_what_is_indexed(name: str, plugin: str) -> None:
    program = WRITES[name]
    compiled = torch_backplane.compile(program, backend=plugin)
    for width, given in ((5, 5), (5, 1), (1, 5), (4, 4), (4, 3), (5, 5)):
        x, values = torch.rand(3, width), torch.rand(1, given)
        try:
            expected = program(x, values)
        except (RuntimeError, IndexError) as error:
            with pytest.raises(type(error)) as found:
                compiled(x, values)
            assert str(found.value) == str(error)
            continue
        torch.testing.assert_close(compiled(x, values), expected)


@pytest.mark.parametrize("plugin", ("reference", "cpu_onednn"))
@pytest.mark.parametrize("reads", (False, True), ids=("unread", "read"))
def test_an_outer_product_smaller_than_what_it_is_added_to(plugin, reads):
    def program(x, row):
        made = torch.addr(x, row, ONE.float())
        return made if reads else x

    compiled = torch_backplane.compile(program, backend=f"plugin:{plugin}")
    column = torch.ones(3, 1)
    for row in (torch.ones(3), torch.ones(1), torch.ones(2), torch.ones(3)):
        if row.numel() == 3:
            torch.testing.assert_close(compiled(column, row), program(column, row))
            continue
        with pytest.raises(RuntimeError) as expected:
            program(column, row)
        with pytest.raises(RuntimeError) as found:
            compiled(column, row)
        assert str(found.value) == str(expected.value)


def svd(x):
    return torch.linalg.svd(x)[1]


REFUSED_NUMBERS: dict[str, Callable[[torch.Tensor], Any]] = {
    "histc": lambda x: torch.histc(x, 3),
    "histogram": lambda x: torch.histogram(x, 3)[0],
    "svd": svd,
    "svdvals": torch.linalg.svdvals,
    "cholesky": torch.linalg.cholesky,
    "bernoulli": torch.bernoulli,
    "multinomial": lambda x: torch.multinomial(x, 1),
    "binary_cross_entropy": lambda x: torch.nn.functional.binary_cross_entropy(x, x * 0 + 0.5),
}


@pytest.mark.parametrize("plugin", ["reference", "cpu_onednn"])
@pytest.mark.parametrize("name", REFUSED_NUMBERS)
def test_numbers_that_an_operator_refuses(name: str, plugin: str) -> None:
    program = REFUSED_NUMBERS[name]
    compiled = torch_backplane.compile(program, backend=plugin)
    good, bad = torch.eye(3) * 0.5 + 0.1, torch.eye(3) * float("nan")
    for x in (good, bad, good, bad):
        torch.manual_seed(0)
        try:
            expected = program(x)
        except RuntimeError as error:
            with pytest.raises(type(error)) as found:
                compiled(x)
            assert str(found.value) == str(error)
            continue
        torch.manual_seed(0)
        torch.testing.assert_close(compiled(x), expected)


OUTSIDE = torch.tensor([0, 7])
RAISES: dict[str, Callable[[torch.Tensor, torch.Tensor], Any]] = {
    "multinomial": lambda cache, x: torch.multinomial(x, 1),
    "cholesky": lambda cache, x: torch.linalg.cholesky(torch.diag(x)),
    "integers divided by zero": lambda cache, x: x.long() // (x.long() + 1),
    "bernoulli": lambda cache, x: torch.bernoulli(x),
    "poisson": lambda cache, x: torch.poisson(x),
    "take": lambda cache, x: cache.take(x.long() * 100),
    "an assertion": lambda cache, x: torch._assert_async(x.sum() > 0),
    "index_fill_, in part": lambda cache, x: cache.index_fill_(0, OUTSIDE, 3.0),
}


def recorded(cache: torch.Tensor, x: torch.Tensor, raises: Callable[..., Any]) -> Any:
    noise = torch.rand(2)
    cache.add_(noise)
    result = raises(cache, x)
    cache.mul_(3)
    return result, noise


def without_gradients(cache: torch.Tensor, x: torch.Tensor, raises: Callable[..., Any]) -> Any:
    cache.add_(1)
    with torch.no_grad():
        result = raises(cache, x)
    return result, torch.rand(2)


@pytest.mark.parametrize("recorder", [True, False])
@pytest.mark.parametrize("program", [recorded, without_gradients])
@pytest.mark.parametrize("name", RAISES)
def test_what_a_program_did_before_an_error_stays(
    name: str, program: Callable[..., Any], recorder: bool
) -> None:
    torch._dynamo.reset()
    options = {"recorder": recorder, "report": False}
    compiled = torch.compile(program, backend="plugin:cpu_onednn", options=options)
    seen: list[Any] = []
    for function in (compiled, program, compiled, program):
        cache = torch.zeros(2)
        torch.manual_seed(0)
        with pytest.raises((RuntimeError, IndexError)) as raised:
            function(cache, -torch.ones(2), RAISES[name])
        error = type(raised.value), str(raised.value)
        seen.append((error, cache.tolist(), torch.rand(2).tolist(), torch.is_grad_enabled()))
        torch.set_grad_enabled(True)
    assert seen[0] == seen[1] and seen[2] == seen[3]


def test_a_hook_of_saved_tensors_that_raises_is_called_once() -> None:
    """It comes behind the writes of the graph."""

    def program(cache: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        cache.add_(1)
        return x.sin().exp()

    def refuse(saved: torch.Tensor) -> torch.Tensor:
        raise ValueError("kept nowhere")

    torch._dynamo.reset()
    compiled = torch.compile(program, backend="plugin:cpu_onednn", options={"report": False})
    cache = torch.zeros(2)
    hooks = torch.autograd.graph.saved_tensors_hooks(refuse, lambda saved: saved)
    with hooks, pytest.raises(ValueError, match="kept nowhere"):
        compiled(cache, torch.ones(2, requires_grad=True))
    assert cache.tolist() == [1, 1]
