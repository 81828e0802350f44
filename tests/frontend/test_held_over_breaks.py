"""What a frame holds while it breaks: objects of Python's own classes, used up to the middle, that
the program goes on with behind the break."""

from __future__ import annotations

import collections
import contextlib
import functools
import itertools
import operator
import threading
import types
import warnings
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch_backplane
from frontend.helpers import check
from torch_backplane import frontend

X = torch.linspace(-1, 1, 6)


class Point:
    def __init__(self, x: int) -> None:
        self.x = x

    def plus(self, y: int) -> int:
        return self.x + y


class Numbers(list):
    """A list with a name."""

    name = "numbers"


class Words(set):
    pass


class Pair(tuple):
    __slots__ = ()


class Table(collections.defaultdict):
    def total(self) -> int:
        return sum(self.values())


class Count(int):
    def twice(self) -> int:
        return self * 2


class Failure(ValueError):
    def __init__(self, code: int) -> None:
        super().__init__(f"failed with {code}")
        self.code = code


def add(a: int, b: int, c: int = 0) -> int:
    return a + 2 * b + 3 * c


def started(iterator: Iterator[Any]) -> Iterator[Any]:
    next(iterator)
    return iterator


def used_up(iterator: Iterator[Any]) -> Iterator[Any]:
    for _ in iterator:
        pass
    return iterator


def appended(queue: collections.deque[int]) -> Any:
    queue.append(9)
    return list(queue), queue.maxlen


def with_item(table: Any) -> Any:
    table["a"] = 1
    return table


def with_attribute(thing: Any) -> Any:
    thing.tag = 3
    return thing


def moved(table: collections.OrderedDict[str, int]) -> Any:
    table.move_to_end("a")
    return table


def named(numbers: Numbers) -> Numbers:
    numbers.name = "ours"
    return numbers


def counter() -> Callable[[], int]:
    n = 0

    def count() -> int:
        nonlocal n
        n += 1
        return n

    count()
    return count


def accumulator() -> Any:
    total = 0

    def more(n: int) -> None:
        nonlocal total
        total += n

    return more, lambda: total


def make_class() -> Any:
    class Made(Point):
        def value(self) -> int:
            return self.x * 2

    return Made


def caught() -> Failure:
    try:
        raise Failure(4)
    except Failure as failure:
        return failure


def dict_keys() -> Any:
    return {"a": 1, "b": 2}.keys()


def dict_values() -> Any:
    return {"a": 1, "b": 2}.values()


def dict_items() -> Any:
    return {"a": 1, "b": 2}.items()


def circular() -> list[Any]:
    out: list[Any] = []
    out.append(out)
    return out


def countdown(n: int) -> Iterator[int]:
    while n:
        yield n
        n -= 1


class Countdown:
    def __init__(self, n: int) -> None:
        self.n = n

    def __iter__(self) -> Countdown:
        return self

    def __next__(self) -> int:
        if self.n == 0:
            raise StopIteration
        self.n -= 1
        return self.n


class Sequence:
    def __getitem__(self, index: int) -> int:
        if index > 3:
            raise IndexError
        return index * 2


class Parent:
    def name(self) -> str:
        return "parent"


class Child(Parent):
    def name(self) -> str:
        return "child"

    def parent(self) -> Any:
        return super()


# By name: how it is made, with at most one item taken, and what the program does with it later.
HELD: dict[str, tuple[Callable[[], Any], Callable[[Any], Any]]] = {
    "partial": (lambda: functools.partial(add, 1, c=2), lambda p: p(3)),
    "partial of a partial": (
        lambda: functools.partial(functools.partial(add, 1), c=5),
        lambda p: (p(3), p.args, p.keywords),
    ),
    "partial of a builtin": (lambda: functools.partial(int, base=2), lambda p: p("101")),
    "partial with attributes": (lambda: with_attribute(functools.partial(add, 1)), lambda p: p.tag),
    "itemgetter": (lambda: operator.itemgetter(1), lambda g: g([4, 5, 6])),
    "itemgetter of two": (lambda: operator.itemgetter(1, 2), lambda g: g([4, 5, 6])),
    "attrgetter": (lambda: operator.attrgetter("x"), lambda g: g(Point(3))),
    "methodcaller": (lambda: operator.methodcaller("plus", 4), lambda g: g(Point(3))),
    "enumerate": (lambda: started(enumerate([1, 2, 3])), list),
    "enumerate from 5": (lambda: started(enumerate("abc", 5)), list),
    "zip": (lambda: started(zip([1, 2, 3], "abc", strict=False)), list),
    "strict zip": (lambda: started(zip([1, 2, 3], "abc", strict=True)), list),
    "map": (lambda: started(map(abs, [-1, -2, -3])), list),
    "map of two": (lambda: started(map(operator.add, [1, 2, 3], (4, 5, 6))), list),
    "filter": (lambda: started(filter(None, [1, 0, 2, 3])), list),
    "reversed": (lambda: started(reversed([1, 2, 3])), list),
    "reversed tuple": (lambda: started(reversed((1, 2, 3))), list),
    "reversed range": (lambda: started(reversed(range(5))), list),
    "reversed dict": (lambda: started(reversed({"a": 1, "b": 2, "c": 3})), list),
    "list iterator": (lambda: started(iter([1, 2, 3])), list),
    "used up list iterator": (lambda: used_up(iter([1, 2, 3])), list),
    "tuple iterator": (lambda: started(iter((1, 2, 3))), list),
    "string iterator": (lambda: started(iter("abc")), list),
    "bytes iterator": (lambda: started(iter(b"abc")), list),
    "bytearray": (lambda: bytearray(b"abc"), bytes),
    "bytearray iterator": (lambda: started(iter(bytearray(b"abc"))), list),
    "range iterator": (lambda: started(iter(range(1, 9, 3))), list),
    "long range iterator": (lambda: started(iter(range(2**70, 2**70 + 3))), list),
    "dict keys iterator": (lambda: started(iter({"a": 1, "b": 2})), list),
    "dict items iterator": (lambda: started(iter({"a": 1, "b": 2}.items())), list),
    "used up dict iterator": (lambda: used_up(iter({"a": 1, "b": 2})), list),
    "set iterator": (lambda: started(iter({1, 2, 3})), list),
    "callable iterator": (lambda: started(iter([1, 2, 0, 3].pop, 0)), list),
    "sequence iterator": (lambda: started(iter(Sequence())), list),
    "iterator of Python": (lambda: started(Countdown(4)), list),
    "generator": (lambda: started(countdown(4)), list),
    "generator expression": (lambda: started(i * 2 for i in range(4)), list),
    "dict keys": (dict_keys, lambda v: (list(v), "a" in v, len(v))),
    "dict values": (dict_values, list),
    "dict items": (dict_items, list),
    "mappingproxy": (lambda: types.MappingProxyType({"a": 1}), lambda m: (m["a"], dict(m))),
    "chain": (lambda: started(itertools.chain([1, 2], (3, 4))), list),
    "chain from an iterable": (
        lambda: started(itertools.chain.from_iterable([[1, 2], [3]])),
        list,
    ),
    "islice": (lambda: started(itertools.islice([1, 2, 3, 4, 5], 1, None, 2)), list),
    "count": (lambda: started(itertools.count(3)), next),
    "count by floats": (lambda: started(itertools.count(3, 0.5)), next),
    "cycle": (lambda: started(itertools.cycle([1, 2, 3])), lambda c: [next(c) for _ in range(7)]),
    "repeat": (lambda: started(itertools.repeat(3, 3)), list),
    "endless repeat": (lambda: started(itertools.repeat(3)), next),
    "product": (lambda: started(itertools.product([1, 2], "ab")), list),
    "permutations": (lambda: started(itertools.permutations([1, 2, 3], 2)), list),
    "combinations": (lambda: started(itertools.combinations([1, 2, 3], 2)), list),
    "combinations with replacement": (
        lambda: started(itertools.combinations_with_replacement([1, 2], 2)),
        list,
    ),
    "accumulate": (lambda: started(itertools.accumulate([1, 2, 3])), list),
    "accumulate with a start": (
        lambda: started(itertools.accumulate([1, 2, 3], operator.mul, initial=2)),
        list,
    ),
    "compress": (lambda: started(itertools.compress([1, 2, 3], [1, 0, 1])), list),
    "dropwhile": (lambda: started(itertools.dropwhile(lambda i: i < 2, [1, 2, 3, 1])), list),
    "takewhile": (lambda: started(itertools.takewhile(lambda i: i < 3, [1, 2, 3, 1])), list),
    "filterfalse": (lambda: started(itertools.filterfalse(None, [0, 1, "", None])), list),
    "starmap": (lambda: started(itertools.starmap(pow, [(2, 3), (3, 2)])), list),
    "pairwise": (lambda: started(itertools.pairwise([1, 2, 3, 4])), list),
    "zip_longest": (
        lambda: started(itertools.zip_longest([1, 2, 3], "a", fillvalue="-")),
        list,
    ),
    "groupby": (
        lambda: started(itertools.groupby([1, 1, 2, 3, 3])),
        lambda groups: [(key, list(group)) for key, group in groups],
    ),
    "tee": (lambda: started(itertools.tee([1, 2, 3])[0]), list),
    "slice": (lambda: slice(1, None, 2), lambda s: [1, 2, 3, 4][s]),
    "slice with objects": (lambda: slice(Point(1), None), lambda s: s.start.x),
    "range": (lambda: range(2, 9, 3), list),
    "memoryview": (lambda: memoryview(b"abcd")[1:], bytes),
    "deque": (lambda: collections.deque([1, 2, 3], maxlen=3), appended),
    "deque of objects": (lambda: collections.deque([Point(1)]), lambda d: d[0].plus(2)),
    "deque iterator": (lambda: started(iter(collections.deque([1, 2, 3]))), list),
    "defaultdict": (lambda: with_item(collections.defaultdict(list)), lambda d: (d["b"], len(d))),
    "defaultdict of a closure": (
        lambda: with_item(collections.defaultdict(lambda: [7])),
        lambda d: (d["b"], d["a"]),
    ),
    "subclass of defaultdict": (lambda: with_item(Table(int)), lambda d: (d.total(), d["c"])),
    "OrderedDict": (
        lambda: moved(collections.OrderedDict(a=1, b=2, c=3)),
        lambda d: (list(d), d.popitem(last=False)),
    ),
    "Counter": (lambda: collections.Counter("abcab"), lambda c: (c["a"], c.most_common(1), c["z"])),
    "ChainMap": (lambda: collections.ChainMap({"a": 1}, {"a": 2, "b": 3}), dict),
    "UserDict": (lambda: collections.UserDict(a=1), dict),
    "SimpleNamespace": (lambda: types.SimpleNamespace(a=1), lambda n: n.a),
    "subclass of list": (lambda: named(Numbers([1, 2])), lambda n: (n, n.name, type(n).__name__)),
    "subclass of set": (lambda: Words({"a"}), lambda w: (sorted(w), type(w).__name__)),
    "subclass of tuple": (lambda: Pair((1, 2)), lambda p: (p[1], type(p).__name__)),
    "subclass of int": (lambda: Count(4), lambda n: (n.twice(), type(n).__name__)),
    "bound builtin method": (lambda: [1, 2].append, lambda f: (f(3), f.__self__)),
    "bound method": (lambda: Point(3).plus, lambda f: f(4)),
    "bound method of a string": (lambda: "a-b".split, lambda f: f("-")),
    "method of a class": (lambda: dict.fromkeys, lambda f: f("ab", 1)),
    "slot wrapper": (lambda: [1, 2].__len__, lambda f: f()),
    "bound method of an iterator": (lambda: iter([1, 2]).__next__, lambda f: (f(), f())),
    "closure": (counter, lambda f: (f(), f())),
    "two closures": (accumulator, lambda fs: (fs[0](2), fs[0](3), fs[1]())),
    "function with attributes": (lambda: with_attribute(lambda: 3), lambda f: (f(), f.tag)),
    "function with defaults": (lambda: lambda a, b=[1], *, c=2: (a, b, c), lambda f: f(0)),
    "class": (make_class, lambda c: (c(2).value(), c.__name__)),
    "instance of a class made here": (lambda: make_class()(3), lambda o: o.value()),
    "exception": (lambda: Failure(3), lambda e: (str(e), e.code, e.args)),
    "raised exception": (caught, lambda e: (str(e), e.code)),
    "exception of Python": (lambda: KeyError("a"), lambda e: (repr(e), e.args)),
    "bound super": (lambda: Child().parent(), lambda s: s.name()),
    "weak reference": (lambda: weakref.ref(add), lambda r: r()(1, 2)),
    "property": (lambda: property(lambda self: 3), lambda p: p.fget(None)),
    "staticmethod": (lambda: staticmethod(add), lambda s: s(1, 2)),
    "generic alias": (lambda: list[int], lambda a: (a.__origin__, a.__args__)),
    "union": (lambda: int | None, lambda a: a.__args__),
    "dtype": (lambda: torch.float64, lambda d: torch.zeros(1, dtype=d)),
    "size": (lambda: torch.Size([2, 3]), lambda s: s.numel()),
    "own list in itself": (circular, lambda c: (len(c), c[0] is c)),
}


def assert_accounted(compiled: Any) -> None:
    counters = frontend.counters(compiled)
    assert counters["breaks"] or counters["plain_reasons"], counters


@pytest.mark.parametrize("name", HELD)
def test_object(name: str) -> None:
    make, use = HELD[name]

    def f(x: torch.Tensor) -> Any:
        held = make()
        y = x * 2
        n = int(y.sum().item() * 0)
        return y + n, use(held)

    assert_accounted(check(f, (X,), (X + 1,)))


@pytest.mark.parametrize("name", HELD)
def test_object_that_is_held_twice(name: str) -> None:
    """Both names are of one object behind the break, too."""
    make, use = HELD[name]

    def f(x: torch.Tensor) -> Any:
        held = make()
        box = [held]
        y = x * 2
        n = int(y.sum().item() * 0)
        return y + n, held is box[0], use(box[0])

    assert_accounted(check(f, (X,)))


@pytest.mark.parametrize("name", HELD)
def test_object_over_two_breaks(name: str) -> None:
    make, use = HELD[name]

    def f(x: torch.Tensor) -> Any:
        held = make()
        first = int((x * 2).sum().item() * 0)
        y = x * 3 + first
        second = int(y.sum().item() * 0)
        return y + second, use(held)

    assert_accounted(check(f, (X,)))


def test_partial_of_a_tensor() -> None:
    def f(x):
        scaled = functools.partial(torch.mul, x * 2)
        n = x.sum().item()
        return scaled(x) + n

    assert_accounted(check(f, (X,)))


LOCK, RLOCK = threading.Lock(), threading.RLock()
CONDITION, SEMAPHORE = threading.Condition(), threading.Semaphore(2)


def is_free(lock: Any) -> bool:
    if lock.acquire(blocking=False):
        lock.release()
        return True
    return False


@contextlib.contextmanager
def holding(lock: Any) -> Iterator[str]:
    with lock:
        yield "held"


class Holder:
    def __init__(self, lock: Any) -> None:
        self.lock = lock

    def __enter__(self) -> str:
        self.lock.acquire()
        return "held"

    def __exit__(self, *_: Any) -> None:
        self.lock.release()


@pytest.mark.parametrize(
    "lock", [LOCK, RLOCK, CONDITION, SEMAPHORE], ids=lambda lock: type(lock).__name__
)
@pytest.mark.parametrize("how", ["with", "calls", "manager", "class", "stack", "try"])
def test_lock(lock: Any, how: str) -> None:
    """The lock is held at the break, by this thread, and free behind it."""
    seen: list[bool] = []

    def look() -> None:
        results: list[bool] = []
        thread = threading.Thread(target=lambda: results.append(is_free(lock)))
        thread.start()
        thread.join()
        seen.append(results[0])

    def f(x):
        y = x * 2
        if how == "with":
            with lock:
                z = y + 1
                look()
                z = z * int(z.sum().item() * 0 + 2)
        elif how == "calls":
            lock.acquire()
            z = y + 1
            look()
            lock.release()
        elif how == "manager":
            with holding(lock) as word:
                z = y + len(word)
                look()
        elif how == "class":
            with Holder(lock) as word:
                z = y + len(word)
                look()
        elif how == "stack":
            with contextlib.ExitStack() as stack:
                stack.enter_context(lock)
                z = y + 1
                look()
        else:
            lock.acquire()
            try:
                z = y + 1
                look()
                z = z + 1
            finally:
                lock.release()
        return z * 3

    compiled = frontend.compile(f)
    for x in (X, X, X + 1):
        seen.clear()
        expected = f(x)
        in_plain_python = list(seen)
        seen.clear()
        torch.testing.assert_close(compiled(x), expected, rtol=0, atol=0)
        assert seen == in_plain_python
        assert is_free(lock)
    assert_accounted(compiled)


def test_a_lock_that_stays_taken() -> None:
    lock = threading.Lock()

    def take(x):
        lock.acquire()
        return x * 2

    def give(x):
        lock.release()
        return x * 3

    compiled_take, compiled_give = frontend.compile(take), frontend.compile(give)
    for _ in range(3):
        assert torch.equal(compiled_take(X), X * 2)
        assert lock.locked()
        assert torch.equal(compiled_give(X), X * 3)
        assert not lock.locked()


def test_a_lock_that_is_only_tried() -> None:
    lock = threading.Lock()

    def f(x):
        if lock.acquire(blocking=False):
            lock.release()
            return x * 2
        return x * 3

    compiled = frontend.compile(f)
    assert torch.equal(compiled(X), X * 2)
    with lock:
        assert torch.equal(compiled(X), X * 3)
    assert torch.equal(compiled(X), X * 2)


def test_a_lock_around_a_write() -> None:
    """No other thread sees the middle of it, and no count is lost."""
    lock = threading.Lock()
    state = {"n": 0}

    def f(x):
        y = x @ x.T
        with lock:
            state["n"] = state["n"] + 1
        return y

    compiled = frontend.compile(f)
    x = torch.rand(64, 64)
    threads = [threading.Thread(target=lambda: [compiled(x) for _ in range(30)]) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert state["n"] == 120


def test_a_failing_section_frees_its_lock() -> None:
    lock = threading.Lock()

    def f(x, fails):
        with lock:
            n = x.sum().item() * 0
            if fails:
                raise ValueError("inside")
            return x + n

    check(f, (X, False), (X, True))
    assert not lock.locked()


def test_modes() -> None:
    """Modes of the thread are on at the break, and what they were behind it."""

    def f(x, seen):
        with torch.no_grad():
            y = x * 2
            seen.append((torch.is_grad_enabled(), y.requires_grad, y.sum().item()))
            y = y + 1
        with torch.autocast("cpu", dtype=torch.bfloat16):
            z = x[None] @ x[:, None]
            seen.append((torch.is_autocast_enabled("cpu"), z.dtype, z.sum().item()))
            z = z @ z
        with torch.inference_mode():
            w = x * 3
            seen.append((torch.is_inference_mode_enabled(), w.sum().item()))
        with torch.enable_grad():
            v = x * 5
            seen.append((torch.is_grad_enabled(), v.sum().item()))
        return y, z, w.sum().item(), v, torch.is_grad_enabled()

    for grad in (True, False):
        x = X.clone().requires_grad_()
        with torch.set_grad_enabled(grad):
            compiled = frontend.compile(f)
            for _ in range(2):
                ours: list[Any] = []
                plain: list[Any] = []
                results = compiled(x, ours)
                expected = f(x, plain)
                assert ours == plain
                for a, e in zip(results, expected, strict=True):
                    if isinstance(e, torch.Tensor):
                        assert torch.equal(a, e) and a.requires_grad == e.requires_grad
                    else:
                        assert a == e
                assert torch.is_grad_enabled() == grad


def test_warnings_that_are_caught() -> None:
    def f(x):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            y = x * 2
            n = y.sum().item() * 0
            warnings.warn("inside", stacklevel=1)
        return y + n, [str(one.message) for one in caught]

    filters = list(warnings.filters)
    assert_accounted(check(f, (X,)))
    assert warnings.filters == filters


def test_exit_stack() -> None:
    def f(x, log):
        with contextlib.ExitStack() as stack:
            stack.callback(log.append, "last")
            stack.enter_context(contextlib.suppress(ValueError))
            y = x * 2
            log.append(int(y.sum().item() * 0))
            stack.callback(log.append, "first")
            if len(log) > 5:
                return y
            raise ValueError("suppressed")
        return x

    assert_accounted(check(f, (X, []), (X, [0] * 6)))


@pytest.mark.parametrize("grad", [False, True])
def test_a_view_of_a_parameter(grad: bool) -> None:
    """Made without gradients it says that it needs one, and has no history."""
    weight = torch.nn.Parameter(torch.randn(4, 6))

    def expands(x):
        y = weight.expand(2, 4, 6)
        n = int(x.sum().item())
        return y * n + x, y.requires_grad, y.is_leaf

    def selects(x):
        y = weight[1]
        n = int(x.sum().item())
        return y * n + x, y.requires_grad, y.is_leaf

    for program in (expands, selects):
        compiled = torch_backplane.compile(program, backend="plugin:reference")
        with torch.set_grad_enabled(grad):
            for _ in range(3):
                torch.testing.assert_close(compiled(X + 1), program(X + 1))
        assert not frontend.counters(compiled)["plain_reasons"]
