"""Small differentiable programs, and what is done with their results: backwards of some, twice, with
graphs of their own, behind hooks and writes. What each step leaves and raises is compared with eager
mode, strides of gradients too."""

from __future__ import annotations

import ast
import functools
import random
import re
from collections.abc import Callable
from typing import Any

import torch
import torch.utils.checkpoint
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
DOOR = {door!r}
"""
WORDS = re.compile(r"[^\w ]+.*", re.DOTALL)


def fill(text: str, pick: Callable[[], str]) -> str:
    return re.sub(r"\{\}", lambda _: pick(), text)


def make_program(seed: str, door: str) -> str:
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
        f"{HEAD.format(door=door)}SIZES = {sizes!r}\n\n"
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
    strides = value.stride() if value.numel() else ()
    return tuple(value.shape), strides, value.detach().clone(), value.requires_grad


def with_hooks(f: Callable[..., Any], *arguments: torch.Tensor) -> Any:
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t * 1, lambda t: t):
        return f(*arguments)


def run(space: dict[str, Any], f: Callable[..., Any]) -> list[tuple[str, list[Any]]]:
    """By step, what was seen."""
    out = []
    for round, size in enumerate(space["SIZES"]):
        generator = torch.Generator().manual_seed(7)
        leaves = [torch.rand(size, generator=generator) for _ in range(3)]
        for leaf in leaves[:2]:
            leaf.requires_grad_()
        sight = Sight()
        for number, step in enumerate(space["use"](f, sight, with_hooks, *leaves)):
            sight.seen = []
            try:
                step()
            except Exception as error:
                sight(type(error).__name__, WORDS.sub("", str(error))[:60])
            sight(*leaves, *[leaf.grad for leaf in leaves])
            out.append((f"size {round} step {number}", sight.seen))
    return out


def same(a: Any, b: Any) -> bool:
    if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor):
        return a.shape == b.shape and torch.allclose(
            a.double(), b.double(), 1e-4, 1e-5, equal_nan=True
        )
    if isinstance(a, (list, tuple)) and isinstance(b, (list, tuple)):
        return len(a) == len(b) and all(map(same, a, b))
    return type(a) is type(b) and bool(a == b)


def kind_of(ours: Any, eager: Any) -> str:
    for mine, its in zip(ours, eager, strict=False):
        if same(mine, its):
            continue
        texts = [one for one in (mine, its) if isinstance(one, str)]
        if texts and any(text.endswith("Error") for text in texts):
            return "raises otherwise"
        if isinstance(mine, tuple) and isinstance(its, tuple) and len(mine) == len(its) == 4:
            names = ("shape", "strides", "values", "requires_grad")
            return next(n for n, x, y in zip(names, mine, its, strict=True) if not same(x, y))
        return "hooks or presence"
    return "hooks or presence"


def judge(text: str, compile: Callable[..., Any] | None = None) -> Finding | None:
    try:
        ast.parse(text)
        space: dict[str, Any] = {}
        exec(text, space)
        expected = run(space, space["program"])
    except Exception:  # a program that has lost what it needs
        return None
    if expected and isinstance(expected[0][1][0], str) and expected[0][1][0].endswith("Error"):
        return None
    reset()
    torch._dynamo.reset()
    if compile is None:
        compile = functools.partial(compile_for, "reference", door=space["DOOR"])
    try:
        actual = run(space, compile(space["program"]))
    except Exception as error:
        return Finding("outside", f"{type(error).__name__}: {error}", text)
    for (place, eager), (_, ours) in zip(expected, actual, strict=True):
        if not same(ours, eager):
            return Finding(kind_of(ours, eager), f"{place}: {ours}, eager has {eager}", text)
    return None


def write(found: Finding, _: str) -> str:
    return f"# {found.kind}\n{found.text}"


def make_fuzzer(door: str = "own") -> Fuzzer:
    return Fuzzer("backwards", lambda seed: make_program(seed, door), judge, judge_plainly, write)


def judge_plainly(text: str) -> Any:
    return judge(text, lambda f: f)
