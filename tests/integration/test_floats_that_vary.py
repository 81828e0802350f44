"""torch.compile's door, a float that differs with each call: an input of the recorded graph where a
tensor does what the number does, else each value is recorded."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import torch_backplane
from compiling import compile_for
from torch import nn
from torch.utils.checkpoint import checkpoint
from torch_backplane.varying_floats import compute_with_number

FLOATS = (1.0, 0.5, 0.25, 0.3)


READERS: dict[str, Callable[[torch.Tensor, float], torch.Tensor]] = {
    "as an input": lambda y, b: y * b,
    "each value": lambda y, b: torch.add(y, y, alpha=b),
}
of_both = pytest.mark.parametrize("read", READERS.values(), ids=READERS)


def compiled_or_not(program: Callable[..., Any]) -> list[Callable[..., Any]]:
    return [program, compile_for("cpu_onednn", program)]


@of_both
def test_buffers_are_written_though_a_checkpoint_stops_early(read: Callable[..., Any]) -> None:
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)), torch.randn(5, 4)
    seen = []
    for run in compiled_or_not(lambda x, b: read(model(x), b)):
        model[1].reset_running_stats()
        found = []
        for b in FLOATS:
            checkpoint(run, x, b, use_reentrant=False).sum().backward()
            found.append((model[1].num_batches_tracked.item(), model[1].running_mean.clone()))
        seen.append(found)
    torch.testing.assert_close(seen[1], seen[0])


@of_both
def test_a_graph_may_be_kept(read: Callable[..., Any]) -> None:
    w = torch.randn(4, 4, requires_grad=True)
    x = torch.randn(3, 4)
    gradients = []
    for run in compiled_or_not(lambda x, b: F.silu(read((x @ w).sigmoid(), b)).tanh()):
        found = []
        for b in FLOATS:
            result = run(x, b).sum()
            for _ in range(2):
                found.append(torch.autograd.grad(result, w, retain_graph=True)[0])
        gradients.append(found)
    torch.testing.assert_close(gradients[1], gradients[0])


@of_both
def test_every_write_is_counted(read: Callable[..., Any]) -> None:
    def program(x: torch.Tensor, b: float) -> torch.Tensor:
        x.copy_(read(x, b))
        x.add_(1)
        return x + 0

    versions = []
    for run in compiled_or_not(program):
        tensors = [torch.ones(3) for _ in FLOATS]
        for x, b in zip(tensors, FLOATS, strict=True):
            run(x, b)
        versions.append([(x._version, x.tolist()) for x in tensors])
    assert versions[1] == versions[0]


@pytest.mark.parametrize("name", ["detach", "data", "itself"])
def test_inference_tensors_that_are_written_outside_of_their_mode(name: str) -> None:
    programs: dict[str, Callable[[torch.Tensor], Any]] = {
        "detach": lambda x: x.detach().fill_(3),
        "data": lambda x: x.data.mul_(2),
        "itself": lambda x: x.mul_(2),
    }
    outcomes = []
    for run in compiled_or_not(programs[name]):
        with torch.inference_mode():
            x = torch.ones(3)
        try:
            result = run(x).tolist()
        except RuntimeError as error:
            result = str(error)[:40]
        outcomes.append((result, x.tolist()))
    assert outcomes[1] == outcomes[0]


# By dtype: what the number beside it does.
DTYPES = (
    torch.float32,
    torch.float64,
    torch.float16,
    torch.bfloat16,
    torch.int64,
    torch.uint8,
    torch.bool,
    torch.complex64,
)
OPERATIONS: dict[str, Callable[[torch.Tensor, float], torch.Tensor]] = {
    "+": lambda x, b: x + b,
    "-": lambda x, b: x.sub(b),
    "*": lambda x, b: x.mul(b),
    "/": lambda x, b: x / b,
    "+ behind": lambda x, b: b + x,
    "- behind": lambda x, b: b - x,
    "* behind": lambda x, b: b * x,
    "/ behind": lambda x, b: b / x,
    "computed": lambda x, b: x * (-b / 3 + 1) - 2.0 * b * x,
    "root and power": lambda x, b: x * math.sqrt(b) + x * b**2,
    "written": lambda x, b: (x * 1).mul_(b).add_(b).sub_(b / 2).div_(b),
}
SHAPES = ((), (5,), (0,), (2, 3))


def values_of(dtype: torch.dtype, shape: tuple[int, ...]) -> torch.Tensor:
    count = math.prod(shape)
    return (torch.arange(count).reshape(shape) * 0.7 + 0.3).to(dtype)


def outcome(program: Callable[..., Any], x: torch.Tensor, b: float) -> Any:
    x = x.clone()
    if x.is_floating_point() or x.is_complex():
        x.requires_grad_(True)
    try:
        result = program(x, b)
        if result.requires_grad:
            return result.detach(), torch.autograd.grad(result, x, torch.ones_like(result))[0]
    except RuntimeError:
        return "refused"
    return result


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", OPERATIONS)
def test_promotion_and_gradients_are_those_of_a_number(name: str, dtype: torch.dtype) -> None:
    program = OPERATIONS[name]
    for shape in SHAPES:
        torch._dynamo.reset()
        x = values_of(dtype, shape)
        compiled = compile_for("cpu_onednn", program)
        before = torch_backplane.stats()["aot_graphs"]
        for b in (0.5, 0.1, 1 / 3, 300.7, 0.0):
            expected, found = outcome(program, x, b), outcome(compiled, x, b)
            if isinstance(expected, str):
                assert found == expected
                continue
            # Eager mode rounds to a half between operators, which a plugin need not.
            loose = {"rtol": 4e-3, "atol": 2e-3} if dtype == torch.float16 else {}
            torch.testing.assert_close(found, expected, equal_nan=True, **loose)
            assert torch_backplane.stats()["aot_graphs"] == before


METHODS: dict[str, Callable[[torch.Tensor, float], torch.Tensor]] = {
    "add": lambda x, b: x + b,
    "sub": lambda x, b: x - b,
    "mul": lambda x, b: x * b,
    "div": lambda x, b: x / b,
    "__rsub__": lambda x, b: b - x,
    "__rtruediv__": lambda x, b: b / x,
    "add_": lambda x, b: x.add_(b),
    "mul_": lambda x, b: x.mul_(b),
}


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", METHODS)
def test_a_tensor_in_the_place_of_a_number(name: str, dtype: torch.dtype) -> None:
    def in_its_place(x: torch.Tensor, b: float) -> torch.Tensor:
        return compute_with_number(name, x, torch.tensor(b, dtype=torch.float64))

    def of_a_copy(program: Callable[..., Any]) -> Callable[..., Any]:
        return lambda x, b: program(x * 1 if x.requires_grad else x, b)

    for shape in SHAPES:
        for b in (0.1, 1 / 3, 300.7, 70000.0, 1e-30, 1e300, math.inf, 0.0):
            x = values_of(dtype, shape)
            expected, found = (outcome(of_a_copy(p), x, b) for p in (METHODS[name], in_its_place))
            if isinstance(expected, str):
                assert found == expected
            else:
                torch.testing.assert_close(found, expected, rtol=0, atol=0, equal_nan=True)


def of_all(tensor: torch.Tensor) -> torch.Tensor:
    return (tensor.real if tensor.is_complex() else tensor) > 0.5


def assign(x: torch.Tensor, b: float) -> torch.Tensor:
    x = x * 1
    x[of_all(x)] = b
    return x


FILTERS: dict[str, Callable[[torch.Tensor, float], torch.Tensor]] = {
    ">": lambda x, b: x > b,
    "<= behind": lambda x, b: b <= x,
    "ne": lambda x, b: x.ne(b),
    "clamp": lambda x, b: torch.clamp(x, -b, b),
    "clamp up to": lambda x, b: x.clamp(0, max=b),
    "clamp by one bound": lambda x, b: x.clamp(min=b),
    "clamp_max": lambda x, b: x.clamp_max(b),
    "where": lambda x, b: torch.where(of_all(x), x, b),
    "where not": lambda x, b: torch.where(of_all(x), b / 2, x),
    "masked_fill": lambda x, b: x.masked_fill(of_all(x), b),
    "masked_fill_": lambda x, b: (x * 1).masked_fill_(of_all(x), b),
    "fill_": lambda x, b: (x * 1).fill_(b),
    "full": lambda x, b: torch.full((2, 3), b) * x.sum(),
    "full_like": lambda x, b: torch.full_like(x, b) * x,
    "assigned": assign,
}
# What PyTorch takes as a number and no tensor: too large for some dtypes, among zeros of both signs.
SPECIAL = (1 / 3, 0.7, 70000.0, 1e300, 0.0, -0.0, math.inf, math.nan, -0.25)


def bits(result: Any) -> Any:
    if isinstance(result, torch.Tensor):
        result = torch.view_as_real(result) if result.is_complex() else result
        signs = result.signbit() & ~result.isnan()  # a NaN's sign is nobody's
        return result.dtype, result.shape, str(result.tolist()), signs.tolist()
    return [bits(r) for r in result] if isinstance(result, tuple) else result


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", FILTERS)
def test_filters_leave_the_bits_that_a_number_leaves(name: str, dtype: torch.dtype) -> None:
    program = FILTERS[name]
    for shape in ((), (11,)):
        torch._dynamo.reset()
        x = values_of(dtype, shape)
        if dtype.is_floating_point and shape:
            x[:3] = torch.tensor([-0.0, math.nan, 1 / 3])
        compiled = compile_for("cpu_onednn", program)
        before = torch_backplane.stats()["aot_graphs"]
        for b in SPECIAL:
            assert bits(outcome(compiled, x, b)) == bits(outcome(program, x, b)), (shape, b)
        assert torch_backplane.stats()["aot_graphs"] == before


@pytest.mark.parametrize("name", FILTERS)
def test_filters_are_one_program(name: str) -> None:
    torch._dynamo.reset()
    compiled = compile_for("cpu_onednn", FILTERS[name], dynamic=True)
    x = torch.randn(3)
    compiled(x, 0.1)
    before = torch_backplane.stats()
    for b in FLOATS:
        assert bits(compiled(x, b)) == bits(FILTERS[name](x, b))
    found = torch_backplane.stats()
    for key in ("graphs", "recordings", "structures", "eager_calls"):
        assert found[key] == before[key], key


NUMBERS: dict[str, Callable[[torch.Tensor, float], torch.Tensor]] = {
    "add alpha": lambda x, b: torch.add(x, x.sin(), alpha=b),
    "pow": lambda x, b: x.square().pow(b),
    "pow of a number": lambda x, b: torch.pow(b, x),
    "lerp": lambda x, b: torch.lerp(x, x.exp(), b),
    "hardtanh": lambda x, b: F.hardtanh(x, -b, b),
    "beside a product": lambda x, b: F.elu(x * b, b),
}


@pytest.mark.parametrize("name", NUMBERS)
def test_each_value_is_recorded_where_a_number_is_needed(name: str) -> None:
    """And more of them than TorchDynamo compiles a frame for."""
    torch._dynamo.reset()
    program = NUMBERS[name]
    compiled = compile_for("cpu_onednn", program)
    before = torch_backplane.stats()
    for i in range(12):
        x = torch.linspace(0.1, 2, 5)
        b = 0.3 + i / 16
        torch.testing.assert_close(outcome(compiled, x, b), outcome(program, x, b))
    found = torch_backplane.stats()
    assert found["structures"] - before["structures"] == 12
    for key in ("aot_graphs", "eager_graphs", "eager_calls"):
        assert found[key] == before[key], key


def test_values_that_differ_are_one_program() -> None:
    compiled = compile_for("cpu_onednn", lambda x, b: (x * b - b / 4).relu(), dynamic=True)
    compiled(torch.ones(3), 0.1)
    before = torch_backplane.stats()
    for b in FLOATS:
        torch.testing.assert_close(compiled(torch.ones(3), b), torch.full((3,), b - b / 4))
    found = torch_backplane.stats()
    for key in ("graphs", "recordings", "structures", "eager_calls"):
        assert found[key] == before[key], key


def test_a_norm_runs_inside_and_outside() -> None:
    torch.manual_seed(0)
    norm, x = nn.BatchNorm1d(4), torch.randn(5, 4)
    gradients = []
    for run in compiled_or_not(lambda x, b: norm(x) * b):
        norm.reset_running_stats()
        found = []
        for b in FLOATS:
            norm.zero_grad()
            before = norm.running_mean._version
            (norm(x) + run(x, b) + norm(x)).square().sum().backward()
            found.append((norm.weight.grad.clone(), norm.running_mean.clone()))
            found.append(norm.running_mean._version - before)
        gradients.append(found)
    torch.testing.assert_close(gradients[1], gradients[0])


def test_a_write_through_data_is_not_counted() -> None:
    def program(x: torch.Tensor, b: float) -> torch.Tensor:
        x.data.mul_(b)
        return x + b

    versions = []
    for run in compiled_or_not(program):
        tensors = [torch.ones(3) for _ in FLOATS]
        for x, b in zip(tensors, FLOATS, strict=True):
            run(x, b)
        versions.append([(x._version, x.tolist()) for x in tensors])
    assert versions[1] == versions[0]


@of_both
def test_gradients_of_gradients(read: Callable[..., Any]) -> None:
    gradients = []
    for run in compiled_or_not(lambda x, b: read(x, b).sin().sum() * (b / 2) + b / x.sum()):
        found = []
        for b in FLOATS:
            x = torch.tensor([0.3, 0.7], requires_grad=True)
            (first,) = torch.autograd.grad(run(x, b), x, create_graph=True)
            found.append((first.detach(), torch.autograd.grad(first.sum(), x)[0]))
        gradients.append(found)
    torch.testing.assert_close(gradients[1], gradients[0])


def test_a_division_by_0_is_raised_where_the_program_stands() -> None:
    def program(x: torch.Tensor, b: float) -> torch.Tensor:
        x.add_(1)
        return x * (1 / b)

    compiled = compile_for("cpu_onednn", program)
    for b in FLOATS:
        assert torch.equal(compiled(torch.ones(2), b), program(torch.ones(2), b))
    x = torch.ones(2)
    with pytest.raises(ZeroDivisionError):
        compiled(x, 0.0)
    assert x.tolist() == [2.0, 2.0]


def test_a_float_that_is_returned() -> None:
    compiled = compile_for("cpu_onednn", lambda x, b: (x * b, b * 3, b))
    for b in FLOATS:
        product, three, same = compiled(torch.ones(2), b)
        assert (product.tolist(), three, same) == ([torch.tensor(b).item()] * 2, b * 3, b)


def test_within_a_vmap() -> None:
    def program(x: torch.Tensor, b: float) -> torch.Tensor:
        return torch.vmap(lambda row: row * b - b / row.sum())(x)

    x = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    compiled = compile_for("cpu_onednn", program)
    for b in FLOATS:
        torch.testing.assert_close(compiled(x, b), program(x, b))
