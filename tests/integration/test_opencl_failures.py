"""plugin:opencl where the driver fails: calls that fail, memory that runs out, caches that are torn.

Each program runs in an interpreter of its own, under a layer of the OpenCL loader that makes calls
fail as BACKPLANE_FAULTY_CL says (plugins/opencl/testing/fault_layer.c).
"""

from __future__ import annotations

import os
import pathlib
import subprocess

import pytest
from compiling import run_python

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = ROOT / os.environ.get("BACKPLANE_BUILD", "build/dev")
LAYER = BUILD / "testing_layers/libbackplane_opencl_faults.so"

HEAD = """
import os
import torch, torch_backplane

def plan(text):
    os.environ["BACKPLANE_FAULTY_CL"] = text

def compiled(function, **options):
    return torch.compile(
        function, backend="plugin:opencl", options={"report": False, **options}, dynamic=False
    )

def failure(call, *arguments):
    try:
        call(*arguments)
    except torch_backplane.BackplaneError as error:
        return str(error)
    return "no error"
"""


def run(program: str, **environment: str) -> subprocess.CompletedProcess[str]:
    assert LAYER.is_file(), f"{LAYER} is missing: ./dev build makes it"
    done = run_python(HEAD + program, {"OPENCL_LAYERS": str(LAYER), **environment})
    assert done.returncode == 0, done.stderr
    return done


def test_no_device_is_said_and_the_program_runs_on() -> None:
    done = run(
        """
try:
    compiled(lambda x: x * 2)(torch.ones(2))
except Exception as error:
    print("no OpenCL device" in str(error))
print(torch.compile(lambda x: x * 2, backend="plugin:reference")(torch.ones(2)).tolist())
""",
        BACKPLANE_FAULTY_CL="clGetDeviceIDs:-1:0:-1",
    )
    assert done.stdout.split("\n")[:2] == ["True", "[2.0, 2.0]"], done.stderr


def test_a_device_that_does_not_open_is_said() -> None:
    done = run(
        """
try:
    compiled(lambda x: x * 2)(torch.ones(2))
except Exception as error:
    print("clCreateContext failed with OpenCL error -6" in str(error))
plan("")
print(compiled(lambda x: x * 3)(torch.ones(2)).tolist())
""",
        BACKPLANE_FAULTY_CL="clCreateContext:-6:0:1",
    )
    assert done.stdout.split("\n")[:2] == ["True", "[3.0, 3.0]"], done.stderr


STEP = """
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.GELU(), torch.nn.Linear(64, 8))
x = torch.randn(16, 64)
run = compiled(model)
def step():
    model.zero_grad()
    run(x).square().sum().backward()
    return [p.grad.clone() for p in model.parameters()]
expected = step()
kept = [t.clone() for t in (x, *model.parameters())]
def intact():
    return all(torch.equal(a, b) for a, b in zip(kept, (x, *model.parameters())))
def same():
    return all(torch.equal(a, b) for a, b in zip(expected, step()))
"""


@pytest.mark.parametrize("zero_copy", ["0", "1"])
def test_memory_that_runs_out_in_a_step(zero_copy: str) -> None:
    """Trimming makes a failure good; where it does not, that step is an error, and no tensor is lost.

    The plugin trims its pool; with memory of the device's own the host gives up idle arenas after that.
    """
    enough = 2 if zero_copy == "1" else 4
    done = run(
        STEP
        + f"enough = {enough}"
        + """
for skip in (0, 3):
    plan(f"clEnqueueNDRangeKernel:-4:{skip}:{enough - 1}")
    print(same())
    plan(f"clEnqueueNDRangeKernel:-4:{skip}:{enough}")
    text = failure(step)
    print("BP-0115" in text and "out of memory" in text and "(node " in text, intact())
    plan("")
    print(same())
plan("clCreateBuffer:-4:0:-1")
print("out of memory" in failure(step), intact())
plan("")
print(same())
""",
        BACKPLANE_OPENCL_ZERO_COPY=zero_copy,
    )
    expected = ["True", "True True", "True"] * 2 + ["True True", "True"]
    if zero_copy == "0":  # everything has its buffers already: none is asked for
        expected[-2] = "False True"
    assert done.stdout.split("\n")[:-1] == expected, done.stdout + done.stderr


def test_a_device_that_is_too_small() -> None:
    done = run(
        """
torch.manual_seed(0)
f = compiled(lambda x: (x @ x).relu().sum())
small, large = torch.randn(64, 64), torch.randn(1024, 1024)
before = large.clone()
print(torch.allclose(f(small), (small @ small).relu().sum(), rtol=1e-4))
text = failure(compiled(lambda x: (x @ x).relu().sum()), large)
print("out of device memory" in text and "of 1000000 in use" in text, torch.equal(large, before))
print(torch.allclose(f(small), (small @ small).relu().sum(), rtol=1e-4))
""",
        BACKPLANE_OPENCL_ZERO_COPY="0",
        BACKPLANE_OPENCL_MEMORY="1000000",
    )
    assert done.stdout.split("\n")[:-1] == ["True", "True True", "True"], done.stdout + done.stderr


def test_idle_arenas_give_way() -> None:
    """Three graphs whose intermediates fill the device take turns, with weights on it all the time."""
    done = run(
        """
torch.manual_seed(0)
x = torch.randn(256, 1024)  # a megabyte; a graph keeps input, intermediates and output
functions = [lambda x, k=k: ((x * k).softmax(-1).cumsum(0) + x).sin().cumsum(1) for k in range(3)]
graphs = [compiled(f) for f in functions]
expected = [f(x) for f in functions]
live = lambda: torch_backplane.stats()["transfers"]["opencl:0"]["live_bytes"]
for _ in range(2):
    for graph, value in zip(graphs, expected):
        print(torch.allclose(graph(x), value, rtol=1e-3, atol=1e-3), 2e6 < live() < 8e6)
""",
        BACKPLANE_OPENCL_ZERO_COPY="0",
        BACKPLANE_OPENCL_MEMORY="8000000",
    )
    assert done.stdout.split("\n")[:-1] == ["True True"] * 6, done.stdout + done.stderr


def test_a_limit_that_is_no_number_is_said() -> None:
    done = run(
        """
try:
    compiled(lambda x: x * 2)(torch.ones(2))
except Exception as error:
    print("BACKPLANE_OPENCL_MEMORY=much is no number" in str(error))
""",
        BACKPLANE_OPENCL_MEMORY="much",
    )
    assert done.stdout.strip() == "True", done.stderr


@pytest.mark.parametrize("zero_copy", ["0", "1"])
@pytest.mark.parametrize("plan", ["lost:-5:2", "lost:-36:0", "clEnqueueNDRangeKernel:-2:1:-1"])
def test_a_lost_device(plan: str, zero_copy: str) -> None:
    """It is told once, with what to do; this call and later ones run with PyTorch, or raise where that
    is not allowed; tensors of the host are what they were."""
    done = run(
        STEP
        + f"""
def right():
    return all(torch.allclose(a, b, atol=1e-4, rtol=1e-3) for a, b in zip(expected, step()))
plan("{plan}")
try:
    print(right(), intact())
except torch_backplane.BackplaneError as error:  # in the backward: what was saved is gone
    print("was lost" in str(error), intact())
plan("")
print(right(), intact())
f = compiled(lambda x: x.sin() + 1)
print(torch.allclose(f(x), x.sin() + 1))
run = compiled(model, strict=True)
try:
    print("no error", step())
except Exception as error:
    print("was lost" in str(error), intact())
""",
        BACKPLANE_OPENCL_ZERO_COPY=zero_copy,
    )
    assert done.stdout.split("\n")[:-1] == ["True True", "True True", "True", "True True"], (
        done.stdout + done.stderr
    )
    told = [line for line in done.stderr.splitlines() if "was lost; what can" in line]
    assert len(told) == 1 and "start the program anew" in told[0], done.stderr


def test_work_that_fails_on_a_device_that_answers() -> None:
    done = run(
        STEP
        + """
plan("command:-5:1")
print("the device's work failed with OpenCL error -5" in failure(step), intact())
plan("")
print(same())
"""
    )
    assert done.stdout.split("\n")[:-1] == ["True True", "True"], done.stdout + done.stderr


def test_a_kernel_that_does_not_build_runs_on_the_cpu() -> None:
    """The log names the node and shows the line; the graph's result is right, and it is counted."""
    done = run(
        """
x = torch.randn(5)
plan("source:0:0:-1")
with torch_backplane.record() as graphs:
    y = compiled(lambda x: (x * 2).tanh())(x)
print(torch.allclose(y, (x * 2).tanh()))
(node, *_) = graphs[0]["fallback"]
reason, count = node["reason"], len(graphs[0]["fallback"])
print("does not build" in reason and "no_such_id" in reason, count)
print(all(f"{node['op']} (node " in node["reason"] for node in graphs[0]["fallback"]))
print("; line " in node["reason"])
""",
    )
    lines = done.stdout.split("\n")
    assert lines[0] == "True" and lines[1] == "True 2", done.stdout + done.stderr
    assert lines[2:4] == ["True", "True"], done.stdout + done.stderr
    assert "back to the CPU" in done.stderr


CACHED = """
x = torch.randn(300)
print(torch.allclose(compiled(lambda x: (x * 2).tanh().softmax(0))(x), (x * 2).tanh().softmax(0)))
"""


def test_torn_and_foreign_cache_files(tmp_path: pathlib.Path) -> None:
    environment = {"BACKPLANE_CACHE_DIR": str(tmp_path), "POCL_KERNEL_CACHE": "0"}

    def files() -> list[pathlib.Path]:
        return sorted(p for p in tmp_path.rglob("*") if p.is_file() and p.stat().st_size > 0)

    tmp_path.chmod(0o700)
    assert run(CACHED, **environment).stdout == "True\n"
    assert files()
    good = [f.read_bytes() for f in files()]
    for damage in (
        lambda content: content[: len(content) // 2],
        lambda content: content[:-100] + bytes(100),
    ):
        for file, content in zip(files(), good, strict=False):
            file.write_bytes(damage(content))
        assert run(CACHED, **environment).stdout == "True\n"
