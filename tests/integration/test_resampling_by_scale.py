"""Nearest points of equal or doubled sizes, by the scale or by the sizes: as PyTorch's kernels, whose
rules differ with the dims and the order of memory."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from compiling import DOORS, compile_for


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("plugin", ["cpu_onednn", "opencl", "reference"])
@pytest.mark.parametrize("dims", [1, 2, 3])
@pytest.mark.parametrize("channels", [3, 4])
def test_nearest(plugin: str, door: str, dims: int, channels: int) -> None:
    formats = {2: torch.channels_last, 3: torch.channels_last_3d}
    for size, scale in ((3, 1.3), (10, 2.05), (7, 2.1), (4, 2.0), (4, 1.7)):

        def resized(x: torch.Tensor, scale: float = scale) -> torch.Tensor:
            return F.interpolate(x, scale_factor=(1.0,) * (dims - 1) + (scale,), mode="nearest")

        compiled = compile_for(plugin, resized, door)
        shape = (1, channels) + (2,) * (dims - 1) + (size,)
        x = torch.arange(size).float().expand(shape).contiguous()
        for laid in [x] + [x.to(memory_format=formats[d]) for d in (dims,) if d in formats]:
            ours, theirs = (laid.detach().clone().requires_grad_() for _ in range(2))
            result, expected = compiled(ours), resized(theirs)
            torch.testing.assert_close(result, expected, rtol=0, atol=0)
            seed = torch.randn(expected.shape)
            result.backward(seed)
            expected.backward(seed)
            torch.testing.assert_close(ours.grad, theirs.grad)
