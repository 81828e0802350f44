"""Objects of the standard library and of NumPy that programs call or copy: without a break, and as
they are in the next call."""

from __future__ import annotations

import bisect
import copy
import dataclasses
import datetime
import functools
import heapq
import operator
import os.path
import re
import struct
import warnings

import numpy as np
import pytest
import torch
import torch_backplane
from torch_backplane import frontend

X = torch.linspace(-1, 1, 6)


def whole(function):
    return torch_backplane.compile(function, backend="plugin:reference", strict=True)


def loose(function):
    return torch_backplane.compile(function, backend="plugin:reference")


@dataclasses.dataclass
class Config:
    scale: int = 2
    parts: list = dataclasses.field(default_factory=lambda: [1, 2])


class Slotted:
    __slots__ = ("n", "parts")

    def __init__(self, n, parts):
        self.n, self.parts = n, parts


def test_getters_of_the_program():
    def function(a, config):
        pairs = sorted([(1, 3), (2, 1)], key=operator.itemgetter(1))
        first, second = operator.itemgetter("x", "y")({"x": a, "y": a * 2})
        scale = operator.attrgetter("scale")(config)
        both = operator.attrgetter("scale", "parts")(config)
        part = operator.itemgetter(slice(1, 3))(a)
        return (
            operator.methodcaller("clamp", 0.0)(first) * scale + second * pairs[0][0],
            operator.methodcaller("sum")(part) * len(both[1]),
            operator.attrgetter("T.shape")(a.reshape(2, 3)),
        )

    config = Config()
    program = whole(function)
    for scale in (2, 2, 5):
        config.scale = scale
        torch.testing.assert_close(program(X, config), function(X, config))


def test_getters_from_outside():
    def function(a, get, name, call):
        return get({"x": a, "y": -a}) * name(a).numel() + call(a)

    program = whole(function)
    for get in (operator.itemgetter("x"), operator.itemgetter("y")):
        for name in (operator.attrgetter("T"), operator.attrgetter("data")):
            for call in (operator.methodcaller("relu"), operator.methodcaller("add", 1)):
                given = (X.reshape(2, 3), get, name, call)
                torch.testing.assert_close(program(*given), function(*given))


def test_getters_raise_as_they_do():
    with pytest.raises(KeyError):
        loose(lambda a: operator.itemgetter("z")({"x": a}))(X)
    with pytest.raises(AttributeError):
        loose(lambda a: operator.attrgetter("no.such")(a) + 1)(X)
    keyed = operator.methodcaller("sum", dim=0)
    torch.testing.assert_close(loose(lambda a: keyed(a) * 2)(X), X.sum() * 2)


def test_numbers_of_numpy():
    config = Config()

    def function(a):
        width = np.sqrt(config.scale) * np.float32(0.5) + np.maximum(2, config.scale)
        size = int(np.prod(a.shape)) + np.max([1, config.scale])
        return a / width + size + np.log(np.mean(config.parts))

    program = whole(function)
    for scale in (2, 2, 9):
        config.scale = scale
        torch.testing.assert_close(program(X), function(X))
    config.parts[0] = 7
    torch.testing.assert_close(program(X), function(X))
    for n in (2, 3, 5):
        a = torch.ones(n, 4)
        torch.testing.assert_close(program(a), function(a))


def test_numpy_warns_each_time_and_gives_arrays():
    zero = [0.0]
    program = loose(lambda a: a.clamp(min=np.log(zero[0])) + 1)
    for _ in range(3):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            torch.testing.assert_close(program(X), X + 1)
        assert len(caught) >= 1
    table = loose(lambda a: a + torch.from_numpy(np.arange(6, dtype=np.float32)) * 2)
    for _ in range(2):
        torch.testing.assert_close(table(X), X + torch.arange(6.0) * 2)


def test_single_dispatch():
    @functools.singledispatch
    def scale_of(value):
        return 1

    @scale_of.register
    def _(value: int):
        return value + 1

    program = whole(lambda a, value: a * scale_of(value))
    for value in (3, "a", 4, 2.0):
        torch.testing.assert_close(program(X, value), X * scale_of(value))
    scale_of.register(float, lambda value: 7)
    torch.testing.assert_close(program(X, 2.0), X * 7)
    scale_of.register(torch.Tensor, lambda value: value.sum())
    torch.testing.assert_close(program(X, X + 1), X * (X + 1).sum())


def test_heaps_and_places():
    outside = [5, 1, 4]

    def function(a):
        heap = [3, 1, 2]
        heapq.heapify(heap)
        heapq.heappush(heap, 0)
        return a * heapq.heappop(heap) + heapq.heappop(heap) + bisect.bisect(outside, 4)

    program = whole(function)
    torch.testing.assert_close(program(X), function(X))
    outside[:] = [9, 10, 11]
    torch.testing.assert_close(program(X), function(X))

    def pops(a):
        return a * heapq.heappop(outside)

    program = loose(pops)
    assert [int(program(torch.ones(()))) for _ in range(3)] == [9, 10, 11]
    assert outside == []


def test_patterns():
    words = re.compile(r"(\w+)\.(\d+)")
    holder = {"pattern": words, "text": "layer.3"}

    def function(a):
        match = holder["pattern"].match(holder["text"])
        if match is None:
            return a - 1
        number = int(match.group(2)) + len(re.sub("[aeiou]", "", match[1]))
        found = re.findall(r"\d", holder["text"]) + [m.group() for m in re.finditer("y", "yy")]
        shown = words.sub(r"\2", "a.1 b.2")
        return a * number + len(found) + len(shown) + (shown == "1 2")

    program = whole(function)
    for text in ("layer.3", "layer.3", "block.44", "none"):
        holder["text"] = text
        torch.testing.assert_close(program(X), function(X))
    holder["pattern"], holder["text"] = re.compile(r"(b)(\d)"), "b7"
    torch.testing.assert_close(program(X), function(X))
    shown = loose(lambda a: a * len(words.sub(lambda m: m.group(1).upper(), "a.1 b.2")))
    for _ in range(2):
        torch.testing.assert_close(shown(X), X * 3)


def test_bytes_paths_and_dates():
    record = {"data": struct.pack("<If", 3, 0.5), "path": "a/b", "days": 2}

    def function(a):
        number, factor = struct.unpack("<If", record["data"])
        name = os.path.basename(os.path.join(record["path"], "c"))
        span = datetime.timedelta(days=record["days"])
        return a * number * factor + len(name) + span.total_seconds() / 3600

    program = whole(function)
    torch.testing.assert_close(program(X), function(X))
    record.update(data=struct.pack("<If", 4, 0.25), days=3)
    torch.testing.assert_close(program(X), function(X))


@pytest.mark.parametrize("duplicate", [copy.copy, copy.deepcopy])
def test_copies(duplicate):
    held = {"config": Config(), "slotted": Slotted(3, [1])}

    def function(a):
        config, slotted = duplicate(held["config"]), duplicate(held["slotted"])
        config.scale += 1
        return a * config.scale + len(config.parts) * slotted.n, config

    program = loose(function)
    for scale in (2, 2, 5):
        held["config"].scale = scale
        result, config = program(X)
        torch.testing.assert_close(result, X * (scale + 1) + 6)
        assert held["config"].scale == scale and config.scale == scale + 1
        assert type(config) is Config and config is not held["config"]
        assert (config.parts is held["config"].parts) == (duplicate is copy.copy)
    held["slotted"].n = 4
    torch.testing.assert_close(program(X)[0], X * 6 + 8)
    held["config"].more = 1
    torch.testing.assert_close(program(X)[0], X * 6 + 8)
    assert program(X)[1].more == 1
    plain = loose(lambda a: a * duplicate(held["config"]).scale)
    for _ in range(3):
        torch.testing.assert_close(plain(X), X * 5)
    assert not frontend.counters(plain)["breaks"]
