"""Operators that call graphs, at torch.compile's door: what lies around them runs on the plugin."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch_backplane
from torch._higher_order_ops.associative_scan import associative_scan
from torch._higher_order_ops.while_loop import while_loop
from torch.nn import functional
from torch.nn.attention.flex_attention import flex_attention

BACKENDS = ("plugin:reference", "plugin:cpu_onednn")
LINEAR = torch.nn.Linear(4, 4)


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    torch._dynamo.reset()
    torch_backplane.reset()
    yield
    torch._dynamo.reset()


@torch.compiler.nested_compile_region
def region(x: torch.Tensor) -> torch.Tensor:
    return torch.relu(LINEAR(x)) + 1


def in_regions(x: torch.Tensor) -> torch.Tensor:
    return region(x) + region(x * 2)


def between(x: torch.Tensor) -> torch.Tensor:
    y = LINEAR(x).sigmoid()
    z = torch.cond(y.sum() > 3, lambda y: y.sin() * 2, lambda y: y.cos(), (y,))
    return functional.gelu(z) + x * 3


def two_of_two_results(x: torch.Tensor) -> dict[str, torch.Tensor]:
    y = x.sigmoid()
    a, b = torch.cond(y.sum() > 3, lambda y: (y.sin() * 2, y + 1), lambda y: (y.cos(), y - 1), (y,))
    c = torch.cond(b.sum() > 3, lambda y: y.sin() * 2, lambda y: y.cos(), (a * b,))
    return {"last": c - 1, "first": b.relu(), "as it is": a}


def write_between(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    y = x * 2
    row = y[0]
    z = torch.cond(x.sum() > 0, lambda y: y * 2, lambda y: y - 1, (y,))
    row.add_(1.0)
    return y * 2, z


def check(program: Callable[..., Any], compiled: Callable[..., Any], rows: int, grad: bool) -> None:
    x = torch.randn(rows, 4)
    results = []
    for function in (program, compiled):
        given = x.clone().requires_grad_(grad)
        LINEAR.zero_grad()
        out = function(given)
        leaves = torch.utils._pytree.tree_leaves(out)
        if grad:
            sum(leaf.sum() for leaf in leaves).backward()
        results.append((out, given.grad, LINEAR.weight.grad))
    torch.testing.assert_close(results[1], results[0])


@pytest.mark.parametrize(
    ("program", "dynamic", "grad", "backend"),
    [
        (between, None, False, "plugin:reference"),
        (between, None, True, "plugin:cpu_onednn"),
        (between, True, True, "plugin:reference"),
        (two_of_two_results, None, False, "plugin:cpu_onednn"),
        (two_of_two_results, True, True, "plugin:cpu_onednn"),
        (write_between, None, False, "plugin:cpu_onednn"),
        (write_between, True, False, "plugin:reference"),
    ],
)
def test_what_lies_around(
    program: Callable[..., Any], dynamic: bool | None, grad: bool, backend: str
) -> None:
    with torch_backplane.record() as graphs:
        compiled = torch.compile(program, backend=backend, dynamic=dynamic, fullgraph=True)
        for rows in (3, 5, 3):
            check(program, compiled, rows, grad)
    told = {graph["eager"] for graph in graphs if "eager" in graph}
    is_left = grad or program is between  # the linear layer's gradients
    assert ("the higher-order operator cond (unsupported)" in told) is is_left, graphs
    assert torch_backplane.stats()["plugin_nodes"] > 0


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("grad", [False, True])
def test_regions_are_what_they_call(grad: bool, backend: str) -> None:
    with torch_backplane.record() as graphs:
        compiled = torch.compile(in_regions, backend=backend, fullgraph=True)
        for _ in range(2):
            check(in_regions, compiled, 3, grad)
    stats = torch_backplane.stats()
    assert stats["eager_graphs"] == stats["fallback_nodes"] == stats["aot_graphs"] == 0, stats
    assert not any("eager" in graph for graph in graphs)


@pytest.mark.parametrize("grad", [False, True])
def test_scans_are_taken_apart(grad: bool) -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        swept = associative_scan(lambda a, b: a * b + 1, x.sigmoid(), 0, combine_mode="generic")
        return swept.sin() * x

    check(program, torch.compile(program, backend="plugin:cpu_onednn", fullgraph=True), 5, grad)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_loop(backend: str) -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        start = x.exp()
        _, out = while_loop(
            lambda i, _: i < 3, lambda i, x: (i + 1, x * 2), (torch.tensor(0), start)
        )
        return out.sin() * start

    compiled = torch.compile(program, backend=backend, fullgraph=True)
    for rows in (3, 5, 3):
        x = torch.randn(rows, 4)
        torch.testing.assert_close(compiled(x), program(x))
    assert torch_backplane.stats()["plugin_nodes"] >= 3


@pytest.mark.parametrize("backend", BACKENDS)
def test_flexible_attention(backend: str) -> None:
    def program(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        out = flex_attention(
            q * 2, k, v, score_mod=lambda s, b, h, i, j: s + (i - j) * 0.1 * b.cos()
        )
        return functional.gelu(out) @ k.mT

    q, k, v = (torch.randn(1, 2, 16, 8) for _ in range(3))
    compiled = torch.compile(program, backend=backend, fullgraph=True)
    torch.testing.assert_close(compiled(q, k, v), program(q, k, v))
    assert torch_backplane.stats()["plugin_nodes"] >= 3


def test_strict_names_the_operator() -> None:
    compiled = torch.compile(between, backend="plugin:reference", options={"strict": True})
    with pytest.raises(Exception, match=r"BP-0105.*the higher-order operator cond"):
        compiled(torch.randn(3, 4))


def within_another(x: torch.Tensor) -> torch.Tensor:
    def inner(x: torch.Tensor) -> torch.Tensor:
        return torch.cond(x.sum() > 5, lambda x: x.exp(), lambda x: x.tanh(), (x,))

    return torch.cond(x.sum() > 0, inner, lambda x: x - 1, (x * 2,)) + 1


def alone(x: torch.Tensor) -> torch.Tensor:
    return torch.cond(x.sum() > 0, torch.sin, torch.cos, (x,))


def by_a_size(x: torch.Tensor) -> torch.Tensor:
    return torch.cond(x.shape[0] > 3, lambda x: x.sum(0), lambda x: x.amax(0), (x,))


def with_sizes(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    rows = x.shape[0]
    return torch.cond(
        x.mean() > 0, lambda x: (x / rows, x), lambda x: (x * rows, x.abs()), (x.sin(),)
    )


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize(
    "program",
    [between, within_another, by_a_size, with_sizes, alone],
)
def test_branches_run_on_the_plugin_without_gradients(
    program: Callable[..., Any], dynamic: bool | None, backend: str
) -> None:
    options = {"strict": True}
    compiled = torch.compile(program, backend=backend, dynamic=dynamic, options=options)
    with torch.no_grad():
        for rows in (3, 5, 4, 3):
            for sign in (1, -1, 0.1):
                x = torch.rand(rows, 4) * sign
                torch.testing.assert_close(compiled(x), program(x))
    stats = torch_backplane.stats()
    assert stats["eager_graphs"] == stats["eager_calls"] == stats["fallback_nodes"] == 0, stats


def test_a_choice_within_vmap_is_of_each_element() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        return torch.vmap(lambda x: torch.cond(x.sum() > 0, torch.sin, torch.cos, (x,)))(x)

    x = torch.tensor([[1.0, 2.0], [-3.0, 1.0]])
    compiled = torch.compile(program, backend="plugin:reference")
    torch.testing.assert_close(compiled(x), program(x))


def test_switches_keep_a_graph_whole() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            y = x * 2
            z = torch.cond(x.sum() > 0, lambda y: y.sin(), lambda y: y.cos(), (y,))
        return z * x

    compiled = torch.compile(program, backend="plugin:reference")
    check(program, compiled, 3, True)
    assert torch_backplane.stats()["eager_graphs"] > 0
