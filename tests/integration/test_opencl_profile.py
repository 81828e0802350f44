"""What an OpenCL device did when, in the trace that BACKPLANE_TRACE writes."""

from __future__ import annotations

import itertools
import json
import pathlib
import time
from typing import Any

import pytest
from compiling import run_python

CALLS = 3
PROGRAM = f"""
import torch, torch_backplane
def f(x, w):
    return torch.softmax(x @ w, -1).sum(0)
compiled = torch.compile(f, backend="plugin:opencl", options={{"report": False}}, dynamic=False)
x, w = torch.randn(200, 300), torch.randn(300, 200)
with torch_backplane.record() as graphs:
    compiled(x, w)
print(*sorted(graphs[0]["fallback"]))
for _ in range({CALLS - 1}):
    compiled(x, w)
"""


def events(path: pathlib.Path) -> list[dict[str, Any]]:
    return json.loads(path.read_text())["traceEvents"]


@pytest.mark.parametrize("zero_copy", ["0", "1"])
def test_device_ranges_join_the_hosts_trace(zero_copy: str, tmp_path: pathlib.Path) -> None:
    trace = tmp_path / "trace.json"
    start = time.monotonic_ns() / 1e3
    done = run_python(
        PROGRAM, {"BACKPLANE_TRACE": str(trace), "BACKPLANE_OPENCL_ZERO_COPY": zero_copy}
    )
    end = time.monotonic_ns() / 1e3
    assert done.returncode == 0, done.stderr
    assert done.stdout == "\n"
    device = [e for e in events(trace) if e["ph"] == "X" and e["cat"] == "opencl:0"]
    kernels = [e for e in device if e["args"]["nodes"]]
    # Every node of the graph, in each call; a node may be several kernels.
    nodes = {n for e in kernels for n in e["args"]["nodes"]}
    assert len(nodes) == 3
    for call in {e["args"]["call"] for e in kernels}:
        assert {
            n for e in kernels if e["args"]["call"] == call for n in e["args"]["nodes"]
        } == nodes
    assert len({e["args"]["call"] for e in kernels}) == CALLS
    for e in kernels:
        for n in e["args"]["nodes"]:
            assert f"(node {n})" in e["name"]
    # On the host's clock, one after the other, and inside of the span in which the host ran it.
    for e in device:
        assert start <= e["ts"] <= e["ts"] + e["dur"] <= end
    assert sum(e["dur"] for e in kernels) > 0
    ordered = sorted(kernels, key=lambda e: e["ts"])
    for before, after in itertools.pairwise(ordered):
        assert before["ts"] + before["dur"] <= after["ts"] + 1
    copies = [e["name"] for e in device if e["name"].startswith("copy to the")]
    if zero_copy == "1":
        assert copies == []
    else:
        assert copies.count("copy to the device") == 2 * CALLS
        assert copies.count("copy to the host") == CALLS
    (row,) = [e for e in events(trace) if e["ph"] == "M" and e["name"] == "thread_name"]
    assert row["args"]["name"].startswith("opencl:0, queue")


def test_a_profile_begins_and_ends_with_the_trace(tmp_path: pathlib.Path) -> None:
    """Started while the device is open; what runs before or after is not in it."""
    trace = tmp_path / "trace.json"
    done = run_python(
        f"""
import torch
from torch_backplane import _C
f = torch.compile(lambda x: x.exp(), backend="plugin:opencl", options={{"report": False}})
x = torch.randn(100)
f(x)
_C.start_trace()
f(x); f(x)
_C.stop_trace()
f(x)
_C.write_trace({str(trace)!r})
"""
    )
    assert done.returncode == 0, done.stderr
    device = [e for e in events(trace) if e["ph"] == "X" and e["cat"] == "opencl:0"]
    assert [e["args"]["nodes"] for e in device] == [[0], [0]]
