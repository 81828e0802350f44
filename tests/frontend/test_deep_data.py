"""Data that leads back to itself, or is nested deeper than the C stack: no walk over it may take the
process down, and none may lose what the program does to it."""

from __future__ import annotations

import functools
import threading
import types
from collections.abc import Callable
from typing import Any

import pytest
import torch
from compiling import run_python
from frontend.helpers import check, outcome
from torch_backplane import frontend

X = torch.linspace(-1, 1, 6)


def total(*numbers: Any) -> Any:
    return sum(numbers)


@pytest.mark.parametrize("make", [list, tuple, iter, dict.fromkeys], ids=lambda m: m.__name__)
def test_starred_arguments_from_outside(make: Callable[[Any], Any]) -> None:
    def f(x, a):
        return x * total(*a)

    def with_more(x, a):
        return x * total(1, *a, 2) + total(*a, *a)

    for function in (f, with_more):
        compiled = frontend.compile(function)
        for values in ([1, 2], [1, 2], [3], []):
            assert torch.equal(compiled(X, make(values)), function(X, make(values)))


def test_starred_tensors_from_outside() -> None:
    def f(x, a):
        return x * total(*a)

    check(f, (X, [X, X + 1]), (X, (X + 2, X)))


def test_what_the_callee_changes_is_outside() -> None:
    def grow(*lists):
        lists[0].append(len(lists))
        return len(lists[0])

    def f(x, a):
        return x * grow(*a)

    check(f, (X, [[], [1]]), (X, ([], [1])))


def test_a_list_in_a_list_stays_the_same_object() -> None:
    def f(x, a):
        a.append(1)
        a[0].append(2)
        return x + len(a)

    compiled = frontend.compile(f)
    inner: list[Any] = []
    outer: list[Any] = [inner]
    for n in (1, 2, 3):
        compiled(X, outer)
        assert outer[0] is inner and inner == [2] * n and len(outer) == n + 1


def circular_list() -> Any:
    out: list[Any] = [1]
    out.append(out)
    return out


def circular_dict() -> Any:
    out: dict[str, Any] = {"a": 1}
    out["self"] = out
    return out


def circular_tuple() -> Any:
    inside: list[Any] = []
    out = (1, inside)
    inside.append(out)
    return out


def doubling_list() -> Any:
    """Few objects and 2**200 paths."""
    out: list[Any] = [1]
    for _ in range(200):
        out = [out, out]
    return out


def circular_object() -> Any:
    out = types.SimpleNamespace(n=1)
    out.me = out
    return out


CIRCULAR = [circular_list, circular_dict, circular_tuple, circular_object]

USES: dict[str, Callable[[torch.Tensor, Any], Any]] = {
    "str": lambda x, a: (x * 2, str(a)),
    "repr": lambda x, a: (x * 2, repr(a)),
    "format": lambda x, a: (x * 2, f"{a}"),
    "format method": lambda x, a: (x * 2, "{}".format(a)),  # noqa: UP032
    "percent": lambda x, a: (x * 2, "%s" % (a,)),  # noqa: UP031
    "equal": lambda x, a: (x * 2, a == a),
    "in": lambda x, a: (x * 2, a in [a]),
    "len": lambda x, a: x * len(a),
    "hash": lambda x, a: x * (hash(a) % 2),
    "hash of a tuple": lambda x, a: x * (hash((a,)) % 2),
    "stack": lambda x, a: torch.stack(a),
    "starred": lambda x, a: x * len(functools.partial(lambda *b: b)(*a)),
    "copy": lambda x, a: (x, len(list(a))),
    "sorted": lambda x, a: sorted(a),
    "sum": lambda x, a: sum(a),
    "isinstance": isinstance,
    "returned": lambda x, a: (x, a is None),
    "in a new list": lambda x, a: (x, len([a, a])),
    "break": lambda x, a: (x + x.sum().item(), len(a)),
    "append": lambda x, a: (x, a.append(1)),
}


@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("make", CIRCULAR, ids=lambda m: m.__name__)
def test_circular_data(make: Callable[[], Any], use: str) -> None:
    function = USES[use]
    compiled = frontend.compile(function)
    for _ in range(2):
        actual, expected = outcome(compiled, (X, make()), {}), outcome(function, (X, make()), {})
        assert actual[0] == expected[0], (actual, expected)
        if actual[0] == "error":
            assert actual[1][0] is expected[1][0]
        else:
            for a, e in zip(actual[1], expected[1], strict=True):
                assert torch.equal(a, e) if isinstance(e, torch.Tensor) else a == e


def test_many_paths_to_few_objects() -> None:
    def f(x, a):
        b = [a, a]
        return x * len(b), isinstance(a, list)

    def stack(x, a):
        return torch.stack(a)

    for _ in range(2):
        assert torch.equal(frontend.compile(f)(X, doubling_list())[0], X * 2)
    assert outcome(frontend.compile(stack), (X, doubling_list()), {})[0] == "error"


# Each runs in a process of its own: at fault it would take this one along.
DEEP: dict[str, str] = {
    "a list that str() shows": "def f(x, a): return x * len(str(type(a))), hide(str, a)",
    "a list that is compared": "def f(x, a): return x, hide(lambda b: b == a, [a])",
    "a list that is stacked": "def f(x, a): return hide(torch.stack, a)",
    "a list in a print": "def f(x, a): return x, hide(repr, [a])",
    "a list that is starred": "def f(x, a): return x * len((lambda *b: b)(*a))",
    "a list made inside": """
def f(x, a):
    b = []
    for _ in range(DEPTH): b = [b]
    return x, len(b)
def g(x, a):
    b = []
    for _ in range(DEPTH): b = [b]
    n = x.sum().item() * 0
    return x + n, len(b)
def h(x, a):
    b = ()
    for _ in range(DEPTH): b = (b,)
    return x, hide(hash, b), hide(str, b)
""",
    "a linked list": """
class Node:
    def __init__(self, rest): self.rest = rest
def f(x, a):
    n, node = 0, NODES
    while node is not None: node, n = node.rest, n + 1
    return x * n
NODES = None
for _ in range(DEPTH): NODES = Node(NODES)
""",
    "a linked list made inside": """
class Node:
    def __init__(self, rest): self.rest = rest
def f(x, a):
    node = None
    for _ in range(DEPTH): node = Node(node)
    n = x.sum().item() * 0
    return x + n, node.rest is None
""",
    "methods of methods": """
import types
M = len
for _ in range(DEPTH): M = types.MethodType(M, 1)
def f(x, a): return x, hide(lambda: M()), hide(lambda: M.__name__)
""",
    "partials with attributes": """
import functools
P = len
for _ in range(DEPTH):
    P = functools.partial(P)
    P.tag = 1
def f(x, a): return x, hide(lambda: P([1]))
""",
    "a generator in a generator": """
def numbers(n):
    yield n
    if n: yield from numbers(n - 1)
def f(x, a): return x, hide(sum, numbers(5000))
""",
}

PROGRAM = """
import sys, torch
from torch_backplane import frontend
DEPTH = {depth}
def hide(function, *arguments):
    try:
        return type(function(*arguments)).__name__
    except (RecursionError, TypeError, ValueError) as error:
        return type(error).__name__
{code}
def deep():
    out = []
    for _ in range(DEPTH): out = [out]
    return out
def walk(value):
    return [tuple(v.shape) if isinstance(v, torch.Tensor) else v
            for v in (value if isinstance(value, tuple) else (value,))]
X, A = torch.ones(3), deep()
for function in [f] + [globals()[n] for n in "gh" if n in globals()]:
    compiled = frontend.compile(function)
    for _ in range(2):
        print(walk(compiled(X, A)) == walk(function(X, A)), flush=True)
import os
os._exit(0)  # CPython's own way of freeing such data is not looked at
"""


@pytest.mark.parametrize("name", DEEP)
def test_deep_data(name: str) -> None:
    program = PROGRAM.format(depth=20_000, code=DEEP[name])
    done = run_python(program)
    assert done.returncode == 0, (done.returncode, done.stderr[-2000:])
    assert "False" not in done.stdout and done.stdout, done.stdout


def test_in_a_thread_with_a_small_stack() -> None:
    def f(x, a):
        return x * len(str(a))

    nested: list[Any] = []
    for _ in range(400):
        nested = [nested]
    results: list[Any] = []
    compiled = frontend.compile(f)
    before = threading.stack_size(1 << 20)
    try:
        thread = threading.Thread(target=lambda: results.append(compiled(X, nested)))
        thread.start()
        thread.join()
    finally:
        threading.stack_size(before)
    assert torch.equal(results[0], f(X, nested))


def test_a_number_that_is_made_in_many_steps() -> None:
    def f(x):
        n = torch.zeros((), dtype=torch.int64)
        for _ in range(30_000):
            n = n + 1
        return x * n.item()

    assert torch.equal(frontend.compile(f)(X), X * 30_000)
