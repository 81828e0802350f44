"""A conversion's result is what its type can hold, whether or not it is ever stored."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from compiling import PLUGINS, compile_for

HALVES = (torch.float16, torch.bfloat16)
NARROW = (*HALVES, torch.float32, torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64)
# Ties, what is too large and too small for a half, what no short integer holds.
NUMBERS = (0.1, 1 / 3, 2049.0, 70000.0, 65519.0, 65520.0, -65521.0, 1e-9, 6e-8, -3.3e-5, 0.0, -2.5)
NUMBERS += (300.0, -300.0, 100.7, 1.00390625, 1.01171875)
SOURCES = (torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.int8)


def numbers(dtype: torch.dtype) -> torch.Tensor:
    """Whole vectors and some elements more."""
    x = torch.tensor(NUMBERS * 3)
    if dtype.is_floating_point:
        return torch.cat([x, torch.tensor([torch.inf, -torch.inf, torch.nan, 3.4e38])]).to(dtype)
    return x.to(torch.int32).to(dtype)


def round_trips(x: torch.Tensor) -> list[torch.Tensor]:
    return [x.to(narrow).to(wide) for narrow in NARROW for wide in (torch.float32, torch.float64)]


def stored_as_well(x: torch.Tensor) -> list[torch.Tensor]:
    half = x.half()
    return [half, half.float(), (half.float() * 2).bfloat16().float()]


def copied(x: torch.Tensor) -> list[torch.Tensor]:
    return [torch.zeros_like(x, dtype=t).copy_(x).float() for t in (*NARROW, torch.bool)]


def filled(x: torch.Tensor) -> list[torch.Tensor]:
    return [
        *(x.to(t).fill_(0.1).float() for t in HALVES),
        *(torch.full_like(x, 0.1, dtype=t).double() for t in (*HALVES, torch.float32)),
        x.float().fill_(0.1).double(),
    ]


def handed_on(x: torch.Tensor) -> list[torch.Tensor]:
    """To operators that promote."""
    y = torch.full((1,), 0.25)
    return [
        torch.maximum(x.half(), y),
        x.half() + y,
        torch.where(x > 0, x.bfloat16(), y),
        x.half() * torch.full((1,), 2.0, dtype=torch.float64),
        x.bfloat16() + x.half(),
        x.type_as(torch.zeros((), dtype=torch.bfloat16)) + y,
    ]


@pytest.mark.parametrize("plugin", PLUGINS)
@pytest.mark.parametrize("dtype", SOURCES, ids=str)
@pytest.mark.parametrize(
    "program", [round_trips, stored_as_well, copied, filled, handed_on], ids=lambda f: f.__name__
)
def test_conversions_inside_of_programs(
    program: Callable[..., list[torch.Tensor]], dtype: torch.dtype, plugin: str
) -> None:
    x = numbers(dtype)
    if plugin == "cuda" and dtype.is_floating_point:
        x = x.clamp(-100, 100)  # integers out of range are each processor's own
    for actual, expected in zip(compile_for(plugin, program)(x), program(x), strict=True):
        torch.testing.assert_close(actual, expected, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("plugin", PLUGINS)
@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_halves_of_doubles_come_by_way_of_float32(dtype: torch.dtype, plugin: str) -> None:
    """Just above a tie, which float32 does not tell from it."""
    step = torch.finfo(dtype).eps
    x = torch.tensor([1 + step / 2 + 2**-30, 1 + step * 1.5 - 2**-30, 1 + step], dtype=torch.double)

    def program(x: torch.Tensor) -> torch.Tensor:
        return x.to(dtype)

    assert torch.equal(compile_for(plugin, program)(x), program(x))


@pytest.mark.parametrize("plugin", PLUGINS)
def test_conversions_behind_kernels(plugin: str) -> None:
    x = torch.arange(64.0).reshape(8, 8) / 7

    def program(x: torch.Tensor) -> list[torch.Tensor]:
        return [
            F.relu(x @ torch.eye(8)).half().float(),
            F.conv2d(x[None, None], torch.ones(1, 1, 1, 1)).bfloat16().float() + 1,
            x.amax(1).half().float(),
        ]

    for actual, expected in zip(compile_for(plugin, program)(x), program(x), strict=True):
        torch.testing.assert_close(actual, expected, rtol=0, atol=0)


@pytest.mark.parametrize("plugin", PLUGINS)
@pytest.mark.parametrize("rows", [1, 3, 40])
def test_sums_convert_first(rows: int, plugin: str) -> None:
    """What a sum's type cannot hold is no number, or another one, before it is added."""
    x = torch.tensor([[70000.0, -70000.0, 1.0] * 20] * rows)
    parts = torch.full((rows, 60), 0.75)
    large = torch.full((rows, 60), 2**24 + 1)
    doubles = torch.tensor([[1e300, -1e300] * 30] * rows, dtype=torch.float64)

    def program(x, parts, large, doubles):
        half = {"dtype": torch.float16}
        return [
            x.sum(**half),
            x.sum(0, **half),
            x.sum(1, **half),
            x.mean(**half),
            x.mean(1, **half),
            x.cumsum(1, **half),
            x[:, :1].prod(1, dtype=torch.bfloat16),
            parts.sum(1, dtype=torch.int64),
            parts.sum(0, dtype=torch.int32),
            parts.cumsum(1, dtype=torch.int64),
            large.sum(1, dtype=torch.int8),
            doubles.sum(1, dtype=torch.float32),
            doubles.mean(1, dtype=torch.float32),
            doubles.mean(dtype=torch.float16),
            doubles.cumsum(1, dtype=torch.float32),
        ]

    operands = x, parts, large, doubles
    actual, expected = compile_for(plugin, program)(*operands), program(*operands)
    for a, e in zip(actual, expected, strict=True):
        torch.testing.assert_close(a, e, equal_nan=True)


@pytest.mark.parametrize("reduction", [0, 1, 2])
@pytest.mark.parametrize("plugin", PLUGINS)
def test_a_loss_of_operands_of_two_types_is_of_the_first(reduction: int, plugin: str) -> None:
    """PyTorch's function for its shape promotes them."""
    torch.manual_seed(0)
    value, target = torch.rand(5, 3).bfloat16(), torch.rand(5, 3)

    def program(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return torch.ops.aten.huber_loss(a, b, reduction)

    expected = program(value, target)
    actual = compile_for(plugin, program)(value, target)
    assert actual.dtype == expected.dtype == torch.bfloat16
    torch.testing.assert_close(actual, expected)


WHOLE_STEPS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "add": lambda a: a + 1,
    "neg": lambda a: -a,
    "or": lambda a: a | 1,
    "shift": lambda a: a >> 1,
    "abs": torch.abs,
    "clamp": lambda a: a.clamp(min=3),
    "maximum": lambda a: torch.maximum(a, a // 2),
    "square": lambda a: a * a,
}
FLOAT_READERS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "half": lambda v: v * 0.5,
    "tanh": torch.tanh,
    "quotient": lambda v: v / 2,
    "tensor": lambda v: v + torch.ones(1),
    "above": lambda v: v > 0.5,
    "double": lambda v: v.double(),
}


@pytest.mark.parametrize("plugin", PLUGINS)
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_whole_numbers_stay_whole_beside_readers_of_floats(dtype: torch.dtype, plugin: str) -> None:
    """What reads a number as a float leaves it to the others as it is."""
    largest = torch.iinfo(dtype).max
    values = torch.tensor(
        [16777217, largest - 1, -largest, 3, 2**24 + 4, largest // 3], dtype=dtype
    )

    def program(a: torch.Tensor) -> list[torch.Tensor]:
        out = []
        for step in WHOLE_STEPS.values():
            for read in FLOAT_READERS.values():
                whole = step(a)
                out += [read(whole), whole, whole + 1]
        return out

    def in_place(a: torch.Tensor) -> torch.Tensor:
        a.add_(1)
        return a * 0.5

    got, expected = compile_for(plugin, program, "own")(values), program(values)
    for actual, wanted in zip(got, expected, strict=True):
        exact = {} if wanted.is_floating_point() else {"rtol": 0, "atol": 0}
        torch.testing.assert_close(actual, wanted, **exact)
    ours, eager = values.clone(), values.clone()
    torch.testing.assert_close(compile_for(plugin, in_place, "own")(ours), in_place(eager))
    assert torch.equal(ours, eager)


@pytest.mark.parametrize("plugin", PLUGINS)
def test_whole_numbers_are_compared_with_floats_in_float32(plugin: str) -> None:
    def program(a: torch.Tensor) -> list[torch.Tensor]:
        return [a == 2.0**24, a != 2.0**24, a > 2.0**24, a <= 16777217.5]

    for dtype in (torch.int32, torch.int64):
        a = torch.tensor([2**24 + 1, 2**24, 2**24 + 3, -1], dtype=dtype)
        got, expected = compile_for(plugin, program, "own")(a), program(a)
        for actual, wanted in zip(got, expected, strict=True):
            assert torch.equal(actual, wanted)
