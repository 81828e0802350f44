"""Expressions of programs, by type: each text has holes that are filled with further expressions.

T: a tensor, O: a tensor that the program made, I: a small integer, F: a float, B: a truth value,
S: a string, L: a list or another iterable of numbers, A: any object from outside.
"""

from __future__ import annotations

import random
import string
from collections.abc import Callable

CONSTANTS = {
    "T": ("x",),
    "O": ("x.clone()", "torch.zeros(4)", "torch.ones(())", "x.detach().clone()", "x * 1"),
    "I": ("0", "1", "2", "3", "-1", "x.shape[0]", "x.dim()"),
    "F": ("0.5", "2.0", "-1.5", "1e-3", "math.pi"),
    "B": ("True", "False", "x.requires_grad", "torch.is_grad_enabled()", "x.shape[0] > 4"),
    "S": ("'a'", "'relu'", "''", "x.__class__.__name__"),
    "L": ("[1, 2]", "(3, 4)", "range(3)", "[]", "x.shape"),
    "A": ("None", "'relu'", "2", "x"),
}

# (weight, text, definitions)
Row = tuple[int, str, tuple[str, ...]]


def rows(*given: str | tuple[int, str] | Row) -> list[Row]:
    out: list[Row] = []
    for row in given:
        if isinstance(row, str):
            out.append((4, row, ()))
        elif len(row) == 2:
            out.append((row[0], row[1], ()))
        else:
            out.append(row)
    return out


COMPOSITES: dict[str, list[Row]] = {
    "T": rows(
        "({T} + {T})",
        "({T} * {F})",
        "({T} - {I})",
        "{T}.sin()",
        "torch.tanh({T})",
        "torch.relu({T}) * {T}",
        "{T}.sum()",
        "{T}.view(-1)[:{I}].sum()",
        "({T} if {B} else {T})",
        "torch.where({T} > 0, {T}, {T})",
        "torch.stack([{T}.sum(), {T}.sum()]).mean()",
        "torch.cat([{T}.view(-1), {T}.view(-1)]).sum()",
        (2, "torch.full((2,), {F}).sum()"),
        (2, "torch.arange({I} % 5).float().sum()"),
        (2, "{T}.new_zeros({I} % 4 + 1).sum()"),
        (2, "{T}.detach()"),
        (2, "{T}.clone()"),
        (2, "{T}.to(torch.float64)"),
        (2, "{T}.reshape(-1).flip(0)[0]"),
        (2, "{T}.unsqueeze(0).expand(2, *{T}.shape).sum(0)"),
        (2, "torch.softmax({T}.view(-1), 0)[0]"),
        (2, "torch.nn.functional.dropout({T}, 0.5, {B})"),
        (2, "{T}.max()"),
        (2, "torch.add({T}, {T}, alpha={I})"),
        (2, "sum([{T}, {T}], {I})"),
        (2, "sum({T} * i for i in {L})"),
        (2, "(lambda t, k={I}: t * k)({T})"),
        (2, "functools.partial(torch.add, {T})({T})"),
        (2, "functools.reduce(lambda a, b: a + b, [{T}, {T}])"),
        (2, "list(map(lambda t: t * {I}, [{T}, {T}]))[1]"),
        (2, "[t * i for i, t in enumerate([{T}, {T}])][-1]"),
        (2, "{{'a': {T}, {S}: {T}}}['a']"),
        (2, "max({T}.sum(), {T}.sum())"),
        (1, "torch.tensor({L}).float().sum()"),
        (1, "torch.tensor({F}) * {T}"),
        (1, "{T}.apply_(abs)"),
        (1, "torch.rand(2).sum() * {T}"),
        (1, "copy.deepcopy({T}.detach())"),
        (1, "torch.utils.checkpoint.checkpoint(torch.sin, {T}, use_reentrant=False)"),
        (2, "scale({T}, {F})", ("scale",)),
        (2, "scale(*[{T}, {I}])", ("scale",)),
        (2, "scale(**{{'t': {T}, 'k': {I}}})", ("scale",)),
        (2, "shift({T}, *{L}, k={F})", ("shift",)),
        (2, "tracked(scale)({T})", ("scale", "tracked")),
        (2, "tracked(lambda t: t * {I})({T})", ("tracked",)),
        (2, "Derived.make().go({T})", ("Derived",)),
        (1, "Derived.plain({T})", ("Derived",)),
        (1, "Doubled.apply({T})", ("Doubled",)),
        (1, "Layer({I})({T})", ("Layer",)),
        (1, "Pair({T}, {I}).left", ("Pair",)),
        (1, "dataclasses.replace(Config({I}), items=[{T}]).items[0]", ("Config",)),
    ),
    "O": rows("({T} * 1)", "{T}.clone()", "({T} + 0).view(-1)", "torch.empty_like({T}).fill_({F})"),
    "I": rows(
        "({I} + {I})",
        "({I} * 2 - {I})",
        "({I} if {B} else {I})",
        "int({F})",
        "len({L})",
        "len({S})",
        "max({I}, {I})",
        (2, "sum({L})"),
        (2, "{T}.numel()"),
        (2, "({I} // 2)"),
        (2, "({I} or {I})"),
        (2, "({I} and {I})"),
        (2, "len([i for i in {L} if i > {I}])"),
        (2, "len({{{I}, {I}}})"),
        (2, "{{{S}: {I}}}.get({S}, {I})"),
        (2, "dict(a={I}, b={I})['b']"),
        (2, "next((i for i in {L} if i > 1), {I})"),
        (1, "[*{L}, {I}].index({I})"),
        (1, "int({T}.sum() > 0)"),
        (1, "sum(a * b for a, b in zip({L}, {L}))"),
        (1, "ord({S}[0])"),
        (1, "hash({I})"),
        (1, "len(count_up({I} % 4).__class__.__name__)", ("count_up",)),
        (1, "sum(count_up({I} % 4))", ("count_up",)),
    ),
    "F": rows(
        "float({I})",
        "({F} * 0.5)",
        "({F} + {I})",
        "abs({F})",
        (2, "math.sqrt(abs({F}))"),
        (2, "({I} / 2)"),
        (2, "min({F}, {F})"),
        (1, "{T}.sum().item()"),
        (1, "float({T}.mean())"),
        (1, "round({F}, 1)"),
    ),
    "B": rows(
        "({I} > {I})",
        "({F} < {F})",
        "(not {B})",
        "({B} and {B})",
        "({B} or {B})",
        "({S} == {S})",
        "({I} in {L})",
        "(0 <= {I} < {I})",
        (3, "({A} is {A})"),
        (3, "({A} == {A})"),
        (2, "isinstance({A}, (int, str))"),
        (2, "(type({A}) is type({A}))"),
        (2, "hasattr({A}, 'n')"),
        (2, "callable({A})"),
        (2, "bool({L})"),
        (2, "any({L})"),
        (2, "({A} is None)"),
        (1, "({T}.sum() > {F})"),
        (1, "bool(({T} > 0).any())"),
        (1, "({A} in ({A}, {A}))"),
        (1, "({A} in [{A}])"),
    ),
    "S": rows(
        "str({I})",
        "'%s-%s' % ({I}, {B})",
        (2, 'f"{{({I})}}|"'),
        "({S} + {S})",
        "{S}.upper()",
        "('b' if {B} else {S})",
        (2, "type({A}).__name__"),
        (2, "repr({I})"),
        (2, "','.join(str(i) for i in {L})"),
        (2, "'%s:%d' % ({S}, {I})"),
        (1, "'{{}}'.format({F})"),
    ),
    "L": rows(
        "[{I}, {I}]",
        "range({I} % 5)",
        "[i * {I} for i in {L}]",
        "sorted({L})",
        "tuple({L})",
        "({L} if {B} else {L})",
        (2, "[*{L}, {I}]"),
        (2, "list(reversed(list({L})))"),
        (2, "list({L})[:{I}]"),
        (2, "list(filter(None, {L}))"),
        (2, "sorted({L}, key=lambda i: -i)"),
        (1, "list(itertools.chain({L}, {L}))"),
        (1, "list(itertools.accumulate({L}))"),
        (1, "(i + 1 for i in {L})"),
        (1, "list(count_up({I} % 4))", ("count_up",)),
    ),
    "A": [],
}

FORMATTER = string.Formatter()


class Expressions:
    """Makes expressions from a scope: by type, the texts that a leaf may be, heavier ones twice."""

    def __init__(self, rng: random.Random, need: Callable[[str], None]) -> None:
        self.rng = rng
        self.need = need

    def make(self, scope: dict[str, list[str]], kind: str, depth: int) -> str:
        leaves = scope[kind]
        rows = COMPOSITES[kind]
        if depth <= 0 or not rows or (leaves and self.rng.random() < 0.35):
            if leaves and self.rng.random() < 0.85:
                return self.rng.choice(leaves)
            return self.rng.choice(CONSTANTS[kind])
        _, text, needs = self.rng.choices(rows, [row[0] for row in rows])[0]
        for name in needs:
            self.need(name)
        return self.fill(scope, text, depth - 1)

    def fill(self, scope: dict[str, list[str]], text: str, depth: int) -> str:
        out = ""
        for literal, hole, _, _ in FORMATTER.parse(text):
            out += literal
            if hole is not None:
                out += self.make(scope, hole, depth)
        return out
