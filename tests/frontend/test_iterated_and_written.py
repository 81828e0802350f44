"""What code in C reads of containers from outside: as they are by then, and guarded."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch_backplane

Program = Callable[..., Any]


def ones() -> torch.Tensor:
    return torch.ones(3)


def outcomes(run: Program, calls: list[Callable[[], tuple[Any, ...]]]) -> list[str]:
    """Result, or error, and the arguments after each call."""
    found = []
    for make in calls:
        arguments = make()
        try:
            result: Any = run(*arguments)
        except RuntimeError as error:
            result = error
        found.append(repr((result, arguments)))
    return found


def check(program: Program, *calls: Callable[[], tuple[Any, ...]]) -> None:
    compiled = torch_backplane.compile(program, backend="plugin:reference")
    assert outcomes(compiled, [*calls]) == outcomes(program, [*calls])


def enumerated(x: torch.Tensor, items: list[int]) -> torch.Tensor:
    for i, item in enumerate(items):
        if i + 1 < len(items):
            items[i + 1] = item + 1
        x = x + item
    return x


def enumerated_and_grown(x: torch.Tensor, items: list[int]) -> torch.Tensor:
    for _, item in enumerate(items):
        if len(items) < 5:
            items.append(item + 1)
        x = x + item
    return x


def zipped(x: torch.Tensor, items: list[int]) -> torch.Tensor:
    for a, b in zip(items, [1, 2, 3], strict=False):
        items[2] = 100
        x = x + a * b
    return x


def turned(x: torch.Tensor, items: list[int]) -> torch.Tensor:
    for item in reversed(items):
        items[0] = 100
        x = x + item
    return x


def mapped(x: torch.Tensor, items: list[int]) -> torch.Tensor:
    doubled = map(lambda item: item * 2, items)  # noqa: C417
    items[0] = 100
    return x + next(doubled)


def cut(x: torch.Tensor, items: list[int]) -> torch.Tensor:
    for item in itertools.islice(items, 4):
        if len(items) < 4:
            items.append(item * 10)
        x = x + item
    return x


@pytest.mark.parametrize("program", [enumerated, enumerated_and_grown, zipped, turned, mapped, cut])
def test_lists_that_are_written_while_they_are_read(program: Program) -> None:
    check(program, lambda: (ones(), [1, 5, 5]), lambda: (ones(), [2, 7, 8]))


def items_set(x: torch.Tensor, table: dict[str, int]) -> torch.Tensor:
    for value in table.values():
        table["b"] = 10
        x = x + value
    return x


def items_added(x: torch.Tensor, table: dict[str, int]) -> torch.Tensor:
    for _, value in table.items():
        table["c"] = 10
        x = x + value
    return x


def keys_kept(x: torch.Tensor, table: dict[str, int]) -> Any:
    keys = table.keys()
    table["c"] = 10
    return x * len(keys), list(keys)


@pytest.mark.parametrize("program", [items_set, items_added, keys_kept])
def test_dicts_that_are_written_while_they_are_read(program: Program) -> None:
    check(program, lambda: (ones(), {"a": 1, "b": 2}), lambda: (ones(), {"a": 3, "b": 4}))


def test_buffers_that_are_set_while_they_are_read() -> None:
    class Layer(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("a", torch.tensor(1.0))
            self.register_buffer("b", torch.tensor(2.0))
            self.cache = [torch.tensor(0.0)] * 3

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for _, buffer in self.named_buffers():
                self.b = self.b + 10
                x = x + buffer
            for i, kept in enumerate(self.cache):
                x = x + kept
                if i < 2:
                    self.cache[i + 1] = x
            return x

    plain, layer = Layer(), Layer()
    compiled = torch_backplane.compile(layer, backend="plugin:reference")
    for _ in range(3):
        assert torch.equal(compiled(ones()), plain(ones()))


def replaced(x: torch.Tensor, items: list[int]) -> Any:
    own = [0]
    own[0:1] = items
    return x * own[0], own


def replaced_by_changed(x: torch.Tensor, items: list[int]) -> Any:
    items[0] = 7
    own = [0]
    own[:] = items
    return x * own[0], own


def replaced_outside(x: torch.Tensor, items: list[int], others: list[int]) -> Any:
    others[1:] = items
    return x * others[-1]


def test_slices_are_replaced_with_what_is_there() -> None:
    calls = [lambda: (ones(), [1, 2]), lambda: (ones(), [3, 4]), lambda: (ones(), [3])]
    check(replaced, *calls)
    check(replaced_by_changed, *calls)
    check(replaced_outside, *[lambda make=make: (*make(), [8, 9]) for make in calls])


def tensor_of_lists(x: torch.Tensor, items: list[torch.Tensor]) -> torch.Tensor:
    return x[:2] + torch.tensor([items, items])


def rows(x: torch.Tensor, items: list[torch.Tensor]) -> torch.Tensor:
    return x[items, 0]


def rows_set(x: torch.Tensor, items: list[torch.Tensor]) -> torch.Tensor:
    y = x.clone()
    y[items, 0] = 9.0
    return y


@pytest.mark.parametrize("program", [tensor_of_lists, rows, rows_set])
def test_tensors_in_lists_in_lists(program: Program) -> None:
    x = torch.arange(8.0).view(4, 2)
    check(
        program,
        lambda: (x, [torch.tensor(0), torch.tensor(2)]),
        lambda: (x, [torch.tensor(1), torch.tensor(3)]),
    )


def test_equal_ranges_have_other_ends() -> None:
    check(
        lambda x, span: (x * span.stop, span),
        lambda: (ones(), range(0, 3, 2)),
        lambda: (ones(), range(0, 4, 2)),
    )


def test_a_tensor_that_is_its_own_attribute() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        y = x + 1
        y.me = [y]
        return y

    result = torch_backplane.compile(program, backend="plugin:reference")(ones())
    assert result.me[0] is result


class Hundreds(dict[str, int]):
    def __getitem__(self, key: str) -> int:
        return 100


def test_get_asks_no_getitem_of_the_class() -> None:
    check(
        lambda x, table: x + table.get("a"),
        lambda: (ones(), Hundreds(a=1)),
        lambda: (ones(), Hundreds(a=2)),
    )


def test_which_output_a_tensor_is() -> None:
    leaf = torch.ones(3, requires_grad=True)
    check(
        lambda x: (x.detach() + x.output_nr, x.output_nr),
        lambda: (leaf * 3,),
        lambda: (leaf.unbind()[1],),
    )
