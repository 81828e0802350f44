"""Operators of the OpenCL plugin that join tensors, beside eager."""

from __future__ import annotations

import torch
from integration.helpers import compile_for


def test_many_parts() -> None:
    """More than share a launch, of one shape and of several, dense and not, large ones as well."""
    generator = torch.Generator().manual_seed(0)

    def rand(*dims: int) -> torch.Tensor:
        return torch.randn(*dims, generator=generator)

    same = [rand(3, 8) for _ in range(37)]
    mixed = [rand(rows, 5) for rows in (2, 2, 1, 0, 4, 4, 4, 1)]
    across = [rand(5, 3).t(), rand(3, 5), rand(6, 5)[::2], rand(3, 1).expand(3, 5)]
    large = [rand(300, 300), rand(300, 300), rand(1, 300)]
    types = [rand(4, 4), torch.arange(16).view(4, 4), rand(4, 4).half(), rand(4, 4) > 0]

    def join(
        same: list[torch.Tensor],
        mixed: list[torch.Tensor],
        across: list[torch.Tensor],
        large: list[torch.Tensor],
        types: list[torch.Tensor],
    ) -> list[torch.Tensor]:
        joined = [torch.cat(same), torch.cat(same, 1), torch.cat(same[:1] * 20, 1)]
        joined += [torch.stack(same), torch.stack(same, 2), torch.cat(mixed)]
        joined += [torch.cat(across, 1), torch.stack(across, 1), torch.cat(large)]
        return [*joined, torch.cat(types), torch.cat([torch.empty(0), *same[:2]])]

    inputs = (same, mixed, across, large, types)
    run = compile_for("opencl", join, dynamic=False)
    for ours, expected in zip(run(*inputs), join(*inputs), strict=True):
        assert ours.dtype == expected.dtype
        assert torch.equal(ours, expected)
