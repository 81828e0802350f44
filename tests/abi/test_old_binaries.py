"""Plugins that were built against earlier versions of the ABI, with the host of today."""

from __future__ import annotations

import platform
import subprocess
import sys
from pathlib import Path

import pytest
from compiling import run_python

HERE = Path(__file__).parent
pytestmark = pytest.mark.skipif(
    platform.machine() != "x86_64" or sys.platform != "linux", reason="libraries for other systems"
)

PROGRAM = """
import torch, torch_backplane
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(24, 32), torch.nn.ReLU(), torch.nn.Linear(32, 5))
def run(f, x):
    model.zero_grad()
    y = f(x)
    y.square().mean().backward()
    return [y.detach()] + [p.grad.clone() for p in model.parameters()]
for compiled in (
    torch_backplane.compile(model, backend="{name}"),
    torch.compile(model, backend="plugin:{name}"),
):
    with torch_backplane.record() as graphs:
        for rows in (3, 3, 7):
            x = torch.randn(rows, 24)
            for actual, expected in zip(run(compiled, x), run(model, x), strict=True):
                torch.testing.assert_close(actual, expected, rtol=2e-2, atol=2e-2)
    assert sum(graph["plugin_nodes"] for graph in graphs) > 0, graphs
"""


def run(program: str, version: str) -> subprocess.CompletedProcess[str]:
    return run_python(
        program, {"BACKPLANE_PLUGIN_PATH": str(HERE / version), "BACKPLANE_QUIET": "1"}
    )


@pytest.mark.parametrize(("name", "version"), [("hello", "0.2"), ("npu", "0.2"), ("hello", "0.3")])
def test_a_version_that_is_served_computes(name: str, version: str) -> None:
    done = run(PROGRAM.format(name=name), version)
    assert done.returncode == 0, done.stderr


def test_a_version_that_is_not_served_is_refused_with_both() -> None:
    done = run('import torch_backplane\ntorch_backplane.compile(abs, backend="good")(1)', "0.1")
    assert done.returncode != 0
    assert "it speaks plugin ABI 0.1, this host speaks 0.2 to 0.3" in done.stderr, done.stderr


def test_each_library_is_listed() -> None:
    page = (HERE / "README.md").read_text()
    for library in HERE.glob("*/*.so"):
        assert f"`{library.parent.name}/{library.name}`" in page
