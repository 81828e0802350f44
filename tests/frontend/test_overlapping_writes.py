"""Writes into memory that another operand reads, or that the written tensor has twice."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch_backplane
from frontend.entering import is_captured

Program = Callable[[torch.Tensor], Any]
INDEX = torch.tensor([0, 1])
MASK = torch.tensor([True, False, True])

OVERLAPPING: dict[str, Program] = {
    "add to expanded": lambda x: x[:1].expand(3).add_(1),
    "zero expanded": lambda x: x[:1].expand(3).zero_(),
    "fill expanded": lambda x: x[:1].expand(3).fill_(5),
    "copy to expanded": lambda x: x[:1].expand(3).copy_(torch.arange(3.0)),
    "assign to expanded": lambda x: x[:1].expand(3).__setitem__(slice(None), torch.arange(3.0)),
    "masked fill of expanded": lambda x: x[:1].expand(3).masked_fill_(MASK, 5.0),
    "scatter into expanded": lambda x: x[:1].expand(3).scatter_(0, INDEX, torch.ones(2)),
    "index_add into expanded": lambda x: x[:1].expand(3).index_add_(0, INDEX, torch.ones(2)),
    "clamp expanded": lambda x: x[:1].expand(3).clamp_(0.5),
    "windows": lambda x: x.as_strided((3, 2), (1, 1)).add_(1),
    "scatter into rows": lambda x: x.as_strided_scatter(x.view(2, 3), (2, 3), (0, 1)),
    "scatter into windows": lambda x: x.copy_(x.as_strided_scatter(x.view(3, 2), (3, 2), (1, 1))),
    "shifted": lambda x: x[1:].add_(x[:-1]),
    "shifted copy": lambda x: x[1:].copy_(x[:-1]),
    "one of its own": lambda x: x.mul_(x[0]),
    "shifted out": lambda x: torch.add(x[1:], 1, out=x[:-1]),
    "shifted sums": lambda x: torch.cumsum(x[1:], 0, out=x[:-1]),
    "gather out": lambda x: torch.gather(x, 0, INDEX, out=x[:2]),
    "cat out": lambda x: torch.cat([x[:2], x[2:4]], out=x[:4]),
    "out that is read": lambda x: torch.add(x[0], x, out=x[0]),
    "out of a result that is read": lambda x: (y := x.sum(), torch.mul(y, x, out=y)),
    "transposed copy": lambda x: x.view(2, 3)[:, :2].copy_(x.view(2, 3)[:, :2].t()),
    "list of the same": lambda x: torch._foreach_add_([x[:3], x[2:]], 1.0),
}
APART: dict[str, Program] = {
    "itself": lambda x: x.mul_(x),
    "halves": lambda x: x[:3].add_(x[3:]),
    "halves of rows": lambda x: x.view(1, 6)[:, :3].add_(x.view(1, 6)[:, 3:]),
    "every second": lambda x: x[::2].sub_(x[1::2]),
    "clone": lambda x: x[1:].copy_(x[:-1].clone()),
    "list of parts": lambda x: torch._foreach_add_([x[:3], x[3:]], 1.0),
}


def outcome(program: Program, x: torch.Tensor) -> tuple[Any, list[float]]:
    try:
        found: Any = program(x)
    except Exception as error:
        found = type(error), str(error)
    return found, x.tolist()


def doubled(write: Program) -> Program:
    def program(x: torch.Tensor) -> torch.Tensor:
        write(x)
        return x * 2

    return program


@pytest.mark.parametrize("name", [*OVERLAPPING, *APART])
@pytest.mark.parametrize("backend", ("eager", "cpu_onednn"))
def test_as_in_plain_pytorch(name: str, backend: str) -> None:
    program = doubled((OVERLAPPING | APART)[name])
    compiled = torch_backplane.compile(program, backend=backend)
    warnings.simplefilter("ignore")
    for start in (1.0, 3.0):
        expected, kept = outcome(program, torch.arange(start, start + 6))
        actual, now = outcome(compiled, torch.arange(start, start + 6))
        if isinstance(expected, torch.Tensor):
            torch.testing.assert_close(actual, expected)
        else:
            assert actual == expected
        assert now == kept


@pytest.mark.parametrize("name", APART)
def test_parts_that_share_nothing_are_captured(name: str) -> None:
    compiled = torch_backplane.compile(doubled(APART[name]), backend="eager")
    compiled(torch.arange(6.0))
    assert is_captured(compiled)
