"""Random Python programs over tensors and objects from outside.

A program is a module with a generator ``main(compile)``, which makes objects, compiles a function
over them, calls it and changes the objects between calls; what it yields is to be compared.
"""

from __future__ import annotations

import dataclasses
import random

from fuzz.definitions import DEFINITIONS, NEEDS
from fuzz.expressions import Expressions
from fuzz.kinds import KINDS, Kind
from fuzz.names import Names

IMPORTS = """\
import abc
import array
import collections
import contextlib
import contextvars
import copy
import dataclasses
import datetime
import decimal
import enum
import fractions
import functools
import itertools
import math
import os
import threading
import types
import weakref

import numpy
import torch
import torch.utils.checkpoint
"""
BACKENDS = ("eager",) * 17 + ("reference", "reference", "cpu_onednn")
READS = {"I": "ints", "F": "floats", "B": "bools", "S": "strings", "L": "lists", "T": "tensors"}
CALLS = (2, 6)
SWITCHES = (
    "torch.set_grad_enabled(not torch.is_grad_enabled())",
    "torch.set_default_dtype(torch.float64)",
    "torch.use_deterministic_algorithms(True)",
    "torch.autograd.set_detect_anomaly(True)",
)


@dataclasses.dataclass
class Root:
    """An object from outside: how the function and the driver name it."""

    kind: Kind
    inside: str
    outside: str
    rebinds: bool = True


class Writer(Names):
    """Makes one program."""

    def __init__(self, rng: random.Random, kinds: tuple[Kind, ...] = KINDS) -> None:
        super().__init__(rng)
        self.kinds = kinds
        self.needed: set[str] = set()
        self.expressions = Expressions(rng, self.need)
        self.roots: list[Root] = []
        self.top: list[str] = []  # at module level
        self.before: list[str] = []  # in main, before the function
        self.after: list[str] = []  # in main, once the function is there
        self.parameters: list[str] = []
        self.named: list[str] = []  # keyword-only parameters
        self.arguments: list[str] = []
        self.global_names: list[str] = []
        self.closure_names: list[str] = []
        self.states: list[str] = []
        self.is_module = rng.random() < 0.2

    def need(self, name: str) -> None:
        for other in NEEDS.get(name, ()):
            self.need(other)
        self.needed.add(name)

    # --- objects from outside ----------------------------------------------------------------------

    def value(self, kind: Kind) -> str:
        for name in kind.needs:
            self.need(name)
        return self.rng.choice(kind.values)

    def add_root(self) -> None:
        kind = self.rng.choice(self.kinds)
        value = self.value(kind)
        for known in self.roots:
            if known.kind is kind and self.chance(0.2):
                value = known.outside  # a second path to the same object
        holders = self.rng.choices(
            ("", "list", "dict", "tuple", "box", "nest", "class"), (10, 3, 3, 2, 3, 2, 1)
        )[0]
        path, rebinds = "", True
        if holders == "list":
            value, path = f"[0, {value}]", "[1]"
        elif holders == "dict":
            value, path = f"{{'k': {value}, 'm': 1}}", "['k']"
        elif holders == "tuple":
            value, path, rebinds = f"({value}, 1)", "[0]", False
        elif holders == "box":
            self.need("Box")
            value, path = f"Box(v={value})", ".v"
        elif holders == "nest":
            self.need("Box")
            value, path = f"Box(w=[{{'k': {value}}}])", ".w[0]['k']"
        elif holders == "class":
            self.need("Box")
            name = self.name("shared")
            self.before.append(f"Box.{name} = {value}")
            self.roots.append(Root(kind, f"Box.{name}", f"Box.{name}"))
            self.states.append(f"Box.{name}")
            return
        inside, outside = self.place(value)
        self.states.append(outside)
        self.roots.append(Root(kind, inside + path, outside + path, rebinds))

    def place(self, value: str) -> tuple[str, str]:
        """Puts an object where the function finds it."""
        places = (
            "argument",
            "global",
            "closure",
            "default",
            "keyword default",
            "keyword",
            "static",
        )
        where = self.rng.choices(places, (6, 4, 4, 1, 1, 1, 1))[0]
        if self.is_module and self.chance(0.4):
            name = self.name("held")
            self.after.append(f"target.{name} = {value}")
            return f"self.{name}", f"target.{name}"
        if where == "argument":
            name = self.name("a")
            self.before.append(f"{name} = {value}")
            self.parameters.append(name)
            self.arguments.insert(len(self.parameters) - 1, name)
            return name, name
        if where == "keyword":
            name = self.name("n")
            self.before.append(f"{name} = {value}")
            self.named.append(name)
            self.arguments.append(f"{name}={name}")
            return name, name
        if where == "global":
            name = self.name("g")
            self.global_names.append(name)
            self.before.append(f"{name} = {value}")
            return name, name
        if where == "default":
            name = self.name("d")
            self.named.insert(0, f"{name}=({value})")
            return name, f"raw.__kwdefaults__['{name}']"
        if where == "keyword default":
            name, keeper = self.name("k"), self.name("keeper")
            self.before.append(f"{keeper} = {value}")
            self.named.append(f"{name}={keeper}")
            return name, f"raw.__kwdefaults__['{name}']"
        if where == "static":
            name = self.name("held")
            self.need("scale")
            self.before.append(f"scale.{name} = {value}")
            return f"scale.{name}", f"scale.{name}"
        name = self.name("c")
        self.closure_names.append(name)
        self.before.append(f"{name} = {value}")
        return name, name

    def scope(self) -> dict[str, list[str]]:
        """What an expression may name at the start of the function."""
        out: dict[str, list[str]] = {"T": ["x", "x"], "O": [], "A": []}
        for letter, field in READS.items():
            texts = [
                text.replace("@", root.inside)
                for root in self.roots
                for text in getattr(root.kind, field)
            ]
            out.setdefault(letter, []).extend(texts)
        out["A"].extend(root.inside for root in self.roots)
        return out

    # --- statements --------------------------------------------------------------------------------

    def make(self, scope: dict[str, list[str]], letter: str, depth: int | None = None) -> str:
        return self.expressions.make(
            scope, letter, self.rng.randint(1, 3) if depth is None else depth
        )

    def block(self, scope: dict[str, list[str]], depth: int, count: int) -> list[str]:
        """Statements in a scope of their own: what they define is not used behind them."""
        inner = {letter: list(texts) for letter, texts in scope.items()}
        out: list[str] = []
        for _ in range(count):
            out += self.statement(inner, depth)
        return out or ["pass"]

    def statement(self, scope: dict[str, list[str]], depth: int) -> list[str]:
        rows = (
            (10, self.assign),
            (5, self.in_place),
            (4, self.write),
            (2, self.rebind),
            (1, self.show),
            (1, self.leave),
            (2, self.unpack),
            (1, self.check),
            (3 * bool(depth), self.branch),
            (2 * bool(depth), self.loop),
            (2 * bool(depth), self.attempt),
            (2 * bool(depth), self.manage),
            (2 * bool(depth), self.define),
            (1 * bool(depth), self.match),
        )
        return self.rng.choices([r[1] for r in rows], [r[0] for r in rows])[0](scope, depth)

    def assign(self, scope: dict[str, list[str]], depth: int) -> list[str]:
        letter = self.rng.choice("TTTOIIFBSL")
        name = self.name("v")
        text = f"{name} = {self.make(scope, letter)}"
        scope[letter].append(name)
        if letter == "O":
            scope["T"].append(name)
        return [text]

    def in_place(self, scope: dict[str, list[str]], depth: int) -> list[str]:
        target = self.rng.choice(scope["O"]) if scope["O"] and self.chance(0.8) else "x"
        if target == "x" and not self.chance(0.4):
            return self.assign(scope, depth)
        text = self.rng.choice(
            (
                "@ += {T}", "@ *= {F}", "@.add_({T})", "@.mul_({F})", "@.view(-1)[0] = {F}",
                "@.view(-1)[:{I}] = {T}.sum()", "@.view(-1)[{I}:].add_(1)", "@.zero_()",
                "@.copy_({T})", "@[...] = {T}", "@.t_()", "@.neg_()",
                "if not @.requires_grad: @.data = @.data * 2",
                "@.detach()[...] = {F}", "@.clamp_(min={F})", "@[@ > 0] = {F}", "@.unsqueeze_(0)",
                "torch.add(@, {T}, out=@)", "@.masked_fill_(@ > {F}, {F})",
            )
        ).replace("@", target)  # fmt: skip
        return [self.expressions.fill(scope, text, 1)]

    def write(self, scope: dict[str, list[str]], depth: int) -> list[str]:
        writable = [root for root in self.roots if root.kind.writes]
        if not writable:
            return self.assign(scope, depth)
        root = self.rng.choice(writable)
        text = self.rng.choice(root.kind.writes).replace("@", root.inside)
        return [text] if self.chance(0.8) else [f"if {self.make(scope, 'B')}:", "    " + text]

    def rebind(self, scope: dict[str, list[str]], depth: int) -> list[str]:
        able = [root for root in self.roots if root.rebinds]
        if not able:
            return self.assign(scope, depth)
        root = self.rng.choice(able)
        if self.chance(0.3):
            return [f"{root.inside} = {self.rng.choice(able).inside}"]
        return [f"{root.inside} = {self.value(root.kind)}"]

    def show(self, scope: dict[str, list[str]], depth: int) -> list[str]:
        return [f"print({self.make(scope, self.rng.choice('IBSL'))})"]

    def leave(self, scope: dict[str, list[str]], depth: int) -> list[str]:
        kind = self.rng.choice(("ValueError", "KeyError", "RuntimeError"))
        what = f"raise {kind}({self.make(scope, 'S')})"
        if self.chance(0.7):
            what = f"return {self.result(scope)}"
        return [f"if {self.make(scope, 'B')}:", "    " + what]

    def unpack(self, scope: dict[str, list[str]], depth: int) -> list[str]:
        one, two = self.name("v"), self.name("v")
        text = self.rng.choice(
            (
                "{one}, *{two} = [{I}, *{L}]", "{one}, {two} = {I}, {L}",
                "{two} = [{one} := {I}, {I}]", "({one}, _), {two} = [{I}, 2], {L}",
                "{two} = list({L}); {one} = len({two})",
            )
        ).replace("{one}", one).replace("{two}", two)  # fmt: skip
        text = self.expressions.fill(scope, text, 1)
        scope["I"].append(one)
        scope["L"].append(two)
        return text.split("; ")

    def check(self, scope: dict[str, list[str]], depth: int) -> list[str]:
        condition = f"{self.make(scope, 'B')} or {self.make(scope, 'B')}"
        return [f"assert {condition}, {self.make(scope, 'S')}"]

    def branch(self, scope: dict[str, list[str]], depth: int) -> list[str]:
        lines = [f"if {self.make(scope, 'B')}:", *self.nested(scope, depth)]
        if self.chance(0.5):
            lines += ["else:", *self.nested(scope, depth)]
        return lines

    def nested(self, scope: dict[str, list[str]], depth: int, *first: str) -> list[str]:
        body = [*first, *self.block(scope, depth - 1, self.rng.randint(1, 2))]
        return ["    " + line for line in body]

    def loop(self, scope: dict[str, list[str]], depth: int) -> list[str]:
        inner = {letter: list(texts) for letter, texts in scope.items()}
        if self.chance(0.2):
            name = self.name("i")
            lines = [f"{name} = 0", f"while {name} < {self.rng.randint(1, 3)}:"]
            inner["I"].append(name)
            return [*lines, *self.nested(inner, depth, f"{name} += 1")]
        name = self.name("i")
        inner["I"].append(name)
        total = self.name("v")
        head = f"for {name} in {self.make(scope, 'L')}:"
        body = self.nested(inner, depth, f"{total} = {total} + {self.make(inner, 'T', 1)}")
        if self.chance(0.3):
            end = self.rng.choice(("break", "continue"))
            body += [f"    if {self.make(inner, 'B', 1)}:", f"        {end}"]
        lines = [f"{total} = {self.make(scope, 'T', 1)}", head, *body]
        scope["T"].append(total)
        if self.chance(0.15):
            lines += ["else:", *self.nested(scope, depth)]
        return lines

    def attempt(self, scope: dict[str, list[str]], depth: int) -> list[str]:
        lines = ["try:", *self.nested(scope, depth)]
        end = self.rng.choice(("except", "finally", "both"))
        if end != "finally" and self.chance(0.5):
            lines.append(f"    raise {self.rng.choice(('ValueError', 'KeyError'))}('t')")
        if end != "finally":
            caught = self.rng.choice(("Exception", "ValueError", "(KeyError, ValueError)"))
            lines += [f"except {caught} as error:"]
            inner = {letter: list(texts) for letter, texts in scope.items()}
            inner["S"] += ["str(error)", "type(error).__name__"]
            body = self.nested(inner, depth)
            if self.chance(0.2):
                body.append(
                    self.rng.choice(("    raise", "    raise RuntimeError('r') from error"))
                )
            lines += body
        if end != "except":
            lines += ["finally:", *self.nested(scope, depth)]
        return lines

    def manage(self, scope: dict[str, list[str]], depth: int) -> list[str]:
        managers = ["torch.no_grad()", "torch.enable_grad()", "contextlib.suppress(ValueError)",
                    "contextlib.nullcontext()", "threading.Lock()",
                    "torch.autocast('cpu', torch.bfloat16)"]  # fmt: skip
        managers += [r.inside for r in self.roots if r.kind.name == "context"] * 3
        logs = [r.inside for r in self.roots if r.kind.name == "list"] or ["[]"]
        self.need("Manager")
        self.need("managed")
        managers += [f"Manager({logs[0]})", f"managed({logs[0]})"]
        chosen = self.rng.sample(managers, self.rng.choice((1, 1, 2)))
        return [f"with {', '.join(chosen)}:", *self.nested(scope, depth)]

    def define(self, scope: dict[str, list[str]], depth: int) -> list[str]:
        name, t, i = self.name("inner"), self.name("t"), self.name("j")
        inner = {letter: list(texts) for letter, texts in scope.items()}
        inner["T"] += [t, t]
        inner["I"].append(i)
        head = self.rng.choice(
            (f"def {name}({t}, {i}=1):", f"def {name}({t}, *, {i}={self.make(scope, 'I', 1)}):",
             f"def {name}({t}, *rest, {i}=2, **more):")
        )  # fmt: skip
        body = self.nested(inner, depth)
        body.append(f"    return {self.make(inner, 'T')}")
        scope["T"] += [f"{name}(x)", f"{name}({self.make(scope, 'T', 1)}, {i}=3)"]
        if self.chance(0.15):
            self.need("tracked")
            return ["@tracked", head, *body]
        return [head, *body]

    def match(self, scope: dict[str, list[str]], depth: int) -> list[str]:
        lines = [f"match {self.make(scope, self.rng.choice('AILS'))}:"]
        patterns = ("0 | 2", "'relu'", "[_, second, *_]", "{'a': found}", "int()", "str() | None")
        for pattern in self.rng.sample(patterns, 2):
            lines += [f"    case {pattern}:", *("    " + b for b in self.nested(scope, depth))]
        return [*lines, "    case _:", *("    " + b for b in self.nested(scope, depth))]

    def result(self, scope: dict[str, list[str]]) -> str:
        shape = self.rng.random()
        if shape < 0.4:
            return self.make(scope, "T")
        parts = [self.make(scope, letter, 1) for letter in self.rng.choices("TTIFBSLA", k=3)]
        if shape < 0.8:
            return f"({self.make(scope, 'T')}, {', '.join(parts)})"
        if shape < 0.9:
            return f"[{', '.join(parts)}]"
        return f"{{'t': {self.make(scope, 'T')}, 'u': {parts[0]}, 'v': {parts[1]}}}"

    # --- the driver --------------------------------------------------------------------------------

    def change(self) -> list[str]:
        """What happens between two calls."""
        root = self.rng.choice(self.roots)
        changes = list(root.kind.changes)
        if changes and self.chance(0.6):
            text = self.rng.choice(changes).replace("@", root.outside)
            return ["with contextlib.suppress(Exception):", "    " + text]
        if root.rebinds and self.chance(0.8):
            able = [other for other in self.roots if other is not root]
            if able and self.chance(0.3):
                return [f"{root.outside} = {self.rng.choice(able).outside}"]
            return [f"{root.outside} = {self.value(root.kind)}"]
        return [f"x = tensor({self.rng.choice((4, 6, 1))})"]

    def program(self) -> str:
        for _ in range(self.rng.randint(1, 4)):
            self.add_root()
        scope = self.scope()
        body: list[str] = []
        for _ in range(self.rng.randint(1, 7)):
            body += self.statement(scope, 2)
        body.append(f"return {self.result(scope)}")

        names = ["x", *self.parameters, *(["*", *self.named] if self.named else [])]
        declared = []
        if self.global_names:
            declared.append("global " + ", ".join(self.global_names))
        if self.closure_names:
            declared.append("nonlocal " + ", ".join(self.closure_names))
        main: list[str] = [declared[0]] if self.global_names else []
        main += self.before
        if self.is_module:
            head = f"def forward(self, {', '.join(names)}):"
            main += ["class Target(torch.nn.Module):"]
            main += ["    " + line for line in (head, *("    " + b for b in (*declared, *body)))]
            main += ["target = Target()", "raw = Target.forward", "f = compile(target)"]
        else:
            main += [f"def raw({', '.join(names)}):", *("    " + b for b in (*declared, *body))]
            main += ["f = compile(raw)"]
        main += self.after
        main += [f"x = tensor({self.rng.choice((4, 4, 4, 6))})"]
        differentiates = self.chance(0.25)
        if differentiates:
            main += ["x.requires_grad_()"]
        caller = "grads" if differentiates else "call"
        called = (
            f"yield {caller}(f, {', '.join(['x', *self.arguments])}), x, [{', '.join(self.states)}]"
        )
        main += [called]
        for _ in range(self.rng.randint(*CALLS)):
            if self.chance(0.75):
                main += self.change()
            if self.chance(0.05):
                main += [self.rng.choice(SWITCHES)]
            main += [called]

        options = {"backend": self.rng.choice(BACKENDS)}
        if self.chance(0.1):
            options["dynamic"] = True
        defined = [text for name, text in DEFINITIONS.items() if name in self.needed]
        parts = [f"OPTIONS = {options}", *defined]
        parts.append("def main(compile):\n" + "\n".join("    " + line for line in main))
        return IMPORTS + "\n" + "\n\n".join(parts) + "\n"


def make_program(seed: str, only: tuple[str, ...] = ()) -> str:
    """The text of the program of this seed; with ``only``, over objects of these kinds alone."""
    kinds = tuple(kind for kind in KINDS if not only or kind.name in only)
    return Writer(random.Random(seed), kinds).program()
