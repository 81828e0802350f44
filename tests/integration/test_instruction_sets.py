"""The plugin cpu_onednn on processors with less: BACKPLANE_CPU_ISA holds kernels and oneDNN."""

from __future__ import annotations

import os
import pathlib
import sys

import pytest
from compiling import run_python
from patience import run as run_patiently

TESTS = pathlib.Path(__file__).resolve().parents[1]
FLAGS = pathlib.Path("/proc/cpuinfo").read_text().partition("flags")[2].partition("\n")[0].split()
SETS = [name for name, flag in (("sse41", "sse4_1"), ("avx2", "avx2")) if flag in FLAGS]
# Without AVX-512 all other tests are at the level of AVX2 as it is.
LONG = {"sse41"} if "avx512f" in FLAGS else {"sse41", "avx2"}

ARCHITECTURE = """
import torch, torch_backplane
torch.compile(lambda x: x + 1, backend="plugin:cpu_onednn")(torch.ones(2))
from torch_backplane import _C
print(_C.plugin_info("cpu_onednn")["devices"][0]["architecture"])
"""


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[pytest.mark.long] * (n in LONG)) for n in SETS]
)
def test_bfloat16_models(name: str) -> None:
    """oneDNN has no bfloat16 below AVX-512: such products run in float32, and stay on the plugin."""
    files = ["models/test_models.py", "integration/test_features.py", "frontend/test_guards.py"]
    options = ["-q", "-p", "no:cacheprovider", "-k", "bf16 or autocast"]
    done = run_patiently(
        [sys.executable, "-m", "pytest", *options, *files],
        cwd=TESTS,
        env={**os.environ, "BACKPLANE_CPU_ISA": name},
    )
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
    assert " passed" in done.stdout and "failed" not in done.stdout


@pytest.mark.parametrize("name", SETS)
def test_the_device_says_what_it_uses(name: str) -> None:
    done = run_python(ARCHITECTURE, {"BACKPLANE_CPU_ISA": name})
    assert done.returncode == 0, done.stderr
    assert done.stdout.split()[-1] == {"sse41": "baseline"}.get(name, name)


def test_onednn_s_own_variable_holds_the_kernels_too() -> None:
    if "avx2" not in SETS:
        pytest.skip("the processor has no AVX2")
    done = run_python(ARCHITECTURE, {"ONEDNN_MAX_CPU_ISA": "AVX2"})
    assert done.returncode == 0, done.stderr
    assert done.stdout.split()[-1] == "avx2"


def test_an_unknown_name_is_refused() -> None:
    done = run_python(ARCHITECTURE, {"BACKPLANE_CPU_ISA": "mmx"})
    assert done.returncode != 0
    assert "BACKPLANE_CPU_ISA is 'mmx'; it must be one of sse41, avx2 and avx512" in done.stderr


def test_bfloat16_nodes_stay_on_the_plugin() -> None:
    code = """
import torch, torch_backplane
model = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.Flatten(), torch.nn.Linear(288, 4))
model = model.bfloat16().eval()
x = torch.randn(2, 3, 8, 8, dtype=torch.bfloat16)
for grad in (False, True):
    with torch.set_grad_enabled(grad), torch_backplane.record() as reports:
        got = torch.compile(model, backend="plugin:cpu_onednn", options={"report": False})(x)
        torch.testing.assert_close(got, model(x), rtol=2e-2, atol=2e-2)
        if grad:
            got.sum().backward()
    assert reports and all(not r["fallback_nodes"] for r in reports), reports
print("fine")
"""
    for name in SETS:
        done = run_python(code, {"BACKPLANE_CPU_ISA": name})
        assert done.stdout == "fine\n", done.stderr
