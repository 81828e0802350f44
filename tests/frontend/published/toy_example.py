"""A branch on the value of a tensor."""

import torch
from torch_backplane import frontend


@frontend.compile
def toy_example(a, b):
    x = a / (torch.abs(a) + 1)
    if b.sum() < 0:
        b = b * -1
    return x * b


for sign in (1, -1, 1):
    a, b = torch.arange(10.0), sign * torch.arange(10.0)
    assert torch.equal(toy_example(a, b), a / (torch.abs(a) + 1) * b.abs())
counters = frontend.counters(toy_example)
assert counters["entries"] == counters["programs"] == 3 and counters["plain_calls"] == 0
