"""Small models of many kinds, for whoever runs them on a plugin: nothing is downloaded, nothing but
PyTorch is needed, the same weights and inputs every time."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

WIDTH, TOKENS, BATCH, CLASSES = 32, 12, 3, 10


@dataclasses.dataclass(frozen=True)
class Model:
    make: Callable[[], nn.Module]
    inputs: Callable[[torch.Generator], tuple[Tensor, ...]]  # a batch of BATCH


def _numbers(*dims: int) -> Callable[[torch.Generator], tuple[Tensor, ...]]:
    return lambda g: (torch.randn(BATCH, *dims, generator=g),)


def _words(*dims: int) -> Callable[[torch.Generator], tuple[Tensor, ...]]:
    return lambda g: (torch.randint(CLASSES * 5, (BATCH, *dims), generator=g),)


class Residual(nn.Module):
    """What comes in, and what its parts make of it."""

    def __init__(self, *parts: nn.Module) -> None:
        super().__init__()
        self.inner = nn.Sequential(*parts)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.inner(x)


class Mean(nn.Module):
    def __init__(self, *dims: int) -> None:
        super().__init__()
        self.dims = dims

    def forward(self, x: Tensor) -> Tensor:
        return x.mean(self.dims)


class First(nn.Module):
    """The first result of a module that gives several."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, x: Tensor) -> Tensor:
        return self.module(x)[0]


class ChannelsLast(nn.Module):
    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module.to(memory_format=torch.channels_last)

    def forward(self, x: Tensor) -> Tensor:
        return self.module(x.contiguous(memory_format=torch.channels_last))


class Attention(nn.Module):
    """Heads over tokens; causal where asked; keys of a memory where one is given."""

    def __init__(self, heads: int = 4, causal: bool = False) -> None:
        super().__init__()
        self.heads, self.causal = heads, causal
        self.query, self.out = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.pair = nn.Linear(WIDTH, 2 * WIDTH)

    def split(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (self.heads, -1)).transpose(1, 2)

    def forward(self, x: Tensor, memory: Tensor | None = None) -> Tensor:
        key, value = self.pair(x if memory is None else memory).chunk(2, -1)
        found = F.scaled_dot_product_attention(
            self.split(self.query(x)), self.split(key), self.split(value), is_causal=self.causal
        )
        return self.out(found.transpose(1, 2).flatten(2))


class PlainAttention(nn.Module):
    """Written out: products, mask, softmax."""

    def __init__(self) -> None:
        super().__init__()
        self.triple = nn.Linear(WIDTH, 3 * WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = self.triple(x).chunk(3, -1)
        scores = query @ key.transpose(-1, -2) / math.sqrt(WIDTH)
        mask = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool, device=x.device).tril()
        return scores.masked_fill(~mask, -math.inf).softmax(-1) @ value


class Rotary(nn.Module):
    """A block of a language model: RMS norms, rotated positions, gated units."""

    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.RMSNorm(WIDTH) for _ in range(2))
        self.triple, self.out = nn.Linear(WIDTH, 3 * WIDTH, bias=False), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)

    def turned(self, x: Tensor) -> Tensor:
        count, half = x.shape[1], x.shape[2] // 2
        steps = torch.arange(count, device=x.device, dtype=torch.float32)
        rates = 10.0 ** (-torch.arange(half, device=x.device, dtype=torch.float32) / half)
        angle = steps[:, None] * rates
        cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
        one, two = x[..., :half], x[..., half:]
        return torch.cat([one * cos - two * sin, one * sin + two * cos], -1)

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = self.triple(self.norms[0](x)).chunk(3, -1)
        x = x + self.out(
            F.scaled_dot_product_attention(
                self.turned(query), self.turned(key), value, is_causal=True
            )
        )
        one, two = self.up(self.norms[1](x)).chunk(2, -1)
        return x + self.down(F.silu(one) * two)


class Encoder(nn.Module):
    """Words to classes."""

    def __init__(self, *blocks: nn.Module) -> None:
        super().__init__()
        self.words = nn.Embedding(CLASSES * 5, WIDTH)
        self.places = nn.Parameter(torch.randn(TOKENS, WIDTH) * 0.1)
        self.blocks = nn.Sequential(*blocks)
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, words: Tensor) -> Tensor:
        return self.head(self.blocks(self.words(words) + self.places).mean(1))


class Tied(nn.Module):
    """A language model whose head is its embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(CLASSES * 5, WIDTH)
        self.block = Residual(nn.LayerNorm(WIDTH), Attention(causal=True))

    def forward(self, words: Tensor) -> Tensor:
        scores = F.linear(self.block(self.words(words)), self.words.weight)
        return (scores / WIDTH).log_softmax(-1)[..., :CLASSES]


class Translator(nn.Module):
    """A decoder that looks at what an encoder made of another sequence."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.decoder = Attention(), Attention(causal=True)
        self.cross, self.norm = Attention(), nn.LayerNorm(WIDTH)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return self.norm(y + self.cross(self.decoder(y), self.encoder(x)))


class Unet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.down = nn.Conv2d(3, 8, 3, stride=2, padding=1)
        self.middle = nn.Sequential(nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 3, padding=1))
        self.up = nn.ConvTranspose2d(8, 8, 2, stride=2)
        self.last = nn.Conv2d(11, 3, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.cat([x, self.up(F.relu(self.middle(self.down(x))))], 1))


class Experts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(WIDTH, 4)
        self.experts = nn.Parameter(torch.randn(4, WIDTH, WIDTH) * 0.2)

    def forward(self, x: Tensor) -> Tensor:
        weights = self.gate(x).softmax(-1)
        return torch.einsum("be,eij,bj->bi", weights, self.experts, x).tanh()


class Neighbours(nn.Module):
    """Messages along the edges of a graph, summed where they arrive."""

    def __init__(self) -> None:
        super().__init__()
        self.own, self.other = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        messages = self.other(x)[edges[0]]
        summed = torch.zeros_like(x).index_add(0, edges[1], messages)
        return F.relu(self.own(x) + summed)


class Recommender(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.bags = nn.EmbeddingBag(CLASSES * 5, WIDTH, mode="sum")
        self.dense, self.top = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH + 1, 1)

    def forward(self, x: Tensor, words: Tensor) -> Tensor:
        one, two = F.relu(self.dense(x)), self.bags(words)
        return self.top(torch.cat([one, (one * two).sum(-1, keepdim=True)], -1)).sigmoid()


class Twins(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ELU(), nn.Linear(WIDTH, WIDTH))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return F.cosine_similarity(self.inner(x), self.inner(y), dim=-1)


def _pictures(channels: int = 3, side: int = 16) -> Callable[[torch.Generator], tuple[Tensor, ...]]:
    return _numbers(channels, side, side)


def _both(*dims: int) -> Callable[[torch.Generator], tuple[Tensor, ...]]:
    return lambda g: (*_numbers(*dims)(g), *_numbers(*dims)(g))


def _perceptron(between: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Linear(WIDTH, 64), between, nn.Linear(64, CLASSES))


def _head(channels: int) -> list[nn.Module]:
    return [Mean(2, 3), nn.Linear(channels, CLASSES)]


def _residual() -> nn.Module:
    block = [nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU()]
    return nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), Residual(*block), *_head(8))


def _separable() -> nn.Module:
    parts = [nn.Conv2d(16, 16, 3, padding=1, groups=16), nn.BatchNorm2d(16), nn.Hardswish()]
    return nn.Sequential(nn.Conv2d(3, 16, 1), *parts, nn.Conv2d(16, 8, 1), nn.ReLU6(), *_head(8))


def _pooled() -> nn.Module:
    first = [nn.Conv2d(3, 8, 5), nn.Tanh(), nn.MaxPool2d(2), nn.Conv2d(8, 16, 3), nn.ReLU()]
    return nn.Sequential(*first, nn.AvgPool2d(2), nn.Flatten(), nn.Linear(64, CLASSES))


def _sound() -> nn.Module:
    parts = [nn.Conv1d(4, 8, 5, stride=2), nn.GELU(), nn.Conv1d(8, 8, 3, dilation=2), nn.SiLU()]
    return nn.Sequential(*parts, Mean(2), nn.Linear(8, CLASSES))


def _patches() -> nn.Module:
    parts = [nn.Conv2d(3, WIDTH, 4, stride=4), nn.Flatten(2)]
    block = Residual(nn.LayerNorm(16), nn.Linear(16, 16), nn.GELU(), nn.Linear(16, 16))
    return nn.Sequential(*parts, block, Mean(2), nn.Linear(WIDTH, CLASSES))


def _layer(**settings: bool) -> nn.Module:
    return nn.TransformerEncoderLayer(WIDTH, 4, 64, dropout=0.0, batch_first=True, **settings)


def _recurrent(kind: type[nn.RNNBase], **settings: bool) -> nn.Module:
    width = 2 * WIDTH if settings.get("bidirectional") else WIDTH
    inner = kind(WIDTH, WIDTH, batch_first=True, **settings)
    return nn.Sequential(First(inner), nn.Linear(width, CLASSES))


def _graph(generator: torch.Generator) -> tuple[Tensor, ...]:
    return (
        torch.randn(TOKENS, WIDTH, generator=generator),
        torch.randint(TOKENS, (2, 30), generator=generator),
    )


_TOKENS = _numbers(TOKENS, WIDTH)
MODELS = {
    "perceptron": Model(lambda: _perceptron(nn.ReLU()), _numbers(WIDTH)),
    "perceptron-gelu": Model(lambda: _perceptron(nn.GELU()), _numbers(WIDTH)),
    "perceptron-norm": Model(lambda: _perceptron(nn.BatchNorm1d(64)), _numbers(WIDTH)),
    "autoencoder": Model(
        lambda: nn.Sequential(
            _perceptron(nn.LeakyReLU()), nn.Softplus(), nn.Linear(CLASSES, WIDTH)
        ),
        _numbers(WIDTH),
    ),
    "experts": Model(Experts, _numbers(WIDTH)),
    "twins": Model(Twins, _both(WIDTH)),
    "recommender": Model(Recommender, lambda g: (*_numbers(WIDTH)(g), *_words(5)(g))),
    "neighbours": Model(Neighbours, _graph),
    "residual": Model(_residual, _pictures()),
    "residual-last": Model(lambda: ChannelsLast(_residual()), _pictures()),
    "separable": Model(_separable, _pictures()),
    "pooled": Model(_pooled, _pictures()),
    "unet": Model(Unet, _pictures()),
    "groups": Model(
        lambda: nn.Sequential(nn.Conv2d(3, 8, 3), nn.GroupNorm(2, 8), nn.Mish(), *_head(8)),
        _pictures(),
    ),
    "instances": Model(
        lambda: nn.Sequential(
            nn.ReflectionPad2d(1), nn.Conv2d(3, 8, 3), nn.InstanceNorm2d(8), nn.PReLU(), *_head(8)
        ),
        _pictures(),
    ),
    "upsampled": Model(
        lambda: nn.Sequential(
            nn.Upsample(scale_factor=2, mode="bilinear"), nn.Conv2d(3, 4, 3), nn.PixelShuffle(2)
        ),
        _pictures(side=8),
    ),
    "patches": Model(_patches, _pictures()),
    "sound": Model(_sound, _numbers(4, 40)),
    "space": Model(
        lambda: nn.Sequential(
            nn.Conv3d(2, 4, 3, padding=1), nn.ReLU(), nn.MaxPool3d(2), nn.Flatten()
        ),
        _numbers(2, 4, 6, 6),
    ),
    "attention": Model(Attention, _TOKENS),
    "attention-causal": Model(lambda: Attention(causal=True), _TOKENS),
    "attention-plain": Model(PlainAttention, _TOKENS),
    "rotary": Model(Rotary, _TOKENS),
    "encoder": Model(lambda: Encoder(_layer()), _words(TOKENS)),
    "encoder-first": Model(
        lambda: Encoder(_layer(norm_first=True), _layer(norm_first=True)), _words(TOKENS)
    ),
    "tied": Model(Tied, _words(TOKENS)),
    "translator": Model(Translator, _both(TOKENS, WIDTH)),
    "lstm": Model(lambda: _recurrent(nn.LSTM), _TOKENS),
    "lstm-both": Model(lambda: _recurrent(nn.LSTM, bidirectional=True), _TOKENS),
    "gru": Model(lambda: _recurrent(nn.GRU), _TOKENS),
    "rnn": Model(lambda: _recurrent(nn.RNN), _TOKENS),
}


def build(name: str) -> tuple[nn.Module, tuple[Tensor, ...]]:
    """The model, in evaluation mode, and its inputs."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = MODELS[name].make()
    return model.eval(), MODELS[name].inputs(torch.Generator().manual_seed(1))
