"""Operators called with operands whose shapes do not fit: as PyTorch, and never beyond memory."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch_backplane
from device.agreement import outcome
from patience import run as run_patiently

TESTS = Path(__file__).resolve().parents[1]
PLUGINS = ("reference", "cpu_onednn", "opencl")
ATEN = torch.ops.aten


@pytest.mark.slow
def test_operands_of_other_shapes() -> None:
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "BACKPLANE_QUARANTINE": "off",
        "BACKPLANE_CHECK": "memory",
        "BACKPLANE_QUIET": "1",
    }
    command = [sys.executable, "-m", "opinfo.operands_suite", "reference,cpu_onednn"]
    done = run_patiently(command, cwd=TESTS, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr


CALLS: dict[str, tuple[Callable[[torch.Tensor], torch.Tensor], tuple[int, ...]]] = {
    "slice": (lambda g: ATEN.slice_backward(g, [4, 12], 1, 2, 8, 2), (4, 3)),
    "select": (lambda g: ATEN.select_backward(g, [4, 12, 3], 1, 5), (4, 3)),
    "diagonal": (lambda g: ATEN.diagonal_backward(g, [4, 5, 3], 0, 1, 1), (3, 4)),
    "unfold": (lambda g: ATEN.unfold_backward(g, [4, 12], 1, 4, 4), (4, 3, 4)),
    "glu": (lambda g: ATEN.glu_backward(g, torch.ones(2, 6), 1), (2, 3)),
    "log_softmax": (
        lambda g: ATEN._log_softmax_backward_data(g, torch.ones(2, 5), 1, torch.float32),
        (2, 5),
    ),
    "embedding": (
        lambda g: ATEN.embedding_dense_backward(g, torch.tensor([1, 2]), 4, -1, False),
        (2, 5),
    ),
    "adaptive_pool": (
        lambda g: ATEN._adaptive_avg_pool2d_backward(g, torch.ones(1, 2, 4, 4)),
        (1, 2, 2, 2),
    ),
    "transposed": (lambda g: torch.conv_transpose1d(g, torch.ones(3, 3, 3)), (1, 3, 4)),
    "addmm": (lambda g: torch.addmm(g, torch.ones(2, 2), torch.ones(2, 3)), (2, 3)),
}


def other_shapes(shape: tuple[int, ...]) -> set[tuple[int, ...]]:
    ones = {(*shape[:d], 1, *shape[d + 1 :]) for d in range(len(shape))}
    return {shape, *ones, shape[1:], (), (*shape[:-1], shape[-1] + 1), (1, *shape)}


@pytest.mark.parametrize("plugin", PLUGINS)
@pytest.mark.parametrize("name", CALLS)
def test_called_by_the_program_itself(plugin: str, name: str) -> None:
    program, shape = CALLS[name]
    for given in sorted(other_shapes(shape)):
        gradient = torch.rand(given)
        expected, refused = outcome(lambda: program(gradient))  # noqa: B023
        compiled = torch_backplane.compile(program, backend=plugin)
        actual, error = outcome(lambda: compiled(gradient))  # noqa: B023
        assert (error is None) == (refused is None), (given, error, refused)
        if refused is None and name not in ("log_softmax", "adaptive_pool"):
            torch.testing.assert_close(actual, expected)


@pytest.mark.parametrize("plugin", PLUGINS)
def test_istft_of_a_batch(plugin: str) -> None:
    """Its windows have one row, which PyTorch's kernel broadcasts."""
    spectrum = torch.stft(
        torch.rand(3, 64), 16, 4, window=torch.hann_window(16), return_complex=True
    )

    def program(spectrum: torch.Tensor) -> torch.Tensor:
        return torch.istft(spectrum, 16, 4, window=torch.hann_window(16), length=64)

    compiled = torch.compile(program, backend=f"plugin:{plugin}")
    torch.testing.assert_close(compiled(spectrum), program(spectrum))
    torch._dynamo.reset()


@pytest.mark.parametrize("plugin", PLUGINS)
def test_broadcast_gradients_stay_with_the_plugin(plugin: str) -> None:
    compiled = torch_backplane.compile(
        lambda g: ATEN.slice_backward(g, [4, 12], 1, 2, 8, 2), backend=plugin, strict=True
    )
    gradient = torch.rand(1, 3)
    expected = ATEN.slice_backward(gradient, [4, 12], 1, 2, 8, 2)
    torch.testing.assert_close(compiled(gradient), expected)
