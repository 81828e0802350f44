"""Containers, strings, numbers and the built-in functions over them."""

from __future__ import annotations

import itertools
import math
from collections import Counter, OrderedDict, defaultdict, deque

import torch
from frontend.programs.catalog import program, scenario, x


@program((x(3), [1, 2, 3]), (x(3), [3]), (x(3), []))
def list_queries(a, items):
    return a, len(items), items[:2], items[::-1], items * 2, items + [9], 3 in items, bool(items)


@program((x(3),))
def list_building(a):
    items = []
    for i in range(4):
        items.append(a * i)
    items.extend([a, a + 1])
    items.insert(0, a - 1)
    last = items.pop()
    items.reverse()
    del items[1]
    return torch.stack(items), last, items.count(2) if False else len(items)


@program((x(3),))
def list_assignment(a):
    items = [1, 2, 3, 4]
    items[0] = a
    items[1:3] = [7, 8, 9]
    items += [5]
    items[-1] += 1
    return items


@program((x(3),))
def list_sort(a):
    items = [3, 1, 2]
    items.sort()
    words = sorted(["bb", "a", "ccc"], key=len, reverse=True)
    return a, items, words, sorted({"k": 1, "a": 2}), items.index(2)


@program((x(3), (1, 2)), (x(3), (1, (2, 3))), (x(3), ()))
def tuple_queries(a, t):
    return a + len(t), t + (5,), t[:1], hash(t) == hash(t), t == (1, 2), t < (1, 3)


@program((x(3), {"n": 1}), (x(3), {"n": 2}), (x(3), {"m": 1, "n": 1}))
def dict_queries(a, d):
    return a * d["n"], d.get("m"), d.get("k", 0), "m" in d, len(d), list(d.items()), d == {"n": 1}


@program((x(3),))
def dict_building(a):
    d = {"a": a}
    d["b"] = a + 1
    d.update(c=2, a=3)
    d.setdefault("e", []).append(1)
    popped = d.pop("b")
    d |= {"f": 6}
    del d["c"]
    return d, popped, d.pop("none", None), dict(zip("xy", (1, 2), strict=True))


@program((x(3),))
def dict_views(a):
    d = {"a": 1, "b": 2}
    return (
        a * sum(d.values()),
        list(d.keys()),
        [k + str(v) for k, v in d.items()],
        d.keys() & {"a"},
        sorted(d.keys() | {"z"}),
        next(iter(d)),
        list(reversed(d)),
    )


@program((x(3),))
def dict_key_error(a):
    try:
        return {"a": 1}["b"]
    except KeyError as error:
        return a, error.args


@program((x(3),))
def dict_of_tensors(a):
    state = {"h": a, "c": a * 0}
    for _ in range(3):
        state = {name: value + state["h"] for name, value in state.items()}
    return state


@scenario
def dict_order_matters_program(compile):
    compiled = compile(lambda a, d: [a * v for v in d.values()])
    yield compiled(x(3), {"a": 1, "b": 2})
    yield compiled(x(3), {"b": 2, "a": 1})


@program((x(3), {1: "one", None: "none", (1, 2): "pair", 2.0: "two"}))
def dict_with_other_keys(a, d):
    return a, d[1], d[None], d[(1, 2)], d[2]


@program((x(3), {1, 2}), (x(3), {2, 3, 4}), (x(3), frozenset({1})))
def set_algebra(a, s):
    other = {2, 5}
    return a, len(s), sorted(s | other), sorted(s & other), sorted(s - other), s ^ other, 2 in s


@program((x(3),))
def set_building(a):
    s = set()
    for i in [3, 1, 3]:
        s.add(i)
    s.discard(9)
    s.update([7], (8,))
    s.remove(1)
    return a, s, s.issubset({3, 7, 8, 9}), frozenset(s)


@program((x(3),))
def ordered_dicts(a):
    d = OrderedDict([("a", 1), ("b", a)])
    d["c"] = 3
    d.move_to_end("a")
    first = d.popitem(last=False)
    return d, first, list(d.keys())


@program((x(3),))
def default_dicts(a):
    d = defaultdict(list)
    for i in range(4):
        d[i % 2].append(a * i)
    return d[0], d[1], len(d), sorted(d)


@program((x(3), defaultdict(int, {"n": 2})), (x(3), defaultdict(int)))
def default_dict_from_outside(a, d):
    return a * d.get("n", 1), "n" in d


@program((x(3),))
def deques(a):
    d = deque([1, 2], maxlen=3)
    d.append(a)
    d.appendleft(0)
    d.rotate(1)
    return list(d), len(d), d.pop()


@program((x(3),))
def counters(a):
    c = Counter("abca")
    c.update("a")
    return a * c["a"], c.most_common(1), c["z"]


@program((x(3), [(1, "a"), (2, "b")]))
def nested_unpacking(a, pairs):
    total = 0
    names = []
    for i, (n, name) in enumerate(pairs, start=1):
        total += n * i
        names.append(name)
    (p, *q), r = [1, 2, 3], names
    return a * total, p, q, r


@program((x(3),))
def unpacking_errors(a):
    out = []
    for items in ([1], [1, 2, 3]):
        try:
            p, q = items
        except ValueError as error:
            out.append(str(error))
    return a, out


@program((x(3),))
def starred_literals(a):
    p = [1, 2]
    return [*p, *range(2)], (*p, a), {*p, 5}, {**{"a": 1}, "b": 2}, [0, *(i for i in p)]


@program((x(3),))
def multiple_assignment(a):
    b = c = a + 1
    items = [0, 0]
    i = 0
    i, items[i] = 1, 5
    return b is c, b, items, i


@program((x(3), "a b c"), (x(3), "Encoder.Layer"))
def string_methods(a, s):
    return (
        a,
        s.split(),
        s.upper().lower().title(),
        s.replace("a", "x"),
        s.startswith("a"),
        s.partition("."),
        s.strip("ac"),
        "-".join(s),
        s.find("c"),
        s[::-1],
        s.encode(),
        s.isalpha(),
        s.zfill(9),
    )


@program((x(3), 3, 2.5), (x(3), -1, 1e9))
def formatting(a, n, f):
    return (
        a,
        f"{n:03d}|{f:.2f}|{n!r}|{n:>5}|{f:e}",
        "%d %s %.1f" % (n, "s", f),
        "{} {x}".format(n, x=f),
        f"{a.shape}",
        f"{a.dtype} {a.device}",
        f"{[n, 'k']} {(n,)} {None}",
        str(n) + repr("q"),
    )


@program((x(3),))
def format_of_collections(a):
    return (
        a,
        f"{ {'k': 1} }",
        str({1}),
        repr([1, (2, "x")]),
        str(torch.float32),
        f"{a.size()!s:>20}",
    )


@program((x(3), 7, 2), (x(3), -7, 2), (x(3), 7, -2))
def integer_arithmetic(a, n, m):
    return (
        a,
        n // m,
        n % m,
        divmod(n, m),
        n**3,
        n << 1,
        n & m,
        n | m,
        n ^ m,
        ~n,
        -n,
        +n,
        abs(n),
        n / m,
        pow(n, 2, 5),
        (n).bit_length(),
    )


@program((x(3), 2.5, -0.0), (x(3), float("inf"), 1.0), (x(3), float("nan"), 0.1))
def float_arithmetic(a, f, g):
    return a + g, f + g, f * 2, f == f, round(g, 1), f.is_integer(), math.isnan(f), -g, str(g)


@scenario
def number_types_program(compile):
    compiled = compile(lambda a, n: (a * n, type(n).__name__, n))
    for n in (1, 1.0, True, 2, 1 + 0j, 1, 0.0, -0.0):
        yield compiled(x(3), n)


@program((x(3), "3", 2.7), (x(3), "-4", 9.0))
def conversions(a, s, f):
    return a, int(s), float(s), int(f), str(f), bool(f), bool(""), complex(f), list(s), tuple(s)


@program((x(3),))
def integer_of_sizes(a):
    n = a.shape[0]
    return a.expand(n * 2, n), int(n / 2), float(n), n // 2, math.ceil(n / 2), round(n * 0.4)


@program((x(3), [3, 1, 2]), (x(3), [5]))
def builtins_over_lists(a, items):
    return (
        a,
        sum(items),
        min(items),
        max(items),
        sorted(items, reverse=True),
        any(i > 4 for i in items),
        all(items),
        list(map(str, items)),
        list(filter(lambda i: i > 1, items)),
        list(reversed(items)),
        list(enumerate(items)),
        list(zip(items, "abc")),
    )


@program((x(3),))
def min_max_with_key(a):
    words = ["bbb", "a", "cc"]
    return (
        a,
        max(words, key=len),
        min(words, key=len),
        max(3, 4, key=lambda v: -v),
        max([], default=0),
    )


@program((x(3),))
def map_and_filter(a):
    parts = list(map(lambda p, q: p * q, [a, a + 1], [2, 3]))
    return parts, list(filter(None, [0, 1, "", "s"])), sum(map(lambda p: p.dim(), parts))


@program((x(2), x(3)), (x(3), x(3)))
def zip_lengths(a, b):
    out = [p + q for p, q in zip(a, b, strict=False)]
    return out, [p for p in zip([1, 2], "ab", strict=True)]


@program((x(3),))
def zip_strict_error(a):
    try:
        return list(zip([1], [1, 2], strict=True))
    except ValueError as error:
        return a, str(error)


@program((x(3),))
def itertools_functions(a):
    return (
        a,
        list(itertools.chain([1], (2, 3))),
        list(itertools.chain.from_iterable([[1], [2]])),
        list(itertools.product([1, 2], "ab")),
        list(itertools.islice(itertools.count(3), 2)),
        list(itertools.accumulate([1, 2, 3])),
        list(itertools.zip_longest([1], [2, 3], fillvalue=0)),
        list(itertools.permutations([1, 2])),
        list(itertools.combinations([1, 2, 3], 2)),
        list(itertools.repeat(5, 2)),
        list(itertools.pairwise([1, 2, 3])),
        [(k, list(g)) for k, g in itertools.groupby([1, 1, 2])],
        list(itertools.takewhile(lambda v: v < 2, [1, 2, 1])),
        list(itertools.starmap(pow, [(2, 3)])),
    )


@program((x(3),))
def itertools_over_tensors(a):
    parts = list(itertools.chain([a], (a + i for i in range(2))))
    return sum(parts), [p + q for p, q in itertools.pairwise(parts)]


@program((x(3), range(3)), (x(3), range(1, 7, 2)))
def ranges(a, r):
    return a, list(r), len(r), r[1], 3 in r, list(reversed(r)), r.step, sum(r), r == range(3)


@program((x(3),))
def slices(a):
    s = slice(1, 3)
    return a[s], [1, 2, 3, 4][s], s.indices(3), s.start, s == slice(1, 3)


@program((x(3), 4.0), (x(3), 2.25))
def math_module(a, f):
    return (
        a * math.sqrt(f),
        math.floor(f),
        math.ceil(f),
        math.log(f),
        math.pow(f, 2),
        math.prod([2, 3]),
        math.gcd(12, 18),
        math.isclose(f, f),
        math.copysign(1, -f),
        math.inf,
        math.exp(0.5),
        math.log2(8),
    )


@program((x(3), [x(3), x(3)]), (x(3), [x(3)]), (x(3), []))
def list_of_tensors_argument(a, items):
    for item in items:
        a = a + item
    return a, len(items)


@program((x(3), {"q": x(3), "k": x(3)}), (x(3), {"q": x(3)}))
def dict_of_tensors_argument(a, d):
    return {name: value * a for name, value in d.items()}, d.get("k") is None


@program((x(3), (x(3), [x(2), {"k": (x(1), 5)}])))
def tree_argument(a, tree):
    b, (c, d) = tree
    e, n = d["k"]
    return a + b, c * n, e


@program((x(3),))
def tree_result(a):
    return {"a": [a, (a + 1, None)], "b": ({"c": a * 2}, 3.5, "s"), "d": set()}


@scenario
def container_changed_program(compile):
    items = [1, 2]
    table = {"n": 1}
    compiled = compile(lambda a: a * sum(items) + table["n"] + len(table))
    yield compiled(x(3))
    items[1] = 5
    yield compiled(x(3))
    table["m"] = 1
    yield compiled(x(3))
    table["n"] = 7
    yield compiled(x(3))
    items.clear()
    yield compiled(x(3))


@scenario
def nested_container_changed_program(compile):
    table = {"layers": [{"n": 1}, {"n": 2}]}
    compiled = compile(lambda a: [a * layer["n"] for layer in table["layers"]])
    yield compiled(x(3))
    table["layers"][1]["n"] = 9
    yield compiled(x(3))
    table["layers"].append({"n": 0})
    yield compiled(x(3))


@scenario
def tensor_in_list_replaced_program(compile):
    items = [x(3), x(3)]
    compiled = compile(lambda a: a + items[0] * items[1])
    yield compiled(x(3))
    items[1] = x(3) * 5
    yield compiled(x(3))
    items[0] = items[1]
    yield compiled(x(3))


@program((x(3), b"ab"), (x(3), b""))
def byte_strings(a, b):
    return a, len(b), b + b"c", b.decode(), list(b), b == b"ab"


@program((x(3),))
def complex_values(a):
    z = 1 + 2j
    return a * z.real, z.conjugate(), abs(3 + 4j), z * z, z == complex(1, 2)


@program((x(3),))
def ellipsis_and_none(a):
    return a[..., 0], a[None], ... is Ellipsis, None is None, a[..., None, :].shape


@program((x(3), [1, 2], [1, 2]), (x(3), [1, 2], [2, 1]))
def list_comparison(a, p, q):
    return a + 1 if p == q else a - 1, p < q, p != q, p is q


@program((x(3), "text"), (x(3), ["list"]), (x(3), ("tuple", 1)))
def membership(a, v):
    return a, "t" in v, "list" in v, 1 in (1, 2), "q" not in {"q": 1}


@program((x(3),))
def hash_and_id(a):
    return a, hash("s") == hash("s"), hash((1, 2)) == hash((1, 2)), hash(1.0) == hash(1)


@program((x(3),))
def big_numbers(a):
    n = 2**100
    return a, n, n % 97, -n // 3, len(str(n))
