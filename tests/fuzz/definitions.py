"""Classes and functions that programs define, as texts by name."""

from __future__ import annotations

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

DEFINITIONS.update(
    scale="def scale(t, k=2):\n    return t * k",
    shift="def shift(t, *rest, k=1):\n    return t + k + sum(rest)",
    count_up="def count_up(n):\n    for i in range(n):\n        yield i",
    new_module="def new_module(**values):\n    made = types.ModuleType('settings')\n"
    "    made.__dict__.update(values)\n    return made",
    make_cached="def make_cached(n, size=8):\n    state = {'n': n, 'calls': 0}\n\n"
    "    @functools.lru_cache(size)\n    def cached(k=1):\n        state['calls'] += 1\n"
    "        return [state['n'] * k, state['calls']]\n\n    cached.state = state\n    return cached",
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
        "    def backward(ctx, g):\n        (t,) = ctx.saved_tensors\n        return g * (2 + t)"
    ),
)
NEEDS["Derived"] = ("Base",)
