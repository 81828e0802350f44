"""One dict may be that of several objects, and be known by other names, too."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch
import torch_backplane

X = torch.ones(1)


class Thing:
    pass


class Borg:
    state: dict[str, Any]

    def __init__(self) -> None:
        self.__dict__ = Borg.state


class AttributeDict(dict[str, Any]):
    def __init__(self, **items: Any) -> None:
        super().__init__(**items)
        self.__dict__ = self


def compiled(function: Any) -> Any:
    return torch_backplane.compile(function, backend="plugin:reference")


def borg(x: torch.Tensor, state: dict[str, Any]) -> torch.Tensor:
    Borg.state = state
    one = Borg()
    one.n += 1
    return x * one.n


def given(x: torch.Tensor, state: dict[str, Any]) -> torch.Tensor:
    thing = Thing()
    thing.__dict__ = state
    thing.n = state["n"] + 1
    thing.tensor = x * 2
    return x * thing.n


def by_name(x: torch.Tensor, state: dict[str, Any]) -> torch.Tensor:
    thing, name = Thing(), "__dict__"
    setattr(thing, name, state)
    thing.n += 1
    return x * state["n"]


def exception(x: torch.Tensor, state: dict[str, Any]) -> torch.Tensor:
    error = ValueError("no")
    error.__dict__ = state
    error.n += 1
    return x * error.n


def partial(x: torch.Tensor, state: dict[str, Any]) -> torch.Tensor:
    part = functools.partial(int)
    part.__dict__ = state
    part.n += 1
    return x * part.n


@pytest.mark.parametrize("program", [borg, given, by_name, exception, partial])
def test_a_dict_from_outside_becomes_that_of_an_object(program: Any) -> None:
    called, state = compiled(program), {"n": 0}
    for n in (1, 2, 3):
        assert called(X, state).item() == n
        assert state["n"] == n
    if "tensor" in state:
        assert state["tensor"].tolist() == [2.0]


def test_what_is_read_through_it_is_guarded() -> None:
    state = {"y": 1}

    def program(x: torch.Tensor) -> tuple[Any, Any]:
        thing = Thing()
        thing.__dict__ = state
        return thing.y * x, thing

    called = compiled(program)
    assert called(X)[0].item() == 1
    state["y"] = 2
    result, thing = called(X)
    assert result.item() == 2
    assert thing.__dict__ is state


def test_objects_of_the_program_share_theirs_still() -> None:
    def of_itself(x: torch.Tensor) -> Any:
        made = AttributeDict(a=x)
        made.b = 1
        return made

    made = compiled(of_itself)(X)
    made.c = 5
    assert made["c"] == 5 and made.__dict__ is made

    def of_another(x: torch.Tensor) -> Any:
        first, second = Thing(), Thing()
        first.__dict__ = second.__dict__
        first.n = x
        return first, second

    first, second = compiled(of_another)(X)
    first.q = 1
    assert second.q == 1

    def itself(x: torch.Tensor) -> Any:
        thing = Thing()
        thing.x = x
        return thing, thing.__dict__, vars(thing)

    thing, one, other = compiled(itself)(X)
    assert thing.__dict__ is one is other


def two_objects(x: torch.Tensor, a: Any, b: Any) -> torch.Tensor:
    a.v = 1
    b.v = 2
    return x * a.v


def object_and_dict(x: torch.Tensor, a: Any, b: Any) -> torch.Tensor:
    b.__dict__["v"] = 5
    return x * getattr(a, "v", 0)


def dict_and_object(x: torch.Tensor, a: Any, b: Any) -> torch.Tensor:
    items = b.__dict__
    a.v = 5
    return x * items.get("v", 0) + ("v" in items)


@pytest.mark.parametrize(
    ("program", "calls"),
    [
        (two_objects, (True, False, True)),
        (two_objects, (False, True, False)),
        (dict_and_object, (True, False, True)),
        (dict_and_object, (False, True, False)),
        (object_and_dict, (True, False)),
    ],
)
def test_programs_are_apart_by_who_shares(program: Any, calls: tuple[bool, ...]) -> None:
    called = compiled(program)
    for shares in calls:

        def pair(shares: bool = shares) -> tuple[Thing, Thing]:
            a, b = Thing(), Thing()
            if shares:
                b.__dict__ = a.__dict__
            return a, b

        mine, expected = pair(), pair()
        assert torch.equal(called(X, *mine), program(X, *expected))
        assert [vars(o) for o in mine] == [vars(o) for o in expected]
