"""Two sizes, gradients, and a branch in the middle."""

import torch
from torch_backplane import frontend


@frontend.compile
def function(inputs):
    x = inputs["x"]
    y = inputs["y"]
    x = x.cos().cos()
    if x.mean() > 0.5:
        x = x / 1.1
    return x * y


def plain(inputs):
    x = inputs["x"].cos().cos()
    if x.mean() > 0.5:
        x = x / 1.1
    return x * inputs["y"]


for size in (10, 8, 10, 8):
    torch.manual_seed(size)
    ours = {name: torch.randn(size, requires_grad=True) for name in ("x", "y")}
    theirs = {name: value.detach().clone().requires_grad_() for name, value in ours.items()}
    function(ours).sum().backward()
    plain(theirs).sum().backward()
    for name in ("x", "y"):
        assert torch.equal(ours[name].grad, theirs[name].grad)

by_frame: dict[str, set[int]] = {}
for entry in frontend.entries(function):
    by_frame.setdefault(entry["frame"], set()).add(entry["program"])
assert len(by_frame) == 2 and all(len(programs) <= 2 for programs in by_frame.values()), by_frame
assert frontend.counters(function)["plain_calls"] == 0
