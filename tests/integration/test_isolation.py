"""Plugins in processes of their own: the same numbers, and what a program sees of one that ends. Each
entry and way is tools/sabotage_test.cpp."""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys

import pytest
from patience import run as run_patiently

BUILD = pathlib.Path(os.environ.get("BACKPLANE_BUILD", "build/dev")).absolute()


def run(
    program: str, *arguments: str, fresh: bool = False, **more: str
) -> subprocess.CompletedProcess[str]:
    return run_patiently(
        [sys.executable, "-c", program, *arguments],
        env={**os.environ, "BACKPLANE_QUIET": "1", **more},
        fresh=fresh,
    )


# The signal is sent when kill() returns, and a thread of the worker may still answer then.
END_WORKERS = """
import os, signal
from pathlib import Path
def end_workers(how):
    for task in Path("/proc/self/task").iterdir():
        for pid in map(int, (task / "children").read_text().split()):
            if "backplane-worke" in Path(f"/proc/{pid}/comm").read_text():
                os.kill(pid, how)
                os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
"""
TRAINING = """
import json, sys, torch, torch_backplane
plugin = sys.argv[1]
torch.manual_seed(0)
model = torch.nn.Sequential(
    torch.nn.Linear(16, 32), torch.nn.LayerNorm(32), torch.nn.GELU(), torch.nn.Linear(32, 4))
compiled = torch.compile(model, backend=f"plugin:{plugin}", options={"strict": True})
said = []
with torch.no_grad():
    for rows in (8, 8, 5, 11):
        said.append(compiled(torch.randn(rows, 16)).flatten().tolist())
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
for _ in range(4):
    loss = compiled(torch.randn(8, 16)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    said.append([loss.item()])
from torch_backplane import _C
print(json.dumps([_C.plugin_info(plugin)["isolated"], said]))
"""


@pytest.mark.parametrize("plugin", ["cpu_onednn", "reference", "opencl", "cuda"])
def test_inference_training_and_other_sizes_give_the_same_numbers(plugin: str) -> None:
    here, there = (run(TRAINING, plugin, BACKPLANE_ISOLATION=how) for how in ("", plugin))
    assert here.returncode == 0, here.stderr
    assert there.returncode == 0, there.stderr
    was_isolated, expected = json.loads(here.stdout)
    is_isolated, found = json.loads(there.stdout)
    assert (was_isolated, is_isolated) == (False, True)
    assert found == expected
    assert "state directory" not in there.stderr  # which is the program's own


CRASH = (
    END_WORKERS
    + """
import sys, torch, torch_backplane
options = {"strict": True} if "strict" in sys.argv else {}
def compiled(scale):
    return torch.compile(
        lambda x: (x * scale).relu(), backend="plugin:cpu_onednn", options=options, dynamic=False)
x = torch.ones(3)
first = compiled(2)
print(first(x).tolist())
end_workers(signal.SIGKILL)
try:
    print(first(x).tolist())  # with PyTorch
except torch_backplane.BackplaneDeviceLostError as error:
    print("lost", error)
torch._dynamo.reset()
print(compiled(3)(x).tolist())
print("calls with PyTorch:", torch_backplane.stats()["eager_calls"])
"""
)


def test_a_call_that_loses_its_worker_runs_with_pytorch_and_the_next_compile_gets_another() -> None:
    ended = run(CRASH, BACKPLANE_ISOLATION="process")
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.splitlines() == [
        "[2.0, 2.0, 2.0]",
        "[2.0, 2.0, 2.0]",
        "[3.0, 3.0, 3.0]",
        "calls with PyTorch: 1",
    ]
    assert "its worker process was ended by SIGKILL" in ended.stderr
    assert "inside of execute (nodes 0, 1)" in ended.stderr
    assert "a new worker process is started (2 of 4)" in ended.stderr


def test_strict_raises_and_names_plugin_and_nodes() -> None:
    ended = run(CRASH, "strict", BACKPLANE_ISOLATION="process")
    assert ended.returncode == 0, ended.stderr
    lost = ended.stdout.splitlines()[1]
    assert lost.startswith("lost") and "plugin 'cpu_onednn' (cpu_onednn:0): execute" in lost
    assert "ended by SIGKILL" in lost and "0 aten.mul.Tensor, 1 aten.relu" in lost


DYNAMO_FIRST = """
import torch
import torch._functorch.aot_autograd  # and TorchDynamo, whose table of back ends is made before
import torch_backplane
compiled = torch.compile(
    lambda x: x.relu(), backend="plugin:cpu_onednn", options={"isolation": "process"})
from torch_backplane import _C
print(compiled(torch.ones(2)).tolist(), _C.plugin_info("cpu_onednn")["isolated"])
"""


def test_the_option_counts_where_torch_dynamo_was_imported_first() -> None:
    ended = run(DYNAMO_FIRST)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.split() == ["[1.0,", "1.0]", "True"]


GONE = (
    END_WORKERS
    + """
import torch, torch_backplane
def compiled(scale):
    return torch.compile(lambda x: (x * scale).relu(), backend="plugin:reference", dynamic=False)
first = compiled(2)
print(first(torch.ones(3)).tolist())
end_workers(signal.SIGSEGV)
print(first(torch.ones(3)).tolist())
print(first(torch.ones(3)).tolist())
torch._dynamo.reset()
print(compiled(3)(torch.ones(3)).tolist())
stats = torch_backplane.stats()
print("with PyTorch:", stats["eager_graphs"], stats["eager_calls"])
"""
)


def test_a_device_of_its_own_memory_comes_back_after_the_call_that_lost_it() -> None:
    ended = run(GONE, BACKPLANE_ISOLATION="process")
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.splitlines() == [
        "[2.0, 2.0, 2.0]",
        "[2.0, 2.0, 2.0]",
        "[2.0, 2.0, 2.0]",
        "[3.0, 3.0, 3.0]",
        "with PyTorch: 0 1",
    ]
    assert "ended by SIGSEGV inside of" in ended.stderr
    assert ended.stderr.count("a new worker process is started") == 1


HELD = (
    END_WORKERS
    + """
import torch, torch_backplane
device = torch_backplane.device("reference")
x = torch.ones(3).to(device)
y = x + 1
print(y.cpu().tolist())
end_workers(signal.SIGSEGV)
for _ in range(2):
    try:
        print(x.cpu().tolist())
    except RuntimeError as error:
        print(type(error).__name__, "worker process" in str(error))
"""
)


def test_a_tensor_that_lay_on_a_lost_device_is_an_error() -> None:
    ended = run(HELD, BACKPLANE_ISOLATION="process")
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.splitlines() == [
        "[2.0, 2.0, 2.0]",
        "BackplaneDeviceLostError True",
        "BackplaneDeviceLostError True",
    ]


OPTION = """
import torch, torch_backplane
f = torch.compile(torch.relu, backend="plugin:cpu_onednn", options={"isolation": "process"})
print(f(torch.tensor([-1.0, 1.0])).tolist())
print(torch_backplane._C.plugin_info("cpu_onednn")["isolated"])
"""
TOO_LATE = """
import torch, torch_backplane
torch.compile(torch.relu, backend="plugin:cpu_onednn")(torch.ones(2))
torch.compile(torch.neg, backend="plugin:cpu_onednn", options={"isolation": "process"})(torch.ones(2))
"""


def test_the_option_is_of_the_first_use() -> None:
    ended = run(OPTION, fresh=True)  # TorchDynamo comes after us
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.splitlines() == ["[0.0, 1.0]", "True"]
    late = run(TOO_LATE)
    assert late.returncode == 1
    assert "is loaded in this process already" in late.stderr
    assert "BACKPLANE_ISOLATION=cpu_onednn" in late.stderr


def test_the_commands_say_which_run_so() -> None:
    main = "import sys; from torch_backplane.cli import main; sys.exit(main())"
    listed = run(main, "plugins", "--json", BACKPLANE_ISOLATION="reference")
    isolated = {entry["name"]: entry["isolated"] for entry in json.loads(listed.stdout)}
    assert isolated["reference"] and not isolated["cpu_onednn"]
    text = run(main, "plugins", BACKPLANE_ISOLATION="reference").stdout
    assert "ok, in a process of its own" in text
    doctor = run(main, "doctor", BACKPLANE_ISOLATION="reference").stdout
    assert [line for line in doctor.splitlines() if "in a process of its own" in line]
