"""Memory that runs out while a forward saves: a clear error, and nothing lost."""

from __future__ import annotations

import sys

import pytest
from patience import run as run_patiently

# In a process of its own: the limit holds for all of it.
PROGRAM = """
import gc, resource, sys
import torch
import torch_backplane

def f(x, w):
    for _ in range(12):
        x = (x * w).sigmoid().sin()
    return x

torch.set_num_threads(1)
compiled = torch.compile(f, backend="plugin:" + sys.argv[1], dynamic=True, options={"report": False})

def check(rows):
    x = torch.randn(rows, 1024)
    w = torch.randn(1024, requires_grad=True)
    other = w.detach().clone().requires_grad_()
    y = compiled(x, w)
    y.sum().backward()
    f(x, other).sum().backward()
    torch.testing.assert_close(w.grad, other.grad, rtol=1e-4, atol=1e-3)

check(3), check(7), check(64)
large = torch.ones(16 * 1024, 1024)  # 64 MiB; what the forward saves is a dozen of it
kept = large.clone()
w = torch.randn(1024, requires_grad=True)
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
limits = resource.getrlimit(resource.RLIMIT_AS)
resource.setrlimit(resource.RLIMIT_AS, (used + (300 << 20), limits[1]))
try:
    compiled(large, w).sum().backward()
except Exception as fault:
    message = f"{type(fault).__name__}: {fault}"
else:
    message = "no error"
resource.setrlimit(resource.RLIMIT_AS, limits)
assert w.grad is None and torch.equal(large, kept)
gc.collect()
check(64), check(5)
print(message)
"""


@pytest.mark.host_memory
@pytest.mark.parametrize("plugin", ["reference", "cpu_onednn"])
def test_while_saving(plugin: str) -> None:
    done = run_patiently([sys.executable, "-c", PROGRAM, plugin])
    assert done.returncode == 0, done.stderr
    assert "memory" in done.stdout.lower(), done.stdout
