"""What a program lets see, as values that compare by content.

Found programs carry this text in themselves: it imports nothing of the fuzzer.
"""

import array
import collections
import contextlib
import datetime
import decimal
import enum
import fractions
import io
import itertools
import math
import re
import types
import warnings
from collections.abc import Mapping

import numpy
import torch

RELATIVE, ABSOLUTE = 1e-4, 1e-5
PLAIN = (int, str, bytes, bool, bytearray, range, slice, decimal.Decimal, fractions.Fraction)
PLAIN += (datetime.date, datetime.timedelta, torch.dtype, torch.device, array.array, complex)
VALUES = (numpy.generic, decimal.Decimal, fractions.Fraction, datetime.date, datetime.timedelta)
# Addresses, names of nodes of autograd, of which a compiled graph has few, and which tensor it was
# that autograd finds written.
UNSTABLE = re.compile(
    r"0x[0-9a-f]+|grad_fn=<\w+>|(?<=by an inplace operation: ).*|Function \w+(?= returned an invalid)|"
    r"Output \d+ of \w+(?= is a view)",
    re.DOTALL,
)


def text_of(value):
    return UNSTABLE.sub("...", str(value))


class Numbers(tuple):
    """Equal but for rounding; NaN and infinities in the same places."""

    __slots__ = ()
    __hash__ = None

    def __eq__(self, other):
        return len(self) == len(other) and all(map(near, self, other))

    def __ne__(self, other):
        return not self == other


def near(a, b):
    if a == b or (a != a and b != b):
        return True
    if isinstance(a, complex):
        return near(a.real, b.real) and near(a.imag, b.imag)
    exact = isinstance(a, int) and isinstance(b, int)
    return not exact and math.isclose(a, b, rel_tol=RELATIVE, abs_tol=ABSOLUTE)


class Observer:
    """Turns values into nests of tuples, with who is whom and who shares memory with whom."""

    sees_strides = True

    def __init__(self):
        self.seen = {}
        self.storages = {}

    def look(self, value):
        kind = type(value)
        if value is None or kind in (bool, int, str, bytes):
            return kind.__name__, value
        if kind is float:
            return "float", Numbers([value])
        if isinstance(value, VALUES) or kind is frozenset:  # one of two equal ones, as of floats
            return kind.__name__, self.content(value)
        if id(value) in self.seen:
            return "seen", self.seen[id(value)][0]
        if isinstance(value, (type, types.ModuleType, types.BuiltinFunctionType)):
            return "fixed", value.__name__
        self.seen[id(value)] = len(self.seen), value
        name = "function" if kind.__name__ == "Compiled" else kind.__name__
        return name, self.content(value), self.attributes(value)

    def content(self, value):
        if isinstance(value, torch.Tensor):
            return self.tensor(value)
        if isinstance(value, (numpy.ndarray, numpy.generic)):
            numbers = numpy.asarray(value)
            if numbers.dtype.kind not in "biufc":
                return str(numbers.dtype), repr(numbers.tolist())
            return str(numbers.dtype), numbers.shape, Numbers(numbers.ravel().tolist())
        if isinstance(value, enum.Enum):
            return value.name
        if isinstance(value, float):
            return Numbers([float(value)])
        if isinstance(value, PLAIN):
            return text_of(value) if isinstance(value, (int, str)) else repr(value)
        if isinstance(value, (list, tuple, collections.deque)):
            return tuple(
                map(self.look, tuple.__iter__(value) if isinstance(value, tuple) else value)
            )
        if isinstance(value, (set, frozenset)):
            return tuple(sorted(repr(self.look(item)) for item in value))
        if isinstance(value, (dict, Mapping)):
            return tuple((self.look(key), self.look(value[key])) for key in list(value))
        if isinstance(value, (types.FunctionType, types.MethodType)):
            return value.__qualname__
        if isinstance(value, BaseException):
            return text_of(value)
        if hasattr(value, "__next__"):
            return tuple(map(self.look, itertools.islice(value, 20)))
        if isinstance(value, (type({}.keys()), type({}.values()), type({}.items()))):
            return tuple(map(self.look, value))
        return ()

    def attributes(self, value):
        if isinstance(value, (enum.Enum, types.MethodType)):
            return ()
        found = dict(getattr(value, "__dict__", {}))
        found.pop("__wrapped__", None)
        if isinstance(value, torch.nn.Module):
            names = [name for name in found if not name.startswith("_")]
            found = {name: found[name] for name in (*names, "_parameters", "_buffers", "_modules")}
        for kind in type(value).__mro__:
            slots = kind.__dict__.get("__slots__", ())
            for name in (slots,) if isinstance(slots, str) else slots:
                if not name.startswith("__") and hasattr(value, name):
                    found[name] = getattr(value, name)
        return tuple((name, self.look(item)) for name, item in found.items())

    def tensor(self, value):
        plain = value.detach()
        storage = plain.untyped_storage().data_ptr()
        alias = self.storages.setdefault(storage, len(self.storages)) if storage else -1
        try:
            requires_grad, is_leaf = value.requires_grad, value.is_leaf
        except RuntimeError as error:  # autograd knows no more what it is a view of
            requires_grad, is_leaf = text_of(error), False
        gradient = value.grad if is_leaf else None
        return (
            str(value.dtype),
            tuple(value.shape),
            # Of a dimension of one element no stride says anything.
            tuple(s for s, n in zip(value.stride(), value.shape, strict=True) if n != 1)
            if self.sees_strides
            else (),
            requires_grad,
            alias,
            Numbers(plain.reshape(-1).tolist()),
            None if gradient is None else self.look(gradient),
        )


def call(function, *args, **kwargs):
    """What a call gives: its value, or classes and texts of its exception and those behind it."""
    try:
        return "value", function(*args, **kwargs)
    except Exception as error:
        chain = []
        while error is not None:
            chain.append((type(error).__name__, text_of(error)))
            error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
        return "error", tuple(chain)


def grads(function, *args, **kwargs):
    """As ``call``, with gradients of the first tensor of the result."""
    given = call(function, *args, **kwargs)
    first = given[1][0] if isinstance(given[1], (tuple, list)) and given[1] else given[1]
    if isinstance(first, torch.Tensor) and first.requires_grad:
        return given, call(first.sum().backward)
    return given


# Sums of eighths are exact in any order: a sign or a comparison shows no rounding.
def tensor(*shape):
    return ((torch.arange(math.prod(shape)) * 5 + 11) % 17 - 7).div(8).reshape(shape)


def watch(main, compile):
    """What each step of the program shows, and what all of it prints."""
    steps = []
    printed = io.StringIO()
    torch.manual_seed(0)
    with warnings.catch_warnings(), contextlib.redirect_stdout(printed):
        warnings.simplefilter("ignore")
        for step in main(compile):
            steps.append(Observer().look(step))
    steps.append(("printed", text_of(printed.getvalue())))
    return steps


def difference(actual, expected):
    """The innermost place where two observations differ first; empty where they are the same."""
    if actual == expected:
        return ""
    both = isinstance(actual, (tuple, list)) and isinstance(expected, (tuple, list))
    if both and type(actual) is type(expected) is not Numbers and len(actual) == len(expected):
        for number, (a, e) in enumerate(zip(actual, expected, strict=True)):
            if a != e:
                inner = difference(a, e)
                return f"step {number}: {inner}" if isinstance(actual, list) else inner
    return f"got {actual!r:.200}, expected {expected!r:.200}"
