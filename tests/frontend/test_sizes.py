"""Sizes of one structure share a compiled program; what Python sees of them stays each size's own."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from frontend.helpers import assert_same, captured, check
from torch_backplane import frontend


def programs(compiled: Any) -> int:
    return frontend.counters(compiled)["programs"]


def test_two_programs_for_many_batch_sizes() -> None:
    torch.manual_seed(0)
    net = torch.nn.Sequential(
        torch.nn.Conv2d(3, 4, 3), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(144, 5)
    )
    compiled = frontend.compile(net)
    for batch in range(2, 60):
        x = torch.randn(batch, 3, 8, 8)
        assert torch.equal(compiled(x), net(x))
    assert programs(compiled._backplane_compiled) <= 2
    assert captured(compiled._backplane_compiled)


def test_training_at_many_sizes() -> None:
    def function(x, w):
        return (x @ w).relu().view(-1, 2).sum(1) / x.shape[0]

    compiled = frontend.compile(function)
    w = torch.linspace(-1, 1, 32).reshape(4, 8)
    for rows in (3, 5, 6, 11, 3, 20):
        x = torch.linspace(-2, 2, rows * 4).reshape(rows, 4)
        ours, plain = w.clone().requires_grad_(), w.clone().requires_grad_()
        a, b = compiled(x, ours), function(x, plain)
        assert torch.equal(a, b)
        a.square().sum().backward()
        b.square().sum().backward()
        assert torch.equal(ours.grad, plain.grad)
    assert programs(compiled) <= 2 and captured(compiled)


def test_what_python_sees_of_a_size() -> None:
    def function(x):
        rows, columns = x.shape
        return x.reshape(-1), rows * 2 + columns, [columns] * rows, f"{rows}x{columns}", x.shape

    sizes = [(2, 3), (4, 3), (5, 7), (3, 3), (1, 4), (0, 4), (4, 1)]
    compiled = check(function, *[(torch.rand(*size),) for size in sizes])
    assert captured(compiled)


def test_a_branch_on_a_size() -> None:
    def function(x):
        if x.shape[0] > 4:
            return x * 2
        return x + x.shape[0]

    compiled = check(function, *[(torch.rand(n),) for n in (2, 5, 3, 6, 4, 9)])
    assert programs(compiled) <= 4 and captured(compiled)


def test_equal_sizes_that_part() -> None:
    def function(a, b):
        return a.sum(0) + b.sum(0), a.shape[0] * b.shape[0]

    calls = [(4, 4), (6, 6), (6, 3), (3, 8), (5, 5)]
    check(function, *[(torch.rand(n, 2), torch.rand(m, 2)) for n, m in calls])


def test_numbers_share_a_program() -> None:
    def function(x, n):
        return x * n, n + 1

    compiled = check(function, *[(torch.rand(4), n) for n in range(2, 14)])
    assert programs(compiled) <= 2 and captured(compiled)


def test_sizes_behind_a_break() -> None:
    def function(x):
        y = x * x.shape[0]
        if y.sum() > 0:
            y = y - x.shape[0]
        return y, y.shape[0]

    compiled = frontend.compile(function)
    for n in range(2, 30):
        x = torch.linspace(-1, 2, n)
        assert_same(compiled(x), function(x))
    by_frame: dict[str, set[int]] = {}
    for entry in frontend.entries(compiled):
        by_frame.setdefault(entry["frame"], set()).add(entry["program"])
    assert all(len(found) <= 2 for found in by_frame.values()), by_frame
    assert captured(compiled)


def test_a_counter_that_is_only_python() -> None:
    class Step:
        count = 0

    def function(x, step):
        step.count += 1
        return x + 1, step.count

    ours, plain = Step(), Step()
    compiled = frontend.compile(function)
    x = torch.rand(3)
    for _ in range(20):
        assert_same(compiled(x, ours), function(x, plain))
    assert ours.count == plain.count == 20
    assert programs(compiled) == 1 and captured(compiled)


def assign(x: torch.Tensor, n: float) -> torch.Tensor:
    x[...] = n
    return x


NUMBERS = {
    "assign": assign,
    "fill": lambda x, n: torch.fill(x, torch.tensor(n)),
    **{
        name: (lambda x, n, name=name: getattr(torch, name)(x, torch.tensor(n)))
        for name in (
            *("add", "sub", "mul", "div", "remainder", "fmod", "floor_divide", "true_divide"),
            *("eq", "ne", "lt", "le", "gt", "ge", "pow", "float_power", "atan2", "copysign"),
            *("maximum", "minimum", "fmax", "fmin", "clamp_min", "clamp_max", "xlogy", "hypot"),
            *("nextafter", "logaddexp", "heaviside", "ldexp", "searchsorted", "isclose"),
        )
    },
    "rounded": lambda x, n: torch.div(x, torch.tensor(n), rounding_mode="floor"),
    "reversed": lambda x, n: torch.tensor(n) - x,
    "lerp": lambda x, n: torch.lerp(x, x * 2, torch.tensor(n)),
    "where": lambda x, n: torch.where(x > 2, x, torch.tensor(n)),
    "clamp": lambda x, n: torch.clamp(x, torch.tensor(n)),
    "masked": lambda x, n: x.masked_fill(x > 2, torch.tensor(n)),
    "index": lambda x, n: x.index_fill(0, torch.tensor([0]), torch.tensor(n)),
    "full": lambda x, n: x.new_full((3,), n) + x.sum(),
}


@pytest.mark.parametrize("name", NUMBERS)
@pytest.mark.parametrize("backend", ("eager", "reference", "cpu_onednn"))
def test_numbers_that_come_from_sizes(name: str, backend: str) -> None:
    """Of a program for several sizes they are no constants."""

    def program(x: torch.Tensor) -> torch.Tensor:
        return NUMBERS[name](x, float(x.shape[0] * 2))

    compiled = frontend.compile(program, backend=backend)
    for size in (3, 5, 1, 6):
        x = torch.arange(size, dtype=torch.float32)
        torch.testing.assert_close(compiled(x.clone()), program(x.clone()), equal_nan=True)


def test_strides_of_size_one_are_eagers() -> None:
    def function(x):
        x.unsqueeze_(0)
        return x * 2, x.unsqueeze(1) + 1

    compiled = frontend.compile(function)
    for size in (4, 6, 9, 4):
        given, plain = torch.arange(float(size)), torch.arange(float(size))
        for a, b in zip(compiled(given), function(plain), strict=True):
            assert_same(a, b)
            assert a.stride() == b.stride()
    assert programs(compiled) <= 2
