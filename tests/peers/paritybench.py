"""Modules of some 2,000 public projects, as ``pytorch-jit-paritybench`` collects them, each file with
a list of (class, arguments of it, arguments of a call).

A module is run without gradients, with its inputs repeated along their first dimension, and in
training, each for two calls, as it is and through a door, on copies. Both are held against the same
in float64: a difference is a finding where the door is further from it than PyTorch is, and by more
than rounding explains.
"""

from __future__ import annotations

import ast
import collections.abc
import contextlib
import importlib.abc
import importlib.machinery
import importlib.util
import random
import re
import signal
import sys
import time
import types
import unittest
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import numpy
import torch
import torch_backplane
from torch.utils import _pytree as pytree

from peers.torch_suites import Case, Door, cotangents, tensors

Observed = list[tuple[str, Any]]

MOST_SECONDS = 3.0  # of the processor, for what PyTorch does in a case: others are left out
SEEDS = 3  # a finding is one with each: a value beside the kink of a ReLU is met with one of them
MODES = ["inference", "repeated", "training"]
# Relative distance to what float64 gives, in the norm over a whole tensor, that is never a finding.
SMALLEST_ERROR = {torch.float32: 2e-5, torch.complex64: 2e-5, torch.float64: 1e-10}
LARGEST_RATIO = 4.0  # of this distance to PyTorch's own
# Relative noise in weights and inputs that stands for what rounding does in a deep model: it shows
# how far PyTorch's own values move where a ReLU or a maximum is near its kink.
NOISE, NOISY_RUNS = 2e-6, 4
SHARE = 1e-6  # of the largest tensor of its kind, below which a tensor is rounding alone


class DummyLayer(torch.nn.ReLU):
    expansion = 1


class Config(dict[str, Any]):
    __getattr__ = dict.__getitem__


def mock_layer(
    in_features: int | None = None, out_features: int | None = None, *_: Any, **kwargs: Any
) -> torch.nn.Module:
    if in_features and out_features:
        return torch.nn.Linear(in_features, out_features, **kwargs)
    return DummyLayer()


def patch_functional() -> None:
    """Projects import ``torch.functional`` and ``torch.nn.functional`` under one name."""
    one, other = torch.functional, torch.nn.functional
    names = {module: {n for n in dir(module) if re.match(r"[a-z]", n)} for module in (one, other)}
    for here, there in ((one, other), (other, one)):
        for name in names[there] - names[here]:
            setattr(here, name, getattr(there, name))


def helpers() -> types.ModuleType:
    """What each file imports of the collection itself."""
    module = types.ModuleType("_paritybench_helpers")
    module.__dict__.update(
        _mock_config=Config,
        _mock_layer=mock_layer,
        patch_functional=patch_functional,
        _paritybench_base=unittest.TestCase,
        _fails_compile=lambda: lambda function: function,
    )
    return module


def mocked(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    return MagicMock(__name__=name)


class Missing(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Packages that a file imports and that are not installed, and modules that are gone."""

    def __init__(self, names: set[str]) -> None:
        self.names = names

    def find_spec(self, fullname: str, *_: Any, **__: Any) -> importlib.machinery.ModuleSpec | None:
        if fullname.partition(".")[0] not in self.names and fullname not in self.names:
            return None
        return importlib.machinery.ModuleSpec(fullname, self, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        module = types.ModuleType(spec.name)
        module.__dict__.update(__path__=[], __getattr__=mocked)
        return module

    def exec_module(self, module: types.ModuleType) -> None:
        pass


def missing(source: str) -> set[str]:
    imported = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            imported |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            imported.add(node.module.partition(".")[0])
    return {n for n in imported if n not in sys.modules and not importlib.util.find_spec(n)}


def load(path: Path) -> types.ModuleType:
    sys.modules["_paritybench_helpers"] = helpers()
    for name in dir(collections.abc):
        if name[0].isupper():
            setattr(collections, name, getattr(collections.abc, name))
    source = path.read_text()
    names = missing(source)
    if not importlib.util.find_spec("tensorboard"):
        names.add("torch.utils.tensorboard")
    sys.meta_path.insert(0, Missing(names))
    code = compile(source, str(path), "exec")
    while True:
        module = types.ModuleType(path.stem)
        sys.modules[module.__name__] = module
        try:
            exec(code, module.__dict__)
        except ModuleNotFoundError as error:
            if error.name is None or error.name in names:
                raise
            names.add(error.name)
        else:
            return module


def seed(number: int) -> None:
    random.seed(number)
    numpy.random.seed(number)
    torch.manual_seed(number)


def map_floats(change: Callable[[torch.Tensor], torch.Tensor], value: Any) -> Any:
    def changed(leaf: Any) -> Any:
        is_float = isinstance(leaf, torch.Tensor) and leaf.is_floating_point()
        return change(leaf) if is_float else leaf

    return pytree.tree_map(changed, value)


def repeat(value: Any) -> Any:
    def twice(leaf: Any) -> Any:
        if isinstance(leaf, torch.Tensor) and leaf.dim():
            return torch.cat([leaf, leaf.flip(0)])
        return leaf

    return pytree.tree_map(twice, value)


def noisy(value: Any, number: int) -> Any:
    def moved(leaf: torch.Tensor) -> torch.Tensor:
        generator = torch.Generator().manual_seed(number)
        return leaf.detach() * (1 + NOISE * torch.randn(leaf.shape, generator=generator))

    return map_floats(moved, value)


def observe(
    make: Callable[[], torch.nn.Module],
    give: Callable[[], Any],
    mode: str,
    base: int,
    compile_function: Callable[[Any], Any],
    wide: bool = False,
    noise: int = 0,
) -> Observed:
    """What two calls show, and what the last of them raised."""
    seed(base)
    module = make()
    module.train(mode == "training")
    if wide:
        module = module.double()
    parameters, buffers = [*module.parameters()], [*module.buffers()]
    if noise:
        with torch.no_grad():
            for parameter in parameters:
                parameter.copy_(noisy(parameter, noise))
    called = compile_function(module)
    seen: Observed = []
    for number in range(2):
        seed(base + 1 + number)
        given = give()
        if wide:
            given = map_floats(torch.Tensor.double, given)
        if noise:
            given = noisy(given, noise)
        if mode == "repeated" and number:
            given = repeat(given)
        if mode == "training":
            given = map_floats(lambda leaf: leaf.detach().requires_grad_(), given)
        args, kwargs = given
        seed(base + 3 + number)
        try:
            with torch.set_grad_enabled(mode == "training"):
                result = called(*args, **kwargs)
            if mode == "training":
                leaves = [t for t in [*tensors(given), *parameters] if t.requires_grad]
                results = [r for r in tensors(result) if r.requires_grad]
                if results and leaves:
                    found = torch.autograd.grad(
                        results, leaves, cotangents(results), allow_unused=True
                    )
                    seen += [(f"call {number}, gradient", g) for g in found]
        except Exception as error:
            return [*seen, (f"call {number} raises", error)]
        for leaf in pytree.tree_leaves(result):
            seen.append((f"call {number}, result", copy_of(leaf)))
        seen += [(f"call {number}, argument", copy_of(leaf)) for leaf in tensors(given)]
        seen += [(f"call {number}, state", leaf.clone()) for leaf in buffers]
        if mode == "training":
            with torch.no_grad():
                for parameter in parameters:
                    parameter.mul_(0.99)
    return seen


def copy_of(leaf: Any) -> Any:
    return leaf.detach().clone() if isinstance(leaf, torch.Tensor) else leaf


def norm(value: torch.Tensor) -> float:
    return float(torch.linalg.vector_norm(value.reshape(-1)))


def largest(observed: Observed, name: str) -> float:
    seen = [t for n, t in observed if n == name and isinstance(t, torch.Tensor)]
    return max((norm(t.nan_to_num(0, 0, 0)) for t in seen if t.is_floating_point()), default=0.0)


def difference(
    observed: Observed, expected: Observed, true: Observed | None, near: list[Observed]
) -> str:
    """The first place that rounding does not explain, or an empty text. ``near``: what PyTorch gives
    beside the program's values."""
    near = [other for other in near if len(other) == len(expected)]
    if len(observed) != len(expected):
        return f"{observed[-1][0]} {observed[-1][1]!r} instead of {expected[-1][0]}"
    if true is not None and len(true) != len(expected):
        true = None
    for place, ((name, a), (_, b)) in enumerate(zip(observed, expected, strict=True)):
        at = f"{name} ({place})"
        if isinstance(b, Exception):
            if not isinstance(a, type(b)):
                return f"{at}: {a!r} instead of {b!r}"
        elif not isinstance(b, torch.Tensor):
            if type(a) is not type(b):
                return f"{at}: {type(a)} instead of {type(b)}"
        elif not isinstance(a, torch.Tensor):
            return f"{at}: {type(a)} instead of a tensor"
        elif (a.dtype, a.shape, a.layout) != (b.dtype, b.shape, b.layout):
            return f"{at}: {a.dtype} {list(a.shape)} instead of {b.dtype} {list(b.shape)}"
        elif a.layout == torch.strided:
            c = true[place][1] if true is not None else b
            if not isinstance(c, torch.Tensor) or c.shape != b.shape:
                c = b
            others = [other[place][1] for other in near]
            what = distance(a, b, c, others)
            if what and distance(a, b, c, others, SHARE * largest(expected, name)):
                return f"{at}: {what}"
    return ""


def distance(
    a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, near: list[Any], allowed: float = 0
) -> str:
    """How far ``a`` and PyTorch's ``b`` are from float64's ``c``, where rounding does not explain it.
    ``allowed``: a distance that is none."""
    near = [t for t in near if isinstance(t, torch.Tensor) and t.shape == b.shape]
    if torch.equal(a, b):
        return ""
    if not b.is_floating_point() and not b.is_complex():
        return f"{int((a != b).sum())} of {b.numel()} elements differ"
    if a.isnan().ne(b.isnan()).any() or a.isinf().ne(b.isinf()).any():
        return "other elements are not finite"
    kept = b.isfinite() & c.isfinite()
    if not kept.all():
        a, b, c, *near = (t[kept] for t in (a, b, c, *near))
    limit, wide = SMALLEST_ERROR.get(b.dtype, 2e-2), torch.promote_types(b.dtype, torch.float64)
    size, apart = norm(b), norm(a - b)
    if apart <= max(limit * size, allowed):
        return ""
    a, b, c = a.to(wide), b.to(wide), c.to(wide)
    size, ours = norm(c), norm(a - c)
    eager = max(norm(t.to(wide) - c) for t in (b, *near))
    if ours <= max(limit * size, LARGEST_RATIO * eager, allowed):
        return ""
    return f"{ours / max(size, 1e-30):.3g} from float64, PyTorch {eager / max(size, 1e-30):.3g}"


class TooLong(BaseException):
    """A program's loops in Python, which nothing else ends."""


@contextlib.contextmanager
def interrupted_after(seconds: float) -> Iterator[None]:
    """Of the processor. In the main thread."""

    def interrupt(*_: Any) -> None:
        raise TooLong

    before = signal.signal(signal.SIGPROF, interrupt)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def alike(first: Observed, second: Observed) -> bool:
    return not difference(first, second, None, [])


def check(door: Door, entry: Any, mode: str) -> None:
    try:
        compare(door, entry, mode)
    finally:
        torch_backplane.reset()


def compare(door: Door, entry: Any, mode: str) -> None:
    make_class, init, forward = entry[:3]

    def make() -> torch.nn.Module:
        args, kwargs = init()
        made = make_class(*args, **kwargs)
        if not isinstance(made, torch.nn.Module):
            raise unittest.SkipTest("no module")
        return made

    def as_it_is(module: torch.nn.Module) -> torch.nn.Module:
        return module

    what = ""
    for number in range(SEEDS):
        base = 100 * number
        start = time.process_time()
        try:
            with interrupted_after(3 * MOST_SECONDS):
                expected = observe(make, forward, mode, base, as_it_is)
        except TooLong as error:
            raise unittest.SkipTest(f"takes PyTorch more than {MOST_SECONDS} s") from error
        except Exception as error:
            raise unittest.SkipTest(f"eager: {type(error).__name__}: {error}") from error
        if expected and isinstance(expected[0][1], Exception):
            raise unittest.SkipTest(f"eager: {expected[0][1]!r}")
        if time.process_time() - start > MOST_SECONDS:
            raise unittest.SkipTest(f"takes PyTorch more than {MOST_SECONDS} s")
        torch._dynamo.reset()
        observed = observe(make, forward, mode, base, door.compile)
        if alike(observed, expected):
            return
        if not alike(observe(make, forward, mode, base, as_it_is), expected):
            raise unittest.SkipTest("eager differs from call to call")
        try:
            true = observe(make, forward, mode, base, as_it_is, wide=True)
        except Exception:
            true = None
        near = [
            observe(make, forward, mode, base, as_it_is, noise=1 + n) for n in range(NOISY_RUNS)
        ]
        what = difference(observed, expected, true, near)
        if not what:
            return
        if door.name == "torch":
            torch._dynamo.reset()
            front = observe(make, forward, mode, base, lambda m: torch.compile(m, backend="eager"))
            if alike(observed, front):
                raise unittest.SkipTest(f"TorchDynamo itself: {what}")
    raise AssertionError(what)


def cases(path: Path) -> Iterator[Case]:
    """Of one file; raises what its import raises."""
    for number, entry in enumerate(getattr(load(path), "TESTCASES", [])):
        for mode in MODES:
            name = f"{number:03d}.{entry[0].__name__}.{mode}"
            yield Case(name, lambda door, entry=entry, mode=mode: check(door, entry, mode))
