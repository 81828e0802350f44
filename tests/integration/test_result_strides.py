"""Results lie as PyTorch's own kernels lay them: who views them sees it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from compiling import DOORS, close, compile_for
from torch import nn


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("plugin", ["cpu_onednn", "opencl", "reference"])
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("behind", [nn.Identity(), nn.ReLU()], ids=["alone", "relu"])
def test_a_norm_behind_a_convolution_of_one_dim(
    plugin: str, door: str, transposed: bool, behind: nn.Module
) -> None:
    """The convolution's weight decides how its result lies, and the norm lays its own anew."""
    kind = nn.ConvTranspose1d if transposed else nn.Conv1d
    convolution, norm = kind(3, 8, 2, bias=False), nn.BatchNorm1d(8)
    shape = convolution.weight.shape
    convolution.weight.data = torch.randn(shape[0], shape[2], shape[1]).transpose(1, 2)
    norm.running_mean.normal_()
    model = nn.Sequential(convolution, norm, behind).eval()
    compiled = compile_for(plugin, model, door)
    x = torch.randn(3, 3, 8)
    with torch.no_grad():
        close(compiled(x), model(x))


LAID: dict[str, tuple[Callable[[torch.Tensor], torch.Tensor], torch.Tensor]] = (
    {
        f"{mode} of volumes": (
            lambda x, mode=mode: F.pad(x, (1, 0, 0, 1, 0, 1), mode=mode),
            torch.randn(2, 3, 4, 4, 4).to(memory_format=torch.channels_last_3d),
        )
        for mode in ("replicate", "reflect")
    }
    | {
        f"{mode} of less than nothing": (
            lambda x, mode=mode: F.pad(x, (-1, 1, -2, 1), mode=mode),
            torch.randn(1, 3, 4, 4).to(memory_format=torch.channels_last),
        )
        for mode in ("replicate", "reflect")
    }
    | {
        "max_pool1d": (
            lambda x: F.max_pool1d(x, 2),
            torch.randn(3, 6, 4).contiguous().transpose(1, 2),
        )
    }
)


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("plugin", ["cpu_onednn", "reference"])
@pytest.mark.parametrize("name", LAID)
@pytest.mark.parametrize("has_gradient", [False, True])
def test_strides(plugin: str, door: str, name: str, has_gradient: bool) -> None:
    program, x = LAID[name]
    x = x.detach().requires_grad_(has_gradient)
    close(compile_for(plugin, program, door)(x), program(x))


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("plugin", ["cpu_onednn", "opencl", "reference"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.int64])
def test_a_vector_added_to_a_product_of_nothing(plugin: str, door: str, dtype: torch.dtype) -> None:
    for added, matrix in (([1], (0, 3)), ([], (0, 3)), ([1], (3, 0)), ([0], (0, 3)), ([3], (3, 0))):
        arguments = [torch.ones(shape, dtype=dtype) for shape in (added, matrix, [matrix[1]])]
        close(compile_for(plugin, torch.addmv, door)(*arguments), torch.addmv(*arguments))
