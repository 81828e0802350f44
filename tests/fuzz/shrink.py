"""Makes a program smaller for as long as it shows the same, whatever it shows.

Works on the syntax tree: statements go, blocks take the place of their statement, expressions make
way for their parts or for constants.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Callable, Iterator

Test = Callable[[list[str]], int | None]
"""Given texts, the number of the first that still shows it, or None."""

BATCH = 8
BLOCKS = ("body", "orelse", "finalbody", "handlers", "cases")
CONSTANTS = (0, 1, "a", None, True)


class _Sites:
    """The places of a tree where something can go, in the order in which they are tried."""

    def __init__(self, tree: ast.Module) -> None:
        self.tree = tree

    def blocks(self) -> Iterator[tuple[ast.AST, str]]:
        for node in ast.walk(self.tree):
            for field in BLOCKS:
                if getattr(node, field, None) and isinstance(getattr(node, field), list):
                    yield node, field

    def count(self) -> int:
        return sum(len(getattr(node, field)) for node, field in self.blocks())


def _with(tree: ast.Module, change: Callable[[ast.Module], bool]) -> str | None:
    """The text of a changed copy, or None where the change does not apply or makes no program."""
    made = copy.deepcopy(tree)
    try:
        if not change(made):
            return None
        text = ast.unparse(ast.fix_missing_locations(made))
        compile(text, "<smaller>", "exec", dont_inherit=True)
    except (SyntaxError, ValueError, TypeError, AttributeError, RecursionError):
        return None
    return text


def _without_statements(number: int, start: int, length: int) -> Callable[[ast.Module], bool]:
    def change(tree: ast.Module) -> bool:
        node, field = list(_Sites(tree).blocks())[number]
        block = getattr(node, field)
        if start >= len(block):
            return False
        del block[start : start + length]
        if not block and field == "body" and not isinstance(node, ast.Module):
            block.append(ast.Pass())
            return length > 1 or not isinstance(node, ast.Pass)
        return True

    return change


def _unwrapped(number: int, start: int) -> Callable[[ast.Module], bool]:
    """A compound statement is replaced by the statements in it."""

    def change(tree: ast.Module) -> bool:
        node, field = list(_Sites(tree).blocks())[number]
        block = getattr(node, field)
        inner = [s for f in BLOCKS for s in getattr(block[start], f, ()) if isinstance(s, ast.stmt)]
        if isinstance(block[start], (ast.FunctionDef, ast.ClassDef)) or not inner:
            return False
        block[start : start + 1] = inner
        return True

    return change


def _statement_candidates(tree: ast.Module) -> Iterator[str | None]:
    blocks = [(len(getattr(node, field)), number) for number, (node, field) in
              enumerate(_Sites(tree).blocks())]  # fmt: skip
    longest = max((length for length, _ in blocks), default=1)
    size = 1 << (longest.bit_length() - 1)
    while size:
        for length, number in blocks:
            if size > 1 and length < size:
                continue
            for start in reversed(range(0, length, size)):
                yield _with(tree, _without_statements(number, start, size))
        size //= 2
    for length, number in blocks:
        for start in range(length):
            yield _with(tree, _unwrapped(number, start))


def _expressions(tree: ast.AST) -> list[tuple[ast.AST, str, int | None, ast.expr]]:
    out = []
    for node in ast.walk(tree):
        for field, value in ast.iter_fields(node):
            if isinstance(value, ast.expr):
                out.append((node, field, None, value))
            elif isinstance(value, list):
                out += [(node, field, i, v) for i, v in enumerate(value) if isinstance(v, ast.expr)]
    return out


def _set(node: ast.AST, field: str, index: int | None, value: ast.expr) -> None:
    if index is None:
        setattr(node, field, value)
    else:
        getattr(node, field)[index] = value


def _parts(value: ast.expr) -> list[ast.expr]:
    """Expressions inside of this one that could take its place, nearest first."""
    found = []
    for child in ast.iter_child_nodes(value):
        if isinstance(child, ast.expr):
            found.append(child)
        elif isinstance(child, ast.keyword):
            found.append(child.value)
        elif isinstance(child, ast.comprehension):
            found.append(child.iter)
    return found


def _expression_candidates(tree: ast.Module) -> Iterator[str | None]:
    for number, (_, _, _, value) in enumerate(_expressions(tree)):
        if isinstance(value, (ast.Constant, ast.Name)):
            continue
        for part in range(len(_parts(value))):

            def replace(made: ast.Module, number: int = number, part: int = part) -> bool:
                node, field, index, old = _expressions(made)[number]
                _set(node, field, index, _parts(old)[part])
                return True

            yield _with(tree, replace)
    for number, (_, _, _, value) in enumerate(_expressions(tree)):
        if isinstance(value, ast.Constant):
            continue
        for constant in (None, 1):

            def settle(made: ast.Module, number: int = number, constant: object = constant) -> bool:
                node, field, index, _ = _expressions(made)[number]
                _set(node, field, index, ast.Constant(constant))
                return True

            yield _with(tree, settle)


LISTS = ("args", "elts", "keywords", "items", "generators", "decorator_list", "targets", "values",
         "names", "kwonlyargs", "ops", "bases", "patterns")  # fmt: skip


def _list_candidates(tree: ast.Module) -> Iterator[str | None]:
    """Without one element of a call, a display, a signature, a with."""
    for number, node in enumerate(ast.walk(tree)):
        for field in LISTS:
            items = getattr(node, field, None)
            if not isinstance(items, list):
                continue
            for index in reversed(range(len(items))):

                def drop(
                    made: ast.Module, number: int = number, field: str = field, index: int = index
                ) -> bool:
                    node = list(ast.walk(made))[number]
                    del getattr(node, field)[index]
                    if isinstance(node, ast.Dict):
                        del node.keys[index]
                    if isinstance(node, ast.arguments) and field == "args":
                        del node.defaults[:]
                    if isinstance(node, ast.arguments) and field == "kwonlyargs":
                        del node.kw_defaults[index]
                    if isinstance(node, ast.Compare):
                        del node.comparators[index]
                    return bool(getattr(node, field)) or field not in ("items", "names", "targets")

                yield _with(tree, drop)


def _batches(candidates: Iterator[str | None], seen: set[str]) -> Iterator[list[str]]:
    batch: list[str] = []
    for text in candidates:
        if text is None or text in seen:
            continue
        seen.add(text)
        batch.append(text)
        if len(batch) == BATCH:
            yield batch
            batch = []
    if batch:
        yield batch


def shrink(text: str, test: Test, limit: int) -> str:
    """The smallest text that ``test`` accepts, after at most ``limit`` tries."""
    tries = 0
    seen: set[str] = set()
    smaller = True
    while smaller and tries < limit:
        smaller = False
        for stage in (_statement_candidates, _list_candidates, _expression_candidates):
            again = True
            while again and tries < limit:
                again = False
                for batch in _batches(stage(ast.parse(text)), seen):
                    tries += len(batch)
                    found = test(batch)
                    if found is not None and _weight(batch[found]) < _weight(text):
                        text = batch[found]
                        smaller = again = True
                        break
                    if tries >= limit:
                        break
    return text


def _weight(text: str) -> tuple[int, int]:
    tree = ast.parse(text)
    return sum(1 for _ in ast.walk(tree)), len(text)
