"""Graphs that the fuzzer found something with, each as small as it made them."""

from __future__ import annotations

import pytest
import torch

from fuzz.graph_check import check_graph, make

aten = torch.ops.aten
SIZES = ({"n": 5, "m": 7}, {"n": 6, "m": 7})
COMPLEX, SINGLE = torch.complex64, torch.float32


def imag_of_a_slice(x):
    return [aten.imag.default(x)]


def real_pairs_of_a_slice(x):
    return [aten.view_as_real.default(x)]


def conj_of_an_input(x):
    return [aten.conj.default(x)]


def adjoint_and_a_part(x):
    return [aten.adjoint.default(x), aten.slice.Tensor(x, 0, 1, 3)]


def number_in_a_tensor(x):
    return [aten.isin.Scalar_Tensor(1, x)]


FOUND = (
    (imag_of_a_slice, COMPLEX, "sliced"),
    (real_pairs_of_a_slice, COMPLEX, "sliced"),
    (conj_of_an_input, COMPLEX, "plain"),
    (adjoint_and_a_part, COMPLEX, "transposed"),
    (number_in_a_tensor, SINGLE, "plain"),
)


@pytest.mark.parametrize("plugin", ["reference", "cpu_onednn"])
@pytest.mark.parametrize(
    ("graph", "dtype", "layout"), FOUND, ids=lambda v: getattr(v, "__name__", "")
)
def test_found(graph, dtype, layout, plugin):
    def inputs(n, m):
        return {"x": make((n, m), dtype, layout)}

    assert check_graph(graph, inputs, SIZES, plugin) is None
