"""Small differentiable programs, and what is done with their results: backwards of some, twice, with
graphs of their own, behind hooks and writes. What each step leaves and raises is compared with eager
mode, strides of gradients too."""

from __future__ import annotations

import ast
import contextlib
import dataclasses
import functools
import random
import re
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.utils.checkpoint
import torch_backplane
from compiling import compile_for

from fuzz.judge import Finding, reset
from fuzz.run import Fuzzer

SAME = ("{}.sin()", "{}.exp()", "{}.tanh()", "{}.sigmoid()", "{}.relu()", "{} * 2", "{} + 1", "-{}",
        "{}.clone()", "{}.square()", "{}.view(-1).view_as({})", "{}.unsqueeze(0).squeeze(0)",
        "{}.flip(0)", "{}.contiguous()", "{}.softmax(-1)", "{} / 3", "{}.detach()", "{}.cumsum(0)",
        "{}.sum(1, keepdim=True).expand_as({})", "{}.mean(0, keepdim=True) + {}", "{}.view_as({})",
        "checkpoint(lambda t: t.sin().exp(), {}, use_reentrant=False)", "torch.cat([{}, {}])[: {}.shape[0]]",
        "torch.where({} > 0.5, {}, 0.0)", "{}[:]", "{}.sum() * {}", "{}.sort(-1).values")  # fmt: skip
PAIR = ("{} * {}", "{} + {}", "{} - {}", "{} / (1 + {}.abs())", "torch.maximum({}, {})",
        "torch.addcmul({}, {}, {})", "({} @ {}.t()).sum(1, keepdim=True) + {}", "torch.lerp({}, {}, 0.3)",
        "{}.mul({}).add({})")  # fmt: skip
OTHER = ("{}.t()", "{}[0]", "{}[:, :1]", "{}.sum()", "{}.sum(1)", "{}.mean(1, keepdim=True)", "{}.view(-1)",
         "{}.unsqueeze(1)", "{}.max(1).values", "{}.chunk(1)[0]", "{}.diagonal()", "{}.permute(1, 0)",
         "({} > 0.5)", "{}.expand(2, *{}.shape)")  # fmt: skip
WRITES = ("{}.mul_(2)", "{}.add_({})", "{}.sin_()", "{}[0].mul_({}[0])", "{}.copy_({})", "{}.t().add_(1)",
          "{}[:, 0] = 0.5", "{}.detach_()")  # fmt: skip
SIZES = ((3, 4), (1, 4), (3, 1), (1, 1), (2, 5), (4, 3))

HEAD = """\
import torch
from torch.utils.checkpoint import checkpoint
DOOR, PLUGIN = {door!r}, {plugin!r}
"""
# It would run again, and what it was given is changed; PyTorch's own, of a result that is not the
# first of its node and keeps its gradient; TorchDynamo's.
REFUSED = (
    "backplane: gradients of gradients",
    "out != nullptr INTERNAL ASSERT",
    "RuntimeError when making fake tensor call",
)
# A view of what nobody has is none, and what is saved of a result is not what `detach_` changes.
LEFT_OUT = ("Can't detach views", "Trying to use a saved tensor")
GONE = ("has been modified by", "graph a second time")


def fill(text: str, pick: Callable[[], str]) -> str:
    return re.sub(r"\{\}", lambda _: pick(), text)


def make_program(seed: str, door: str, plugin: str) -> str:
    """``program``, and ``use``, which calls it once for each of some sizes."""
    chance = random.Random(seed)
    known, rest, lines = ["a", "b", "c"], [], []
    for number in range(chance.randint(1, 6)):
        name, kind = f"v{number}", chance.random()
        of = chance.choice(known)
        if kind < 0.45:
            lines.append(f"{name} = " + fill(chance.choice(SAME), lambda of=of: of))
            known.append(name)
        elif kind < 0.7:
            lines.append(f"{name} = " + fill(chance.choice(PAIR), lambda: chance.choice(known)))
            known.append(name)
        elif kind < 0.85:
            lines.append(f"{name} = " + fill(chance.choice(OTHER), lambda of=of: of))
            rest.append(name)
        else:
            written = [v for v in known if v not in "ab"]
            parts = iter([chance.choice(written)])
            lines.append(
                fill(chance.choice(WRITES), lambda parts=parts: next(parts, chance.choice(known)))
            )
    made = [name for name in (*known, *rest) if name.startswith("v")] or ["a"]
    results = chance.sample(made, min(len(made), chance.randint(1, 3)))
    if chance.random() < 0.1:
        results.append(chance.choice("abc"))
    steps = [make_step(chance, len(results)) for _ in range(chance.randint(1, 5))]
    sizes = chance.sample(SIZES, chance.randint(1, 3))
    body = "\n".join(f"    {line}" for line in [*lines, f"return [{', '.join(results)}]"])
    done = "\n".join(f"    yield lambda: {step}" for step in steps)
    return (
        f"{HEAD.format(door=door, plugin=plugin)}SIZES = {sizes!r}\n\n"
        f"def program(a, b, c):\n{body}\n\n"
        f"def use(f, see, hooks, a, b, c):\n    r = []\n"
        f"    yield lambda: r.extend({make_call(chance)})\n{done}\n"
    )


def make_call(chance: random.Random) -> str:
    return chance.choice(
        ["f(a, b, c)"] * 8
        + ["hooks(f, a, b, c)", "list(checkpoint(f, a, b, c, use_reentrant=False))",
           "f(a * 1, b, c)", "f(a, b, b.detach() * c)", "f(a, b.detach(), c)"]
    )  # fmt: skip


def make_step(chance: random.Random, count: int) -> str:
    one, other = (f"r[{chance.randrange(count)}]" for _ in range(2))
    flags = "".join(f", {name}=True" for name in ("retain_graph",) if chance.random() < 0.4)
    wanted = ", ".join(chance.sample("ab", chance.randint(1, 2)))
    texts = [
        *[f"see.done({one}.sum().backward({flags[2:]}))"] * 5,
        *[f"see(*torch.autograd.grad({one}.sum(), [{wanted}], allow_unused=True{flags}))"] * 5,
        f"see(*torch.autograd.grad({one}, [{wanted}], torch.ones_like({one}), allow_unused=True))",
        f"see.done(({one}.sum() + {other}.sum()).backward({flags[2:]}))",
        f"see(*torch.autograd.grad(({one} * {other}.detach().sum()).sum(), [{wanted}], "
        f"allow_unused=True{flags}))",
        f"see(*[g.square().sum().backward() for g in torch.autograd.grad({one}.sum(), [a], "
        f"create_graph=True)])",
        f"see(*torch.autograd.grad({one}.sum(), [{other}], allow_unused=True, retain_graph=True))",
        f"see.hooked('{one}', {one})",
        "see.hooked('a', a)",
        f"see.done({one}.retain_grad())",
        f"see.done({one}.mul_(2))",
        f"see.done({one}.detach().mul_(2))",
        f"see.done({one}.detach_())",
        "see.done(c.add_(1))",
        "see.done(a.detach().mul_(2))",
        f"see({one}.grad_fn is None, {one}.requires_grad, {one}.is_leaf)",
    ]
    return chance.choice(texts)


class Sight:
    """What is seen, step by step."""

    def __init__(self) -> None:
        self.seen: list[Any] = []

    def __call__(self, *values: Any) -> None:
        self.seen += [look(value) for value in values]

    def done(self, _: Any) -> None:
        self.seen.append("done")

    def hooked(self, name: str, tensor: torch.Tensor) -> None:
        tensor.register_hook(lambda gradient: self.seen.append((name, look(gradient))))


def look(value: Any) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    # Those of dims of one element say nothing.
    strides = tuple(
        stride
        for stride, size in zip(value.stride(), value.shape, strict=True)
        if size > 1 and value.numel()
    )
    return tuple(value.shape), strides, value.detach().clone(), value.requires_grad


def with_hooks(f: Callable[..., Any], *arguments: torch.Tensor) -> Any:
    with torch.autograd.graph.saved_tensors_hooks(torch.clone, lambda t: t):
        return f(*arguments)


@contextlib.contextmanager
def graphs_kept() -> Iterator[None]:
    """Every backward in it keeps its graph."""
    engine = torch.autograd._engine_run_backward

    def keep(results: Any, gradients: Any, _: bool, *others: Any, **named: Any) -> Any:
        return engine(results, gradients, True, *others, **named)

    torch.autograd._engine_run_backward = keep
    try:
        yield
    finally:
        torch.autograd._engine_run_backward = engine


@dataclasses.dataclass(frozen=True)
class Run:
    """At one size: what each step showed; ``shows_leaf``: a result is a view of an argument."""

    steps: list[list[Any]]
    shows_leaf: bool


def run(space: dict[str, Any], f: Callable[..., Any]) -> list[Run]:
    out = []
    for size in space["SIZES"]:
        generator = torch.Generator().manual_seed(7)
        leaves = [torch.rand(size, generator=generator) for _ in range(3)]
        for leaf in leaves[:2]:
            leaf.requires_grad_()
        sight = Sight()
        steps: list[list[Any]] = []
        shows_leaf = False
        program = space["use"](f, sight, with_hooks, *leaves)
        for step in program:
            sight.seen = []
            before = [None if leaf.grad is None else leaf.grad.clone() for leaf in leaves]
            try:
                step()
            except Exception as error:
                # By then some leaves have their gradients, and some hooks were called, in the order
                # of the engine.
                sight.seen = [type(error).__name__, str(error)[:90]]
                for leaf, gradient in zip(leaves, before, strict=True):
                    leaf.grad = gradient
            sight(*leaves, *[leaf.grad for leaf in leaves])
            if not steps:
                bases = [result._base for result in program.gi_frame.f_locals["r"]]
                shows_leaf = any(base is leaf for base in bases for leaf in leaves)
            steps.append(sight.seen)
        out.append(Run(steps, shows_leaf))
    return out


def same(a: Any, b: Any) -> bool:
    if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor):
        return a.shape == b.shape and torch.allclose(
            a.double(), b.double(), 1e-4, 1e-5, equal_nan=True
        )
    if isinstance(a, (list, tuple)) and isinstance(b, (list, tuple)):
        return len(a) == len(b) and all(map(same, a, b))
    return type(a) is type(b) and bool(a == b)


def is_tensor(seen: Any) -> bool:
    return isinstance(seen, tuple) and len(seen) == 4


def is_alike(ours: Any, eager: Any, sees_strides: bool) -> bool:
    if is_tensor(ours) and is_tensor(eager):
        # The tangent of a sum is one number for all elements. A view of it is one too in eager mode;
        # a graph reads tangents as they were recorded.
        repeats = any(stride == 0 for stride in (*ours[1], *eager[1]))
        lie_alike = repeats or not sees_strides or ours[1] == eager[1]
        return lie_alike and same((ours[0], *ours[2:]), (eager[0], *eager[2:]))
    if isinstance(ours, (list, tuple)) and isinstance(eager, (list, tuple)):
        return len(ours) == len(eager) and all(
            is_alike(a, b, sees_strides) for a, b in zip(ours, eager, strict=True)
        )
    return same(ours, eager)


def is_of_result(seen: Any) -> bool:
    return isinstance(seen, tuple) and str(seen[0]).startswith("r[")


def without_empty_hooks(step: list[Any]) -> list[Any]:
    """A hook of one result is called with nothing for a backward of another."""
    return [one for one in step if not (is_of_result(one) and one[1] is None)]


def without_hooks(step: list[Any]) -> list[Any]:
    return [one for one in step if not is_of_result(one)]


def error_of(step: list[Any]) -> str:
    """What it raises; empty where it does not."""
    is_error = isinstance(step[0], str) and step[0].endswith("Error")
    return f"{step[0]}: {step[1]}" if is_error else ""


def is_gone(error: str) -> bool:
    return any(words in error for words in GONE)


def kind_of(ours: list[Any], eager: list[Any]) -> str:
    if error_of(ours) or error_of(eager):
        short = [error_of(step)[:40] or "nothing" for step in (ours, eager)]
        return f"raises {short[0]}, expected {short[1]}"
    for mine, its in zip(ours, eager, strict=False):
        if not same(mine, its) and is_tensor(mine) and is_tensor(its):
            names = ("shape", "strides", "values", "requires_grad")
            return next(n for n, x, y in zip(names, mine, its, strict=True) if not same(x, y))
    return "hooks or presence"


def first_difference(ours: list[Any], eager: list[Any]) -> str:
    for mine, its in zip(ours, eager, strict=False):
        if not same(mine, its):
            return f"{mine}, eager has {its}"
    return f"{ours}, eager has {eager}"


def judge(text: str, compile: Callable[..., Any] | None = None) -> Finding | None:
    try:
        ast.parse(text)
        space: dict[str, Any] = {}
        exec(text, space)
        expected = run(space, space["program"])
        with graphs_kept():
            kept = run(space, space["program"])
    except Exception:  # a program that has lost what it needs
        return None
    if any(error_of(one.steps[0]) for one in expected):
        return None
    if compile is None:
        compile = functools.partial(compile_for, space["PLUGIN"], door=space["DOOR"])
    traced_before = torch_backplane.stats()["aot_graphs"]
    try:
        actual = run_compiled(space, compile)
    except Exception as error:
        return Finding("outside", f"{type(error).__name__}: {error}", text)
    is_traced = torch_backplane.stats()["aot_graphs"] > traced_before
    for size, (ours, eager, if_kept) in enumerate(zip(actual, expected, kept, strict=True)):
        number = first_that_differs(text, ours, eager, if_kept)
        if number is None or (is_traced and differs_by_aot(space, size, number, eager)):
            continue
        mine, its = ours.steps[number], eager.steps[number]
        place = f"size {size} step {number}"
        return Finding(kind_of(mine, its), f"{place}: {first_difference(mine, its)}", text)
    return None


def first_that_differs(text: str, ours: Run, eager: Run, if_kept: Run) -> int | None:
    sees_strides = not eager.shows_leaf  # it is as_strided, whose gradient lies as the leaf
    for number, (mine, its) in enumerate(zip(ours.steps, eager.steps, strict=True)):
        if is_alike(without_empty_hooks(mine), without_empty_hooks(its), sees_strides):
            continue
        # Gradients of gradients run the program again, whose results are others; a graph leads from
        # each result to all arguments, so a gradient that there is not comes by.
        is_of_hooks = is_alike(without_hooks(mine), without_hooks(its), sees_strides)
        if is_of_hooks and ("create_graph" in text or not any(map(is_of_result, its))):
            continue
        errors = error_of(mine), error_of(its)
        if all(map(is_gone, errors)) or all("is a view and" in error for error in errors):
            continue
        if any(map(errors[0].count, REFUSED)) or any(map(errors[1].count, LEFT_OUT)):
            return None
        # A graph may have kept what eager mode has given up, and saves no result beside a checkpoint.
        kept = if_kept.steps[number]
        has_kept = is_alike(without_empty_hooks(mine), without_empty_hooks(kept), sees_strides) or (
            is_gone(error_of(kept)) and "checkpoint(lambda" in text
        )
        return None if is_gone(errors[1]) and has_kept else number
    return None


def run_compiled(space: dict[str, Any], compile: Callable[..., Any]) -> list[Run]:
    reset()
    torch._dynamo.reset()
    return run(space, compile(space["program"]))


def differs_by_aot(space: dict[str, Any], size: int, number: int, eager: Run) -> bool:
    """Whether AOTAutograd does so with PyTorch's own kernels, too."""
    try:
        found = run_compiled(space, functools.partial(torch.compile, backend="aot_eager"))
    except Exception:
        return True
    return not is_alike(found[size].steps[number], eager.steps[number], not eager.shows_leaf)


def write(found: Finding, _: str) -> str:
    return f"# {found.kind}\n{found.text}"


def make_fuzzer(door: str = "own", plugin: str = "reference") -> Fuzzer:
    def make(seed: str) -> str:
        return make_program(seed, door, plugin)

    return Fuzzer("backwards", make, judge, judge_plainly, write)


def judge_plainly(text: str) -> Any:
    return judge(text, lambda f: f)
