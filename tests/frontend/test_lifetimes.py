"""When objects of the program end: as in plain Python, also where a frame is cut into parts."""

from __future__ import annotations

import array
import gc
import weakref
from typing import Any, ClassVar

import pytest
import torch
import torch_backplane
from torch_backplane.frontend import counters


class Thing:
    pass


class Counted:
    alive = 0

    def __init__(self) -> None:
        Counted.alive += 1

    def __del__(self) -> None:
        Counted.alive -= 1


def seen(seen: list[Any], what: Any) -> None:
    print(end="")  # the callers break here
    seen.append(what)


def kept_though_unread(x: torch.Tensor, out: list[Any]) -> torch.Tensor:
    thing = Thing()
    watch = weakref.ref(thing)
    x = x + 1
    seen(out, watch() is None)
    x = x + 1
    seen(out, watch() is None)
    return x


def finalizer_of_unread(x: torch.Tensor, out: list[Any]) -> torch.Tensor:
    thing = Counted()  # noqa: F841
    x = x + 1
    seen(out, Counted.alive)
    x = x + 1
    seen(out, Counted.alive)
    return x


def deleted(x: torch.Tensor, out: list[Any]) -> torch.Tensor:
    thing = Thing()
    watch = weakref.ref(thing)
    x = x + 1
    seen(out, watch() is None)
    del thing
    seen(out, watch() is None)
    return x + 1


def replaced(x: torch.Tensor, out: list[Any]) -> torch.Tensor:
    thing: Any = Thing()
    watch = weakref.ref(thing)
    x = x + 1
    seen(out, watch() is None)
    thing = None
    seen(out, watch() is None)
    return x + 1


def finalizer_of_deleted(x: torch.Tensor, out: list[Any]) -> torch.Tensor:
    thing = Counted()
    seen(out, Counted.alive)
    x = x + 1
    del thing
    print(end="")
    seen(out, Counted.alive)
    return x + 1


def only_on_the_stack(x: torch.Tensor, out: list[Any]) -> torch.Tensor:
    name = type(Counted()).__name__
    print(end="")
    x = x + 1
    seen(out, (name, Counted.alive))
    return x + 1


def variable_of_a_closure(x: torch.Tensor, out: list[Any]) -> torch.Tensor:
    thing = Thing()
    watch = weakref.ref(thing)

    def read() -> Thing:
        return thing

    x = x + 1
    seen(out, read() is watch())
    x = x + 1
    seen(out, watch() is None)
    return x


def iterator_that_is_done(x: torch.Tensor, out: list[Any]) -> torch.Tensor:
    iterator = iter(Sequence())
    for _ in iterator:
        x = x + 1
    gc.collect()
    seen(out, Counted.alive)
    return x


def method_of_c_over_a_break(x: torch.Tensor, out: list[Any]) -> torch.Tensor:
    data: Any = array.array("b", [1, 2, 3])
    watch = weakref.ref(data)
    seen(out, data.tobytes())
    data = None
    seen(out, watch() is None)
    return x + 1


def replaced_in_a_dict(x: torch.Tensor, out: list[Any]) -> torch.Tensor:
    HELD["thing"] = Counted()
    seen(out, Counted.alive)
    HELD["thing"] = None
    seen(out, Counted.alive)
    return x + 1


def finalizer_of_what_a_break_made(x: torch.Tensor, out: list[Any]) -> torch.Tensor:
    thing: Any = Counted()
    before = thing is not None
    thing = None
    return x + before + Counted.alive


def result_that_nobody_takes(x: torch.Tensor, out: list[Any]) -> torch.Tensor:
    Counted()
    return x * 2 + Counted.alive


def callback_of_a_weak_reference(x: torch.Tensor, out: list[Any]) -> torch.Tensor:
    thing: Any = Plain()
    watch = weakref.ref(thing, lambda _: out.append("gone"))
    thing = None
    return x + len(out) + (watch() is None)


def finalize(x: torch.Tensor, out: list[Any]) -> torch.Tensor:
    thing = Plain()
    weakref.finalize(thing, out.append, "gone")
    del thing
    return x + len(out)


def value_of_a_weak_dict(x: torch.Tensor, out: list[Any]) -> torch.Tensor:
    held: Any = weakref.WeakValueDictionary()
    thing: Any = Plain()
    held[1] = thing
    before = len(held)
    thing = None
    return x + before * 10 + len(held)


def with_cleaning_up(x: torch.Tensor, out: list[Any]) -> Any:
    try:
        yield x
        yield x + 1
    finally:
        out.append("closed")
        x.add_(1)


def generator_let_go(x: torch.Tensor, out: list[Any]) -> torch.Tensor:
    x = x + 1
    values = with_cleaning_up(x, out)
    y = next(values) * 2
    del values
    return y + x + len(out)


def generator_of_a_loop(x: torch.Tensor, out: list[Any]) -> torch.Tensor:
    x = x + 1
    for y in with_cleaning_up(x, out):
        x = y * 3
        break
    return y + x + len(out)


def generator_of_one_call(x: torch.Tensor, out: list[Any]) -> torch.Tensor:
    x = x + 1
    y = next(with_cleaning_up(x, out)) * 2
    return y + x + len(out)


def generator_that_is_held(x: torch.Tensor, out: list[Any]) -> torch.Tensor:
    x = x + 1
    values = with_cleaning_up(x, out)
    held = [values]
    y = next(values) * 2
    del values
    seen(out, len(held))
    y = y + x + len(out)
    held.clear()
    return y + x + len(out)


class Plain:
    pass


HELD: dict[str, Any] = {}


class Sequence(Counted):
    def __getitem__(self, at: int) -> int:
        if at < 3:
            return at
        raise IndexError


@pytest.mark.parametrize(
    "program",
    [
        kept_though_unread,
        finalizer_of_unread,
        deleted,
        replaced,
        finalizer_of_deleted,
        only_on_the_stack,
        variable_of_a_closure,
        iterator_that_is_done,
        method_of_c_over_a_break,
        replaced_in_a_dict,
        finalizer_of_what_a_break_made,
        result_that_nobody_takes,
        callback_of_a_weak_reference,
        finalize,
        value_of_a_weak_dict,
        generator_let_go,
        generator_of_a_loop,
        generator_of_one_call,
        generator_that_is_held,
    ],
)
def test_objects_end_as_in_plain_python(program: Any) -> None:
    Counted.alive = 0
    plain: list[Any] = []
    expected = program(torch.ones(2), plain)
    compiled = torch_backplane.compile(program, backend="eager")
    for _ in range(3):
        captured: list[Any] = []
        assert compiled(torch.ones(2), captured).equal(expected)
        assert captured == plain
    assert counters(compiled)["programs"] > 0
    assert Counted.alive == 0


class Ends:
    log: ClassVar[list[int]] = []

    def __del__(self) -> None:
        Ends.log.append(1)


def test_an_object_made_by_its_base_ends_once() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        made = object.__new__(Ends)
        return x * isinstance(made, Ends)

    compiled = torch_backplane.compile(program, backend="eager")
    for call in (program, compiled, compiled):
        Ends.log.clear()
        call(torch.ones(2))
        assert Ends.log == [1]


class Watched:
    """That something else watches."""

    def __init__(self) -> None:
        self.watch = weakref.ref(self, lambda _: None)

    def prepared(self) -> Watched:
        return self


def test_objects_that_are_held_elsewhere_are_let_go_of() -> None:
    def program(x: torch.Tensor, thing: Watched) -> torch.Tensor:
        thing.prepared()
        other = thing
        other.prepared()
        other = None
        return x + 1

    compiled = torch_backplane.compile(program, backend="eager")
    for _ in range(2):
        assert compiled(torch.ones(2), Watched()).equal(torch.full((2,), 2.0))
    assert counters(compiled)["plain_calls"] == 0 and not counters(compiled)["breaks"]
