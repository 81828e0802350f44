"""dynamic=True and False, and sizes that the user has marked."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch_backplane
from frontend.helpers import assert_same, captured, check
from hypothesis import given, settings
from hypothesis import strategies as st
from torch_backplane import BackplaneError, frontend


def programs(compiled: Any) -> int:
    return frontend.counters(compiled)["programs"]


def static_sizes(compiled: Any) -> dict[str, int]:
    return frontend.counters(compiled)["static_sizes"]


def rows(x: torch.Tensor) -> tuple[torch.Tensor, int]:
    return x.reshape(-1, x.shape[-1]).sum(0) / x.shape[0], x.shape[0]


def test_true_generalises_from_the_first_call() -> None:
    compiled = frontend.compile(rows, dynamic=True)
    seen = set()
    for size in (4, 7, 3, 12):
        check(rows, (torch.rand(size, 6),), compiled=compiled)
        seen.add(frontend.entries(compiled)[0]["program"])
    assert len(seen) == programs(compiled) == 1
    assert not static_sizes(compiled) and captured(compiled)


def test_false_never_generalises() -> None:
    compiled = frontend.compile(rows, dynamic=False)
    for size in (4, 7, 3):
        check(rows, (torch.rand(size, 6),), compiled=compiled)
    assert programs(compiled) == 3 and captured(compiled)
    for size in range(8, 20):
        check(rows, (torch.rand(size, 6),), compiled=compiled)
    assert programs(compiled) == 8
    (reason,) = frontend.counters(compiled)["plain_reasons"]
    assert reason == "no more than 8 entries are kept"


def test_true_with_weights_numbers_and_containers() -> None:
    net = torch.nn.Linear(6, 4)

    def function(batch: dict[str, Any], n: int) -> Any:
        return net(batch["x"]) * n, batch["mask"].sum(), n + 1

    compiled = frontend.compile(function, dynamic=True)
    for size, n in ((4, 3), (7, 5), (9, 2)):
        batch = {"x": torch.rand(size, 6), "mask": torch.ones(size + 20)}
        assert_same(compiled(batch, n), function(batch, n))
    assert programs(compiled) == 1 and captured(compiled)
    (reason,) = static_sizes(compiled)  # the weight has one number of columns
    assert reason.startswith("batch['x'].shape[1] stays 6: the program cannot be captured")


def test_true_where_sizes_depend_on_each_other() -> None:
    def function(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return a[1:] + b, torch.cat([a, b])

    compiled = frontend.compile(function, dynamic=True)
    for size in (4, 7, 3):
        check(function, (torch.rand(size + 1), torch.rand(size)), compiled=compiled)
    assert programs(compiled) == 1 and not static_sizes(compiled)


def test_true_where_a_size_is_a_multiple() -> None:
    compiled = frontend.compile(lambda x: x.view(-1, 8).sum(1), dynamic=True)
    for size in (16, 40, 24):
        x = torch.rand(size)
        assert torch.equal(compiled(x), x.view(-1, 8).sum(1))
    assert programs(compiled) == 1 and not static_sizes(compiled)


def test_true_behind_a_break() -> None:
    def function(x: torch.Tensor) -> Any:
        y = x * x.shape[0]
        if y.sum() > 0:
            y = y - x.shape[0]
        return y, y.shape[0]

    compiled = frontend.compile(function, dynamic=True)
    seen: dict[str, set[int]] = {}
    for size in (4, 9, 5):
        x = torch.linspace(-1, 2, size)
        assert_same(compiled(x), function(x))
        for entry in frontend.entries(compiled):
            seen.setdefault(entry["frame"], set()).add(entry["program"])
    assert all(len(found) == 1 for found in seen.values()), seen
    assert captured(compiled)


def test_training_from_the_first_call() -> None:
    def function(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return (x @ w).relu().mean()

    compiled = frontend.compile(function, dynamic=True)
    w = torch.linspace(-1, 1, 12).reshape(4, 3)
    for size in (5, 3, 8):
        x = torch.rand(size, 4)
        ours, plain = w.clone().requires_grad_(), w.clone().requires_grad_()
        compiled(x, ours).backward()
        function(x, plain).backward()
        assert torch.equal(ours.grad, plain.grad)
    assert programs(compiled) == 1 and captured(compiled)


def marked(size: int, **marks: Any) -> torch.Tensor:
    x = torch.rand(size, 6)
    for name, value in marks.items():
        getattr(torch_backplane, name)(x, value)
    return x


@pytest.mark.parametrize("mark", ["mark_dynamic", "maybe_mark_dynamic"])
@pytest.mark.parametrize("dynamic", [None, False])
def test_marks_generalise_from_the_first_call(mark: str, dynamic: bool | None) -> None:
    compiled = frontend.compile(rows, dynamic=dynamic)
    seen = set()
    for size in (4, 7, 3):
        x = marked(size, **{mark: 0})
        assert_same(compiled(x), rows(x))
        seen.add(frontend.entries(compiled)[0]["program"])
    assert len(seen) == 1 and captured(compiled)
    compiled(marked(4, **{mark: 0})[:, :5])  # not marked, and another structure for False
    assert captured(compiled)


def test_marks_of_torchdynamo_are_seen() -> None:
    compiled = frontend.compile(rows)
    for size in (4, 7):
        x = torch.rand(size, 6)
        torch._dynamo.mark_dynamic(x, 0)
        assert_same(compiled(x), rows(x))
    assert programs(compiled) == 1


def test_a_marked_size_that_cannot_change_is_an_error() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return x + torch.ones(6)

    x = torch.rand(4, 6)
    torch_backplane.mark_dynamic(x, [0, 1])
    for _ in range(2):
        with pytest.raises(BackplaneError, match=r"BP-0111.*x\.shape\[1\] stays 6"):
            frontend.compile(function)(x)
    weak = marked(4, maybe_mark_dynamic=[0, 1])
    compiled = frontend.compile(function)
    assert_same(compiled(weak), function(weak))
    (reason,) = static_sizes(compiled)
    assert reason.startswith("x.shape[1] stays 6")


def test_a_mark_for_a_dim_that_is_not_there() -> None:
    x = torch.rand(4, 6)
    torch_backplane.mark_dynamic(x, 2)
    with pytest.raises(BackplaneError, match=r"BP-0111.*x has 2 dims, and dim 2 is marked"):
        frontend.compile(rows)(x)


def test_a_range_of_a_mark() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        assert 3 <= x.shape[0] <= 5
        return x * 2

    x = torch.rand(4)
    torch_backplane.mark_dynamic(x, 0, min=3, max=5)
    compiled = frontend.compile(function)
    for _ in range(2):
        assert torch.equal(compiled(x), x * 2)
    assert captured(compiled)
    out_of_range = torch.rand(9)
    torch_backplane.mark_dynamic(out_of_range, 0, min=3, max=5)
    with pytest.raises(BackplaneError, match=r"BP-0111.*is 9, which is not in the range"):
        frontend.compile(rows)(out_of_range)


def test_static_marks() -> None:
    compiled = frontend.compile(rows)
    for size in (4, 7, 3):
        x = marked(size, mark_static=0)
        assert_same(compiled(x), rows(x))
    assert programs(compiled) == 3
    for columns in (2, 3, 4):  # the other dim is not marked
        x = torch.rand(4, columns)
        torch_backplane.mark_static(x, 0)
        assert_same(compiled(x), rows(x))
    assert programs(compiled) <= 4 and captured(compiled)


def test_a_marked_size_of_one() -> None:
    compiled = frontend.compile(rows)
    for size in (1, 5, 2):
        x = marked(size, mark_dynamic=0)
        assert_same(compiled(x), rows(x))
    assert captured(compiled)


def test_bad_values() -> None:
    with pytest.raises(BackplaneError, match="takes None, True or False"):
        frontend.compile(rows, dynamic="yes")


def by_size(a: torch.Tensor, b: torch.Tensor, n: int) -> Any:
    """Its structure, its result and what Python sees all depend on sizes."""
    out = a.sum(0) + (b[: min(b.shape[0], 5)] * n).sum()
    if a.shape[0] % 2 == 0:
        out = out * a.shape[0]
    if a.shape[0] == b.shape[0]:
        out = out + (a[:, 0] * b).sum()
    return out, [b.shape[0] // 2] * (n % 3), a.reshape(-1).shape


@pytest.mark.parametrize("dynamic", [None, True, False])
def test_a_size_is_served_by_no_other_program(dynamic: bool | None) -> None:
    compiled = frontend.compile(by_size, dynamic=dynamic, entry_limit=200)

    @settings(max_examples=60, deadline=None, derandomize=True)
    @given(*[st.integers(0, 9)] * 2, st.integers(1, 6), st.integers(-3, 9))
    def run(rows: int, length: int, columns: int, n: int) -> None:
        a = torch.linspace(-1, 1, rows * columns).reshape(rows, columns)
        b = torch.linspace(-2, 1, length)
        assert_same(compiled(a, b, n), by_size(a, b, n))

    run()
    assert captured(compiled)


def test_explain_shows_sizes_that_stay() -> None:
    net = torch.nn.Linear(6, 4)
    compiled = frontend.compile(net, backend="reference", dynamic=True)
    explanation = torch_backplane.explain(compiled)(torch.rand(3, 6))
    (reason,) = explanation.as_dict()["static_sizes"]
    assert f"not generalised: {reason}" in str(explanation)
