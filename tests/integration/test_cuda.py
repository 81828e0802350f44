"""plugin:cuda where a driver, a device or NVRTC is missing, and where calls of the driver fail.

Programs run in interpreters of their own, on the emulated driver (plugins/cuda/testing), whose calls fail
as BACKPLANE_FAULTY_CUDA says.
"""

from __future__ import annotations

import itertools
import json
import os
import pathlib
import re
import subprocess

import pytest
import torch
from compiling import close, compile_for, mlp, run_python

ROOT = pathlib.Path(__file__).resolve().parents[2]
API = (ROOT / "plugins/cuda/api.h").read_text()
ENTRIES = re.findall(r"X\((cu\w+|nvrtc\w+),", API)
# These answer a device's facts, or end something: there is nobody to tell.
UNHEARD = re.compile(
    r"cuInit|cuDriverGetVersion|cuGetErrorString|cuDevice(Get|TotalMem)\w*|cu\w*Free\w*|cu\w+Destroy\w*"
    r"|cuDevicePrimaryCtxRelease_v2|cuCtxP\w+Current_v2|cuModuleUnload|cuEvent(Synchronize|ElapsedTime)"
    r"|cublasLt(GetVersion|\w*Destroy)"
    r"|nvrtc(Version|GetErrorString|GetProgramLog\w*|DestroyProgram)"
)
HEARD = [entry for entry in ENTRIES if not UNHEARD.fullmatch(entry)]

HEAD = """
import os
import torch, torch_backplane

def plan(text):
    os.environ["BACKPLANE_FAULTY_CUDA"] = text

def compiled(function, **options):
    return torch.compile(
        function, backend="plugin:cuda", options={"report": False, **options}, dynamic=False
    )

def failure(call, *arguments):
    try:
        call(*arguments)
    except torch_backplane.BackplaneError as error:
        return str(error)
    except torch._dynamo.exc.BackendCompilerFailed as error:
        return str(error)
    return "no error"

torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.GELU(), torch.nn.Linear(16, 8))
x = torch.randn(8, 16)
def run_step(module):
    model.zero_grad()
    module(x).square().sum().backward()
    return [p.grad.clone() for p in model.parameters()]
expected = run_step(model)
kept = [t.clone() for t in (x, *model.parameters())]
def intact():
    return all(torch.equal(a, b) for a, b in zip(kept, (x, *model.parameters())))
def is_right(module):
    return all(torch.allclose(a, b, 1e-4, 1e-5) for a, b in zip(expected, run_step(module)))
"""


def run(program: str, **environment: str) -> subprocess.CompletedProcess[str]:
    done = run_python(HEAD + program, environment)
    assert done.returncode == 0, done.stderr
    return done


REFUSED = """
print(failure(compiled(lambda x: x * 2), torch.ones(2)).replace("\\n", " "))
print(torch.compile(lambda x: x * 2, backend="plugin:reference")(torch.ones(2)).tolist())
"""


@pytest.mark.parametrize(
    ("environment", "words"),
    [
        ({"BACKPLANE_CUDA_DRIVER": "/nonexistent/libcuda.so.1"}, "no device: no NVIDIA driver"),
        ({"BACKPLANE_EMULATED_CUDA_DEVICES": "0"}, "no CUDA-capable device is detected"),
        ({"BACKPLANE_EMULATED_CUDA_VERSION": "11040"}, "11.8 or newer is needed"),
        ({"BACKPLANE_CUDA_NVRTC": "/nonexistent/libnvrtc.so.13"}, "install nvidia-cuda-nvrtc"),
    ],
)
def test_what_is_missing_is_said_and_the_program_runs_on(
    environment: dict[str, str], words: str
) -> None:
    said, others = run(REFUSED, **environment).stdout.splitlines()
    assert words in said
    assert others == "[2.0, 0.0]".replace("0.0", "2.0")


def test_there_are_entries_whose_failure_is_heard() -> None:
    assert {"cuMemAlloc_v2", "cuLaunchKernel", "cuEventRecord", "nvrtcCompileProgram"} <= set(HEARD)
    assert len(HEARD) >= 20


SWEEP = """
import itertools
for entry, code, skip in itertools.product(os.environ["ENTRIES"].split(), (1, 2), (0, 1, 4)):
    plan(f"{entry}:{code}:{skip}:1")
    torch._dynamo.reset()
    module = compiled(model)
    try:
        right, said = is_right(module), ""
    except Exception as error:
        right, said = None, str(error)
    plan("")
    assert intact(), (entry, code, skip)
    assert right is not False, (entry, code, skip)
    if right is None:
        assert entry.removesuffix("_v2") in said or "memory" in said or "copy" in said, said
        words = (f"error {code}", f"status {code}", "NVRTC", "out of")
        assert any(w in said for w in words), said
    assert is_right(module), ("afterwards", entry, code, skip)
"""
GROUPS = ("cuMem", "cuStream|cuDevice", "cuEvent|cuLaunch", "cuModule", "nvrtc", "cublas")


def test_each_call_is_in_a_group() -> None:
    assert all(re.match("|".join(GROUPS), entry) for entry in HEARD)


@pytest.mark.parametrize("group", GROUPS)
def test_each_call_of_the_driver_may_fail_once(group: str, tmp_path: pathlib.Path) -> None:
    """A step is right or an error that names the call; nothing is lost, and the next one is right."""
    entries = [entry for entry in HEARD if re.match(group, entry)]
    builds = group in ("cuModule", "nvrtc")  # else kernels come from the cache
    cache = {"BACKPLANE_CACHE_DIR": str(tmp_path)} if builds else {}
    run(SWEEP, ENTRIES=" ".join(entries), **cache)


LOST = """
module = compiled(model)
assert is_right(module)
plan("cuLaunchKernel:700:0:1")
assert is_right(module)  # with PyTorch, which is said
assert intact()
plan("")
assert is_right(module)
torch._dynamo.reset()
assert is_right(compiled(model))
print("lived")
"""


def test_an_illegal_access_loses_the_device_and_not_the_program() -> None:
    done = run(LOST, BACKPLANE_QUIET="")
    assert done.stdout == "lived\n"
    assert "cuda:0 was lost" in done.stderr
    assert "an illegal memory access was encountered" in done.stderr
    assert re.search(r"\(node \d+\)", done.stderr)


LOST_BETWEEN = """
module = compiled(model)
assert is_right(module)
loss = module(x).square().sum()
plan("cuLaunchKernel:700:0:1")
text = failure(loss.backward)  # what the forward saved is lost with the device
assert "was lost" in text and "illegal memory access" in text, text
assert intact()
plan("")
assert is_right(module)
print("lived")
"""


def test_what_was_saved_on_a_lost_device_is_an_error_of_that_backward() -> None:
    assert run(LOST_BETWEEN).stdout == "lived\n"


def test_memory_is_limited() -> None:
    run(
        """
large = torch.randn(1024, 1024)
before = large.clone()
text = failure(compiled(lambda x: (x @ x).relu().sum()), large)
assert "out of device memory" in text and "of 1000000 in use" in text, text
assert torch.equal(large, before)
assert is_right(compiled(model))
""",
        BACKPLANE_CUDA_MEMORY="1000000",
    )


def test_the_trace_shows_kernels_with_their_nodes(tmp_path: pathlib.Path) -> None:
    trace = tmp_path / "trace.json"
    run("module = compiled(model)\nmodule(x)\nmodule(x)\n", BACKPLANE_TRACE=str(trace))
    events = json.loads(trace.read_text())["traceEvents"]
    device = [e for e in events if e["ph"] == "X" and e["cat"] == "cuda:0"]
    kernels = [e for e in device if e["args"]["nodes"]]
    assert len({e["args"]["call"] for e in kernels}) == 2
    assert all(f"(node {n})" in e["name"] for e in kernels for n in e["args"]["nodes"])


def test_signal_handlers_stay_the_programs_own() -> None:
    done = run("compiled(model)(x)\n", BACKPLANE_QUIET="")
    assert "signal handlers" not in done.stderr


CHUNKED = (torch.float32, torch.bfloat16, torch.float16, torch.float64, torch.int64, torch.uint8)


@pytest.mark.parametrize("plugin", ["cuda", "opencl"])
@pytest.mark.parametrize("dtype", CHUNKED)
def test_points_in_chunks(plugin: str, dtype: torch.dtype) -> None:
    """Rows that are whole chunks and those that are not, at addresses that are aligned and not."""
    for size, start in itertools.product((8, 24, 31), (0, 1, 4)):
        memory = (torch.randn(3 * size + 8) * 4).to(dtype)
        row = (torch.randn(size) * 4).to(dtype)

        def f(memory: torch.Tensor, row: torch.Tensor) -> tuple[torch.Tensor, ...]:
            x = memory[start : start + 3 * size].view(3, size)  # noqa: B023
            return x * 2 + row, x > row, x.float() + row.double()

        actual = compile_for(plugin, f, dynamic=False)(memory, row)
        for one, other in zip(actual, f(memory, row), strict=True):
            short = one.dtype in (torch.bfloat16, torch.float16)
            torch.testing.assert_close(
                one, other, **({"rtol": 1e-2, "atol": 1e-2} if short else {})
            )
    torch._dynamo.reset()


FACTORS = {
    "rows": lambda a, b, c: a @ b,
    "transposed": lambda a, b, c: a @ b.t().contiguous().t(),
    "left transposed": lambda a, b, c: a.t().contiguous().t() @ b,
    "column stride": lambda a, b, c: a[:, ::2] @ b[::2],
    "one row": lambda a, b, c: a[:1] @ b,
    "one column": lambda a, b, c: a @ b[:, :1],
    "linear": lambda a, b, c: torch.nn.functional.linear(a, b.t(), c),
    "linear, gelu": lambda a, b, c: torch.nn.functional.gelu(
        torch.nn.functional.linear(a, b.t(), c)
    ),
    "bias of another stride": lambda a, b, c: torch.addmm(c.repeat(2)[::2], a, b),
    "scaled": lambda a, b, c: torch.addmm(c, a, b, alpha=0.5, beta=2),
    "offset": lambda a, b, c: a[1:, 1:] @ b[1:],
    "batch": lambda a, b, c: a.expand(3, -1, -1) @ b.expand(3, -1, -1).clone(),
    "two batch dims": lambda a, b, c: (
        a.view(4, 6, 2, 20).transpose(1, 2).transpose(0, 1) @ b.view(2, 1, 20, 32)
    ),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", FACTORS)
def test_products_by_the_library(name: str, dtype: torch.dtype) -> None:
    f = FACTORS[name]
    inputs = [torch.randn(24, 40), torch.randn(40, 32), torch.randn(32)]
    if name == "bias of another stride":
        inputs[2] = torch.randn(32)
    inputs = [t.to(dtype) for t in inputs]
    actual = compile_for("cuda", f, dynamic=False)(*inputs)
    exact = f(*(t.double() for t in inputs)).to(dtype)
    tolerance = {torch.float32: 2e-5, torch.bfloat16: 2e-2, torch.float16: 4e-3}[dtype]
    torch.testing.assert_close(actual, exact, rtol=tolerance, atol=tolerance * 8)


@pytest.mark.parametrize("door", ["torch", "own"])
def test_both_doors_and_the_device(door: str) -> None:
    model = mlp()
    x = torch.randn(4, 16)
    expected = model(x)
    close(compile_for("cuda", model, door=door)(x), expected)
    expected.sum().backward()
    gradients = [p.grad for p in model.parameters()]
    model.zero_grad()
    compile_for("cuda", model, door=door)(x).sum().backward()
    for one, other in zip(model.parameters(), gradients, strict=True):
        close(one.grad, other)


def test_tensors_stay_on_the_device() -> None:
    """What crosses is counted to the byte: weights and a batch to it once, the loss back when read."""
    run(
        """
device = torch_backplane.device("cuda", 0)
module = torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.GELU(), torch.nn.Linear(16, 8))
expected = module(x).square().sum().item()
weights = sum(p.nbytes for p in module.parameters())
torch_backplane.reset()
step = compiled(module.to(device))
batch = x.to(device)
losses = []
for _ in range(3):
    loss = step(batch).square().sum()
    loss.backward()
    losses.append(loss.item())
assert abs(losses[0] - expected) < 1e-4 and losses[0] == losses[1] == losses[2]
moved = torch_backplane.stats()["transfers"]["cuda:0"]
def crossed(way):
    return sum(amount for amount, _ in moved[way].values())
assert crossed("host_to_device") == weights + x.nbytes, moved
assert crossed("device_to_host") == 3 * 4, moved
"""
    )


@pytest.mark.skipif(not os.environ.get("BACKPLANE_TEST_GPU"), reason="needs an NVIDIA GPU")
def test_on_the_machines_own_device() -> None:
    assert run("assert is_right(compiled(model))\nprint('right')\n").stdout == "right\n"


def test_doctor_takes_a_machine_without_a_gpu_for_whole() -> None:
    code = "import sys; from torch_backplane.cli import main; sys.argv = ['backplane', 'doctor']; sys.exit(main())"
    done = run_python(code, {"BACKPLANE_CUDA_DRIVER": "/nonexistent/libcuda.so.1"})
    assert done.returncode == 0, done.stdout
    assert "cuda: nothing for it here: no NVIDIA driver" in done.stdout
