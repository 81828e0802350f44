"""Random programs over tensors: views, writes, gradients that are asked inside and outside.

Each statement runs as the program is made, on the first call's arguments: what eager mode refuses is
left out, so programs get far. ``main`` is as in ``programs.py``.
"""

from __future__ import annotations

import contextlib
import io
import random
import re
import warnings
from typing import Any

import torch

from fuzz import observe
from fuzz.expressions import FORMATTER, Row
from fuzz.names import Names
from fuzz.programs import IMPORTS
from fuzz.tensor_texts import ASKING_KINDS, DEFINITIONS, KINDS, MANAGERS

BACKENDS = ("eager",) * 10 + ("reference",) * 4 + ("cpu_onednn",) * 5 + ("opencl",)
PLUGINS = ("reference", "reference", "cpu_onednn")
KEPT_ERRORS = 0.04
TRIES = 6
INPUTS = (
    "tensor(2, 3)",
    "tensor(2, 3)",
    "tensor(3, 2).t()",
    "tensor(4, 3)[1:3]",
    "tensor(2, 6)[:, ::2]",
    "tensor(3)",
    "tensor(3, 3)",
    "tensor(2, 2, 3)",
    "tensor(2, 3).double()",
    "tensor(2, 1).expand(2, 3)",
)
ASKED_INPUTS = (
    *INPUTS,
    "torch.complex(tensor(2, 3), tensor(2, 3))",
    "torch.complex(tensor(3, 2), tensor(3, 2)).t().conj()",
    "torch.complex(tensor(4), tensor(4)).conj().imag",
    "tensor(4, 3).unbind(0)[1]",
    "tensor(4, 3).chunk(2)[1]",
    "tensor(6).as_strided((2, 2), (1, 2), 1)",
)
IS_ASKING = 0.4
WRAPPERS = (
    (6, "{}"),
    (4, "{}.clone().requires_grad_()"),
    (2, "torch.nn.Parameter({})"),
    (1, "({}.clone().requires_grad_() * 1)"),
    (1, "{}.clone().requires_grad_()[:]"),
)
ESCAPES = ("held[", "kept.", ".data", "log.", "facts.", "_(", "+=", "*=", "] =")
CONSTANTS = ("0.5", "2.0", "-1.0", "0.0", "1.5", "3")


def fits(value: torch.Tensor, letter: str, like: torch.Tensor | None) -> bool:
    """Whether a hole of this letter takes the value; ``like``: what the last one was filled with."""
    if letter == "T":
        return True
    if letter == "R":
        return value.requires_grad
    if letter == "L":
        return value.requires_grad and value.is_leaf
    if letter == "Z":
        return value.is_complex()
    if letter == "W":
        return value.is_floating_point() and not (value.requires_grad and value.is_leaf)
    same = letter == "F" or like is None or value.shape == like.shape
    return value.is_floating_point() and same


class Block:
    """The names that lines of one indentation may use."""

    def __init__(self, names: list[str]) -> None:
        self.names = names


class Writer(Names):
    def __init__(self, rng: random.Random, door: str) -> None:
        super().__init__(rng)
        self.door = door
        self.needed: set[str] = {"noted", "broken", "backward"}
        self.space: dict[str, Any] = {}
        self.is_asking = self.chance(IS_ASKING)
        self.kinds = ASKING_KINDS if self.is_asking else KINDS
        if self.is_asking:
            self.needed |= {"shown", "marked"}

    def run(self, text: str) -> str:
        """The class of what it raises, or nothing."""
        try:
            with contextlib.redirect_stdout(io.StringIO()):
                exec(text, self.space)
        except Exception as error:
            return type(error).__name__
        return ""

    def need(self, name: str) -> None:
        if name not in self.needed or name not in self.space:
            self.needed.add(name)
            self.run(DEFINITIONS[name])

    # --- expressions -------------------------------------------------------------------------------

    def tensors(self, block: Block, letter: str, like: torch.Tensor | None) -> list[str]:
        found = []
        for name in block.names:
            value = self.space.get(name)
            # What PyTorch refuses to say of a view raises: nothing is called with it.
            with contextlib.suppress(RuntimeError):
                if isinstance(value, torch.Tensor) and fits(value, letter, like):
                    found.append(name)
        return found

    def fill(self, block: Block, text: str) -> str | None:
        """The text with its holes filled, or None where nothing fits."""
        out, last = "", None
        for literal, hole, _, _ in FORMATTER.parse(text):
            out += literal
            if hole is None:
                continue
            if hole in "ICM":
                out += self.rng.choice(
                    {"I": ("0", "1", "2"), "C": CONSTANTS}.get(hole, ("True", "False"))
                )
                continue
            found = self.tensors(block, hole, last)
            if not found and hole == "S":
                found = self.tensors(block, "F", None)
            if not found:
                return None
            recent = found[-4:] if self.chance(0.5) else found
            name = self.rng.choice(recent)
            if hole in "FW":
                last = self.space[name]
            out += name
        return out

    # --- statements --------------------------------------------------------------------------------

    def simple(self, block: Block) -> list[str]:
        for _ in range(TRIES):
            weights = [weight for weight, _ in self.kinds]
            rows: list[Row] = self.rng.choices([rows for _, rows in self.kinds], weights)[0]
            _, text, needs = self.rng.choices(rows, [row[0] for row in rows])[0]
            for need in needs:
                self.need(need)
            new = self.name("v")
            filled = self.fill(block, text.replace("@", new))
            if filled is None:
                continue
            error = self.run(filled)
            if error:
                if not self.chance(KEPT_ERRORS):
                    continue
                return [
                    "try:", f"    {filled}",
                    f"except {error} as error:", "    facts.append(type(error).__name__)",
                ]  # fmt: skip
            block.names += [name for name in (new, f"{new}b") if re.search(rf"\b{name}\b", filled)]
            return [filled]
        return ["pass"]

    def inner(self, block: Block, count: int) -> tuple[list[str], Block]:
        """Statements whose names end with them, and the block that has these."""
        inside = Block(list(block.names))
        lines: list[str] = []
        for _ in range(count):
            lines += self.simple(inside)
        return ["    " + line for line in lines], inside

    def manage(self, block: Block) -> list[str]:
        manager = self.rng.choice(MANAGERS)
        with contextlib.ExitStack() as stack:
            stack.enter_context(eval(manager, self.space))
            lines, inside = self.inner(block, self.rng.randint(1, 3))
        block.names = inside.names  # a with block is no scope
        return [f"with {manager}:", *lines]

    def branch(self, block: Block) -> list[str]:
        condition = self.fill(
            block,
            self.rng.choice(
                ("{F}.sum() > {C}", "{T}.requires_grad", "torch.is_grad_enabled()", "len(kept) < 2")
            ),
        )
        if condition is None:
            return ["pass"]
        try:
            holds = bool(eval(condition, self.space))
        except Exception:
            return ["pass"]
        lines, _ = self.inner(block, self.rng.randint(1, 2))
        return [f"if {condition}:", *lines] if holds else [f"if not {condition}:", *lines]

    def loop(self, block: Block) -> list[str]:
        lines, _ = self.inner(block, self.rng.randint(1, 3))
        return ["for i in range(2):", *lines]

    def function(self, block: Block) -> list[str]:
        given = self.fill(block, "{F}")
        if given is None:
            return ["pass"]
        function, parameter = self.name("inner"), self.name("p")
        self.space[parameter] = self.space[given]
        block.names.append(parameter)
        lines, inside = self.inner(block, self.rng.randint(1, 4))
        block.names.remove(parameter)
        result = self.fill(inside, "{F}")
        text = [f"def {function}({parameter}):", *lines, f"    return {result}"]
        new = self.name("v")
        # What a transformation wraps is nobody's behind it.
        escapes = any(word in line for line in lines for word in ESCAPES)
        caller = self.rng.choice(
            ("@ = #({F})", "@ = #({F})", "@ = torch.no_grad()(#)({F})",
             "@ = torch_backplane.disable(#)({F})",
             "@ = torch.func.grad(lambda t: #(t).sum())({F})",
             "@ = torch.func.vjp(#, {F})[0]", "@ = torch.func.vmap(#)({F})")[: 4 if escapes else None]
        ).replace("@", new).replace("#", function)  # fmt: skip
        called = self.fill(block, caller)
        if called is None or self.run("\n".join(text) + "\n" + called):
            return ["pass"]
        block.names.append(new)
        return [*text, called]

    def statement(self, block: Block) -> list[str]:
        rows = (
            (24, self.simple),
            (2, self.manage),
            (1, self.branch),
            (1, self.loop),
            (2, self.function),
        )
        return self.rng.choices([r[1] for r in rows], [r[0] for r in rows])[0](block)

    # --- the program -------------------------------------------------------------------------------

    def input(self) -> str:
        weights = [w for w, _ in WRAPPERS]
        wrapper = self.rng.choices([t for _, t in WRAPPERS], weights)[0]
        value = self.rng.choice(ASKED_INPUTS if self.is_asking else INPUTS)
        if "expand" in value and "clone" not in wrapper:
            return value
        return wrapper.format(value)

    def program(self) -> str:
        names = [f"a{i}" for i in range(self.rng.randint(1, 3))]
        made: list[str] = []
        for number, name in enumerate(names):
            value = self.input()
            if number and self.chance(0.2):
                other = self.rng.choice(names[:number])
                value = self.rng.choice(
                    ("{}", "{}[:1]", "{}.detach()", "{}.view(-1)", "{}.t()")
                ).format(other)
            made.append(f"{name} = {value}")
        self.space.update(IMPORTED)
        self.space.update(tensor=observe.tensor)
        for need in sorted(self.needed):
            self.run(DEFINITIONS[need])
        self.run("log, kept, held, facts = [], [], {}, []")
        for line in list(made):
            if self.run(line):
                made[made.index(line)] = line.split(" = ")[0] + " = tensor(2, 3)"
                self.run(made[-1])
        block = Block(list(names))
        body: list[str] = ["facts = []"]
        for _ in range(self.rng.randint(2, 12)):
            body += self.statement(block)
        tensors = self.tensors(block, "T", None)
        results = self.rng.choices(tensors[-6:], k=self.rng.randint(1, 4)) if tensors else ["a0"]
        body.append(f"return {', '.join(results)}, facts")
        main = ["log, kept, held = [], [], {}", *made]
        head = ", ".join(names)
        where = self.rng.random()
        if where < 0.15:
            main += ["class Target(torch.nn.Module):", f"    def forward(self, {head}):"]
            main += ["        " + line for line in body]
            main += ["f = compile(Target())"]
        else:
            main += [f"def raw({head}):", *("    " + line for line in body), "f = compile(raw)"]
        shown = f"[{head}], log, kept, held"
        for number in range(self.rng.randint(2, 4)):
            if number and self.chance(0.6):
                main += self.change(names, made)
            if self.chance(0.15):
                manager = self.rng.choice(
                    ("torch.no_grad()", "torch.inference_mode()", "torch.enable_grad()")
                )
                main += [f"with {manager}:", f"    out = call(f, {head})"]
            else:
                main += [f"out = call(f, {head})"]
            main += [f"yield out, asks(out) if out[0] == 'value' else None, {shown}"]
            if self.chance(0.7):
                main += self.after(names, shown)
        if self.is_asking:
            main += [f"yield marked([{head}, *tensors_of(out), *kept, *held.values()])"]
        options: dict[str, Any] = {"backend": self.rng.choice(BACKENDS)}
        if self.door == "torch":
            options = {"backend": f"plugin:{self.rng.choice(PLUGINS)}", "door": "torch"}
        defined = [text for name, text in DEFINITIONS.items() if name in self.needed]
        parts = [f"OPTIONS = {options}", *defined]
        parts.append("def main(compile):\n" + "\n".join("    " + line for line in main))
        return IMPORTS + "import torch_backplane\n\n" + "\n\n".join(parts) + "\n"

    def change(self, names: list[str], made: list[str]) -> list[str]:
        name = self.rng.choice(names)
        return [self.rng.choice((
            f"{name} = {self.input()}",
            f"{name} = {self.rng.choice(made).split(' = ')[1]}",
            f"{name} = {name}.detach().clone().requires_grad_({name}.requires_grad)",
            f"{name} = {name}.detach()",
            f"{name}.grad = None",
            f"{name} = {self.rng.choice(names)}",
            f"{name} = tensor(5, 3)",
            f"{name} = {name}.detach().t()",
            f"{name} = {name} * 1",
        ))]  # fmt: skip

    def after(self, names: list[str], shown: str) -> list[str]:
        name = self.rng.choice(names)
        text = self.rng.choice((
            "call(backward, out, 0)", "call(backward, out, 0)", "call(backward, out, 1)",
            "call(backward, out, 0, True)", f"call(twice, out, {name})", "call(poke, out, 0)",
            "call(between, out, 0)", "call(between, out, 1)", "call(retained, out, 0)",
        ))  # fmt: skip
        return [f"yield {text}, out, {shown}"]


IMPORTED: dict[str, Any] = {}


def make_program(seed: str, door: str = "own") -> str:
    """The text of the program of this seed."""
    if not IMPORTED:
        exec(IMPORTS + "import torch_backplane\n", IMPORTED)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return Writer(random.Random(seed), door).program()
