"""Dicts and sets from outside whose keys are tensors, which are found by who they are."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch_backplane

MODEL = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.Linear(3, 1))
WEIGHTS = {MODEL[0].weight: 2.0, MODEL[1].weight: 3.0}
SEEN = set(MODEL.parameters())


class Holder:
    def __init__(self) -> None:
        self.table: dict[Any, int] = {}
        self.nested: dict[str, dict[Any, int]] = {"inner": {}}
        self.ordered: OrderedDict[Any, int] = OrderedDict()
        self.members: set[torch.Tensor] = set()
        self.frozen: frozenset[torch.Tensor] = frozenset()


def counted(held: Holder, x: torch.Tensor) -> Any:
    held.table[x] = held.table.get(x, 0) + 1
    return held.table[x], len(held.table)


def contained(held: Holder, x: torch.Tensor) -> Any:
    known = x in held.table, x in held.members, x in held.frozen, x in held.ordered
    held.table[x] = 1
    held.members.add(x)
    held.ordered[x] = 2
    held.frozen = held.frozen | {x}
    return known


def in_tuples(held: Holder, x: torch.Tensor) -> Any:
    known = held.table.get((x, 1), 7), (x, 2) in held.nested["inner"]
    held.table[x, 1] = 3
    held.nested["inner"][x, 2] = 4
    return known


def by_identity(held: Holder, x: torch.Tensor) -> Any:
    known = any(k is x for k in held.table)
    held.table[x] = 0
    return known


def algebra(held: Holder, x: torch.Tensor) -> Any:
    known = len(held.members & {x}), len(held.members - {x}), held.members.isdisjoint([x])
    held.members.add(x)
    return known


def of_parameters(held: Holder, x: torch.Tensor) -> Any:
    decay = sum(w * p.square().sum() for p, w in WEIGHTS.items())
    by_name = sum(WEIGHTS.get(p, 0.0) for p in MODEL.parameters())
    return decay + x.sum(), by_name, [p in SEEN for p in MODEL.parameters()]


PROGRAMS = [counted, contained, in_tuples, by_identity, algebra, of_parameters]


@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize("backend", ["eager", "cpu_onednn"])
def test_as_plain_python(program: Callable[..., Any], backend: str) -> None:
    compiled = torch_backplane.compile(program, backend=backend)
    found, expected = Holder(), Holder()
    a, b = torch.ones(2), torch.ones(2)
    for x in (a, b, a, a, b):
        actual, wanted = compiled(found, x), program(expected, x)
        torch.testing.assert_close(actual, wanted)
    assert len(found.table) == len(expected.table)
    assert all(
        k is w for k, w in zip(found.table, expected.table, strict=True) if torch.is_tensor(k)
    )
