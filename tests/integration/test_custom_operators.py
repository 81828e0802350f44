"""Operators of the program: removed and registered anew under the same name, as a reloaded extension
does; kernels in Python, whose side effects are the program's."""

from __future__ import annotations

import gc

import pytest
import torch
import torch_backplane
from compiling import run_python


@pytest.mark.parametrize("door", ["own", "torch"])
def test_the_operator_of_now_runs(door: str) -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        return torch.ops.backplane_removed.foo(x) + 1

    torch._dynamo.reset()
    if door == "own":
        compiled = torch_backplane.compile(program, backend="reference")
    else:
        compiled = torch.compile(program, backend="plugin:reference")
    for function in (torch.sin, torch.cos, torch.exp) * 2:
        library = torch.library.Library("backplane_removed", "FRAGMENT")
        library.define("foo(Tensor x) -> Tensor")
        library.impl("foo", function, "CompositeExplicitAutograd")
        for requires_grad in (False, True):
            x = torch.ones(2, requires_grad=requires_grad)
            torch.testing.assert_close(compiled(x), function(x) + 1)
        library._destroy()
        del library
        if hasattr(torch.ops.backplane_removed, "foo"):
            delattr(torch.ops.backplane_removed, "foo")
        torch._dynamo.reset()
        gc.collect()


REMOVED_IN_A_LOOP = """
import gc, torch, torch_backplane
def program(x): return torch.ops.backplane_loop.foo(x) + 1
compiled = torch_backplane.compile(program, backend="eager")
for i in range(8):
    library = torch.library.Library("backplane_loop", "FRAGMENT")
    library.define("foo(Tensor x) -> Tensor")
    library.impl("foo", lambda x: x.sin(), "CompositeExplicitAutograd")
    x = torch.ones(2, requires_grad=bool(i % 2))
    torch.testing.assert_close(compiled(x), x.sin() + 1)
    library._destroy()
    del library
    if hasattr(torch.ops.backplane_loop, "foo"): delattr(torch.ops.backplane_loop, "foo")
    gc.collect()
"""


def test_no_place_in_memory_matters() -> None:
    """What is gone may happen to lie where the new one does: more than one process."""
    for _ in range(3):
        ran = run_python(REMOVED_IN_A_LOOP)
        assert ran.returncode == 0, ran.stderr


RUNS: list[int] = []


@torch.library.custom_op("backplane_tests::counted", mutates_args=())
def counted(x: torch.Tensor) -> torch.Tensor:
    RUNS.append(1)
    return x.clone()


@counted.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


@pytest.mark.parametrize("door", ["own", "torch"])
def test_a_kernel_runs_once_a_call(door: str) -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        return counted(x) + 1

    torch._dynamo.reset()
    if door == "own":
        compiled = torch_backplane.compile(program, backend="reference")
    else:
        compiled = torch.compile(program, backend="plugin:reference")
    for size in (2, 2, 3, 4, 4):
        RUNS.clear()
        compiled(torch.ones(size))
        assert len(RUNS) == 1
