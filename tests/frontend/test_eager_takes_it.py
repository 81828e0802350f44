"""Programs that eager mode runs: no exception of ours may stand in their way."""

from __future__ import annotations

import contextlib
import gc
import subprocess
import sys
import typing
from pathlib import Path
from typing import Annotated, Any, Generic, TypeVar, TypeVarTuple

import pytest
import torch
from frontend.helpers import check
from torch import nn
from torch_backplane import frontend

X = torch.linspace(-1, 1, 6)
T = TypeVar("T")
Ts = TypeVarTuple("Ts")


@pytest.mark.parametrize("numbers", [[0.5, 2.0], [3, 2], [3, 0.5], [True, False], [2.0, 1]])
@pytest.mark.parametrize("operator", [torch._foreach_mul, torch._foreach_add, torch._foreach_div])
@pytest.mark.parametrize("dtype", [torch.float32, torch.int64])
@pytest.mark.parametrize("backend", ["eager", "cpu_onednn"])
def test_foreach_with_numbers(operator: Any, numbers: Any, dtype: Any, backend: str) -> None:
    def f(x, y):
        return operator([x, y], numbers)

    check(f, ((X * 4).to(dtype), (X * 3).to(dtype)), backend=backend)


class Made(nn.Module):
    made: typing.ClassVar[int] = 0

    def __new__(cls, n: int) -> Made:
        cls.made += 1
        return super().__new__(cls)

    def __init__(self, n: int) -> None:
        super().__init__()
        self.linear = nn.Linear(n, n)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x).tanh()


class MadeOfAnother(nn.Module):
    """As FSDP's classes: its __new__ gives an object of another class."""

    def __new__(cls, *args: Any) -> Any:
        return cls.__mro__[9].__new__(cls.__mro__[9])  # there is none

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 2


class Listed(nn.Module, list):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * len(self)


def test_modules_with_a_new_of_their_own() -> None:
    module = Made(6)
    compiled = frontend.compile(module)
    made = Made.made
    torch.testing.assert_close(compiled(X), module(X))
    assert Made.made == made and isinstance(compiled, Made)
    other = nn.Module.__new__(MadeOfAnother)
    nn.Module.__init__(other)
    assert torch.equal(frontend.compile(other)(X), X * 2)
    listed = Listed()
    assert torch.equal(frontend.compile(listed)(X), X * 0)


def test_a_module_with_a_new_of_its_own_made_inside() -> None:
    def f(x):
        torch.manual_seed(0)
        return Made(6)(x)

    check(f, (X,))


class Box(Generic[T]):
    def __init__(self, value: T) -> None:
        self.value = value


def annotated(x):
    return x, str(Annotated[tuple[T, *Ts], "note"][int, str])


def annotated_by_one(x):
    return x, str(Annotated[tuple[T, *Ts], "note"][int])


def old_names(x):
    return x, str(typing.Dict[str, T][int]), str(typing.Optional[typing.List[T]][int])  # noqa: UP006, UP045


def own_generic(x):
    return x, Box[int](3).value, str(Box[T][str])


def callables(x):
    return x, str(typing.Callable[[T], T][int]), str(typing.Callable[..., T][int])


def not_generic(x):
    return x, str(typing.List[int][str])  # noqa: UP006


def literals(x):
    return x, str(typing.Literal["a", 1]), typing.get_args(typing.Union[int, str])  # noqa: UP007


@pytest.mark.parametrize(
    "program",
    [annotated, annotated_by_one, old_names, own_generic, callables, not_generic, literals],
    ids=lambda f: f.__name__,
)
@pytest.mark.parametrize("warm", [False, True])
def test_generics_of_typing(program: Any, warm: bool) -> None:
    for cleanup in typing._cleanups:
        cleanup()
    if warm:
        with contextlib.suppress(TypeError):
            program(X)
    check(program, (X,), (X + 1,))


class Finalized:
    count = 0

    def __init__(self) -> None:
        self.me = self

    def __del__(self) -> None:
        Finalized.count += 1


def test_a_collection_inside() -> None:
    """Finalizers that run meanwhile are none of the program's."""

    def f(x):
        y = x * 2
        gc.collect()
        return y + 1

    compiled = frontend.compile(f)
    compiled(X)
    for run in (f, compiled):
        gc.disable()
        try:
            for _ in range(3000):
                Finalized()
            Finalized.count = 0
            assert torch.equal(run(X), X * 2 + 1)
        finally:
            gc.enable()
        assert Finalized.count >= 3000
    reasons = frontend.counters(compiled)["plain_reasons"]
    assert not any("Finalized" in reason for reason in reasons), reasons


FULLY_SHARDED = """
import sys
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch_backplane import frontend

rank, folder = int(sys.argv[1]), sys.argv[2]
torch.set_num_threads(1)
dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=2)
mesh = init_device_mesh("cpu", (2,))

def make():
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 8))
    for layer in (model[0], model[2]):
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model

ours, theirs = make(), make()
compiled = frontend.compile(ours, backend="cpu_onednn")
x = torch.randn(6, 8, generator=torch.Generator().manual_seed(rank))
for _ in range(3):
    losses = []
    for run, model in ((compiled, ours), (theirs, theirs)):
        for p in model.parameters():
            p.grad = None
        loss = run(x).square().mean()
        loss.backward()
        losses.append(loss)
        with torch.no_grad():
            for p in model.parameters():
                p.sub_(p.grad, alpha=0.1)
    torch.testing.assert_close(losses[0], losses[1])
    for p, q in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(p.to_local(), q.to_local())
counters = frontend.counters(compiled)
assert counters["breaks"] or counters["plain_reasons"] or counters["entries"], counters
dist.barrier()
print("passed", flush=True)
dist.destroy_process_group()  # a thread of gloo that loses the other rank may end the process
"""


def test_fully_shard(tmp_path: Path) -> None:
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", FULLY_SHARDED, str(rank), str(tmp_path)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        for rank in ranks:
            text, _ = rank.communicate(timeout=120)
            assert "passed" in text, text[-4000:]
    finally:
        for rank in ranks:
            rank.kill()
