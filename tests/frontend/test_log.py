"""What BACKPLANE_LOG prints of a capture."""

from __future__ import annotations

import os
import sys

from patience import run as run_patiently

PROGRAM = """
import torch
from torch_backplane import frontend

SCALE = 2

@frontend.compile
def toy(a, b):
    x = a / (torch.abs(a) + 1)
    return x * b * SCALE

@frontend.compile
def prints(a):
    print("hello")
    return a

toy(torch.rand(3), torch.rand(3))
SCALE = 3
toy(torch.rand(3), torch.rand(3))
prints(torch.rand(3))
"""


def run(topics: str) -> str:
    done = run_patiently(
        [sys.executable, "-c", PROGRAM], env={**os.environ, "BACKPLANE_LOG": topics}
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "hello\n"
    return done.stderr


def test_all_topics() -> None:
    text = run("graph,guards,recompiles,breaks")
    assert "TRACED GRAPH __compiled_fn_0_toy_0" in text
    assert "call      div        aten.div.Tensor  %primals_1, %add\n" in text
    assert "TENSOR_MATCH a: float [3]" in text
    assert "EQUALS_MATCH __main__['SCALE']: 2" in text
    assert "RECOMPILE __compiled_fn_0_toy: EQUALS_MATCH __main__['SCALE']: 2; it is 3" in text
    assert "GRAPH BREAK in prints: the program calls print" in text
    assert "hint: print behind the compiled function" in text
    assert "<string>:14" in text  # the line that could not be captured


def test_nothing_unasked() -> None:
    assert run("transfers") == ""
