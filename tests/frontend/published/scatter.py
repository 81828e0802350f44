"""A graph that makes a tensor of its own and writes to it."""

import torch
from torch_backplane import frontend


@frontend.compile
def scatter(src, index):
    return torch.zeros(3, 5, dtype=src.dtype).scatter_(0, index, src)


src = torch.arange(1, 11).reshape(2, 5)
index = torch.tensor([[0, 1, 2, 0, 0]])
expected = torch.tensor([[1, 0, 0, 4, 5], [0, 2, 0, 0, 0], [0, 0, 3, 0, 0]])
for _ in range(2):
    assert torch.equal(scatter(src, index), expected)
assert frontend.counters(scatter)["hits"] == 1 and frontend.counters(scatter)["plain_calls"] == 0
