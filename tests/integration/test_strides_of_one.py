"""A dim of one element has the stride that eager mode gives it, also where the program was compiled at
other sizes, whose strides say something there."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from compiling import DOORS, compile_for
from torch.nn import functional as F

PROGRAMS = {
    "relu": torch.relu,
    "flip": lambda x: x.flip(0),
    "hardtanh": F.hardtanh,
    "hardswish": F.hardswish,
    "transpose": lambda x: (x * 2).t(),
    "both": lambda x: (x * 2, (x * 2).t()),
    "slice of an argument": lambda x: x[:1],
    "product": lambda x: x @ x.t(),
}
LAYOUTS = {
    "dense": torch.randn,
    "transposed": lambda a, b: torch.randn(b, a).t(),
    "sliced": lambda a, b: torch.randn(a, b + 2)[:, :b],
}
SIZES = [((4, 5), (1, 5), (4, 1), (1, 1)), ((1, 5), (4, 5), (6, 7))]


def _facts(results: Any) -> list[Any]:
    results = results if isinstance(results, tuple) else (results,)
    return [(r.shape, r.stride(), r.storage_offset()) for r in results]


@pytest.mark.parametrize("gradients", [False, True])
@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("door", DOORS)
def test_results_have_the_strides_of_their_own_sizes(
    name: str, layout: str, sizes: tuple[tuple[int, int], ...], gradients: bool, door: str
) -> None:
    program = PROGRAMS[name]
    compiled = compile_for("cpu_onednn", program, door)
    for size in sizes:
        x = LAYOUTS[layout](*size).requires_grad_(gradients)
        for _ in range(2):
            torch.testing.assert_close(compiled(x), program(x))
            assert _facts(compiled(x)) == _facts(program(x))


# TorchDynamo takes the stride of another size for it, with any back end.
def test_a_program_reads_the_stride_of_its_own_size() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        return x * float((x.t() + 1).stride(0))

    compiled = compile_for("cpu_onednn", program, "own")
    for size in SIZES[0]:
        x = torch.randn(size)
        assert torch.equal(compiled(x), program(x))


PICTURES = {
    "batch norm": lambda x: F.batch_norm(x, None, None, training=True),
    "pixel shuffle": lambda x: F.pixel_shuffle(torch.cat([x] * 4, 1), 2),
}


@pytest.mark.parametrize("size", [(2, 1, 4, 4), (2, 3, 1, 1), (1, 1, 1, 5), (2, 3, 4, 4)])
@pytest.mark.parametrize("name", PICTURES)
@pytest.mark.parametrize("door", DOORS)
def test_pictures_in_channels_last(name: str, size: tuple[int, ...], door: str) -> None:
    if size == (2, 3, 1, 1) and name == "batch norm":
        size = (4, 3, 1, 1)
    program = PICTURES[name]
    x = torch.randn(size).to(memory_format=torch.channels_last)
    assert _facts(compile_for("cpu_onednn", program, door)(x)) == _facts(program(x))


WRITES = {
    "relu_": lambda y: y.relu_(),
    "clamp_": lambda y: y.clamp_(0),
    "leaky_relu_": F.leaky_relu_,
    "masked_fill_": lambda y: y.masked_fill_(torch.ones(1, dtype=torch.bool), 1.0),
    "index_add_": lambda y: y.index_add_(0, torch.tensor([0]), torch.ones(1, 8, 1, 1)),
    "of a part": lambda y: (y[0].relu_(), y)[1],
    "out=": lambda y: torch.mul(y, 2, out=y),
}


@pytest.mark.parametrize(
    ("name", "gradients"),
    [*((name, False) for name in WRITES), *((name, True) for name in WRITES if name != "out=")],
)
@pytest.mark.parametrize("door", DOORS)
def test_a_write_leaves_the_strides_of_one_element(name: str, gradients: bool, door: str) -> None:
    """They say that it lies channels last, which what comes next goes by."""
    weight = torch.randn(8, 4, 1, 1)

    def program(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = WRITES[name](F.conv2d(x, weight))
        return F.interpolate(y, size=(2, 2)), y

    compiled = compile_for("cpu_onednn", program, door)
    x = torch.randn(2, 1, 1, 4).permute(0, 3, 1, 2).requires_grad_(gradients)
    assert program(x)[0].stride() == (32, 1, 16, 8)
    torch.testing.assert_close(compiled(x), program(x))
    assert _facts(compiled(x)) == _facts(program(x))
