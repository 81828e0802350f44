"""Two entries that a guard on a type tells apart."""

import torch
from torch_backplane import frontend


class A(torch.nn.Module):
    def forward(self, x):
        return x.sin()


class B(torch.nn.Module):
    def forward(self, x):
        return x.cos()


@frontend.compile
def f(x, mod):
    return mod(x) + 1


x, a, b = torch.arange(3.0), A(), B()
for mod in (a, b, a, b):
    assert torch.equal(f(x, mod), mod(x) + 1)
counters = frontend.counters(f)
assert counters["entries"] == 2 and counters["hits"] == 2 and counters["plain_calls"] == 0
