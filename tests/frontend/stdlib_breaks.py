"""Breaks at random instructions of the standard library's functions, under a workload of theirs.

As a program: ``python tests/frontend/stdlib_breaks.py --rewrites 50000``.
"""

from __future__ import annotations

import _pydecimal
import _pyio
import _strptime
import argparse
import ast
import base64
import calendar
import colorsys
import configparser
import copy
import dataclasses
import difflib
import dis
import email.message
import fnmatch
import fractions
import html
import inspect
import ipaddress
import json
import json.decoder
import json.encoder
import posixpath
import pprint
import random
import shlex
import statistics
import string
import textwrap
import urllib.parse
from collections.abc import Callable, Iterator
from types import CodeType, FunctionType, ModuleType
from typing import Any

import torch  # noqa: F401  # the extension needs its libraries
from torch_backplane import _C

MODULES: list[ModuleType] = [
    _pydecimal, _pyio, _strptime, argparse, ast, base64, calendar, colorsys, configparser, copy,
    dataclasses, difflib, email.message, fnmatch, fractions, html, inspect, ipaddress,
    json.decoder, json.encoder, posixpath, pprint, shlex, statistics, string, textwrap,
    urllib.parse,
]  # fmt: skip

# What can break in a captured program: it calls, reads, writes or branches.
BREAKS = {
    "CALL", "CALL_FUNCTION_EX", "BINARY_SUBSCR", "STORE_SUBSCR", "LOAD_ATTR", "STORE_ATTR",
    "LOAD_METHOD", "BINARY_OP", "COMPARE_OP", "CONTAINS_OP", "GET_ITER", "FOR_ITER", "BEFORE_WITH",
    "RAISE_VARARGS", "UNPACK_SEQUENCE", "POP_JUMP_FORWARD_IF_FALSE", "POP_JUMP_FORWARD_IF_TRUE",
    "POP_JUMP_BACKWARD_IF_TRUE", "JUMP_IF_FALSE_OR_POP", "JUMP_IF_TRUE_OR_POP",
    "POP_JUMP_IF_FALSE", "POP_JUMP_IF_TRUE", "POP_JUMP_IF_NONE", "POP_JUMP_IF_NOT_NONE",
    "BINARY_SLICE", "STORE_SLICE", "LOAD_SUPER_ATTR",
}  # fmt: skip


def functions(module: ModuleType) -> Iterator[FunctionType]:
    for value in list(vars(module).values()):
        if getattr(value, "__module__", None) != module.__name__:
            continue
        if isinstance(value, FunctionType):
            yield value
        elif isinstance(value, type):
            yield from (v for v in list(vars(value).values()) if isinstance(v, FunctionType))


def error_of(function: Callable[..., Any], *args: Any) -> str:
    try:
        function(*args)
    except ValueError as error:
        return f"{type(error).__name__}: {error}"
    return "none"


@dataclasses.dataclass(order=True)
class Record:
    number: int
    items: list[int] = dataclasses.field(default_factory=list)


def texts() -> list[Any]:
    text = "The quick brown fox jumps over the lazy dog. " * 7
    parser = configparser.ConfigParser()
    parser.read_string("[a]\nx=1\ny=%(x)s2\n[b]\nz: 3\n")
    message = email.message.EmailMessage()
    message["Subject"] = "hi"
    message.set_content("x\n")
    return [
        textwrap.fill(text, 23),
        textwrap.dedent("   a\n   b\n"),
        list(difflib.unified_diff(text.split(), text.upper().split()[:9], lineterm="")),
        json.JSONEncoder(indent=1, sort_keys=True).encode({"a": [1, 2.5, None, {"b": "\u1234"}]}),
        json.loads('{"a":[1,2,{"b":null}],"c":"\\n"}'),
        error_of(json.loads, "{bad"),
        shlex.split("a 'b c' \"d e\" f\\ g"),
        string.Template("$a ${b}").substitute(a=1, b=2),
        html.unescape("&lt;a&#233;&amp;"),
        {section: dict(parser[section]) for section in parser.sections()},
        str(message),
        pprint.pformat({f"k{i}": list(range(i)) for i in range(12)}),
        fnmatch.filter(["a.py", "b.txt"], "*.py"),
        base64.b85encode(b"hello"),
    ]


def numbers() -> list[Any]:
    return [
        str(fractions.Fraction("3/7") + fractions.Fraction(2.5) - 1),
        error_of(fractions.Fraction, "x"),
        statistics.stdev([1, 2, 3, 4.5]),
        statistics.quantiles(range(9)),
        colorsys.rgb_to_hls(0.2, 0.4, 0.6),
        str(_pydecimal.Decimal("1.23") ** 3 / _pydecimal.Decimal(7)),
        calendar.TextCalendar().formatmonth(2024, 2),
        _strptime._strptime_time("2024-02-03", "%Y-%m-%d")[:6],
        str(list(ipaddress.ip_network("10.0.0.0/29").hosts())),
        ipaddress.ip_address("::1").exploded,
    ]


def objects() -> list[Any]:
    parser = argparse.ArgumentParser(prog="x", add_help=False)
    parser.add_argument("--n", type=int, default=3)
    parser.add_argument("v", nargs="*")
    read = _pyio.BytesIO(b"a\nbc\n")
    written = _pyio.StringIO()
    written.write("x\ny")
    contents = (read.readline(), read.read(), written.getvalue())
    read.close()
    written.close()
    return [
        posixpath.relpath("/a/b/c", "/a/d/e"),
        posixpath.normpath("/a/../b//c/."),
        urllib.parse.urlparse("http://u@h:80/p;x?q=1#f"),
        urllib.parse.parse_qs("a=1&b=2&a=3"),
        urllib.parse.quote("a b/ü"),
        copy.deepcopy({"x": [1, (2, [3]), {4}], "y": (1,)}),
        vars(parser.parse_args(["--n", "4", "q", "r"])),
        parser.format_help(),
        contents,
        (repr(Record(1)), Record(1) < Record(2), dataclasses.asdict(Record(3, [4]))),
        str(inspect.signature(textwrap.wrap)),
        ast.unparse(ast.parse("x=[i for i in range(3) if i]\nwith a as b: pass")),
    ]


def workload() -> str:
    return repr([texts(), numbers(), objects()])


def outcome() -> str:
    try:
        return workload()
    except Exception as error:
        return f"{type(error).__name__}: {error}"


class Rounds:
    """Each round breaks every function at one random place and runs the workload."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.functions = [f for module in MODULES for f in functions(module)]
        self.rewrites = self.declined = self.rounds = 0
        self.differences: list[str] = []
        self.expected = workload()

    def _break(self, function: FunctionType) -> CodeType | None:
        offsets = [i.offset for i in dis.get_instructions(function) if i.opname in BREAKS]
        if not offsets:
            return None
        code = _C.frontend.break_code(function, self.random.choice(offsets))
        if code is None:
            self.declined += 1
        return code

    def run_one(self) -> None:
        broken = [(f, f.__code__, self._break(f)) for f in self.functions]
        broken = [(f, was, code) for f, was, code in broken if code is not None]
        self.rewrites += len(broken)
        if self._run(broken) != self.expected:
            while len(broken) > 1:
                half = broken[: len(broken) // 2]
                broken = half if self._run(half) != self.expected else broken[len(half) :]
            function, _, code = broken[0]
            names = [c for c in code.co_consts if isinstance(c, FunctionType)]
            self.differences.append(
                f"{function.__module__}.{function.__qualname__} with {names}: {self._run(broken)[:200]}"
            )
        self.rounds += 1

    @staticmethod
    def _run(broken: list[tuple[FunctionType, CodeType, CodeType]]) -> str:
        for function, _, code in broken:
            function.__code__ = code
        try:
            return outcome()
        finally:
            for function, was, _ in broken:
                function.__code__ = was


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rewrites", type=int, default=50_000)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    rounds = Rounds(options.seed)
    while rounds.rewrites < options.rewrites:
        rounds.run_one()
    print(
        f"{rounds.rewrites} rewrites of {len(rounds.functions)} functions in {rounds.rounds} rounds, "
        f"{rounds.declined} declined, {len(rounds.differences)} differences"
    )
    for difference in rounds.differences:
        print(" ", difference)
    raise SystemExit(bool(rounds.differences))


if __name__ == "__main__":
    main()
