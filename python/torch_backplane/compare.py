"""Debug mode: every call of a compiled function beside plain Python, on copies of what it works on."""

from __future__ import annotations

import copy
import functools
import itertools
import logging
import types
from collections.abc import Callable
from typing import Any

import torch
from torch.utils import _pytree as pytree

from torch_backplane import torch_device
from torch_backplane.errors import BackplaneError

log = logging.getLogger("torch_backplane")
# What another order of sums may change, by dtype; others are compared exactly.
TOLERANCES = {
    torch.float64: (1e-9, 1e-11),
    torch.float32: (1e-4, 1e-5),
    torch.float16: (1e-2, 1e-3),
    torch.bfloat16: (5e-2, 1e-2),
    torch.complex64: (1e-4, 1e-5),
    torch.complex128: (1e-9, 1e-11),
}
_CODE = (type, types.ModuleType, types.FunctionType, types.BuiltinFunctionType, types.MethodType)


def difference(actual: Any, expected: Any, where: str = "the result") -> str:
    """The first thing that differs, for people; empty where all is the same."""
    return _difference(actual, expected, where, set())


def _difference(actual: Any, expected: Any, where: str, seen: set[tuple[int, int]]) -> str:
    if actual is expected or (id(actual), id(expected)) in seen:
        return ""
    seen.add((id(actual), id(expected)))
    if isinstance(actual, (types.FunctionType, types.MethodType)):
        return ""  # made anew by each call; what they lead to is not followed
    if type(actual) is not type(expected):
        return f"{where} is a {type(actual).__name__}, a {type(expected).__name__} in plain Python"
    if isinstance(expected, torch.Tensor):
        return _tensor_difference(actual, expected, where)
    if isinstance(expected, dict):
        if list(actual) != list(expected):
            return f"{where} has the keys {list(actual)}, {list(expected)} in plain Python"
        pairs = [(f"{where}[{key!r}]", actual[key], expected[key]) for key in expected]
    elif isinstance(expected, (list, tuple)):
        if len(actual) != len(expected):
            return f"{where} has {len(actual)} elements, {len(expected)} in plain Python"
        pairs = [
            (f"{where}[{i}]", a, e) for i, (a, e) in enumerate(zip(actual, expected, strict=True))
        ]
    elif type(expected).__eq__ is object.__eq__:
        pairs = []
    else:
        same = actual == expected or (actual != actual and expected != expected)
        return "" if same else f"{where} is {actual!r}, {expected!r} in plain Python"
    own = getattr(expected, "__dict__", None)
    if own is not None and not isinstance(expected, _CODE):
        pairs.append((f"vars({where})", vars(actual), own))
    for name, a, e in pairs:
        if found := _difference(a, e, name, seen):
            return found
    return ""


def _tensor_difference(actual: torch.Tensor, expected: torch.Tensor, where: str) -> str:
    for what in ("dtype", "shape", "device", "requires_grad"):
        a, e = getattr(actual, what), getattr(expected, what)
        if a != e:
            return f"{where}.{what} is {a}, {e} in plain Python"
    rtol, atol = TOLERANCES.get(expected.dtype, (0.0, 0.0))
    try:
        torch.testing.assert_close(
            actual.detach(), expected.detach(), rtol=rtol, atol=atol, equal_nan=True
        )
    except AssertionError as error:
        return f"{where} has other values: " + " ".join(str(error).split())
    return ""


class Copies:
    """The function and what a call of it may change, a second time: arguments, the objects and
    cells that they and the function lead to, and the globals that its module's functions name."""

    def __init__(self, target: Any, args: Any, kwargs: Any) -> None:
        self.memo: dict[int, Any] = {}
        self.kept: list[Any] = []  # whose addresses stand in the memo
        self.functions: dict[int, types.FunctionType] = {}
        self.cells: list[tuple[str, types.CellType, types.CellType]] = []
        self.globals: dict[int, tuple[dict[str, Any], dict[str, Any], set[str]]] = {}
        self._note_tensors((args, kwargs))
        self.original = (args, kwargs)
        self.arguments = copy.deepcopy((args, kwargs), self.memo)
        self.target = self._target(target)
        self.owner = (getattr(target, "__self__", None), getattr(self.target, "__self__", None))
        if isinstance(target, torch.nn.Module):
            self.owner = (target, self.target)

    def _note_tensors(self, nest: Any) -> None:
        """Copies of tensors with a history, which ``copy`` does not take, begin one of their own."""
        for leaf in pytree.tree_leaves(nest):
            if isinstance(leaf, torch.Tensor) and not leaf.is_leaf:
                made = leaf.detach().clone().requires_grad_()
                self.memo[id(leaf)] = made.view_as(made)
                self.kept.append(leaf)

    def _target(self, target: Any) -> Any:
        if isinstance(target, types.FunctionType):
            return self._function(target)
        if isinstance(target, types.MethodType):
            owner = target.__self__
            mine = owner if isinstance(owner, _CODE) else copy.deepcopy(owner, self.memo)
            return types.MethodType(self._target(target.__func__), mine)
        if isinstance(target, (*_CODE, functools.partial)):
            return target
        return copy.deepcopy(target, self.memo)

    def _function(self, function: types.FunctionType) -> types.FunctionType:
        if id(function) in self.functions:
            return self.functions[id(function)]
        space = self._space(function.__globals__)
        made = types.FunctionType(
            function.__code__,
            space[1],
            function.__name__,
            copy.deepcopy(function.__defaults__, self.memo),
            tuple(types.CellType() for _ in function.__closure__ or ()) or None,
        )
        self.functions[id(function)] = made
        self.kept.append(function)
        made.__kwdefaults__ = copy.deepcopy(function.__kwdefaults__, self.memo)
        made.__qualname__ = function.__qualname__
        made.__dict__.update(function.__dict__)
        names = function.__code__.co_freevars
        for name, old, new in zip(
            names, function.__closure__ or (), made.__closure__ or (), strict=True
        ):
            self.cells.append((name, old, new))
            try:
                new.cell_contents = self._value(old.cell_contents)
            except ValueError:  # an empty cell
                continue
        for name in _names(function.__code__) - space[2]:
            space[2].add(name)
            if name in function.__globals__:
                space[1][name] = self._value(function.__globals__[name])
        return made

    def _space(self, real: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any], set[str]]:
        return self.globals.setdefault(id(real), (real, dict(real), set()))

    def _value(self, value: Any) -> Any:
        if isinstance(value, types.FunctionType):
            is_ours = id(value.__globals__) in self.globals
            return self._function(value) if is_ours else value
        is_code = isinstance(value, _CODE) or hasattr(value, "_backplane_backend")
        return value if is_code else copy.deepcopy(value, self.memo)

    def effects(self) -> str:
        """What the real call left otherwise than the one on copies."""
        (args, kwargs), (own_args, own_kwargs) = self.original, self.arguments
        pairs = [
            (f"argument {i}", a, e) for i, (a, e) in enumerate(zip(args, own_args, strict=True))
        ]
        pairs += [(f"argument {name}", kwargs[name], own_kwargs[name]) for name in kwargs]
        pairs.append(("the object of the method", *self.owner))
        for name, old, new in self.cells:
            pairs.append((f"the closure's {name}", _content(old), _content(new)))
        for real, mine, names in self.globals.values():
            pairs += [(f"the global {n}", real.get(n), mine.get(n)) for n in sorted(names)]
        seen: set[tuple[int, int]] = set()
        for name, actual, expected in pairs:
            if found := _difference(actual, expected, name, seen):
                return found
        return ""


def _names(code: types.CodeType) -> set[str]:
    inner = [one for one in code.co_consts if isinstance(one, types.CodeType)]
    return set(code.co_names).union(*[_names(one) for one in inner])


def _content(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:
        return None


def outcome(function: Callable[..., Any], args: Any, kwargs: Any) -> tuple[Any, Exception | None]:
    try:
        return function(*args, **kwargs), None
    except Exception as error:
        return None, error


class Comparison:
    """Calls the compiled function, and plain Python on copies first.

    The caller gets what the compiled function gave. ``uncompared`` counts calls, by reason, whose
    arguments or state cannot be copied.
    """

    def __init__(self, target: Any, compiled: Callable[..., Any], name: str) -> None:
        self.target, self.compiled, self.name = target, compiled, name
        self.numbers = itertools.count(1)
        self.uncompared: dict[str, int] = {}

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        number = next(self.numbers)
        try:
            copies = Copies(self.target, args, kwargs)
        except Exception as error:
            reason = f"{type(error).__name__}: {error}".partition("\n")[0]
            self.uncompared[reason] = self.uncompared.get(reason, 0) + 1
            if self.uncompared[reason] == 1:
                log.warning("%s: call %d is not compared: %s", self.name, number, reason)
            return self.compiled(*args, **kwargs)
        random = torch_device.RandomStates()
        expected, plain_error = outcome(copies.target, *copies.arguments)
        random_after = torch_device.RandomStates()
        random.restore()
        actual, error = outcome(self.compiled, args, kwargs)
        found = _error_difference(error, plain_error) or (
            "" if error else difference(actual, expected)
        )
        found = found or copies.effects()
        if not found and difference(torch_device.RandomStates().states, random_after.states):
            found = "the random numbers that are drawn next"
        if found:
            raise BackplaneError("BP-0112", f"call {number} of {self.name}: {found}") from error
        if error:
            raise error
        return actual


def _error_difference(actual: Exception | None, expected: Exception | None) -> str:
    def text(error: Exception | None) -> str:
        return "nothing" if error is None else f"{type(error).__name__}: {error}"

    same = type(actual) is type(expected) and text(actual) == text(expected)
    return "" if same else f"it raises {text(actual)}; plain Python raises {text(expected)}"
