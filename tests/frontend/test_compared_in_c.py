"""What code in C compares by identity, prints, or asks a class for: the next call may differ."""

from __future__ import annotations

import itertools
import operator
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch_backplane

Program = Callable[..., Any]


class Thing:
    c = 0


class Quiet:
    """Has a text, and the usual repr."""

    def __str__(self) -> str:
        return "quiet"


class Mapping(dict):  # type: ignore[type-arg]
    def keys(self) -> Any:
        return ["n", "k"]

    def __iter__(self) -> Any:
        return iter(["n", "k"])

    def __getitem__(self, key: str) -> Any:
        return {"n": 10, "k": 20}[key]


class Manager:
    def __enter__(self) -> int:
        return 1

    def __exit__(self, *_: object) -> None:
        return None


def outcome(run: Program, *arguments: Any) -> str:
    try:
        return repr(run(*arguments))
    except Exception as error:  # the type and the text are compared
        return repr(error)


def check(program: Program, *calls: tuple[Any, ...]) -> None:
    compiled = torch_backplane.compile(program, backend="plugin:reference")
    x = torch.ones(2)
    expected = [outcome(program, x, *call) for call in calls]
    assert [outcome(compiled, x, *call) for call in calls] == expected


def in_set(x: Any, p: Any, q: Any) -> Any:
    return x * len({*[p, q]}) + len(set([p, q]))  # noqa: C405


def in_frozenset(x: Any, p: Any, q: Any) -> Any:
    return x * len(frozenset((p, q)))


def in_set_of_generator(x: Any, p: Any, q: Any) -> Any:
    return x * len(set(item for item in (p, q)))  # noqa: C401


def in_dict(x: Any, p: Any, q: Any) -> Any:
    return x * sum(dict([(p, 1), (q, 2)]).values())  # noqa: C406


def in_fromkeys(x: Any, p: Any, q: Any) -> Any:
    return x * len(dict.fromkeys([p, q]))


def in_counter(x: Any, p: Any, q: Any) -> Any:
    return x * len(Counter([p, q]))


def in_update(x: Any, p: Any, q: Any) -> Any:
    found: set[Any] = set()
    found.update([p, q])
    return x * len(found)


def equal(x: Any, p: Any, q: Any) -> Any:
    return x * (2 if operator.eq(p, q) else 3)


def held(x: Any, p: Any, q: Any) -> Any:
    return x * (2 if operator.contains([p], q) else 3)


def counted(x: Any, p: Any, q: Any) -> Any:
    return x * (1 + operator.countOf([p, p], q))


def mapped(x: Any, p: Any, q: Any) -> Any:
    return x * (1 + sum(map(operator.is_, [p, p], [q, p])))


def grouped(x: Any, p: Any, q: Any) -> Any:
    return x * len([key for key, _ in itertools.groupby([p, q])])


def asked(x: Any, p: Any, q: Any) -> Any:
    return x * (2 if p.__eq__(q) is True else 3)


def by_tuple(x: Any, p: Any, q: Any) -> Any:
    return x * {(p, 1): 2}.get((q, 1), 5)


def by_key(x: Any, p: Any, q: Any) -> Any:
    d = {p: 2, "k": 3}
    return x * (d[q] if q in d else 7)  # noqa: SIM401


def in_nested_list(x: Any, p: Any, q: Any) -> Any:
    return x * [(p, 1), (p, 2)].count((q, 1))


def functions(x: Any, p: Any, q: Any) -> Any:
    return x * len({p.method, q.method}) if hasattr(p, "method") else x * len(set([p, q]))  # noqa: C405


COMPARING = [
    in_set,
    in_frozenset,
    in_set_of_generator,
    in_dict,
    in_fromkeys,
    in_counter,
    in_update,
    equal,
    held,
    counted,
    mapped,
    grouped,
    asked,
    by_tuple,
    by_key,
    in_nested_list,
    functions,
]


@pytest.mark.parametrize("program", COMPARING, ids=lambda program: program.__name__)
@pytest.mark.parametrize("first_is_one", [False, True])
def test_code_in_c_tells_objects_apart(program: Program, first_is_one: bool) -> None:
    p, q = Thing(), Thing()
    calls = [(p, q), (p, p), (q, p)]
    check(program, *(reversed(calls) if first_is_one else calls))


def test_functions_of_one_code() -> None:
    def make() -> Program:
        return lambda: None

    p, q = make(), make()
    check(in_set, (p, q), (p, p))


def with_enclosing(n: int) -> Program:
    def inner(x: Any) -> Any:
        return x * locals()["n"] + n

    return inner


def test_locals_of_an_inner_function() -> None:
    def program(x: Any, f: Program) -> Any:
        return f(x)

    check(program, (with_enclosing(2),), (with_enclosing(3),))


def test_a_printed_list_of_a_list_from_outside() -> None:
    def program(x: Any, items: list[int]) -> Any:
        return x * len("%s" % [items]) + len("%s %s" % (items, {"k": items}))  # noqa: UP031

    check(program, ([1],), ([1, 2],), ([100],))


@pytest.mark.parametrize(
    "printer",
    [
        lambda o: "%s" % o,  # noqa: UP031
        lambda o: "{}".format(o),  # noqa: PLW0108, UP032
        lambda o: str(ValueError(o)),
        lambda o: next(map(repr, [o])),
        lambda o: [*map(repr, [o])][0],  # noqa: RUF015
        lambda o: f"{o!r}",
        lambda o: dict(zip(map(repr, [o]), [1], strict=True)),
        lambda o: b"%a" % o,
    ],
)
@pytest.mark.parametrize("kind", [Thing, Quiet])
def test_addresses_in_texts(printer: Callable[[Any], Any], kind: type) -> None:
    def program(x: Any, o: Any) -> Any:
        return x * 2, printer(o)

    check(program, (kind(),), (kind(),))


def test_sorted_by_text() -> None:
    def program(x: Any, things: list[Any]) -> Any:
        return x * sorted(things, key=repr).index(things[0])

    things = [Thing() for _ in range(6)]
    check(program, (things,), (things[::-1],), (things[3:] + things[:3],))


def test_with_asks_the_class() -> None:
    def program(x: Any, manager: Any) -> Any:
        with manager as n:
            return x * n

    shadowed = Manager()
    shadowed.__enter__ = lambda: 5  # type: ignore[method-assign]
    shadowed.__exit__ = lambda *_: 1 / 0  # type: ignore[assignment, method-assign]
    check(program, (Manager(),), (shadowed,), (5,))

    class Half:
        def __enter__(self) -> int:
            return 1

    def caught(x: Any, manager: Any) -> Any:
        try:
            with manager as n:
                return x * n
        except TypeError as error:
            return str(error)

    check(caught, (Manager(),), (Half(),), (3,))


def test_a_dict_that_iterates_its_own_way() -> None:
    def keywords(n: int = 0, k: int = 0) -> int:
        return n * 100 + k

    def program(x: Any, d: Any) -> Any:
        return x * keywords(**d) + sum({**d}.values())

    check(program, (Mapping(n=1),), ({"n": 3},), (Mapping(),))


def test_inference_asked_by_keyword() -> None:
    def program(x: Any) -> Any:
        return x * (2 if torch.is_inference(input=x) else 3)

    compiled = torch_backplane.compile(program, backend="plugin:reference")
    with torch.inference_mode():
        y = torch.ones(2)
    for argument in (torch.ones(2), y, torch.ones(2)):
        assert compiled(argument).tolist() == program(argument).tolist()


def test_attributes_set_while_they_are_gone_through() -> None:
    def program(x: Any, o: Any) -> Any:
        for _ in o.__dict__:
            o.c = 1
        return x * 2

    def make() -> Thing:
        thing = Thing()
        thing.a = 1  # type: ignore[attr-defined]
        return thing

    compiled = torch_backplane.compile(program, backend="plugin:reference")
    for run in (program, compiled, compiled):
        with pytest.raises(RuntimeError, match="changed size"):
            run(torch.ones(2), make())


def name_of_attribute(x: Any, o: Any) -> Any:
    try:
        return x * o.missing
    except AttributeError as error:
        return str(error), error.name, error.obj is o


def name_of_global(x: Any) -> Any:
    try:
        return x * not_there  # type: ignore[name-defined]
    except NameError as error:
        return str(error), error.name


def cause_that_is_none(x: Any) -> Any:
    try:
        raise ValueError("a") from 5  # type: ignore[misc]
    except TypeError as error:
        return x, str(error)


def caught_by_a_number(x: Any) -> Any:
    try:
        try:
            raise ValueError("a")
        except (KeyError, 5):  # type: ignore[misc] # noqa: B030
            return x
    except TypeError as error:
        return str(error)


def test_errors_tell_what_they_are_about() -> None:
    check(name_of_attribute, (Thing(),), (Manager(),), (itertools,), (Thing,), (3,), ("text",))
    check(name_of_global, ())
    check(cause_that_is_none, ())
    check(caught_by_a_number, ())


def test_functions_that_are_given_back() -> None:
    def program(x: Any) -> Any:
        def inner(y: Any = 1) -> Any:
            return y

        def named() -> None:
            """Documented."""

        named.__doc__ = "other"
        inner.__annotations__["sum"] = x.sum()
        return x * 2, inner, named

    compiled = torch_backplane.compile(program, backend="plugin:reference")
    for _ in range(2):
        for run in (program, compiled):
            _, inner, named = run(torch.ones(2))
            assert named.__doc__ == "other"
            note = inner.__annotations__["sum"]
            assert note.item() == 2.0 and type(note) is torch.Tensor
            assert list(inner.__annotations__) == ["y", "return", "sum"]
            inner.__annotations__["changed"] = 1
