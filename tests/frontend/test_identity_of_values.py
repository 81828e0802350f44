"""Numbers and texts of one value may be one object or two, and programs can tell; what functions
and cells hold may be written and read in one call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch_backplane

X = torch.ones(1)
NAN = float("nan")


def fresh(value: Any) -> Any:
    """Another object of the same value."""
    if isinstance(value, str):
        return "".join(list(value))
    return type(value)(str(value))


PROGRAMS: dict[str, Callable[..., Any]] = {
    "is": lambda x, a, b: (x, a is b),
    "is not": lambda x, a, b: (x, a is not b),
    "in a list": lambda x, a, b: (x, a in [b]),
    "count": lambda x, a, b: (x, [a].count(b)),
    "keys": lambda x, a, b: (x, len({a: 1, b: 2})),
    "set": lambda x, a, b: (x, len({a, b})),
    "equal tuples": lambda x, a, b: (x, (a,) == (b,)),
    "got": lambda x, a, b: (x, {a: 1}.get(b)),
}


def seen(function: Callable[..., Any], a: Any, b: Any) -> Any:
    return function(X, a, b)[1]


@pytest.mark.parametrize("value", [NAN, 1.5, 10**20, "some text", 2.5j])
@pytest.mark.parametrize("name", PROGRAMS)
def test_one_object_or_two_of_a_value(name: str, value: Any) -> None:
    other = fresh(value)
    assert other is not value
    for order in ((value, other), (other, value)):
        compiled = torch_backplane.compile(PROGRAMS[name], backend="plugin:reference")
        for b in (*order, *order):
            assert seen(compiled, value, b) == seen(PROGRAMS[name], value, b), (order, b is value)


@pytest.mark.parametrize(
    "program",
    [
        lambda x, outer, key: (x, key in outer),
        lambda x, outer, key: (x, outer.get(key)),
        lambda x, outer, key: (x, outer[key]) if key in outer else (x, None),
        lambda x, outer, key: (x, list(outer).index(key) if key in list(outer) else -1),
    ],
)
def test_a_key_that_is_equal_to_nothing(program: Callable[..., Any]) -> None:
    other = fresh(NAN)
    for first, second in ((NAN, other), (other, NAN)):
        compiled = torch_backplane.compile(program, backend="plugin:reference")
        for key in (first, second, first):
            assert seen(compiled, {NAN: 1}, key) == seen(program, {NAN: 1}, key)


def test_a_number_in_the_code_is_an_object_too() -> None:
    def program(x: torch.Tensor, a: Any) -> tuple[torch.Tensor, bool]:
        return x, a is "some text"  # noqa: F632

    text = program.__code__.co_consts[-1]
    assert text == "some text"
    compiled = torch_backplane.compile(program, backend="plugin:reference")
    for value in (text, fresh(text), text):
        assert compiled(X, value)[1] is (value is text)


def test_a_number_that_is_the_same_every_time_is_captured_once() -> None:
    compiled = torch_backplane.compile(lambda x, a: x * a, backend="plugin:reference")
    for _ in range(3):
        compiled(X, fresh(NAN))
        compiled(X, fresh(1.5))
    assert torch_backplane.counters(compiled)["entries"] == 2


def test_values_that_are_compared_are_one_program() -> None:
    def program(x: torch.Tensor, mode: str, n: Any) -> torch.Tensor:
        return x * n if mode == "some text" and n == 1.5 and n != 1000.5 else x

    compiled = torch_backplane.compile(program, backend="plugin:reference")
    for mode in ("some text", fresh("some text"), "some text"):
        for n in (1.5, fresh(1.5)):
            assert compiled(X, mode, n).item() == 1.5
    assert torch_backplane.counters(compiled)["entries"] == 1


def test_defaults_that_the_program_writes() -> None:
    def helper(*, a: int = 0) -> int:
        return a

    def program(x: torch.Tensor) -> torch.Tensor:
        helper.__kwdefaults__["a"] += 1
        return x * helper()

    compiled = torch_backplane.compile(program, backend="plugin:reference")
    assert [compiled(X).item() for _ in range(3)] == [1, 2, 3]


def test_defaults_that_a_function_of_the_program_is_given() -> None:
    keywords, positions = {"a": 1}, [(1,)]

    def program(x: torch.Tensor) -> torch.Tensor:
        def helper(b: int = 0, *, a: int = 0) -> int:
            return a + 10 * b

        helper.__kwdefaults__ = keywords
        helper.__defaults__ = positions[0]
        return x * helper()

    compiled = torch_backplane.compile(program, backend="plugin:reference")
    assert compiled(X).item() == 11
    keywords["a"] = 5
    assert compiled(X).item() == 15
    positions[0] = (2,)
    assert compiled(X).item() == 25


def test_a_cell_is_read_as_the_program_left_it() -> None:
    count = 0

    def increase() -> None:
        nonlocal count
        count += 1

    def read() -> int:
        return count

    def program(x: torch.Tensor) -> tuple[torch.Tensor, Any]:
        increase()
        assert read.__closure__ is not None
        return x * read(), read.__closure__[0].cell_contents

    compiled = torch_backplane.compile(program, backend="plugin:reference")
    for n in (1, 2):
        product, content = compiled(X)
        assert (product.item(), content) == (n, n)


def test_the_class_of_super() -> None:
    class Base:
        def name(self) -> tuple[str, str]:
            name = "__class__"
            return super().__class__.__name__, getattr(super(), name).__name__

    compiled = torch_backplane.compile(lambda x, o: (x, o.name()), backend="plugin:reference")
    assert compiled(X, Base())[1] == ("super", "super")
