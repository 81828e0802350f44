"""Sizes that change, forward and backward: few executables, none served to sizes it does not fit."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch_backplane
from autograd.helpers import record
from compiling import compile_for, mlp
from models import zoo

COUNT = 50
CHECKED = 7  # every so many sizes are compared with eager


def sizes(low: int, high: int, count: int = COUNT) -> list[int]:
    """`count` of them, each once where there are enough; the first is no boundary."""
    numbers = random.Random(3)
    found = numbers.sample(range(low, high + 1), min(count, high + 1 - low))
    found += [numbers.randint(low, high) for _ in range(count - len(found))]
    return found


def check_training(
    model: torch.nn.Module,
    eager: torch.nn.Module,
    feeds: list[Callable[[], dict[str, Any]]],
    loss_of: Callable[[Any], torch.Tensor],
) -> None:
    torch_backplane.reset()
    with torch_backplane.record() as graphs:
        compiled = compile_for("cpu_onednn", model, dynamic=True)
        for i, feed in enumerate(feeds):
            inputs = feed()
            model.zero_grad()
            loss = loss_of(compiled(**inputs))
            loss.backward()
            if i % CHECKED:
                continue
            eager.zero_grad()
            expected = loss_of(eager(**inputs))
            expected.backward()
            torch.testing.assert_close(loss, expected, rtol=1e-4, atol=1e-5)
            for (name, p), q in zip(model.named_parameters(), eager.parameters(), strict=True):
                if q.grad is not None:
                    torch.testing.assert_close(p.grad, q.grad, rtol=1e-3, atol=1e-5, msg=name)
    assert not [g["eager"] for g in graphs if "eager" in g]
    stats = torch_backplane.stats()
    assert stats["aot_graphs"] == 0
    roles = Counter(g["role"] for g in graphs)
    allowed = 2 + stats["class_splits"]
    assert roles["forward"] <= allowed and roles["backward"] <= allowed, (roles, stats)
    assert stats["class_splits"] <= 1, stats
    # One recording for each size, some at sizes that were made up, one that a float made vain.
    assert stats["recordings"] <= len(feeds) + 4 * stats["structures"] + 1


@pytest.mark.parametrize("name", ["bert", "gpt2"])
def test_batch_and_sequence(name: str) -> None:
    case = zoo.case(name)
    model, eager = case.build(), case.build()
    model(**case.inputs(labels=True))  # transformers settles the kind of loss at the first call
    pairs = zip(sizes(2, 12), sizes(3, 24), strict=True)
    feeds = [
        lambda b=b, s=s: case.inputs(batch=b, seq=s if s != b else s + 1, labels=True)
        for b, s in pairs
    ]
    check_training(model, eager, feeds, case.loss)


@pytest.mark.parametrize("name", ["vit", "resnet"])
def test_batch(name: str) -> None:
    case = zoo.case(name)
    model, eager = case.build(), case.build()
    model(**case.inputs(labels=True))
    feeds = [lambda b=b: case.inputs(batch=b, labels=True) for b in sizes(2, 60)]
    check_training(model, eager, feeds, case.loss)


def test_mlp() -> None:
    model, eager = mlp(), mlp()
    eager.load_state_dict(model.state_dict())
    feeds = [lambda b=b: {"input": torch.randn(b, 16)} for b in sizes(2, 99)]
    check_training(model, eager, feeds, lambda y: y.square().mean())


def test_thousand_sizes() -> None:
    model = mlp()
    torch_backplane.reset()
    with torch_backplane.record() as graphs:
        compiled = compile_for("cpu_onednn", model, dynamic=True)
        for batch in range(2, 1002):
            x = torch.randn(batch, 16)
            y = compiled(x)
            y.sum().backward()
            if batch % 97 == 0:
                torch.testing.assert_close(y, model(x), rtol=2e-5, atol=2e-6)
    assert Counter(g["role"] for g in graphs) == {"forward": 1, "backward": 1}
    assert torch_backplane.stats()["eager_calls"] == 0


def branch(x: torch.Tensor) -> torch.Tensor:
    return x.sin() if x.shape[0] > 4 else x.cos()


def unrolled(x: torch.Tensor) -> torch.Tensor:
    y = x[0]
    for i in range(1, x.shape[0]):
        y = torch.tanh(y + x[i])
    return y


def clipped(x: torch.Tensor) -> torch.Tensor:
    return x[: min(x.shape[0], 5)] * 2


def odd_or_even(x: torch.Tensor) -> torch.Tensor:
    return x.exp() if x.shape[0] % 2 else x.neg()


def transposed_view(x: torch.Tensor) -> torch.Tensor:
    return x.t().reshape(-1)  # a view where a size is 1


def size_as_number(x: torch.Tensor) -> torch.Tensor:
    return x / x.shape[0] + x.shape[0] ** -0.5 + torch.arange(x.shape[0]).unsqueeze(1)


def chosen(x: torch.Tensor) -> torch.Tensor:
    return torch.cdist(x, x + 1)  # another algorithm from 25 rows on


@pytest.mark.parametrize(
    "program",
    [branch, unrolled, clipped, odd_or_even, transposed_view, size_as_number, chosen],
    ids=lambda p: p.__name__,
)
@pytest.mark.parametrize("dynamic", [True, None])
def test_size_that_changes_the_graph(program: Any, dynamic: bool | None) -> None:
    with torch._dynamo.config.patch(recompile_limit=64):
        compiled = compile_for("reference", program, dynamic=dynamic)
        for rows in (3, 8, 2, 5, 6, 4, 7, 1, 26, 9, 30, 1, 3):
            x = torch.randn(rows, 3, requires_grad=True)
            copy = x.detach().clone().requires_grad_(True)
            y, expected = compiled(x), program(copy)
            torch.testing.assert_close(y, expected, rtol=2e-5, atol=1e-5)
            assert y.stride() == expected.stride()
            weights = torch.randn_like(expected)
            y.backward(weights)
            expected.backward(weights)
            torch.testing.assert_close(x.grad, copy.grad, rtol=1e-4, atol=1e-4)


def test_slices_of_one_tensor_are_one_program() -> None:
    base = torch.randn(100, 3, 4, requires_grad=True)

    def program(t: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return (t @ t.t()).exp(), t[1:].transpose(0, 1)

    torch_backplane.reset()
    compiled = compile_for("cpu_onednn", program)
    for i in range(100):
        for actual, expected in zip(compiled(base[i]), program(base[i]), strict=True):
            torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-5)
        (gradient,) = torch.autograd.grad(compiled(base[i])[0].sum(), base)
        if i % 30 == 0:
            expected = torch.autograd.grad(program(base[i])[0].sum(), base)[0]
            torch.testing.assert_close(gradient, expected, rtol=1e-4, atol=1e-4)
    stats = torch_backplane.stats()
    assert stats["recordings"] == 1 and stats["structures"] == 1, stats


@pytest.mark.parametrize(
    "program",
    [
        lambda t: t + t.storage_offset(),
        lambda t: t * 2 if t.storage_offset() % 8 == 0 else t * 3,
        lambda t: torch.as_strided(t, (2, 2), (1, 1), t.storage_offset() + 1) + 1,
        lambda t: torch.as_strided(t, (4,), (1,)) + 1,
        lambda t: torch.view_as_complex(t.view(2, 2)).real + 1,
    ],
)
def test_programs_that_read_the_offset(program: Callable[[torch.Tensor], torch.Tensor]) -> None:
    function = record(program, 1, "cpu_onednn")
    base = torch.arange(40.0)
    for start in (0, 4, 8, 4, 0):
        slice_ = base[start : start + 4]
        torch.testing.assert_close(function(slice_)[0], program(slice_))
