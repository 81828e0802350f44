"""Results that are views of an input show what eager's show, wherever the input lies in its memory."""

# ruff: noqa: PLW0108 - what is compiled is a function of Python

from __future__ import annotations

import pytest
import torch
from autograd.helpers import Recorded
from torch_backplane._C import StatusError

aten = torch.ops.aten
VIEWS = {
    "imag": lambda x: aten.imag(x),
    "real": lambda x: aten.real(x),
    "view_as_real": lambda x: aten.view_as_real(x),
    "part of view_as_real": lambda x: aten.view_as_real(x)[1:, :, 1],
    "conj": lambda x: aten.conj(x),
    "part of conj": lambda x: aten.conj(x)[1:],
    "mH": lambda x: aten.mH(x),
    "imag of conj": lambda x: aten.imag(aten.conj(x)),
    "conj twice": lambda x: aten.conj(aten.conj(x)),
    "conj of conj's part": lambda x: aten.conj(aten.conj(x)[1:, 1:]),
    "neg": lambda x: aten.imag(aten.conj(x))[1:],
    "conj and itself": lambda x: (x[1:], aten.conj(x), aten.conj(x * 1)),
}
PLAIN = ("imag", "real", "view_as_real", "part of view_as_real")


def inputs() -> dict[str, torch.Tensor]:
    whole = torch.randn(4, 8, dtype=torch.complex64)
    return {"whole": whole[:, :4].contiguous(), "slice": whole[:, 3:7], "rows": whole[1:]}


@pytest.mark.parametrize("view", [name for name in VIEWS if name not in PLAIN])
@pytest.mark.parametrize("place", inputs())
def test_what_shows_an_input_conjugated_is_left_to_pytorch(view, place):
    with pytest.raises(StatusError, match="conjugated or negated"):
        Recorded(lambda x: VIEWS[view](x), 1)(inputs()[place])


@pytest.mark.parametrize("view", PLAIN)
@pytest.mark.parametrize("place", inputs())
def test_complex(view, place):
    x = inputs()[place]
    program = VIEWS[view]
    expected = program(x)
    expected = expected if isinstance(expected, tuple) else (expected,)
    compiled = Recorded(lambda x: program(x), 1)
    for _ in range(2):
        actual = compiled(x)
        assert len(actual) == len(expected)
        for a, e in zip(actual, expected, strict=True):
            assert torch.equal(a.resolve_conj().resolve_neg(), e.resolve_conj().resolve_neg())


@pytest.mark.parametrize("other", [torch.int32, torch.int16, torch.uint8, torch.float64])
def test_bits_of_another_type(other):
    x = torch.randn(4, 8)[:, 2:6]
    compiled = Recorded(lambda x: aten.view.dtype(x, other), 1)
    for _ in range(2):
        (actual,) = compiled(x)
        assert torch.equal(actual, x.view(other)) or bool(actual.isnan().any())


def test_pairs_as_complex():
    x = torch.randn(5, 2)[1:]
    (actual,) = Recorded(lambda x: aten.view_as_complex(x), 1)(x)
    assert torch.equal(actual, torch.view_as_complex(x))
    actual.mul_(2)
    assert torch.equal(actual, torch.view_as_complex(x)), "it shares the input's memory"
