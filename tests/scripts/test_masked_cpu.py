"""./dev --cpu: a processor that answers as one with fewer instruction sets."""

from __future__ import annotations

import os
import pathlib
import signal
import subprocess

import pytest
from compiling import run_python

SOURCE = pathlib.Path(__file__).resolve().parents[2] / "scripts" / "dev" / "masked_cpu.cpp"
NO_FAULTS = 3  # the exit status where CPUID does not fault

PROGRAM = """
import signal, torch, torch_backplane

print(torch.backends.cpu.get_cpu_capability())
text = open("/proc/cpuinfo").read()
print("avx512" in text, " avx2 " in text)
model = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.GELU(), torch.nn.Flatten())
x = torch.randn(2, 3, 8, 8)
for plugin in ("cpu_onednn", "opencl"):
    with torch_backplane.record() as reports:
        got = torch.compile(model, backend=f"plugin:{plugin}", options={"report": False})(x)
    torch.testing.assert_close(got, model(x), rtol=1e-4, atol=1e-4)
    assert reports and not reports[0]["fallback_nodes"], reports
print(torch_backplane._C.plugin_info("cpu_onednn")["devices"][0]["architecture"])
signal.signal(signal.SIGSEGV, signal.SIG_IGN)
assert signal.getsignal(signal.SIGSEGV) is signal.SIG_IGN
torch_backplane.compile(lambda x: x + 2, backend="opencl")(x)  # asks the processor again
print("fine")
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    built = tmp_path_factory.mktemp("masked_cpu") / "masked_cpu.so"
    options = ["-std=c++20", "-O2", "-fPIC", "-shared", "-Wl,-z,initfirst"]
    subprocess.run(["g++", *options, "-o", str(built), str(SOURCE), "-ldl"], check=True)
    tried = subprocess.run(["true"], env={**os.environ, **masked(built, "avx2")}, check=False)
    if tried.returncode == NO_FAULTS:
        pytest.skip("this machine's CPUID does not fault")
    return built


def masked(library: pathlib.Path, level: str) -> dict[str, str]:
    return {"BACKPLANE_MASKED_CPU": level, "LD_PRELOAD": str(library)}


@pytest.mark.parametrize(
    ("level", "torch_s", "flags", "ours"),
    [("avx2", "AVX2", "False True", "avx2"), ("sse42", "DEFAULT", "False False", "baseline")],
)
def test_everything_sees_another_processor(
    library: pathlib.Path, level: str, torch_s: str, flags: str, ours: str
) -> None:
    if "avx2" not in pathlib.Path("/proc/cpuinfo").read_text():
        pytest.skip("the processor has no AVX2")
    done = run_python(PROGRAM, masked(library, level))
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [torch_s, flags, ours, "fine"]


@pytest.mark.parametrize("how", ["os.kill(os.getpid(), signal.SIGSEGV)", "ctypes.string_at(0)"])
def test_a_process_that_dies_of_it_dies(library: pathlib.Path, how: str) -> None:
    code = f"import ctypes, os, signal; {how}; print('it lives')"
    done = run_python(code, masked(library, "avx2"))
    assert (done.returncode, done.stdout) == (-signal.SIGSEGV, "")


def test_an_unknown_level_is_refused(library: pathlib.Path) -> None:
    environment = {**os.environ, **masked(library, "mmx")}
    done = subprocess.run(["true"], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == NO_FAULTS
    assert done.stderr == "BACKPLANE_MASKED_CPU=mmx: want avx2 or sse42\n"
