"""oneDNN falls back to plain loops, a hundred times slower, where a form has no kernel of its own: no
usual form of a layer may get there."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch

PROGRAM = """
import torch, torch_backplane
from torch import nn
torch.manual_seed(0)
r = torch.randn

def run(name, f, *inputs):
    print("FORM", name, flush=True)
    compiled = torch_backplane.compile(f, backend="plugin:cpu_onednn")
    for more in (0, 1):  # a first size, and another
        given = [torch.cat([x, x[:more]]) for x in inputs]
        with torch.no_grad():
            actual = compiled(*given)
            print("EAGER", flush=True)
            torch.testing.assert_close(actual, f(*given), rtol=1e-3, atol=1e-3)
            print("FORM", name, more, flush=True)
        given = [x.requires_grad_() for x in given]
        compiled(*given).sum().backward()

for n, m in ((64, 1), (1, 64), (1, 1), (64, 2), (33, 17)):
    run(f"linear {n} {m}", nn.Linear(n, m), r(40, n))
    run(f"linear {n} {m} batched", nn.Linear(n, m), r(4, 5, n))
    run(f"bmm {n} {m}", lambda a, b: a @ b, r(4, 8, n), r(4, n, m))
    run(f"bmm row {n} {m}", lambda a, b: a @ b.transpose(1, 2), r(4, 1, n), r(4, m, n))
for n in (1, 7, 64):
    weight = r(32, n)
    run(f"mv {n}", lambda a: weight @ a.sum(0), r(3, n))
    run(f"mv turned {n}", lambda a: a.sum(0) @ weight, r(3, 32))
for dims in (1, 2, 3):
    size = (12,) * dims
    for turned in (False, True):
        kind = getattr(nn, f"Conv{'Transpose' if turned else ''}{dims}d")
        for stride, kernel in ((1, 1), (1, 3), (2, 2), (2, 4)):
            layer = kind(32, 32, kernel, stride, kernel // 2)
            x = r(2, 32, *size)
            name = f"{kind.__name__} {stride} {kernel}"
            run(name, layer, x)
            run(name + " last", layer, x.movedim(1, -1).contiguous().movedim(-1, 1))
            run(name + " relu", lambda x, layer=layer: layer(x).relu(), x)
            if stride == 1 and kernel % 2 == 1:
                run(name + " residual", lambda x, layer=layer: x + layer(x), x)
                run(name + " gate", lambda x, layer=layer: (layer(x) * x).relu(), x)
"""


@pytest.mark.skipif(
    torch.backends.cpu.get_cpu_capability() == "DEFAULT",
    reason="below AVX2 oneDNN has no kernel for some of them",
)
def test_usual_layers_have_kernels() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env={**os.environ, "ONEDNN_VERBOSE": "1", "BACKPLANE_QUIET": "1"},
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    form, found = "", {}
    for line in done.stdout.splitlines():
        if line.startswith(("FORM", "EAGER")):
            form = line
        elif "exec,cpu," in line and "reorder" not in line and not form.startswith("EAGER"):
            name = line.split("exec,cpu,")[1].split(",")[1]
            if "ref" in name:
                found.setdefault(form, line[:200])
    assert not found, found
    assert "exec,cpu,matmul" in done.stdout and "exec,cpu,deconvolution" in done.stdout
