"""Iterators that compute as they go look at what their containers hold then, which may have come in
after they were made."""

from __future__ import annotations

import collections
import functools
import itertools
import operator
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch_backplane


def one_more(item: list[Any]) -> int:
    return len(item) + 1


Maker = Callable[[list[Any]], Iterator[Any]]
# Each gives numbers, or things with a length, that depend on what the lists within hold.
MAKERS: dict[str, Maker] = {
    "map": lambda items: map(len, items),
    "map of bool": lambda items: map(bool, items),
    "map of a function": lambda items: map(one_more, items),
    "map of a partial": lambda items: map(functools.partial(operator.add, [0]), items),
    "map of two": lambda items: map(operator.concat, items, items),
    "filter": lambda items: filter(None, items),
    "filterfalse": lambda items: itertools.filterfalse(len, items),
    "starmap": lambda items: map(len, items),
    "takewhile": lambda items: itertools.takewhile(len, items),
    "dropwhile": lambda items: itertools.dropwhile(len, items),
    "accumulate": itertools.accumulate,
    "compress": lambda items: itertools.compress(items, items),
    "groupby": lambda items: (len(list(group)) for _, group in itertools.groupby(items, len)),
    "chain of maps": lambda items: itertools.chain([0], map(len, items)),
    "chain from maps": lambda items: itertools.chain.from_iterable([map(len, items)]),
    "islice of a map": lambda items: itertools.islice(map(len, items), 5),
    "enumerated": lambda items: map(operator.itemgetter(1), enumerate(map(len, items))),
    "map of a map": lambda items: map(float, map(len, items)),
    "zipped": lambda items: (a for a, _ in zip(map(len, items), itertools.count())),
    "generator": lambda items: (len(item) for item in items),
}


def count(items: Any) -> float:
    return sum(len(item) if isinstance(item, list) else float(item) for item in items)


def unpacked(items: Iterator[Any]) -> float:
    (*others,) = items
    return count(others)


def looped(items: Iterator[Any]) -> float:
    total = 0.0
    for item in items:
        total += count([item])
    return total


TAKERS: dict[str, Callable[[Iterator[Any]], float]] = {
    "list": lambda items: count(list(items)),
    "tuple": lambda items: count(tuple(items)),
    "deque": lambda items: count(collections.deque(items)),
    "extend": lambda items: count([0].__iadd__(items)),
    "spread": lambda items: count([*items]),
    "arguments": lambda items: (lambda *given: count(given))(*items),
    "unpacked": unpacked,
    "for": looped,
    "next": lambda items: count([next(items, 0), next(items, 0)]),
    "sorted": lambda items: count(sorted(items, key=str)),
    "text": lambda items: len(str(list(items))),
    "zip": lambda items: count(item for (item,) in zip(items)),
    "values": lambda items: count(dict(enumerate(items)).values()),
}


@pytest.mark.parametrize("taker", TAKERS)
@pytest.mark.parametrize("maker", MAKERS)
def test_items_that_came_after(maker: str, taker: str) -> None:
    def program(x: torch.Tensor, item: list[int]) -> torch.Tensor:
        items = [[7]]
        made = MAKERS[maker](items)
        items.append(item)
        return x * TAKERS[taker](made)

    compiled = torch_backplane.compile(program, backend="plugin:reference")
    x = torch.ones(2)
    for item in ([1], [1, 2, 3], [], [4], [5, 6]):
        assert compiled(x, item).tolist() == program(x, item).tolist()


@pytest.mark.parametrize("maker", MAKERS)
def test_items_that_change_behind_a_break(maker: str) -> None:
    def program(x: torch.Tensor, item: list[int]) -> torch.Tensor:
        items = [[7]]
        made = MAKERS[maker](items)
        items.append(item)
        print(end="")
        return x * count(made)

    compiled = torch_backplane.compile(program, backend="plugin:reference")
    x = torch.ones(2)
    for item in ([1], [1, 2, 3], [], [4], [5, 6]):
        assert compiled(x, item).tolist() == program(x, item).tolist()
