"""Classes and objects: attributes of every kind, special methods, what changes between calls."""

from __future__ import annotations

import abc
import collections
import functools
import typing
from types import MappingProxyType, SimpleNamespace

import torch
from frontend.programs.catalog import attempt, program, scenario, x


class Options:
    scale = 2

    def __init__(self, **values):
        self.__dict__.update(values)


@program((x(3), Options(bias=1)), (x(3), Options()), (x(3), Options(bias=None, scale=5)))
def config_object(a, options):
    bias = getattr(options, "bias", None)
    if bias is not None:
        a = a + bias
    return a * options.scale, hasattr(options, "bias")


@scenario
def attribute_changed_program(compile):
    options = Options(n=2)
    compiled = compile(lambda a: a * options.n)
    yield compiled(x(3))
    options.n = 3
    yield compiled(x(3))
    options.n = 3.0
    yield compiled(x(3))
    options.n = x(3)
    yield compiled(x(3))
    del options.n
    yield attempt(compiled, x(3))


@scenario
def class_attribute_changed_program(compile):
    class Holder:
        n = 2

    holder = Holder()
    compiled = compile(lambda a: a * holder.n)
    yield compiled(x(3))
    Holder.n = 3
    yield compiled(x(3))
    holder.n = 4
    yield compiled(x(3))
    del holder.n
    yield compiled(x(3))


@scenario
def base_class_changed_program(compile):
    class Base:
        def run(self, a):
            return a + 1

    class Middle(Base):
        pass

    class Last(Middle):
        pass

    thing = Last()
    compiled = compile(lambda a: thing.run(a))
    yield compiled(x(3))
    Base.run = lambda self, a: a + 2
    yield compiled(x(3))
    Middle.run = lambda self, a: a + 3
    yield compiled(x(3))
    thing.run = lambda a: a + 4
    yield compiled(x(3))


@scenario
def class_of_object_changed_program(compile):
    class One:
        def run(self, a):
            return a + 1

    class Two:
        def run(self, a):
            return a * 2

    thing = One()
    compiled = compile(lambda a: thing.run(a))
    yield compiled(x(3))
    thing.__class__ = Two
    yield compiled(x(3))


@scenario
def nested_attributes_program(compile):
    tree = SimpleNamespace(left=SimpleNamespace(n=1), right=SimpleNamespace(n=2))
    compiled = compile(lambda a: a * tree.left.n + tree.right.n)
    yield compiled(x(3))
    tree.left.n = 5
    yield compiled(x(3))
    tree.right = tree.left
    yield compiled(x(3))
    tree.left = SimpleNamespace(n=-1)
    yield compiled(x(3))


class Shape:
    def __init__(self, sides):
        self.sides = sides

    @property
    def area(self):
        return self.sides[0] * self.sides[1]

    @area.setter
    def area(self, value):
        self.sides = (value, 1)

    @functools.cached_property
    def around(self):
        return 2 * sum(self.sides)


@program((x(3), (2, 3)), (x(3), (4, 5)))
def properties(a, sides):
    shape = Shape(sides)
    b = a * shape.area
    shape.area = 7
    return b, shape.area, shape.sides


@program((x(3),))
def cached_property_of_own_object(a):
    shape = Shape((1, 2))
    return a * shape.around + shape.around, "around" in shape.__dict__


@scenario
def property_of_outside_object_program(compile):
    shape = Shape((2, 3))
    compiled = compile(lambda a: a * shape.area)
    yield compiled(x(3))
    shape.sides = (5, 6)
    yield compiled(x(3))


class Base:
    name = "base"

    def __init__(self, n):
        self.n = n

    def run(self, a):
        return a + self.n

    def __len__(self):
        return self.n


class Left(Base):
    name = "left"

    def run(self, a):
        return super().run(a) * 2


class Right(Base):
    def __init__(self, n):
        super().__init__(n + 1)

    def run(self, a):
        return super().run(a) + 10


class Both(Left, Right):
    def run(self, a):
        return super().run(a) - super(Left, self).run(a)


@program((x(3), 1), (x(3), 2))
def inheritance(a, n):
    both = Both(n)
    return both.run(a), both.name, [k.__name__ for k in Both.__mro__], isinstance(both, Right)


@program((x(3), Left(2)), (x(3), Right(2)), (x(3), Both(1)))
def method_of_argument(a, thing):
    return thing.run(a), len(thing), bool(thing)


class Numbers:
    def __init__(self, values):
        self.values = values

    def __len__(self):
        return len(self.values)

    def __getitem__(self, index):
        return self.values[index]

    def __contains__(self, value):
        return value in self.values

    def __iter__(self):
        return iter(self.values)

    def __call__(self, a):
        return a * self.values[0]

    def __eq__(self, other):
        return isinstance(other, Numbers) and self.values == other.values

    def __hash__(self):
        return hash(tuple(self.values))

    def __lt__(self, other):
        return self.values < other.values

    def __add__(self, other):
        return Numbers(self.values + list(other))

    def __radd__(self, other):
        return Numbers([other, *self.values])

    def __neg__(self):
        return Numbers([-v for v in self.values])

    def __bool__(self):
        return bool(self.values)

    def __repr__(self):
        return f"Numbers({self.values})"


@program((x(3), [1, 2, 3]), (x(3), [4]))
def special_methods_of_own(a, values):
    n = Numbers(values)
    out = [len(n), n[0], 2 in n, list(n), n == Numbers(list(values)), n < Numbers([9]), bool(n)]
    return n(a), out, (n + [7]).values, (0 + n).values, (-n).values, repr(n)


@program((x(3), Numbers([1, 2, 3])), (x(3), Numbers([4])), (x(3), Numbers([0])))
def special_methods_of_argument(a, n):
    if n:
        a = n(a)
    return a, len(n), n[0], 2 in n, [v for v in n], n == n, sum(n)


@program((x(3),))
def sorted_objects(a):
    items = sorted([Numbers([3]), Numbers([1]), Numbers([2])])
    return a, [n[0] for n in items], max(items).values


@program((x(3),))
def objects_as_keys(a):
    table = {Numbers([1]): a, Numbers([2]): a + 1}
    return table[Numbers([2])], Numbers([3]) in table


class Steps:
    def __init__(self, count):
        self.count = count

    def __iter__(self):
        return self

    def __next__(self):
        if self.count == 0:
            raise StopIteration
        self.count -= 1
        return self.count


@program((x(3), 3))
def own_iterator(a, n):
    return [a * i for i in Steps(n)], list(Steps(2)), sum(Steps(4))


class Lazy:
    def __getattr__(self, name):
        if name.startswith("n"):
            return len(name)
        raise AttributeError(f"no {name}")


@program((x(3), Lazy()))
def getattr_hook(a, lazy):
    own = Lazy()
    return a * lazy.none, own.nn, getattr(lazy, "other", 1), hasattr(own, "zero")


class Recording:
    def __init__(self):
        object.__setattr__(self, "log", [])

    def __setattr__(self, name, value):
        self.log.append(name)
        object.__setattr__(self, name, value)

    def __delattr__(self, name):
        self.log.append("-" + name)
        object.__delattr__(self, name)


@program((x(3),))
def setattr_hook(a):
    r = Recording()
    r.one = 1
    r.two = a
    del r.one
    setattr(r, "three", 3)
    return r.two, r.log


class Everything:
    def __init__(self):
        self.n = 3

    def __getattribute__(self, name):
        if name == "magic":
            return 42
        return super().__getattribute__(name)


@program((x(3), Everything()))
def getattribute_hook(a, thing):
    return a * thing.n + thing.magic, Everything().magic


class Positive:
    def __set_name__(self, owner, name):
        self.name = "_" + name

    def __get__(self, instance, owner=None):
        if instance is None:
            return self
        return getattr(instance, self.name, 1)

    def __set__(self, instance, value):
        if value <= 0:
            raise ValueError(f"{self.name} must be positive")
        setattr(instance, self.name, value)


class Sized:
    width = Positive()
    height = Positive()


@program((x(3), 2), (x(3), -1))
def descriptors(a, n):
    sized = Sized()
    sized.width = n
    return a * sized.width + sized.height


class Slotted:
    __slots__ = ("n", "inner")

    def __init__(self, n, inner=None):
        self.n = n
        self.inner = inner


class SlottedMore(Slotted):
    __slots__ = ("extra",)


@program((x(3), Slotted(2)), (x(3), Slotted(3)), (x(3), SlottedMore(2, Slotted(1))))
def slots_of_argument(a, s):
    a = a * s.n
    if s.inner is not None:
        a = a + s.inner.n
    return a, hasattr(s, "extra")


@program((x(3),))
def slots_returned(a):
    s = SlottedMore(a, 2)
    s.extra = [1]
    return s


class Registry(type):
    known: typing.ClassVar[list[str]] = []
    scale = 3

    def __call__(cls, *args):
        made = super().__call__(*args)
        made.made_by = "meta"
        return made

    def __len__(cls):
        return 4

    def __getitem__(cls, key):
        return key * 2


class Registered(metaclass=Registry):
    def __init__(self, n):
        self.n = n


@program((x(3), 2))
def metaclass(a, n):
    made = Registered(n)
    return a * made.n, made.made_by, len(Registered), Registered[5], Registered.scale


class Sizable(abc.ABC):
    @abc.abstractmethod
    def size(self):
        pass

    def doubled(self):
        return self.size() * 2


class Two(Sizable):
    def size(self):
        return 2


@program((x(3),))
def abstract_classes(a):
    two = Two()
    return a * two.doubled(), isinstance(two, Sizable), issubclass(Two, Sizable)


@program((x(3),))
def abstract_class_cannot_be_made(a):
    try:
        return Sizable()
    except TypeError:
        return a


@program((x(3), 3), (x(3), "s"), (x(3), [1]), (x(3), {}), (x(3), x(3)), (x(3), None))
def abstract_collections(a, v):
    return (
        a,
        isinstance(v, collections.abc.Mapping),
        isinstance(v, collections.abc.Sequence),
        isinstance(v, collections.abc.Iterable),
        isinstance(v, (int, torch.Tensor)),
        type(v) is list,
    )


class Counter:
    total = 0

    @classmethod
    def make(cls, n):
        return cls(n)

    @staticmethod
    def shift(a, n=1):
        return a + n

    def __init__(self, n):
        self.n = n


class SubCounter(Counter):
    pass


@program((x(3), SubCounter), (x(3), Counter))
def class_and_static_methods(a, kind):
    made = kind.make(3)
    return made.shift(a, made.n), kind.shift(a), type(made).__name__


@scenario
def static_method_replaced_program(compile):
    class Holder:
        @staticmethod
        def run(a):
            return a + 1

    compiled = compile(lambda a: Holder.run(a))
    yield compiled(x(3))
    Holder.run = staticmethod(lambda a: a * 5)
    yield compiled(x(3))


@program((x(3),))
def class_made_inside(a):
    class Local:
        n = 3

        def run(self, b):
            return b * self.n

    return Local().run(a)


@program((x(3),))
def type_made_inside(a):
    made = type("Made", (), {"n": 2})
    return a * made.n


@program((x(3),))
def mapping_proxy(a):
    proxy = MappingProxyType({"n": 2})
    return a * proxy["n"], list(proxy), "n" in proxy, len(proxy), proxy.get("m", 1)


TABLE = MappingProxyType({"relu": torch.relu, "sin": torch.sin})


@program((x(3), "relu"), (x(3), "sin"))
def mapping_proxy_from_outside(a, name):
    return TABLE[name](a), name in TABLE, len(TABLE)


@program((x(3), SimpleNamespace(n=1, t=x(3))), (x(3), SimpleNamespace(n=2, t=x(3))))
def simple_namespace(a, space):
    return a * space.n + space.t, vars(space)["n"]


class Growing(list):
    def total(self):
        return sum(self)


class Config(dict):
    def __getattr__(self, name):
        try:
            return self[name]
        except KeyError as error:
            raise AttributeError(name) from error


@program((x(3), Config(n=2, m=3)), (x(3), Config(n=4)))
def dict_with_attributes(a, config):
    return a * config.n, getattr(config, "m", 0), len(config), sorted(config)


@program((x(3),))
def list_subclass(a):
    items = Growing([1, 2])
    items.append(3)
    return a * items.total(), len(items)


@program((x(3),))
def vars_and_dict(a):
    thing = Options(n=1)
    thing.m = 2
    return a, vars(thing), thing.__dict__["n"], sorted(thing.__dict__)


@program((x(3),))
def copies_of_objects(a):
    import copy

    thing = Options(n=1, items=[1, 2])
    shallow, deep = copy.copy(thing), copy.deepcopy(thing)
    deep.items.append(3)
    return a, shallow.items is thing.items, thing.items, deep.items


class Meters(float):
    def doubled(self):
        return Meters(self * 2)


@program((x(3),))
def number_subclass(a):
    return a * Meters(1.5).doubled(), float(Meters(2.0))


@program((x(3),))
def init_subclass_and_class_attributes(a):
    return a, Both.__name__, Both.__qualname__, Both.__bases__[0] is Left, Both.__module__ != ""


@program((x(3), Left(1), Left(1)), (x(3), Left(1), Right(1)))
def identity_of_objects(a, one, two):
    same = one is two, one is one, type(one) is type(two)
    return a + 1, same


@scenario
def identity_changes_program(compile):
    one, two = Options(n=1), Options(n=1)
    compiled = compile(lambda a, p, q: a + (1 if p is q else 2))
    yield compiled(x(3), one, two)
    yield compiled(x(3), one, one)
    yield compiled(x(3), two, one)


@scenario
def searched_object_changes_program(compile):
    one, two = Options(n=1), Options(n=2)
    compiled = compile(lambda a, p, q: (a + 1, p in [q], len({p, q}), [q].count(p)))
    yield compiled(x(3), one, two)
    yield compiled(x(3), one, one)
    yield compiled(x(3), two, one)


@scenario
def attribute_set_and_restored_program(compile):
    options = Options(busy=False, n=3)

    def function(a):
        before = options.busy
        options.busy = True
        try:
            return a * (2 if options.busy else 5), before
        finally:
            options.busy = before

    compiled = compile(function)
    yield compiled(x(3)), vars(options)
    options.busy = None
    yield compiled(x(3)), vars(options)
    options.busy = True
    yield compiled(x(3)), vars(options)
    del options.busy
    yield attempt(compiled, x(3)), vars(options)


@scenario
def attribute_set_to_what_it_was_program(compile):
    options = Options(n=3)

    def function(a):
        options.n = 3
        return a * options.n

    compiled = compile(function)
    yield compiled(x(3)), vars(options)
    options.n = 7
    yield compiled(x(3)), vars(options)
