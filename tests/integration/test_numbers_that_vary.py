"""A number that differed between calls is an operand from then on. What PyTorch makes of one that
its tensor's elements cannot hold is the same as for a number written into the program."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch_backplane
from compiling import DOORS, compile_for

BIG = 2**40
# A program, its tensor, and numbers of which the first two make it general.
PROGRAMS: dict[str, tuple[Callable[[torch.Tensor, Any], Any], torch.Tensor, tuple[Any, ...]]] = {
    "full_like": (torch.full_like, torch.tensor([1], dtype=torch.uint8), (1, 2, 3, 300)),
    "less": (lambda x, n: x < n, torch.tensor([1], dtype=torch.uint8), (3, 5, -1, 4, -2, -7)),
    "less of int8": (lambda x, n: x < n, torch.tensor([1], dtype=torch.int8), (3, 5, 200, 300)),
    "less of int32": (lambda x, n: x < n, torch.tensor([1], dtype=torch.int32), (3, 5, 2**33)),
    "equal": (lambda x, n: x == n, torch.tensor([44], dtype=torch.uint8), (3, 5, 300)),
    "clamp_min": (torch.clamp_min, torch.tensor([1], dtype=torch.uint8), (3, 5, -1, -3)),
    "clamp": (lambda x, n: x.clamp(0, n), torch.tensor([1], dtype=torch.uint8), (3, 5, 300)),
    "remainder": (lambda x, n: x % n, torch.tensor([1], dtype=torch.uint8), (3, 5, -1, 0)),
    "remainder of int8": (lambda x, n: x % n, torch.tensor([1], dtype=torch.int8), (3, 5, BIG)),
    "remainder of int64": (lambda x, n: x % n, torch.tensor([5, 6]), (3, 5, 0, -1, 7)),
    "floor_divide": (lambda x, n: x // n, torch.tensor([5, 6]), (3, 5, 0, -1, 7)),
    "shift": (lambda x, n: x << n, torch.tensor([1], dtype=torch.uint8), (1, 2, BIG)),
    "masked_fill": (
        lambda x, n: x.masked_fill(x > 0, n),
        torch.tensor([1], dtype=torch.uint8),
        (3, 5, 300),
    ),
    "alpha": (
        lambda x, n: torch.add(x, x, alpha=n),
        torch.tensor([1], dtype=torch.int8),
        (3, 5, 300),
    ),
    "power": (lambda x, n: x**n, torch.tensor([3], dtype=torch.uint8), (1, 2, 300)),
    "where": (
        lambda x, n: torch.where(x > 0, x, n),
        torch.tensor([1], dtype=torch.uint8),
        (3, 5, 300),
    ),
    "bits": (lambda x, n: x & n, torch.tensor([44], dtype=torch.uint8), (3, 5, 300, 1.5)),
    "floats": (lambda x, n: x.clamp(max=n), torch.ones(1), (1.0, 2.0, 3.0, 1e300)),
    "halves": (lambda x, n: x < n, torch.ones(1, dtype=torch.float16), (1, 5, 70000)),
}


def outcome(function: Callable[..., Any], x: torch.Tensor, n: Any) -> Any:
    try:
        return function(x.clone(), n).tolist()
    except Exception as error:
        return str(error).partition("\n")[0]


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("plugin", ["reference", "cpu_onednn", "opencl"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_general_number_is_the_number(name: str, plugin: str, door: str) -> None:
    program, x, numbers = PROGRAMS[name]
    torch._dynamo.reset()
    compiled = compile_for(plugin, program, door)
    for n in numbers:
        assert outcome(compiled, x, n) == outcome(program, x, n), n


# What eager mode refuses of kinds of numbers and elements that shape functions let through.
REFUSED: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "bool minus": lambda x: True - x,
    "bits of floats": lambda x: x & 1,
    "inverted floats": torch.bitwise_not,
    "gcd of floats": lambda x: torch.gcd(x, x),
}


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("plugin", ["reference", "cpu_onednn"])
@pytest.mark.parametrize("name", REFUSED)
def test_what_eager_refuses_is_refused(name: str, plugin: str, door: str) -> None:
    torch._dynamo.reset()
    with pytest.raises(RuntimeError):
        REFUSED[name](torch.ones(2))
    with pytest.raises(RuntimeError):
        compile_for(plugin, REFUSED[name], door)(torch.ones(2))


@pytest.mark.parametrize("plugin", ["reference", "cpu_onednn"])
def test_a_refused_number_leaves_effects_and_handlers(plugin: str) -> None:
    seen: list[float] = []

    def program(x: torch.Tensor, n: float) -> Any:
        seen.append(n)
        x.add_(1)
        try:
            return x.clamp(max=n)
        except RuntimeError:
            return "caught"

    compiled = torch_backplane.compile(program, backend=f"plugin:{plugin}")
    for n in (1.0, 2.0, 3.0):
        x = torch.ones(1)
        assert compiled(x, n).tolist() == [min(n, 2.0)]
    x = torch.ones(1)
    assert compiled(x, 1e300) == "caught"
    assert x.tolist() == [2.0]
    assert seen == [1.0, 2.0, 3.0, 1e300]


def draws_and_factors(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.rand(1), torch.linalg.cholesky(x)


def draws_and_picks(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
    noise = torch.rand(1)
    try:
        return noise, torch.arange(3)[x.to(torch.int64)]
    except IndexError:
        return noise, None


@pytest.mark.parametrize("plugin", ["reference", "cpu_onednn", "opencl"])
@pytest.mark.parametrize(
    ("program", "good", "bad"),
    [
        (draws_and_factors, torch.eye(2), -torch.eye(2)),
        (draws_and_picks, torch.zeros(2), torch.full((2,), 9.0)),
    ],
)
def test_what_runs_again_draws_the_same_numbers(
    program: Callable[..., Any], good: torch.Tensor, bad: torch.Tensor, plugin: str
) -> None:
    compiled = torch_backplane.compile(program, backend=f"plugin:{plugin}")
    compiled(good)

    def after(function: Callable[..., Any]) -> tuple[Any, float]:
        torch.manual_seed(0)
        try:
            result = function(bad)[0].item()
        except RuntimeError as error:
            result = type(error)
        return result, torch.rand(1).item()

    assert after(compiled) == after(program)


@pytest.mark.parametrize("plugin", ["reference", "cpu_onednn", "opencl"])
def test_dims_that_nobody_looks_at(plugin: str) -> None:
    """Without elements ``roll`` takes any dims."""
    compiled = torch_backplane.compile(torch.roll, backend=f"plugin:{plugin}")
    for shape in ((0, 2), (0, 0, 2), (0,), (3, 4)):
        for dim in (0, -1, 1, 5, -9, 2**40):
            x = torch.ones(shape)
            try:
                expected = torch.roll(x, 2, dim)
            except IndexError:
                with pytest.raises(IndexError):
                    compiled(x, 2, dim)
            else:
                assert torch.equal(compiled(x, 2, dim), expected)


@pytest.mark.parametrize("door", DOORS)
def test_celu_without_a_slope(door: str) -> None:
    torch._dynamo.reset()
    compiled = compile_for("cpu_onednn", torch.nn.functional.celu, door)
    compiled(torch.ones(2), 1.0)
    for alpha in (0.0, 0):
        with pytest.raises(RuntimeError, match="alpha cannot be 0"):
            compiled(torch.ones(2), alpha)
