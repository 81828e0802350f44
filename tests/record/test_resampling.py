"""Interpolation runs whole on the plugins: forward and gradients as in eager."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import torch_backplane
from record import helpers
from torch_backplane.opinfo import entries

MODES = ("bilinear", "nearest", "nearest-exact")
PLUGINS = ("cpu_onednn", "opencl")
TOLERANCES = {torch.float32: (1e-4, 1e-5), torch.bfloat16: (2e-2, 2e-2)}


def images(mode: str, dtype: torch.dtype) -> Iterator[entries.Sample]:
    """The operator database's calls with images."""
    entry = entries.database()[f"nn.functional.interpolate.{mode}"]
    entries.seed()
    for sample in entry.sample_inputs("cpu", dtype, requires_grad=True):
        if sample.input.dim() == 4:
            yield entries.Sample(entry, sample)


def check(
    program: Any, arguments: list[torch.Tensor], plugin: str, tolerance: tuple[float, float]
) -> None:
    """Runs both halves on the plugin, all nodes there, and compares with eager."""
    from torch_backplane import account

    account.STATE.search_plugins()
    recording = helpers.record(program, arguments)
    cut = recording.cut()
    forward, backward = cut.compile([(plugin, 0)])
    for half in (forward, backward):
        report = half.report()
        assert report["plugin_nodes"] > 0
        assert not report["fallback"], report["fallback"]
    leaves = [a.detach().clone().requires_grad_() for a in arguments]
    (expected,) = helpers.tensors_in(program(*leaves))
    torch.manual_seed(helpers.SEED)
    tangent = torch.randn_like(expected)
    gradients = torch.autograd.grad(expected, leaves, tangent)
    inputs = [helpers.copy_tensor(a) for a in arguments]
    values = forward(list(inputs))
    saved = [
        (inputs if value["is_argument"] else values)[value["forward_position"]]
        for value in cut.saved
    ]
    relative, absolute = tolerance
    torch.testing.assert_close(values[0], expected.detach(), rtol=relative, atol=absolute)
    for got, want in zip(backward([*saved, tangent]), gradients, strict=True):
        torch.testing.assert_close(got, want, rtol=relative, atol=absolute)


@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("plugin", PLUGINS)
def test_samples_of_the_operator_database(plugin: str, mode: str, dtype: torch.dtype) -> None:
    samples = list(images(mode, dtype))
    if dtype == torch.bfloat16:
        samples = samples[::3]  # positions are those of float32
    assert len(samples) > 1
    for sample in samples:
        check(lambda *a, s=sample: s.call(*a), sample.tensors, plugin, TOLERANCES[dtype])


@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize("plugin", PLUGINS)
@pytest.mark.parametrize(
    "options",
    [
        {"mode": "bilinear", "scale_factor": 2.0, "align_corners": True},
        {"mode": "bilinear", "scale_factor": (1.7, 0.6)},
        {"mode": "nearest", "scale_factor": 2.3},
    ],
)
def test_channels_last(plugin: str, options: dict[str, Any], dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    x = torch.randn(2, 19, 9, 7, dtype=dtype).to(memory_format=torch.channels_last)

    def program(x: torch.Tensor) -> torch.Tensor:
        return F.interpolate(x, **options)

    check(program, [x.requires_grad_()], plugin, TOLERANCES[dtype])


@pytest.mark.parametrize("plugin", PLUGINS)
def test_between_convolutions(plugin: str) -> None:
    """The image comes in the order of memory that convolutions prefer."""
    torch.manual_seed(0)
    arguments = [torch.randn(2, 3, 8, 10), torch.randn(16, 3, 3, 3), torch.randn(4, 16, 3, 3)]

    def program(x: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        up = F.interpolate(F.conv2d(x, a).relu(), scale_factor=2.0, mode="bilinear")
        return F.conv2d(up, b)

    check(program, [a.requires_grad_() for a in arguments], plugin, (1e-3, 1e-3))


@pytest.mark.parametrize("plugin", PLUGINS)
@pytest.mark.parametrize("mode", ["bilinear", "nearest"])
def test_sizes_known_at_run_time(plugin: str, mode: str) -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        return F.interpolate(x * 2, scale_factor=(2.0, 1.5), mode=mode)

    torch.manual_seed(0)
    with torch_backplane.record() as graphs:
        compiled = torch.compile(
            program, backend=f"plugin:{plugin}", dynamic=True, options={"report": False}
        )
        for shape in [(2, 3, 8, 6), (3, 3, 8, 6), (5, 3, 12, 10), (4, 3, 7, 9)]:
            x = torch.randn(shape, requires_grad=True)
            actual, expected = compiled(x), program(x)
            tangent = torch.randn_like(expected)
            torch.testing.assert_close(actual, expected)
            (got,) = torch.autograd.grad(actual, x, tangent)
            (want,) = torch.autograd.grad(expected, x, tangent)
            torch.testing.assert_close(got, want)
    assert graphs
    assert not [g["eager"] for g in graphs if "eager" in g]
    assert not [n for g in graphs for n in g["fallback"]]
