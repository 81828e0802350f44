"""What a program finds missing and comes later, or is there and goes: each call sees it as it is."""

import collections
import contextlib
import contextvars
import types
import weakref

import pytest
import torch
import torch_backplane


class Slotted:
    __slots__ = ("k",)


class Half:
    __slots__ = ("__dict__", "__weakref__", "k")


class Plain:
    pass


def slot(owner):
    return getattr(owner, "k", 7)


def slot_by_error(owner):
    try:
        return owner.k
    except AttributeError:
        return 7


class Answers(Slotted):
    def __getattr__(self, name):
        return 9


def setter(owner, name="k"):
    return owner, lambda: setattr(owner, name, 2), lambda: delattr(owner, name)


def item_of(container, key):
    return (
        container,
        lambda: container.__setitem__(key, 2),
        lambda: container.__delitem__(key),
    )


def ends_of(container):
    return container, lambda: container.append(2), container.pop


VARIABLE = contextvars.ContextVar("VARIABLE")


def of_variable():
    tokens = []
    return VARIABLE, lambda: tokens.append(VARIABLE.set(2)), lambda: VARIABLE.reset(tokens.pop())


def variable(owner):
    try:
        return owner.get()
    except LookupError:
        return 7


def first(owner):
    try:
        return owner[0]
    except IndexError:
        return 7


def held(owner):
    found = owner.ref()
    return 7 if found is None else found.k


def of_reference():
    class Holder:
        pass

    holder = Holder()
    kept = []

    def make():
        kept.append(Half())
        kept[0].k = 2
        holder.ref = weakref.ref(kept[0])

    make()
    kept.clear()
    return holder, make, kept.clear


def of_closure():
    cell = types.CellType()

    def fill():
        cell.cell_contents = 2

    def empty():
        del cell.cell_contents

    def template():
        return inner  # noqa: F821

    code = template.__code__.replace(co_freevars=("inner",), co_code=closure_code())
    return types.FunctionType(code, globals(), closure=(cell,)), fill, empty


def closure_code():
    def outer():
        inner = 1

        def read():
            return inner

        return read

    return outer().__code__.co_code


def called(owner):
    try:
        return owner()
    except NameError:
        return 7


def named(_):
    try:
        return only_sometimes_there
    except NameError:
        return 7


def abstract(owner):
    return len(getattr(owner, "__abstractmethods__", "1234567"))


class Concrete:
    pass


def of_class():
    def fill():
        Concrete.__abstractmethods__ = frozenset({"a", "b"})

    def empty():
        del Concrete.__abstractmethods__

    return Concrete, fill, empty


MODULE = types.ModuleType("settings")


def function_with_attributes():
    return 1


CASES = {
    "slot": (slot, lambda: setter(Slotted())),
    "slot, as an error": (slot_by_error, lambda: setter(Slotted())),
    "slot beside a dict": (slot, lambda: setter(Half())),
    "slot behind __getattr__": (slot, lambda: setter(Answers())),
    "attribute": (slot, lambda: setter(Plain())),
    "attribute of a class": (slot, lambda: (Plain(), *setter(Plain)[1:])),
    "attribute of a module": (slot, lambda: setter(MODULE)),
    "attribute of a function": (slot, lambda: setter(function_with_attributes)),
    "attribute of a tensor": (slot, lambda: setter(torch.zeros(2))),
    "key": (lambda owner: owner.get("k", 7), lambda: item_of({}, "k")),
    "key of a default": (
        lambda owner: 2 if "k" in owner else 7,
        lambda: item_of(collections.defaultdict(int), "k"),
    ),
    "item": (first, lambda: ends_of([])),
    "item of a deque": (first, lambda: ends_of(collections.deque())),
    "context variable": (variable, of_variable),
    "referent": (held, of_reference),
    "cell": (called, of_closure),
    "global": (named, lambda: item_of(globals(), "only_sometimes_there")),
    "of a class of C": (abstract, of_class),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("begins_full", (False, True))
def test_each_call_sees_it_as_it_is(name, begins_full):
    read, make = CASES[name]
    owner, fill, empty = make()
    compiled = torch_backplane.compile(lambda x, o: x + read(o), backend="eager")
    x = torch.zeros(2)
    full = False
    with contextlib.ExitStack() as at_end:
        for step in range(6):
            if full != ((step % 2 == 0) == begins_full):
                (empty if full else fill)()
                full = not full
            expected = x + read(owner)
            assert torch.equal(compiled(x, owner), expected), (step, full)
        if full:
            at_end.callback(empty)
