"""Who writes an argument between forward and backward changes no gradient, unless eager mode keeps
the argument itself: then the backward is an error, or reads what was written behind autograd's back.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from compiling import DOORS, compile_for

Program = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]

PROGRAMS: dict[str, Program] = {
    "itself": lambda x, w: x * w,
    "view": lambda x, w: x.reshape(1, 3).expand(2, 3) * w,
    "contiguous": lambda x, w: x.contiguous() * w,
    "clone": lambda x, w: x.clone() * w,
    "detached clone": lambda x, w: x.clone().detach() * w,
    "view of a clone": lambda x, w: x.clone().reshape(3, 1) * w,
    "copy": lambda x, w: x.to(torch.float32, copy=True) * w,
    "computed": lambda x, w: (x + 0) * w,
    "two of one": lambda x, w: x.sin() * w + x.cos() * w * w,
    "cast": lambda x, w: x.double() * w,
    "clone and itself": lambda x, w: x.clone() * w + x * w,
}


class Holder(torch.nn.Module):
    x: torch.Tensor

    def __init__(self, program: Program) -> None:
        super().__init__()
        self.register_buffer("x", torch.tensor([1.0, 2.0, 3.0]))
        self.program = program

    def forward(self, w: torch.Tensor) -> torch.Tensor:
        return self.program(self.x, w)


def gradient(
    call: Callable[[torch.Tensor], torch.Tensor],
    write: Callable[[torch.Tensor], Any],
    x: torch.Tensor,
) -> Any:
    x.copy_(torch.tensor([1.0, 2.0, 3.0]))
    w = torch.tensor([2.0, 3.0, 4.0], requires_grad=True)
    y = call(w)
    write(x)
    try:
        y.sum().backward()
    except RuntimeError as error:
        return str(error)[:65]
    return w.grad


WRITES: dict[str, Callable[[torch.Tensor], Any]] = {
    "not": lambda x: None,
    "in place": lambda x: x.mul_(2),
    "behind autograd": lambda x: x.data.mul_(2),
}


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("kind", ["argument", "buffer"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_gradient(name: str, kind: str, door: str) -> None:
    program, holder = PROGRAMS[name], Holder(PROGRAMS[name])
    target = holder if kind == "buffer" else program
    function = compile_for("reference", target, dynamic=False, door=door)
    compiled = function if kind == "buffer" else functools.partial(function, holder.x)
    for how, write in WRITES.items():
        if name == "clone and itself" and how == "behind autograd":
            continue  # one memory for both
        expected, got = gradient(holder, write, holder.x), gradient(compiled, write, holder.x)
        if isinstance(expected, str):
            assert got == expected, how
        else:
            torch.testing.assert_close(got, expected, msg=how)
