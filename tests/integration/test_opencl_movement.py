"""Operators of the OpenCL plugin that join tensors, beside eager."""

from __future__ import annotations

import torch
import torch_backplane
from compiling import compile_for


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


def test_parts_that_are_computed_beside() -> None:
    """Parts of one group of points and of several, given ones, one twice, also read elsewhere."""
    generator = torch.Generator().manual_seed(1)

    def rand(*dims: int) -> torch.Tensor:
        return torch.randn(*dims, generator=generator)

    def join(x: torch.Tensor, y: torch.Tensor, w: torch.Tensor) -> list[torch.Tensor]:
        a, b, c = x.sigmoid(), torch.tanh(y) * x, x * 2
        gates = torch.cat([a, b, a, y], -1)
        turned = torch.cat([-x[:, 9:], x[:, :9]], 1) * y
        rows = torch.cat([c + 1, x.t().contiguous().t(), c], 0)
        again = torch.cat([gates, gates.relu()], 0)
        across = torch.cat([x.t() + 1, y.t() * 2], 1)
        lines = torch.cat([w.exp(), w], 0) * torch.cat([w, w - 1])
        small = torch.cat([(x > 0), (y > 0)], 1)
        inside = torch.cat([c.softmax(-1), c], 1)
        around = (gates[:, :18] + a) * b
        return [
            gates,
            turned,
            rows,
            again,
            across,
            lines,
            small,
            inside,
            around,
            c,
            gates @ gates.t(),
        ]

    inputs = (rand(5, 18), rand(5, 18), rand(1, 7))
    for dynamic in (False, True):
        for ours, expected in zip(
            compile_for("opencl", join, dynamic=dynamic)(*inputs), join(*inputs), strict=True
        ):
            assert ours.dtype == expected.dtype
            torch.testing.assert_close(ours, expected)


def test_joined_gradients() -> None:
    """As of the gates of a recurrent layer."""
    generator = torch.Generator().manual_seed(2)
    x, h, c = (torch.randn(3, 20, generator=generator, requires_grad=True) for _ in range(3))
    w = torch.randn(80, 20, generator=generator, requires_grad=True)

    def steps(*tensors: torch.Tensor) -> torch.Tensor:
        x, h, c, w = tensors
        for _ in range(3):
            i, f, g, o = (torch.nn.functional.linear(x + h, w)).chunk(4, 1)
            c = f.sigmoid() * c + i.sigmoid() * g.tanh()
            h = o.sigmoid() * c.tanh()
        return h.square().sum()

    inputs = (x, h, c, w)
    expected = torch.autograd.grad(steps(*inputs), inputs)
    ours = torch.autograd.grad(compile_for("opencl", steps, dynamic=False)(*inputs), inputs)
    for mine, best in zip(ours, expected, strict=True):
        torch.testing.assert_close(mine, best)


def test_a_constant_without_elements() -> None:
    """As a fresh cache of transformers begins: its first keys are nothing."""
    programs = (
        lambda x: torch.cat([torch.tensor([]), x], dim=-2) * 2,
        lambda x: (torch.cat([torch.tensor([]), x.sin()], dim=-2), x + 1),
        lambda x: torch.tensor([]).sum() + x,
    )
    for program in programs:
        compiled = torch_backplane.compile(program, backend="plugin:opencl")
        for shape in ((2, 7, 8), (3, 11, 8), (1, 5, 8)):
            x = torch.randn(shape)
            torch.testing.assert_close(compiled(x), program(x))
