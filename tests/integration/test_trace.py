"""BACKPLANE_TRACE: what the host does, beside the kernels of plugins."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from compiling import run_python

PROGRAM = """
import torch, torch_backplane
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
def f(x): return torch.bernoulli(model(x).sigmoid()) + 1
with torch.no_grad():
    compiled = {door}
    for _ in range(3): compiled(torch.rand(3, 8))
"""


@pytest.mark.parametrize(
    "door",
    [
        'torch_backplane.compile(f, backend="{plugin}")',
        'torch.compile(f, backend="plugin:{plugin}")',
    ],
    ids=["own", "torch.compile"],
)
@pytest.mark.parametrize("plugin", ["reference", "cpu_onednn"])
def test_spans_of_the_host(plugin: str, door: str, tmp_path: Path) -> None:
    file = tmp_path / "trace.json"
    environment = {"BACKPLANE_TRACE": str(file), "BACKPLANE_QUIET": "1"}
    done = run_python(PROGRAM.format(door=door.format(plugin=plugin)), environment)
    assert done.returncode == 0, done.stderr
    events = [e for e in json.loads(file.read_text())["traceEvents"] if "dur" in e]
    names = [e["name"] for e in events]
    host = {e["name"] for e in events if e["cat"] == "host"}

    def count(begin: str) -> int:
        return sum(name.startswith(begin) for name in names)

    assert count(f"{plugin}:0: compile (aten.linear") == 1, names
    assert count(f"{plugin}:0: execute (aten.linear") >= 2, names
    assert count("cpu: aten.bernoulli") >= 2, names
    assert count("aten.linear") >= 2, names  # of the plugin
    assert not any("query" in name or "release" in name for name in names)
    assert all(name in host for name in names if ": " in name), names
    if plugin == "reference":
        assert count("reference:0: copy") >= 2, names
