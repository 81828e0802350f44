"""Sound: filters, spectra, losses and networks over them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from peers.libraries.common import Inputs, both, eval_case, normal, together, train_case
from peers.torch_suites import Case


def _sounds(*sizes: int) -> tuple[Inputs, ...]:
    return tuple(normal(2, size, grad=True) for size in sizes)


def julius() -> Iterator[Case]:
    def resample() -> Any:
        import julius

        return julius.ResampleFrac(4, 3)

    def low_pass() -> Any:
        import julius

        return julius.LowPassFilter(0.2, zeros=4)

    def bands() -> Any:
        import julius

        return julius.SplitBands(100, n_bands=3)

    def convolution() -> Any:
        import julius

        weight = torch.randn(1, 1, 9)
        return lambda x: julius.fft_conv1d(x[:, None], weight, padding=4)

    sounds = _sounds(64, 64, 51)
    for name, make in {"resample": resample, "low_pass": low_pass, "bands": bands}.items():
        yield from both(f"julius.{name}", make, *sounds)
    yield train_case("julius.fft_convolution", convolution, *sounds)


def nn_audio() -> Iterator[Case]:
    def features(name: str, **options: Any) -> Any:
        def make() -> Any:
            import nnAudio.features as features

            return getattr(features, name)(verbose=False, **options)

        return make

    sounds = _sounds(256, 256, 192)
    yield from both("nnAudio.stft", features("STFT", n_fft=32, hop_length=16), *sounds)
    yield from both(
        "nnAudio.mel",
        features("MelSpectrogram", sr=800, n_fft=64, n_mels=8, hop_length=16),
        *sounds,
    )
    yield from both(
        "nnAudio.mfcc",
        features("MFCC", sr=800, n_fft=64, n_mels=8, n_mfcc=5, hop_length=16),
        *sounds,
    )
    yield eval_case(
        "nnAudio.gammatone",
        features("Gammatonegram", sr=800, n_fft=64, n_bins=8, hop_length=16),
        *sounds,
    )


def auraloss() -> Iterator[Case]:
    def loss(part: str, name: str, **options: Any) -> Any:
        def make() -> Any:
            import auraloss

            return getattr(getattr(auraloss, part), name)(**options)

        return make

    def pair(size: int) -> Inputs:
        return together(normal(2, 1, size, grad=True), normal(2, 1, size))

    pairs = (pair(256), pair(256), pair(320))
    for part, name, options in (
        ("time", "SISDRLoss", {}),
        ("time", "ESRLoss", {}),
        ("time", "LogCoshLoss", {}),
        ("freq", "STFTLoss", {"fft_size": 64, "hop_size": 16, "win_length": 64}),
        (
            "freq",
            "MultiResolutionSTFTLoss",
            {"fft_sizes": [64, 32], "hop_sizes": [16, 8], "win_lengths": [64, 32]},
        ),
    ):
        yield train_case(f"auraloss.{name}", loss(part, name, **options), *pairs)


def asteroid_filterbanks() -> Iterator[Case]:
    def coded(name: str) -> Any:
        def make() -> Any:
            import asteroid_filterbanks as filterbanks

            bank = getattr(filterbanks, name)
            coder = filterbanks.Encoder(bank(n_filters=16, kernel_size=16, stride=8))
            back = filterbanks.Decoder(bank(n_filters=16, kernel_size=16, stride=8))
            return torch.nn.Sequential(coder, back)

        return make

    sounds = tuple(normal(2, 1, size, grad=True) for size in (64, 64, 96))
    for name in ("FreeFB", "STFTFB"):
        yield from both(f"asteroid_filterbanks.{name}", coded(name), *sounds)


def conformer() -> Iterator[Case]:
    def block() -> Any:
        from conformer import ConformerBlock

        return ConformerBlock(dim=16, dim_head=8, heads=2, conv_kernel_size=5)

    def model() -> Any:
        from conformer import Conformer

        return Conformer(dim=16, depth=2, dim_head=8, heads=2, conv_kernel_size=5)

    sequences = (normal(2, 12, 16), normal(2, 12, 16), normal(1, 9, 16))
    yield from both("conformer.block", block, *sequences)
    yield from both("conformer.model", model, *sequences)


def cosines() -> Iterator[Case]:
    def transform() -> Any:
        import torch_dct

        return lambda x: (torch_dct.dct(x), torch_dct.idct(torch_dct.dct(x)))

    def plane() -> Any:
        import torch_dct

        return lambda x: torch_dct.dct_2d(x, norm="ortho")

    yield train_case("torch_dct.line", transform, *_sounds(16, 16, 11))
    yield train_case(
        "torch_dct.plane",
        plane,
        normal(2, 8, 8, grad=True),
        normal(2, 8, 8, grad=True),
        normal(1, 5, 6, grad=True),
    )


def cases() -> Iterator[Case]:
    yield from julius()
    yield from nn_audio()
    yield from auraloss()
    yield from asteroid_filterbanks()
    yield from conformer()
    yield from cosines()
