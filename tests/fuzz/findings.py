"""What was found: told apart, made smaller, written as files that run alone."""

from __future__ import annotations

import ast
import builtins
import dataclasses
import hashlib
import inspect
import re
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

from fuzz.definitions import DEFINITIONS
from fuzz.judge import Finding
from fuzz.pool import Pool
from fuzz.shrink import shrink

TRIES = 1500
TESTED = ("raw", "forward", "f")  # functions that are compiled
CONSTRUCTS = (
    *(ast.With, ast.Try, ast.For, ast.While, ast.Match, ast.Assert, ast.Delete, ast.AugAssign),
    *(ast.Lambda, ast.ListComp, ast.GeneratorExp, ast.Starred, ast.NamedExpr, ast.JoinedStr),
    *(ast.Global, ast.Nonlocal, ast.IfExp, ast.If, ast.Subscript, ast.Slice, ast.ClassDef),
)

MAIN = """
if __name__ == "__main__":
    import runpy
    import sys

    import torch_backplane

    def run(compile):
        return watch(runpy.run_path(__file__, run_name="fuzzed")["main"], compile)

    def compiled(function):
        options = dict(OPTIONS)
        if options.pop("door", "own") == "torch":
            torch._dynamo.reset()
            return torch.compile(function, **options)
        return torch_backplane.compile(function, **options)

    expected = run(lambda function: function)
    actual = run(compiled)
    sys.exit(difference(actual, expected) or None)
"""


def vocabulary(text: str) -> frozenset[str]:
    """Attributes, known functions and constructs of a program, less what says nothing."""
    tree = ast.parse(text)
    tested = [n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef) and n.name in TESTED]
    words = set()
    for node in ast.walk(tested[0] if tested else tree):
        if isinstance(node, ast.Attribute):
            words.add("." + re.sub(r"\d+$", "", node.attr))
        elif isinstance(node, ast.Name) and (hasattr(builtins, node.id) or node.id in DEFINITIONS):
            words.add(node.id)
        elif isinstance(node, CONSTRUCTS):
            words.add(type(node).__name__)
    return frozenset(words)


def signature(finding: Finding) -> str:
    words = " ".join(sorted(vocabulary(finding.text)))
    return hashlib.sha256(f"{finding.kind}\n{words}".encode()).hexdigest()[:12]


def make_smaller(finding: Finding, pool: Pool, tries: int = TRIES) -> Finding:
    """The smallest program that shows a finding of the same kind."""
    best = finding

    def test(texts: list[str]) -> int | None:
        nonlocal best
        accepted = {}
        for text, said, ended in pool.run(texts):
            found = Finding(ended, ended, text) if ended else said
            if found is not None and found.kind == finding.kind:
                accepted[texts.index(text)] = found
        if not accepted:
            return None
        first = min(accepted)
        if len(accepted[first].text) < len(best.text):
            best = accepted[first]
        return first

    text = shrink(finding.text, test, tries)
    return dataclasses.replace(best, text=text)


def standalone(finding: Finding, origin: str, helpers: list[ModuleType], main: str) -> str:
    """A file that shows the finding without the fuzzer: exits with 1 while it is there."""
    imports, bodies = [], []
    for text in (finding.text, *(inspect.getsource(helper) for helper in helpers)):
        tree = ast.parse(text)
        lines = text.splitlines()
        starts = [
            node
            for node in tree.body
            if isinstance(node, (ast.Import, ast.ImportFrom))
            or (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant))
        ]
        for node in starts:
            if not isinstance(node, ast.Expr):
                imports.append(ast.unparse(node))
            for number in range(node.lineno - 1, node.end_lineno):
                lines[number] = ""
        bodies.append("\n".join(lines).strip())
    head = f'"""{finding.kind}\n\nFound by {origin}: {finding.difference}\n"""'.replace(
        "\\", "\\\\"
    )
    future = [line for line in imports if "__future__" in line]
    others = sorted({line for line in imports if "__future__" not in line and "fuzz" not in line})
    joined = "\n\n\n# --- how it is judged ---\n\n".join([bodies[0], "\n\n\n".join(bodies[1:])])
    return "\n".join([head, "", *future[:1], *others, "", joined, main])


class Collection:
    """Distinct findings in a folder."""

    def __init__(
        self, folder: Path | None, origin: str, write: Callable[[Finding, str], str]
    ) -> None:
        self.folder = folder
        self.origin = origin
        self.write = write
        self.found: dict[str, tuple[Finding, int]] = {}

    def add(self, finding: Finding, seed: str) -> bool:
        """Whether it is new."""
        name = signature(finding)
        old, count = self.found.get(name, (finding, 0))
        self.found[name] = (old, count + 1)
        if count:
            return False
        if self.folder is not None:
            self.folder.mkdir(parents=True, exist_ok=True)
            text = self.write(finding, f"{self.origin}, program {seed}")
            (self.folder / f"found_{name}.py").write_text(text)
        return True
