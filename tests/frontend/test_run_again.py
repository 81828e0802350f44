"""A frame whose graph found an error runs again as it is, whatever way it takes its arguments."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch_backplane
from torch.nn import functional as F

TABLE = torch.arange(12.0).reshape(4, 3)
GOOD, BAD = torch.tensor([0, 1]), torch.tensor([1, 9])


def found(*tensors: Any) -> torch.Tensor:
    assert all(isinstance(t, torch.Tensor) for t in tensors)
    return torch.stack([F.embedding(t, TABLE).sum() for t in tensors]).sum()


def by_star(*ids: Any) -> Any:
    return found(*ids)


def by_name(a: Any, *, b: Any) -> Any:
    return found(a, b)


def by_names(a: Any, **rest: Any) -> Any:
    return found(a, *rest.values()) + len(rest)


def by_all(a: Any, /, *more: Any, b: Any = GOOD, **rest: Any) -> Any:
    return found(a, b, *more, *rest.values()) * (1 + len(more)) + len(rest)


def by_cells(*ids: Any, scale: float = 2.0) -> Any:
    def inner() -> Any:
        return found(*ids) * scale

    return inner()


class Way:
    def __init__(self) -> None:
        self.calls = 0

    def method(self, *ids: Any, scale: float = 1.0) -> Any:
        self.calls += 1
        return found(*ids) * scale + self.calls

    @staticmethod
    def alone(*ids: Any) -> Any:
        return found(*ids)

    @classmethod
    def of_class(cls, *ids: Any) -> Any:
        return found(*ids) + len(cls.__name__)


WAYS: dict[str, Callable[[Any, Any], Any]] = {
    "star": by_star,
    "name": lambda a, b: by_name(a, b=b),
    "names": lambda a, b: by_names(a, b=b, c=a),
    "all": lambda a, b: by_all(a, a, b=b, c=a),
    "cells": lambda a, b: by_cells(a, b, scale=3.0),
    "method": lambda a, b: Way().method(a, b, scale=2.0),
    "static": Way.alone,
    "class": Way.of_class,
    "lambda": lambda *ids, scale=2.0: found(*ids) * scale,
}


@pytest.mark.parametrize("way", WAYS)
def test_the_way_that_arguments_are_taken(way: str, capsys: pytest.CaptureFixture[str]) -> None:
    def program(a: torch.Tensor, b: torch.Tensor) -> str | torch.Tensor:
        try:
            result = WAYS[way](a, b)
        except IndexError as error:
            return str(error)
        print("behind a break")
        return result + 1

    def starred(*ids: torch.Tensor) -> torch.Tensor:
        result = WAYS[way](*ids)
        print("behind a break")
        return result * 2

    def named(a: torch.Tensor, *, b: torch.Tensor) -> torch.Tensor:
        return starred(a, b)

    for function, call in (
        (program, lambda f, b: f(GOOD, b)),
        (starred, lambda f, b: f(GOOD, b)),
        (named, lambda f, b: f(GOOD, b=b)),
    ):
        compiled = torch_backplane.compile(function, backend="plugin:cpu_onednn")
        for b in (GOOD, BAD, GOOD, BAD):
            outcomes = []
            for one in (function, compiled):
                try:
                    outcome = call(one, b)
                except IndexError as error:
                    outcome = repr(error)
                outcomes.append((outcome, capsys.readouterr().out))
            assert outcomes[0] == outcomes[1]
