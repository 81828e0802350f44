"""Kinds of objects that programs read from outside: how to make, read, write and change each.

A row is one kind. Its texts name the object as ``@``, the path under which the program finds it.
"""

from __future__ import annotations

import dataclasses

# Definitions that rows and statements ask for by name; each program defines what it uses, so that
# what one run does to a class is not seen by the next.
DEFINITIONS: dict[str, str] = {
    "Act": "class Act(str, enum.Enum):\n    RELU = 'relu'\n    TANH = 'tanh'\n    NONE = ''",
    "Level": "class Level(enum.IntEnum):\n    LOW = 1\n    MID = 2\n    HIGH = 3",
    "Flags": "class Flags(enum.Flag):\n    A = 1\n    B = 2\n    AB = 3",
    "Color": "class Color(enum.Enum):\n    RED = (1, 0)\n    BLUE = (0, 2)",
    "Whole": "class Whole(int):\n    def twice(self):\n        return int(self) * 2",
    "Real": "class Real(float):\n    unit = 'm'",
    "Text": "class Text(str):\n    def shout(self):\n        return self.upper() + '!'",
    "Listed": "class Listed(list):\n    scale = 2",
    "Mapped": "class Mapped(dict):\n    def __missing__(self, key):\n        return 7",
    "Pair": "Pair = collections.namedtuple('Pair', 'left right')",
    "Config": (
        "@dataclasses.dataclass\nclass Config:\n    n: int = 2\n    items: list = "
        "dataclasses.field(default_factory=lambda: [1, 2])\n    name: str = 'c'"
    ),
    "Frozen": "@dataclasses.dataclass(frozen=True)\nclass Frozen:\n    n: int = 2\n    k: float = 0.5",
    "Slotted": (
        "class Slotted:\n    __slots__ = ('n', 'k')\n    def __init__(self, n, k=0.5):\n"
        "        self.n, self.k = n, k"
    ),
    "Box": "class Box:\n    rate = 2\n    def __init__(self, **fields):\n        self.__dict__.update(fields)",
    "Lazy": (
        "class Lazy:\n    def __init__(self, n):\n        self._n = n\n    @property\n    def n(self):\n"
        "        return self._n + 1\n    @n.setter\n    def n(self, value):\n        self._n = value"
    ),
    "Dynamic": (
        "class Dynamic:\n    def __init__(self, n):\n        self.table = {'n': n}\n"
        "    def __getattr__(self, name):\n        if name.startswith('_') or name == 'table':\n"
        "            raise AttributeError(name)\n        return self.table.get(name, 5)"
    ),
    "Field": (
        "class Field:\n    def __set_name__(self, owner, name):\n        self.name = '_' + name\n"
        "    def __get__(self, one, owner=None):\n        return self if one is None else "
        "getattr(one, self.name, 3)\n    def __set__(self, one, value):\n"
        "        setattr(one, self.name, value * 2)"
    ),
    "Described": "class Described:\n    n = Field()",
    "Vector": (
        "class Vector:\n    def __init__(self, *items):\n        self.items = list(items)\n"
        "    def __len__(self):\n        return len(self.items)\n    def __getitem__(self, i):\n"
        "        return self.items[i]\n    def __eq__(self, other):\n"
        "        return isinstance(other, Vector) and self.items == other.items\n"
        "    def __hash__(self):\n        return len(self.items)\n    def __add__(self, other):\n"
        "        return Vector(*self.items, *other.items)\n    def __contains__(self, item):\n"
        "        return item in self.items"
    ),
    "Shape": (
        "class Shape(abc.ABC):\n    @classmethod\n    def __subclasshook__(cls, other):\n"
        "        return NotImplemented"
    ),
    "Square": "class Square:\n    side = 2\n    def __call__(self, t):\n        return t * self.side",
    "Layer": (
        "class Layer(torch.nn.Module):\n    def __init__(self, n=4):\n        super().__init__()\n"
        "        self.weight = torch.nn.Parameter(tensor(4))\n"
        "        self.register_buffer('count', torch.zeros(()))\n        self.n = n\n"
        "        self.options = {'k': 0.5}\n    def forward(self, t):\n"
        "        return t * self.weight.sum() + self.n * self.options['k']"
    ),
}
NEEDS = {"Described": ("Field",)}


@dataclasses.dataclass(frozen=True)
class Kind:
    """``ints``, ``floats``, ``bools``, ``strings``, ``lists``, ``tensors``: expressions of that type.
    ``writes``: what the program may do to it; ``changes``: what may happen between calls."""

    name: str
    values: tuple[str, ...]
    needs: tuple[str, ...] = ()
    ints: tuple[str, ...] = ()
    floats: tuple[str, ...] = ()
    bools: tuple[str, ...] = ()
    strings: tuple[str, ...] = ()
    lists: tuple[str, ...] = ()
    tensors: tuple[str, ...] = ()
    writes: tuple[str, ...] = ()
    changes: tuple[str, ...] = ()


NUMBER = {
    "ints": ("int(@)", "round(@)", "max(int(@), 1)", "len(range(int(@)))"),
    "floats": ("float(@)", "(@ + 0.5)", "abs(float(@))"),
    "bools": ("bool(@)", "(@ > 1)", "(not @)", "(@ == 2)", "(@ in (1, 2))", "isinstance(@, int)"),
    "strings": ("str(@)", "'%s' % (@,)", "type(@).__name__"),
    "tensors": ("(x * @)", "(x + @)", "(@ * x)", "torch.full((2,), float(@)).sum()"),
}
INTEGER = {
    **NUMBER,
    "ints": ("int(@)", "(@ + 1)", "len(range(@))", "(1 << @)", "[5, 6, 7, 8][@ - 1]"),
    "tensors": (*NUMBER["tensors"], "x[:@].sum()", "x.new_ones(@, 2).sum()", "x[@ - 1]", "x.roll(@)"),
    "lists": ("list(range(@))", "[0] * @"),
}
TEXT = {
    "ints": ("len(@)", "@.count('e')", "{'relu': 1, 'tanh': 2}.get(@, 3)"),
    "bools": ("(@ == 'relu')", "bool(@)", "('e' in @)", "@.startswith('r')", "(@ in {'relu': 1})"),
    "strings": ("str(@)", "@.upper()", "'%s' % (@,)", "(@ + 'b')", "'-'.join([@, 'c'])"),
    "tensors": ("getattr(torch, @ or 'sin')(x)",),
    "lists": ("[len(s) for s in @.split('e')]",),
}
SEQUENCE = {
    "ints": ("len(@)", "int(@[0])", "int(@[-1])", "int(sum(@))", "int(max(@))"),
    "bools": ("bool(@)", "(2 in @)", "(len(@) > 2)", "any(@)", "all(i > 0 for i in @)"),
    "floats": ("float(sum(@))", "float(@[0])"),
    "lists": ("list(@)", "[i * 2 for i in @]", "sorted(@)", "list(reversed(@))", "[*@, 1]"),
    "tensors": (
        "(x * sum(@))",
        "(x * @[0])",
        "torch.tensor(list(@)).float().sum()",
        "sum((x * i for i in @), x)",
    ),
}
MUTABLE = ("@.append(len(@))", "@[0] = @[0] + 1", "@.extend([1, 2])", "@.reverse()", "@.pop()")

KINDS: tuple[Kind, ...] = (
    Kind("int", ("2", "3", "1", "0"), **INTEGER),
    Kind("float", ("2.0", "0.5", "-1.0", "0.0"), **NUMBER),
    Kind("bool", ("True", "False"), **INTEGER),
    Kind("str", ("'relu'", "'tanh'", "''"), **TEXT),
    Kind(
        "none",
        ("None", "2"),
        bools=("(@ is None)", "bool(@)", "(@ == 2)"),
        ints=("(@ or 1)",),
        strings=("str(@)",),
    ),
    Kind("np_int64", ("numpy.int64(2)", "numpy.int64(3)", "numpy.int64(1)"), **INTEGER),
    Kind("np_int8", ("numpy.int8(2)", "numpy.int8(3)"), **INTEGER),
    Kind("np_float64", ("numpy.float64(2.5)", "numpy.float64(0.5)"), **NUMBER),
    Kind("np_float32", ("numpy.float32(2.5)", "numpy.float32(0.5)"), **NUMBER),
    Kind("np_bool", ("numpy.bool_(True)", "numpy.bool_(False)"), **NUMBER),
    Kind(
        "np_array",
        ("numpy.array([2, 1, 3])", "numpy.array([1.5, 2.5])", "numpy.arange(4)"),
        **{**SEQUENCE, "bools": ("bool(len(@) > 2)", "bool((@ > 1).any())", "(2 in @)")},
        writes=("@[0] = 2", "@[1] += 1", "@.sort()"),
        changes=("@[0] += 1", "@[:] = 2", "@.sort()"),
    ),
    Kind(
        "np_zero_dim",
        ("numpy.array(2)", "numpy.array(3)"),
        ints=("int(@)", "@.item()"),
        floats=("float(@)",),
        bools=("bool(@)", "bool(@ > 2)"),
        tensors=("(x * @.item())", "(x * float(@))"),
        changes=("@[...] = 1", "@.fill(4)"),
    ),
    Kind(
        "act",
        ("Act.RELU", "Act.TANH"),
        ("Act",),
        bools=("(@ == 'relu')", "(@ is Act.RELU)", "(@ in (Act.TANH,))", "(@.value == 'tanh')"),
        ints=("{'relu': 1, 'tanh': 2}[@]", "len(@)", "{Act.RELU: 4, Act.TANH: 5}[@]"),
        strings=("@.value", "@.name", "str(@)", "'%s' % (@,)", "@.upper()"),
        tensors=("getattr(torch, @.value)(x)",),
    ),
    Kind(
        "level",
        ("Level.LOW", "Level.MID", "Level.HIGH"),
        ("Level",),
        **{**INTEGER, "strings": ("@.name", "str(@)", "repr(@)")},
    ),
    Kind(
        "flags",
        ("Flags.A", "Flags.B", "Flags.AB"),
        ("Flags",),
        bools=("bool(@ & Flags.A)", "(Flags.B in @)", "(@ == Flags.AB)", "(@ | Flags.A is Flags.AB)"),
        ints=("@.value", "len(list(@))"),
        strings=("str(@)",),
    ),
    Kind(
        "color",
        ("Color.RED", "Color.BLUE"),
        ("Color",),
        bools=("(@ is Color.RED)", "(@ == Color.BLUE)"),
        ints=("@.value[0]", "{Color.RED: 1, Color.BLUE: 6}[@]", "sum(@.value)"),
        strings=("@.name",),
        lists=("list(@.value)", "[c.value[0] for c in type(@)]"),
    ),
    Kind(
        "whole",
        ("Whole(2)", "Whole(3)", "Whole(1)"),
        ("Whole",),
        **{**INTEGER, "ints": (*INTEGER["ints"], "@.twice()", "getattr(@, 'tag', 1)")},
        writes=("@.tag = 3",),
        changes=("@.tag = 2",),
    ),
    Kind("real", ("Real(2.0)", "Real(0.5)"), ("Real",), **NUMBER, changes=("@.unit = 'k'",)),
    Kind(
        "text",
        ("Text('relu')", "Text('tanh')"),
        ("Text",),
        **{**TEXT, "strings": (*TEXT["strings"], "@.shout()")},
    ),
    Kind("decimal", ("decimal.Decimal('2')", "decimal.Decimal('0.5')"), **{
        **NUMBER, "floats": ("float(@)",), "tensors": ("(x * float(@))", "x[: int(@)].sum()"),
    }),
    Kind("fraction", ("fractions.Fraction(3, 2)", "fractions.Fraction(5, 2)"), **{
        **NUMBER, "ints": ("@.numerator", "int(@)"), "tensors": ("(x * float(@))",),
    }),
    Kind(
        "date",
        ("datetime.date(2020, 1, 2)", "datetime.date(2021, 3, 4)"),
        ints=("@.day", "@.year - 2019", "@.weekday()"),
        bools=("(@ < datetime.date(2020, 6, 1))",),
        strings=("@.isoformat()", "str(@)"),
    ),
    Kind(
        "timedelta",
        ("datetime.timedelta(seconds=2)", "datetime.timedelta(seconds=3)"),
        ints=("@.seconds",),
        floats=("@.total_seconds()",),
        bools=("bool(@)",),
    ),
    Kind("complex", ("2j", "(1 + 2j)"), floats=("@.imag", "abs(@)"), bools=("(@ == 2j)",)),
    Kind(
        "bytes",
        ("b'ab'", "b'abc'"),
        **{**SEQUENCE, "strings": ("@.decode()",)},
    ),
    Kind("range", ("range(1, 4)", "range(2)"), **SEQUENCE),
    Kind("slice", ("slice(2)", "slice(1, 3)"), ints=("@.stop",), tensors=("x[@].sum()",)),
    Kind(
        "dtype",
        ("torch.float32", "torch.float64"),
        bools=("(@ == torch.float32)", "@.is_floating_point"),
        tensors=("x.to(@)", "torch.ones(2, dtype=@).sum()"),
        strings=("str(@)",),
    ),
    Kind("list", ("[2, 1, 3]", "[1, 2]", "[3]"), **SEQUENCE, writes=MUTABLE, changes=MUTABLE),
    Kind(
        "listed",
        ("Listed([2, 1])", "Listed([3])"),
        ("Listed",),
        **{**SEQUENCE, "ints": (*SEQUENCE["ints"], "@.scale")},
        writes=("@.append(1)", "@.scale = 3"),
        changes=("@.append(2)", "@.scale = 4", "Listed.scale = 5"),
    ),
    Kind("tuple", ("(2, 1)", "(1, 2, 3)"), **SEQUENCE),
    Kind(
        "deque",
        ("collections.deque([2, 1, 3])", "collections.deque([1], maxlen=2)"),
        **SEQUENCE,
        writes=("@.append(2)", "@.appendleft(4)", "@.rotate(1)", "@.popleft()"),
        changes=("@.append(3)", "@.popleft()", "@[0] = 5"),
    ),
    Kind(
        "array",
        ("array.array('i', [2, 1, 3])", "array.array('d', [1.5])"),
        **SEQUENCE,
        writes=("@.append(2)", "@[0] = 4"),
        changes=("@[0] = 5", "@.append(1)"),
    ),
    Kind(
        "bytearray",
        ("bytearray([2, 1, 3])", "bytearray([1])"),
        **SEQUENCE,
        writes=("@[0] = 4", "@.append(1)"),
        changes=("@[0] = 5", "@.extend(b'a')"),
    ),
    Kind(
        "memoryview",
        ("memoryview(bytearray([2, 1, 3]))",),
        **{**SEQUENCE, "bools": ("(2 in @)",)},
        changes=("@[0] = 5",),
    ),
    Kind(
        "set",
        ("{1, 2}", "{2, 3, 4}", "set()"),
        ints=("len(@)", "sum(@)", "max(@, default=1)"),
        bools=("(2 in @)", "bool(@)", "@.issubset({1, 2, 3})", "(@ == {1, 2})"),
        lists=("sorted(@)", "list(@ | {5})", "list(@ & {2})"),
        writes=("@.add(7)", "@.discard(2)"),
        changes=("@.add(5)", "@.clear()"),
    ),
    Kind("frozenset", ("frozenset({1, 2})", "frozenset()"), ints=("len(@)",), bools=("(2 in @)",)),
    Kind(
        "dict",
        ("{'a': 2, 'b': 1}", "{'a': 3}", "{'b': 1, 'a': 1}"),
        ints=("@['a']", "len(@)", "@.get('b', 4)", "sum(@.values())"),
        bools=("('b' in @)", "bool(@)", "(@ == {'a': 3})", "(list(@)[0] == 'a')"),
        strings=("','.join(@)", "next(iter(@))", "str(@)"),
        lists=("list(@.values())", "[v for k, v in @.items()]", "[len(k) for k in @]"),
        tensors=("(x * @['a'])", "torch.add(x, x, **{'alpha': @['a']})"),
        writes=("@['a'] = @['a'] + 1", "@['c'] = 5", "@.update(d=1)", "@.pop('a')", "@.setdefault('z', 2)"),
        changes=("@['a'] += 1", "@['n'] = 9", "@.clear()", "@.pop('a', None)"),
    ),
    Kind(
        "mapped",
        ("Mapped(a=2)", "Mapped(a=3, b=1)"),
        ("Mapped",),
        ints=("@['a']", "@['q']", "len(@)"),
        bools=("('b' in @)",),
        writes=("@['a'] = 4",),
        changes=("@['q'] = 1",),
    ),
    Kind(
        "ordered",
        ("collections.OrderedDict(a=2, b=1)", "collections.OrderedDict(b=3, a=1)"),
        ints=("@['a']", "len(@)"),
        lists=("list(@.values())",),
        strings=("next(iter(@))",),
        writes=("@['c'] = 1", "@.move_to_end('a')"),
        changes=("@.move_to_end('a')", "@['a'] = 5"),
    ),
    Kind(
        "counter",
        ("collections.Counter('aab')", "collections.Counter('ab')"),
        ints=("@['a']", "@['z']", "len(@)"),
        strings=("@.most_common(1)[0][0]",),
        writes=("@['a'] += 1", "@.update('b')"),
        changes=("@.update('bbb')",),
    ),
    Kind(
        "defaultdict",
        ("collections.defaultdict(list, a=[1])", "collections.defaultdict(int, a=[2, 3])"),
        ints=("len(@['a'])", "len(@)"),
        bools=("('z' in @)",),
        writes=("@['z']", "@['a'].append(2)"),
        changes=("@['a'].append(1)",),
    ),
    Kind(
        "keys",
        ("{'a': 1, 'b': 2}.keys()", "{'c': 1}.keys()"),
        ints=("len(@)",),
        bools=("('a' in @)",),
        strings=("','.join(@)",),
    ),
    Kind("values", ("{'a': 1, 'b': 2}.values()", "{'c': 3}.values()"), ints=("len(@)", "sum(@)")),
    Kind(
        "kept_iterator",
        ("iter([1, 2, 3])", "iter((4, 5))", "iter(range(5))", "enumerate([3, 4])", "map(abs, [-1, 2])"),
        ints=("len([*@])", "len(str(next(@, 7)))"),
        lists=("[len(str(i)) for i in @]",),
        changes=("next(@, None)",),
    ),
    Kind(
        "generator",
        ("(i * 2 for i in [1, 2, 3])", "count_up(3)"),
        ("count_up",),
        ints=("next(@, 7)", "sum(@)"),
        lists=("list(@)", "[i + 1 for i in @]"),
        changes=("next(@, None)",),
    ),
    Kind("itertools_count", ("itertools.count(2)", "itertools.cycle([1, 2])"), ints=("next(@)",)),
    Kind(
        "pair",
        ("Pair(2, 1)", "Pair(3, 'a')"),
        ("Pair",),
        ints=("@.left", "len(@)", "@[0]", "@._replace(left=4).left"),
        bools=("(@ == (2, 1))", "(@.right == 'a')"),
        strings=("str(@)",),
    ),
    Kind(
        "config",
        ("Config()", "Config(3, [1])", "Config(1, [4], 'd')"),
        ("Config",),
        ints=("@.n", "len(@.items)", "sum(@.items)", "dataclasses.replace(@, n=4).n"),
        bools=("(@ == Config())", "(@.name == 'c')", "isinstance(@, Config)"),
        strings=("@.name", "repr(@)"),
        lists=("@.items", "list(dataclasses.asdict(@)['items'])"),
        writes=("@.n += 1", "@.items.append(@.n)", "@.name = 'e'"),
        changes=("@.n += 1", "@.items.append(5)", "@.items = [7]", "@.name = 'z'"),
    ),
    Kind(
        "frozen",
        ("Frozen()", "Frozen(3, 1.5)"),
        ("Frozen",),
        ints=("@.n", "{Frozen(): 1}.get(@, 2)", "hash(@) and @.n"),
        floats=("@.k",),
        bools=("(@ == Frozen())",),
        writes=("@.n = 4",),
    ),
    Kind(
        "slotted",
        ("Slotted(2)", "Slotted(3, 1.5)"),
        ("Slotted",),
        ints=("@.n",),
        floats=("@.k",),
        bools=("hasattr(@, 'k')",),
        writes=("@.n += 1", "@.k = 0.25", "del @.k"),
        changes=("@.n += 1",),
    ),
    Kind(
        "box",
        ("Box(n=2, k=0.5)", "Box(n=3, k=2)", "Box(n=1, k=1, extra='e')"),
        ("Box",),
        ints=("@.n", "@.rate", "len(vars(@))", "getattr(@, 'missing', 4)"),
        floats=("(@.k * 0.5)",),
        bools=("hasattr(@, 'extra')", "(@ is not None)", "('n' in vars(@))"),
        lists=("sorted(map(len, vars(@)))",),
        writes=("@.n += 1", "@.k = @.n", "@.extra = [1]", "del @.n", "setattr(@, 'k', 3)"),
        changes=("@.n += 1", "@.extra = 1", "Box.rate = 5", "@.rate = 3", "@.k = 0"),
    ),
    Kind(
        "lazy",
        ("Lazy(2)", "Lazy(1)"),
        ("Lazy",),
        ints=("@.n",),
        writes=("@.n = 4", "@.n += 1"),
        changes=("@.n = 5", "@._n = 3"),
    ),
    Kind(
        "dynamic",
        ("Dynamic(2)", "Dynamic(3)"),
        ("Dynamic",),
        ints=("@.n", "@.other"),
        bools=("hasattr(@, '_x')",),
        writes=("@.other = 4", "@.table['n'] = 4"),
        changes=("@.table['n'] += 1", "@.n = 6"),
    ),
    Kind(
        "described",
        ("Described()",),
        ("Described",),
        ints=("@.n",),
        writes=("@.n = 2",),
        changes=("@.n = 1", "@._n = 5"),
    ),
    Kind(
        "vector",
        ("Vector(2, 1)", "Vector(3)"),
        ("Vector",),
        **{**SEQUENCE, "bools": (*SEQUENCE["bools"], "(@ == Vector(3))", "(@ in {Vector(3): 1})")},
        writes=("@.items.append(2)",),
        changes=("@.items.append(1)", "@.items = [4, 5]"),
    ),
    Kind(
        "abstract",
        ("Square()", "Box(n=1)"),
        ("Shape", "Square", "Box"),
        bools=("isinstance(@, Shape)", "callable(@)", "issubclass(type(@), Shape)"),
        tensors=("@(x)",),
        strings=("type(@).__name__",),
        changes=("Shape.register(Square)", "Square.side = 3", "Square.__name__ = 'Other'"),
    ),
    Kind(
        "class",
        ("Square", "Box", "dict"),
        ("Square", "Box"),
        ints=("getattr(@, 'side', 1)", "len(@.__mro__)"),
        bools=("issubclass(@, dict)", "isinstance(@(), Box)", "(@ is Box)"),
        strings=("@.__name__",),
        writes=("@.side = 4",),
        changes=("Square.side = 5", "Square.__name__ = 'Renamed'"),
    ),
    Kind(
        "function",
        ("scale", "shift", "(lambda t, k=3: t * k)", "functools.partial(scale, k=3)"),
        ("scale", "shift"),
        tensors=("@(x)", "@(x, 2)", "@(x, k=0.5)", "@(*[x])"),
        ints=("getattr(@, 'calls', 1)",),
        strings=("getattr(@, '__name__', 'p')",),
        writes=("@.calls = 2",),
        changes=("scale.__defaults__ = (5,)", "shift.__kwdefaults__['k'] = 4", "@.calls = 3"),
    ),
    Kind(
        "partial",
        ("functools.partial(scale, k=2)", "functools.partial(scale, k=3)", "functools.partial(shift)"),
        ("scale", "shift"),
        tensors=("@(x)", "functools.partial(@)(x)"),
        ints=("len(@.keywords)", "@.keywords.get('k', 1)"),
        changes=("@.keywords.update(k=4)",),
    ),
    Kind("method", ("[1, 2].count", "'aab'.count", "{'a': 1}.get"), ints=("(@('a') or 2)",)),
    Kind(
        "namespace",
        ("types.SimpleNamespace(n=2)", "types.SimpleNamespace(n=3, m=1)"),
        ints=("@.n", "len(vars(@))"),
        writes=("@.n += 1", "@.m = 2"),
        changes=("@.n += 1", "del @.n"),
    ),
    Kind(
        "module",
        ("new_module(n=2)", "new_module(n=3)"),
        ("new_module",),
        ints=("@.n",),
        bools=("hasattr(@, 'm')",),
        writes=("@.n += 1",),
        changes=("@.n += 1", "@.m = 1"),
    ),
    Kind(
        "proxy",
        ("types.MappingProxyType({'a': 2})", "types.MappingProxyType({'a': 3, 'b': 1})"),
        ints=("@['a']", "len(@)"),
        bools=("('b' in @)",),
    ),
    Kind(
        "layer",
        ("Layer()", "Layer(3)", "Layer(2).eval()"),
        ("Layer",),
        tensors=("@(x)", "@.weight.sum()", "(x * @.n)", "(x + @.count)"),
        ints=("@.n", "len(list(@.parameters()))", "len(@.options)"),
        bools=("@.training", "('weight' in dict(@.named_parameters()))"),
        writes=("@.n += 1", "@.count += 1", "@.options['k'] = 2.0", "@.eval()", "@.last = x.detach()"),
        changes=("@.n += 1", "@.options['k'] = 1.5", "@.eval()", "@.weight.data.mul_(2)", "@.train()"),
    ),
    Kind(
        "linear",
        ("make_linear(0)", "make_linear(1)"),
        ("make_linear",),
        tensors=("@(x[:4])", "@.weight.sum()", "@.bias.sum()"),
        bools=("(@.bias is None)",),
        changes=("@.bias = None", "@.weight.data.add_(1)", "@.requires_grad_(False)"),
    ),
    Kind(
        "tensor",
        ("torch.tensor(2.0)", "torch.tensor(3.0)", "torch.tensor([0.5])", "torch.tensor(2)"),
        tensors=("(x * @)", "(x + @)", "@.sin()", "torch.where(@ > 1, x, x * 2)"),
        ints=("@.dim()", "@.numel()", "int(@)"),
        floats=("@.item()",),
        bools=("bool(@ > 2)", "@.is_floating_point()", "@.requires_grad"),
        writes=("@.add_(1)", "@.mul_(x.sum().detach())", "@.fill_(2)", "@.data = @.data + 1"),
        changes=("@.add_(1)", "@.data = torch.tensor(7.0)", "@.detach().numpy()[...] = 4"),
    ),
    Kind(
        "context",
        ("threading.Lock()", "threading.RLock()", "contextlib.nullcontext(2)", "torch.no_grad()"),
        bools=("hasattr(@, 'acquire')",),
        strings=("type(@).__name__",),
    ),
    Kind("weak", ("weakref.ref(Square)", "weakref.ref(Box)"), ("Square", "Box"), bools=("(@() is Box)",)),
    Kind(
        "environment",
        ("os.environ",),
        strings=("@.get('FUZZED', 'none')",),
        bools=("('FUZZED' in @)",),
        changes=("@.update(FUZZED='on')", "@.pop('FUZZED', None)"),
    ),
    Kind("opaque", ("object()", "Ellipsis", "NotImplemented"), bools=("(@ is Ellipsis)", "(@ is not None)")),
    Kind(
        "error",
        ("ValueError('a', 2)", "KeyError('b')"),
        strings=("str(@)", "type(@).__name__", "@.args[0]"),
        bools=("isinstance(@, ValueError)",),
        changes=("@.args = ('c',)",),
    ),
    Kind(
        "context_var",
        ("new_context_var(2)", "new_context_var(3)"),
        ("new_context_var",),
        ints=("@.get()",),
        writes=("@.set(5)",),
        changes=("@.set(4)",),
    ),
)

DEFINITIONS.update(
    scale="def scale(t, k=2):\n    return t * k",
    shift="def shift(t, *rest, k=1):\n    return t + k + sum(rest)",
    count_up="def count_up(n):\n    for i in range(n):\n        yield i",
    new_module="def new_module(**values):\n    made = types.ModuleType('settings')\n"
    "    made.__dict__.update(values)\n    return made",
    make_linear="def make_linear(seed):\n    torch.manual_seed(seed)\n    return torch.nn.Linear(4, 4)",
    new_context_var="def new_context_var(value):\n"
    "    return contextvars.ContextVar('fuzzed', default=value)",
    Manager=(
        "class Manager:\n    def __init__(self, log):\n        self.log = log\n"
        "    def __enter__(self):\n        self.log.append(1)\n        return len(self.log)\n"
        "    def __exit__(self, kind, error, trace):\n        self.log.append(2)\n"
        "        return kind is ValueError"
    ),
    managed=(
        "@contextlib.contextmanager\ndef managed(log):\n    log.append(3)\n    try:\n"
        "        yield 4\n    finally:\n        log.append(5)"
    ),
    tracked=(
        "def tracked(function):\n    @functools.wraps(function)\n    def inner(*args, **kwargs):\n"
        "        return function(*args, **kwargs) + 1\n    return inner"
    ),
    Base="class Base:\n    def go(self, t):\n        return t * 2",
    Derived=(
        "class Derived(Base):\n    def go(self, t):\n        return super().go(t) + 1\n"
        "    @classmethod\n    def make(cls):\n        return cls()\n    @staticmethod\n"
        "    def plain(t):\n        return t - 1"
    ),
    Doubled=(
        "class Doubled(torch.autograd.Function):\n    @staticmethod\n    def forward(ctx, t):\n"
        "        ctx.save_for_backward(t)\n        return t * 2\n    @staticmethod\n"
        "    def backward(ctx, g):\n        (t,) = ctx.saved_tensors\n        return g * 2 + t"
    ),
)
NEEDS["Derived"] = ("Base",)
