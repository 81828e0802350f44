"""Single groups of operators, as torch.compile gives them to a plugin: what `run.py --groups` times."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import torch
from torch.nn import functional


@dataclasses.dataclass(frozen=True)
class Group:
    """A function and its inputs."""

    function: Callable[..., torch.Tensor]
    inputs: tuple[torch.Tensor, ...]


def _gelu_chain(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return functional.gelu(x * y + 0.5) * torch.tanh(x)


def _mask(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return torch.where(y > 0, x * 1.25, x - y).clamp(-2, 2)


def make(name: str) -> Group:
    generator = torch.Generator().manual_seed(0)

    def rand(*dims: int) -> torch.Tensor:
        return torch.randn(*dims, generator=generator)

    groups: dict[str, Callable[[], Group]] = {
        "mm 512": lambda: Group(torch.mm, (rand(512, 512), rand(512, 512))),
        "mm 1024": lambda: Group(torch.mm, (rand(1024, 1024), rand(1024, 1024))),
        "linear 512x384x1536": lambda: Group(
            functional.linear, (rand(512, 384), rand(1536, 384), rand(1536))
        ),
        "gelu chain 1M": lambda: Group(_gelu_chain, (rand(1024, 1024), rand(1024, 1024))),
        "mask chain 4M": lambda: Group(_mask, (rand(2048, 2048), rand(2048, 2048))),
        "softmax 1024x1024": lambda: Group(
            lambda x: functional.softmax(x, -1), (rand(1024, 1024),)
        ),
        "softmax 3072x128": lambda: Group(lambda x: functional.softmax(x, -1), (rand(3072, 128),)),
        "layer norm 4096x768": lambda: Group(
            lambda x, w, b: functional.layer_norm(x, (768,), w, b),
            (rand(4096, 768), rand(768), rand(768)),
        ),
        "sum 1024x1024": lambda: Group(lambda x: x.sum(-1), (rand(1024, 1024),)),
        "conv 64x56 3x3": lambda: Group(
            lambda x, w: functional.conv2d(x, w, padding=1),
            (rand(4, 64, 56, 56), rand(64, 64, 3, 3)),
        ),
        "conv 256x14 1x1": lambda: Group(
            functional.conv2d, (rand(4, 256, 14, 14), rand(512, 256, 1, 1))
        ),
    }
    return groups[name]()


NAMES = (
    "mm 512",
    "mm 1024",
    "linear 512x384x1536",
    "gelu chain 1M",
    "mask chain 4M",
    "softmax 1024x1024",
    "softmax 3072x128",
    "layer norm 4096x768",
    "sum 1024x1024",
    "conv 64x56 3x3",
    "conv 256x14 1x1",
)
