"""How graphs that the fuzzer found something with are tried again: each as an operand ``x`` makes it,
with two sizes, on every plugin."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch

from fuzz.graph_check import check_graph, make

SIZES = ({"n": 5, "m": 7}, {"n": 6, "m": 7})
SINGLE = torch.float32

PLUGINS = ("reference", "cpu_onednn", "opencl", "cuda")
on_each_plugin = pytest.mark.parametrize("plugin", PLUGINS)


def each_of(cases: Sequence[tuple[Callable[..., Any], torch.dtype, str]]) -> Any:
    """Parameters of a test: ``(graph, dtype, layout)``."""
    names = ("graph", "dtype", "layout")
    return pytest.mark.parametrize(names, cases, ids=lambda v: getattr(v, "__name__", ""))


def check_case(graph: Callable[..., Any], dtype: torch.dtype, layout: str, plugin: str) -> None:
    def inputs(n: int, m: int) -> dict[str, torch.Tensor]:
        return {"x": make((n, m), dtype, layout)}

    assert check_graph(graph, inputs, SIZES, plugin) is None
