"""Two processes train one model: gradients are averaged as without the compiler."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import sys
import torch
import torch.distributed as dist
import torch_backplane
from torch import nn
from torch.nn.parallel import DistributedDataParallel

plugin, rank, folder, outside = sys.argv[1], int(sys.argv[2]), sys.argv[3], sys.argv[4] == "outside"
torch.set_num_threads(1)
dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=2)

class Net(nn.Module):  # TorchDynamo leaves frames of torch.nn itself alone below the wrapper
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(n, m) for n, m in SIZES)
        self.norm = nn.LayerNorm(512)

    def forward(self, x):
        for layer in self.layers:
            x = self.norm(nn.functional.gelu(layer(x)))
        return x

SIZES = [(8, 512), (512, 512), (512, 512), (512, 512)]

def make():
    torch.manual_seed(3)
    return Net()

options = {"report": False}
model, plain = make(), make()
# Buckets of 1 MiB: several all-reduces start while gradients arrive.
if outside:
    ours = DistributedDataParallel(model, bucket_cap_mb=1)
    ours = torch.compile(ours, backend="plugin:" + plugin, options=options)
else:
    model = torch.compile(model, backend="plugin:" + plugin, options=options)
    ours = DistributedDataParallel(model, bucket_cap_mb=1)
theirs = DistributedDataParallel(plain, bucket_cap_mb=1)

order = {"ours": [], "theirs": []}
for name, module in (("ours", ours), ("theirs", theirs)):
    for i, p in enumerate(module.parameters()):
        p.register_post_accumulate_grad_hook(lambda p, i=i, name=name: order[name].append(i))

optimizers = [torch.optim.SGD(m.parameters(), lr=0.05) for m in (ours, theirs)]
generator = torch.Generator().manual_seed(10 + rank)
for _ in range(4):
    x = torch.randn(6, 8, generator=generator)
    for module, optimizer in zip((ours, theirs), optimizers):
        optimizer.zero_grad()
        module(x).sin().mean().backward()
        optimizer.step()
    for p, q in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(p.grad, q.grad, rtol=1e-4, atol=1e-6)
        torch.testing.assert_close(p, q, rtol=1e-4, atol=1e-6)
assert sorted(order["ours"]) == sorted(order["theirs"]), order
stats = torch_backplane.stats()
assert stats["plugin_nodes"] > 0 and stats["aot_graphs"] == 0, stats
dist.destroy_process_group()
"""


@pytest.mark.parametrize("wrapped", ["outside", "inside"])
def test_two_processes(wrapped: str, tmp_path: Path) -> None:
    """wrapped: whether the compiler sees the model outside of DistributedDataParallel or inside."""
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", PROGRAM, "cpu_onednn", str(rank), str(tmp_path), wrapped],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        for rank in ranks:
            text, _ = rank.communicate(timeout=240)
            assert rank.returncode == 0, text
    finally:
        for rank in ranks:
            rank.kill()
