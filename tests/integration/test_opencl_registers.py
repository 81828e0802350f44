"""Products and convolutions of plugin:opencl with the tiles that narrower registers hold."""

from __future__ import annotations

import pytest
from compiling import run_python

PROGRAM = """
import random

import torch
from torch.nn import functional as F

generator = torch.Generator().manual_seed(0)
draw = random.Random(0)


def rand(*dims):
    return torch.randn(*dims, generator=generator)


def check(function, *inputs):
    inputs = [t.requires_grad_() for t in inputs]
    torch._dynamo.reset()
    options = {"report": False, "strict": True}
    compiled = torch.compile(function, backend="plugin:opencl", fullgraph=True, options=options)
    for t, best in zip(run(compiled, inputs), run(function, [t.detach().double() for t in inputs])):
        assert (t - best).abs().max() <= 1e-4 * (1 + best.abs().max()), (function, t, best)


def run(function, inputs):
    inputs = [t.requires_grad_() for t in inputs]
    result = function(*inputs)
    return [result.detach(), *torch.autograd.grad(result.square().sum(), inputs)]


for rows in (1, 2, 3, 5, 7, 8, 9, 30):
    for depth, columns in ((32, 64), (41, 48), (17, 100), (6, 30), (20, 1)):
        check(torch.mm, rand(rows, depth), rand(depth, columns))
        check(lambda a, b: a @ b.mT, rand(2, rows, depth), rand(2, columns, depth))
for kernel in (1, 3, 5, 7):
    for groups in (1, 4):
        stride, padding = draw.choice((1, 2)), draw.choice((0, kernel // 2))
        width = draw.choice((9, 33))
        check(
            lambda x, w: F.conv2d(x, w, stride=stride, padding=padding, groups=groups),
            rand(2, 4, 12, width),
            rand(8, 4 // groups, kernel, kernel),
        )
print("done")
"""


@pytest.mark.parametrize(
    "floats", [8, *(pytest.param(floats, marks=pytest.mark.long) for floats in (4, 16))]
)
def test_products_at_each_width(floats: int, tmp_path) -> None:
    ran = run_python(
        PROGRAM,
        {"BACKPLANE_OPENCL_VECTOR_FLOATS": str(floats), "BACKPLANE_CACHE_DIR": str(tmp_path)},
    )
    assert ran.returncode == 0 and ran.stdout.split()[-1:] == ["done"], ran.stderr[-2000:]


def test_a_width_that_is_none() -> None:
    ran = run_python(
        "import torch; torch.compile(torch.neg, backend='plugin:opencl')(torch.ones(2))",
        {"BACKPLANE_OPENCL_VECTOR_FLOATS": "wide"},
    )
    assert "BACKPLANE_OPENCL_VECTOR_FLOATS=wide is no number of floats" in ran.stdout + ran.stderr
