"""Programs of every kind, one or two for each feature."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections import OrderedDict, namedtuple

import torch
import torch.nn.functional as F
from frontend.programs.catalog import program, x

SCALE = 2.0
FLAGS = {"bias": True, "sizes": [1, 2, 3]}
Pair = namedtuple("Pair", "first second")


@program((x(3), x(3)), (x(4), x(4)), (x(3).double(), x(3)))
def arithmetic(a, b):
    return a + b * 2 - a / (b.abs() + 1)


@program((x(3), True), (x(3), False), (x(3), True))
def flag(a, b):
    if b:
        return a + 1
    return a - 1


@program((x(2, 3), 1), (x(2, 3), 0))
def number(a, dim):
    return a.sum(dim), a.shape[dim], dim * 2.5


@program((x(3), None), (x(3), x(3)))
def optional(a, b):
    return a if b is None else a + b


@program((x(3),))
def constants(a):
    return a * SCALE, FLAGS["bias"], len(FLAGS["sizes"])


@program((x(2, 8),))
def loop(a):
    out = []
    for i, part in enumerate(a.split(2, dim=1)):
        if i == 2:
            continue
        out.append(part * i)
    return torch.cat(out, dim=1)


@program((x(4),))
def while_loop(a):
    n = 0
    while n < 5:
        a = a + n
        n += 1
        if n == 4:
            break
    else:
        a = a * 100
    return a, n


@program((x(3),))
def comprehensions(a):
    return [a * i for i in range(3)], {k: a + k for k in (1, 2)}, {i % 2 for i in range(5)}


@program((x(3),))
def generator_expression(a):
    return sum(a * i for i in range(4)), any(i > 2 for i in FLAGS["sizes"])


def numbers(n):
    for i in range(n):
        got = yield i
        assert got is None
    return n * 10


def chained(n):
    last = yield from numbers(n)
    yield last


@program((x(3),))
def generators(a):
    out = []
    for i in chained(3):
        out.append(a + i)
    return out


@program((x(3),))
def generator_closed(a):
    g = numbers(5)
    first = next(g)
    g.close()
    return a + first, list(g)


def helper(a, *rest, scale=1, **more):
    return a * scale + sum(rest) + more.get("shift", 0), sorted(more)


@program((x(3),))
def arguments(a):
    rest = [1, 2]
    more = {"shift": 3, "other": None}
    return helper(a, *rest, **more), helper(a, 5, scale=2)


@program((x(3),))
def closures(a):
    count = 0

    def add(b):
        nonlocal count
        count += 1
        return b + a

    return add(add(a)), count, (lambda c=2: a * c)()


@program((x(3), "abc"))
def strings(a, s):
    name = f"{s!r}:{len(s):>4}:{a.shape[0]}"
    return a, name.upper(), f"{s}-{3}", s.split("b")


@program((x(3),))
def exceptions(a):
    out = []
    try:
        raise KeyError("k")
    except (KeyError, ValueError) as error:
        out.append(str(error))
    else:
        out.append("else")
    finally:
        out.append("finally")
    try:
        {}["missing"]
    except LookupError:
        a = a + 1
    return a, out


def raises_deep(a):
    if a.dim() == 1:
        raise RuntimeError("deep")
    return a


@program((x(3),), (x(3, 3),))
def exception_from_callee(a):
    try:
        return raises_deep(a)
    except RuntimeError as error:
        return a * 2, error.args


@program((x(3), 1), (x(3), -1))
def uncaught(a, n):
    if n < 0:
        raise ValueError(f"negative: {n}")
    return a


@program((x(3),))
def asserts(a):
    assert a.shape == (3,), f"got {a.shape}"
    return a


class Scope:
    def __init__(self):
        self.log = []

    def __enter__(self):
        self.log.append("in")
        return self

    def __exit__(self, kind, value, trace):
        self.log.append(kind.__name__ if kind else "out")
        return kind is ValueError


@program((x(3),))
def with_statement(a):
    scope = Scope()
    with scope as s:
        a = a + len(s.log)
    with scope:
        raise ValueError("swallowed")
    return a, scope.log


@program((x(3),))
def no_grad(a):
    with torch.no_grad():
        b = a * 2
        on = torch.is_grad_enabled()
    return b, on, torch.is_grad_enabled()


@program((x(3, 4),))
def slicing(a):
    return a[0], a[:, 1:3], a[..., None], a[1:, ::2], a[-1, -1]


@program((x(3, 4),))
def shapes(a):
    b, c = a.shape
    return a.view(c, b), a.reshape(-1), a.size(0) * a.numel(), a.new_zeros(b), a.T


@program((x(3, 4),))
def factories(a):
    return (
        torch.zeros(2, dtype=a.dtype, device=a.device),
        torch.arange(a.shape[1]),
        torch.full_like(a, 3),
        torch.tensor([1.0, 2.0]),
    )


@program((x(3), x(3)))
def in_place_local(a, b):
    c = a.clone()
    c += b
    c[0] = 5
    c.mul_(2)
    return c


@program((x(3), x(3)))
def in_place_argument(a, b):
    a += b
    a[1] = 7
    return a.sum()


@program((x(3),))
def same_out(a):
    return a, [a, a], a.view(3)


@program((x(3),))
def views_of_result(a):
    b = a + 1
    return b, b[1:], b.view(3, 1)


@program((x(3), [1, 2, 3]), (x(3), [1, 2]), (x(3), [1, 2, 4]))
def list_argument(a, items):
    return a * sum(items), len(items), items[-1]


@program((x(3), {"a": 1, "b": x(3)}), (x(3), {"b": x(3), "a": 1}))
def dict_argument(a, d):
    for key, value in d.items():
        a = a + value
        if key == "zz":
            return None
    return a, list(d), "a" in d, d.get("c", 4)


@program(([x(2), x(2)],), ([x(2), x(2), x(2)],))
def list_of_tensors(items):
    return torch.stack(items), items[0] + 1, [i * 2 for i in items]


@program((x(3),))
def named_tuple(a):
    p = Pair(a, second=a + 1)
    first, second = p
    return p, first * second, p._replace(first=1)


@dataclasses.dataclass
class Config:
    size: int = 3
    scale: float = 0.5
    names: tuple[str, ...] = ("a", "b")


@program((x(3), Config()), (x(3), Config(scale=2.0)), (x(3), Config(names=("z",))))
def dataclass_argument(a, config):
    return a * config.scale, config.size, config.names[0]


@program((x(3),))
def dataclass_made(a):
    config = Config(size=4)
    config.scale = 8.0
    return a * config.scale, dataclasses.replace(config, size=1).size


@program((x(3),))
def ordered_dict(a):
    d = OrderedDict()
    d["x"] = a
    d["y"] = a + 1
    d.move_to_end("x")
    return d


class Base:
    factor = 3

    def __init__(self, scale):
        self.scale = scale

    @property
    def double(self):
        return self.scale * 2

    @classmethod
    def make(cls, n):
        return cls(n)

    @staticmethod
    def shift(a):
        return a + 1

    def run(self, a):
        return a * self.scale * self.factor


class Derived(Base):
    def run(self, a):
        return super().run(a) + self.double


@program((x(3), Derived(2)), (x(3), Derived(3)), (x(3), Base(2)))
def objects(a, thing):
    return thing.run(a), thing.shift(a), type(thing).make(4).run(a), getattr(thing, "none", 9)


class Slots:
    __slots__ = ("a", "b")

    def __init__(self, a, b):
        self.a = a
        self.b = b


@program((x(3),))
def slots(a):
    s = Slots(a, 2)
    s.b += 1
    return s.a * s.b, hasattr(s, "c")


@program((x(3),))
def math_functions(a):
    return a * math.sqrt(4), math.pi, max(1, 2.5), min([3, 1]), abs(-2), round(2.6), divmod(7, 2)


@program((x(3),))
def iteration_tools(a):
    out = [a * i for i, _ in zip(range(3), reversed([1, 2, 3]), strict=True)]
    return out, list(map(abs, [-1, 2])), sorted([3, 1, 2], key=lambda v: -v)


@program((x(3),))
def reduce_and_partial(a):
    return functools.reduce(lambda p, q: p + q, [a, a, a]), functools.partial(helper, a)(1)


@program((x(3),))
def unpacking(a):
    first, *middle, last = [1, 2, 3, 4]
    (p, q), r = (a, a + 1), 5
    return a * first, middle, last, p + q + r, [*middle, last], {**{"k": 1}, "l": 2}


@program((x(3),))
def walrus_and_chains(a):
    if (n := len(a.shape)) and 0 < n <= 3:
        a = a + n
    return a, 1 < 2 < 3 > 2, n or 5, FLAGS.get("none") or "x"


@program((x(3), 2), (x(3), "s"), (x(3), [1]))
def type_tests(a, v):
    if isinstance(v, (int, float)):
        return a + v
    if isinstance(v, str):
        return a - len(v)
    return a, type(v).__name__


@program((x(3), x(3)))
def identity(a, b):
    return a is b, a is a, b is not None


@program((x(2, 3),))
def dropout_stream(a):
    return F.dropout(a, 0.5, training=True), torch.rand(2), a


@program((x(2, 3, 8), x(2, 3, 8)))
def attention(a, b):
    return F.scaled_dot_product_attention(a, b, b)


@program((x(3),))
def bool_constant(a):
    m = torch.arange(3) > 1
    return a + 1 if bool(m.any()) else a


@program((x(3), (1, (2, [x(3)]))))
def nested_argument(a, tree):
    return a + tree[1][1][0] * tree[1][0]


@program((x(3),))
def imports(a):
    import math as m

    from torch.nn import functional as fn

    return fn.relu(a) * m.pi


@program((x(4, 4),))
def results_of_max(a):
    values, indices = a.max(dim=1)
    return values, indices, torch.topk(a, 2)


@program((x(3),))
def complex_numbers(a):
    return torch.view_as_real(torch.complex(a, a) * 2j)


@program((x(3),))
def slices_of_own_lists(a):
    rows = [[a, 1], [a + 1, 2], [a + 2, 3]]
    return [r[0] * r[1] for r in rows[1:]], rows[::-1][0], list(rows)[:1]
