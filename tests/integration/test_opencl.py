"""The OpenCL plugin where something is missing or too small."""

from __future__ import annotations

import pathlib
from collections.abc import Callable

import pytest
import torch
import torch_backplane
from compiling import close, compile_for, run_python

TESTS = pathlib.Path(__file__).resolve().parents[1]

PROGRAM = """
import torch
f = torch.compile(lambda x: (x * 2).relu(), backend="plugin:opencl", options={"report": False})
print(f(torch.tensor([1.0, -1.0])).tolist())
"""


def compiled(function: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    return compile_for("opencl", function, dynamic=False)


def test_without_a_driver_the_error_says_what_to_install() -> None:
    done = run_python(PROGRAM, {"OCL_ICD_VENDORS": "/nonexistent"})
    assert "no OpenCL platform" in done.stderr
    assert "pocl-opencl-icd" in done.stderr


def test_a_device_that_is_not_there_is_named() -> None:
    done = run_python(PROGRAM, {"BACKPLANE_OPENCL_DEVICE": "no such device"})
    assert "no such device" in done.stderr


def test_results_stay_right_without_zero_copy() -> None:
    done = run_python(PROGRAM, {"BACKPLANE_OPENCL_ZERO_COPY": "0"})
    assert "[2.0, 0.0]" in done.stdout, done.stderr


@pytest.mark.parametrize("elements", [0, 1, 15, 16, 17, 4097])
def test_sizes_around_vectors(elements: int) -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.gelu(x * 2 + 1)

    x = torch.randn(elements)
    with torch_backplane.record() as graphs:
        actual = torch.compile(f, backend="plugin:opencl", options={"report": False})(x)
    close(actual, f(x))
    assert all(not g["fallback"] for g in graphs)


INDEXED = {
    "embedding": lambda x, i: torch.nn.functional.embedding(i, x),
    "index_select": lambda x, i: x.index_select(0, i),
    "gather": lambda x, i: x.gather(0, i[:, None]),
    "index": lambda x, i: x[i],
    "take": lambda x, i: x.take(i),
    "index_put": lambda x, i: x.index_put((i,), torch.ones(6)),
    "scatter": lambda x, i: x.scatter(0, i[:, None], torch.ones(2, 1)),
    "scatter_add": lambda x, i: x.scatter_add(0, i[:, None], torch.ones(2, 1)),
    "nll_loss": lambda x, i: torch.nn.functional.nll_loss(x[:2], i),
}


@pytest.mark.parametrize("name", INDEXED)
def test_an_index_out_of_range_is_an_error(name: str) -> None:
    run = compiled(INDEXED[name])
    x = torch.randn(4, 6)
    good = torch.tensor([1, 2])
    close(run(x, good), INDEXED[name](x, good))
    for bad in (torch.tensor([1, 24]), torch.tensor([-25, 2])):
        with pytest.raises((IndexError, RuntimeError)) as eager:
            INDEXED[name](x, bad)
        # What the plugin refuses runs again as plain PyTorch, counted.
        with pytest.raises(eager.type) as ours:
            run(x, bad)
        assert str(ours.value) == str(eager.value)
        close(run(x, good), INDEXED[name](x, good))  # the next call is not affected


def test_an_index_out_of_range_is_seen_without_zero_copy() -> None:
    program = """
import torch, torch_backplane
f = torch.compile(lambda x, i: x[i] * 2, backend="plugin:opencl", options={"report": False})
x = torch.arange(4.0)
print(f(x, torch.tensor([-1, 0])).tolist())
try:
    f(x, torch.tensor([1, 4]))
except IndexError as error:
    print(error)
print(f(x, torch.tensor([2, 3])).tolist())
"""
    done = run_python(program, {"BACKPLANE_OPENCL_ZERO_COPY": "0"})
    assert done.stdout.split("\n")[:3] == [
        "[6.0, 0.0]",
        "index 4 is out of bounds for dimension 0 with size 4",
        "[4.0, 6.0]",
    ], done.stderr
    assert "an index is out of range" in done.stderr


SIZES_PROGRAM = """
import os, sys
import torch, torch_backplane
sys.path.insert(0, os.environ["TESTS"])
from models import zoo

name, seq = os.environ["MODEL"].split()
case = zoo.case(name)
model = case.build()
compiled = torch.compile(model, backend="plugin:opencl", options={"report": False}, dynamic=True)

def files() -> int:
    return sum(len(found) for _, _, found in os.walk(os.environ["BACKPLANE_CACHE_DIR"]))

def run(batch: int) -> None:
    inputs = case.inputs(batch=batch, seq=int(seq))
    with torch.no_grad():
        torch.testing.assert_close(
            zoo.main_output(compiled(**inputs)), zoo.main_output(model(**inputs)),
            rtol=1e-4, atol=1e-4)

for batch in (*range(2, 11), 16, 17, 18, 32, 33, 34):
    run(batch)
before = files()
for batch in (13, 21, 25, 30, 35, 41, 59):
    run(batch)
print("kept", before, "new", files() - before)
"""


@pytest.mark.parametrize("model", ["bert 8", pytest.param("resnet 16", marks=pytest.mark.long)])
def test_new_batch_sizes_build_no_kernels(model: str, tmp_path: pathlib.Path) -> None:
    """Kernels take what changes with the batch as arguments; every build leaves a file."""
    tmp_path.chmod(0o700)
    environment = {"MODEL": model, "TESTS": str(TESTS), "BACKPLANE_CACHE_DIR": str(tmp_path)}
    # Else PoCL keeps what it builds, and we do not.
    done = run_python(SIZES_PROGRAM, {**environment, "POCL_KERNEL_CACHE": "0"})
    words = done.stdout.split()
    assert words[:1] == ["kept"] and int(words[1]) > 0, done.stderr
    assert words[2:] == ["new", "0"], done.stdout


@pytest.mark.parametrize("width", [1, 15, 16, 17, 63, 64, 65, 127, 130, 1000])
def test_reductions_at_widths_around_vectors(width: int) -> None:
    def f(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        norm = torch.nn.functional.layer_norm(x, (width,))
        return x.sum(-1), x.amax(-1), x.amin(-1), x.prod(-1), x.softmax(-1), norm

    x = torch.randn(5, width)
    x[1, width // 2] = float("inf")
    x[2, -1] = float("nan")
    for actual, expected in zip(compiled(f)(x), f(x), strict=True):
        close(actual, expected)


@pytest.mark.parametrize("width", [272, 273])
def test_results_beyond_the_caches(width: int) -> None:
    """Whole vectors, and rows that begin at no vector's border."""
    x = torch.randn(1 << 13, width, generator=torch.Generator().manual_seed(width))
    for function in (lambda x: x * 2 + 1, lambda x: x.softmax(-1)):
        close(compiled(function)(x), function(x))


def test_lists_by_channel_line_up_with_channels() -> None:
    """Also beside an operand that lines up with the last dim, and is the same tensor."""
    mean, variance = torch.randn(5), torch.rand(5) + 0.5
    for x in (torch.randn(4, 5), torch.randn(2, 5, 5), torch.randn(2, 5, 3, 5)):

        def norm(x: torch.Tensor, mean: torch.Tensor, variance: torch.Tensor) -> torch.Tensor:
            return torch.nn.functional.batch_norm(x, mean, variance) * mean + x.sigmoid()

        with torch_backplane.record() as graphs:
            actual = compiled(norm)(x, mean, variance)
        close(actual, norm(x, mean, variance))
        assert all(not g["fallback"] for g in graphs)


class Tied(torch.nn.Module):
    """A table that an embedding and a product share, and plain layers."""

    def __init__(self) -> None:
        super().__init__()
        self.table = torch.nn.Embedding(70, 24)
        self.square = torch.nn.Linear(24, 24)
        self.narrow = torch.nn.Linear(24, 7, bias=False)
        self.right = torch.nn.Parameter(torch.randn(7, 24) * 0.1)

    def forward(self, index: torch.Tensor) -> torch.Tensor:
        x = self.square(self.table(index))
        return (self.narrow(x) @ self.right) @ self.table.weight.t()


def test_packed_weights_follow_their_changes() -> None:
    torch.manual_seed(0)
    model = Tied()
    run = torch.compile(model, backend="plugin:opencl", options={"report": False})
    index = torch.randint(0, 70, (3, 5))
    with torch.no_grad():
        for _ in range(3):
            close(run(index), model(index))
            for p in model.parameters():
                p.mul_(1.1)
    assert torch_backplane.stats()["resident_weight_bytes"] > 0
    gradients = []
    for call in (run, model):
        model.zero_grad()
        call(index).square().sum().backward()
        gradients.append([p.grad.clone() for p in model.parameters()])
    for ours, theirs in zip(*gradients, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)


def test_lines_in_order() -> None:
    x = torch.randn(4, 37).round(decimals=1)  # some are equal
    x[1, 5], x[2, 7] = float("nan"), float("-inf")
    for function in (
        lambda x: torch.sort(x, stable=True),
        lambda x: torch.sort(x, dim=0, descending=True, stable=True),
        lambda x: torch.cummax(x, 1),
        lambda x: torch.cummin(x, 0),
    ):
        for ours, theirs in zip(compiled(function)(x), function(x), strict=True):
            close(ours, theirs)
    close(compiled(lambda x: torch.topk(x, 5).values)(x), torch.topk(x, 5).values)
    for function in (lambda x: x.cumsum(1), lambda x: x.cumprod(0), lambda x: x.logcumsumexp(1)):
        close(compiled(function)(x), function(x))


BYTES_PROGRAM = """
import torch, torch_backplane
f = torch.compile(lambda x: x * 2 + 1, backend="plugin:opencl", options={"report": False})
x = torch.ones(1000)
f(x)
before = torch_backplane.stats()
f(x)
after = torch_backplane.stats()
print([after[k] - before[k] for k in ("host_to_device_bytes", "device_to_host_bytes")])
"""


@pytest.mark.parametrize("zero_copy, moved", [("1", "[0, 0]"), ("0", "[4000, 4000]")])
def test_only_other_memory_is_copied_to(zero_copy: str, moved: str) -> None:
    done = run_python(BYTES_PROGRAM, {"BACKPLANE_OPENCL_ZERO_COPY": zero_copy})
    assert done.stdout.strip() == moved, done.stderr
