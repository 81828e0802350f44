"""Attention in the shapes that papers gave it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from peers.libraries.common import both, eval_case, integers, normal, together, train_case
from peers.torch_suites import Case


def x_transformers() -> Iterator[Case]:
    def decoder(**options: Any) -> Any:
        from x_transformers import Decoder, TransformerWrapper

        return TransformerWrapper(
            num_tokens=64,
            max_seq_len=32,
            attn_layers=Decoder(dim=32, depth=2, heads=4, attn_dim_head=8, **options),
        )

    def encoder(**options: Any) -> Any:
        from x_transformers import Encoder, TransformerWrapper

        return TransformerWrapper(
            num_tokens=64,
            max_seq_len=32,
            attn_layers=Encoder(dim=32, depth=2, heads=4, attn_dim_head=8, **options),
        )

    def encoder_decoder() -> Any:
        from x_transformers import XTransformer

        return XTransformer(
            dim=32,
            enc_num_tokens=40, enc_depth=1, enc_heads=2, enc_max_seq_len=24,
            dec_num_tokens=40, dec_depth=1, dec_heads=2, dec_max_seq_len=24,
        )  # fmt: skip

    def continuous() -> Any:
        from x_transformers import ContinuousTransformerWrapper, Decoder

        return ContinuousTransformerWrapper(
            dim_in=6, dim_out=5, max_seq_len=32, attn_layers=Decoder(dim=32, depth=1, heads=2)
        )

    def autoregressive() -> Any:
        from x_transformers import AutoregressiveWrapper

        return AutoregressiveWrapper(decoder())

    tokens = (integers(64, 2, 16), integers(64, 2, 16), integers(64, 3, 11))
    yield from both("x_transformers.decoder", decoder, *tokens)
    yield from both(
        "x_transformers.rotary_glu", lambda: decoder(rotary_pos_emb=True, ff_glu=True), *tokens
    )
    yield from both("x_transformers.alibi", lambda: decoder(alibi_pos_bias=True), *tokens)
    yield from both(
        "x_transformers.rms_norm_t5",
        lambda: encoder(use_rmsnorm=True, rel_pos_bias=True),
        *tokens,
    )
    yield from both("x_transformers.grouped_queries", lambda: decoder(attn_kv_heads=2), *tokens)
    yield from both(
        "x_transformers.continuous", continuous, normal(2, 16, 6), normal(2, 16, 6), normal(1, 9, 6)
    )
    pairs = (
        together(integers(40, 2, 10), integers(40, 2, 12)),
        together(integers(40, 2, 10), integers(40, 2, 12)),
        together(integers(40, 1, 7), integers(40, 1, 5)),
    )
    yield train_case("x_transformers.encoder_decoder.train", encoder_decoder, *pairs)
    yield train_case(
        "x_transformers.autoregressive.train", autoregressive, *tokens[:2], integers(64, 3, 12)
    )


def performer() -> Iterator[Case]:
    def attention() -> Any:
        from performer_pytorch import SelfAttention

        return SelfAttention(dim=32, heads=4, dim_head=8, causal=False, nb_features=16)

    def language_model() -> Any:
        from performer_pytorch import PerformerLM

        return PerformerLM(
            num_tokens=50, max_seq_len=32, dim=32, depth=1, heads=2, dim_head=16, nb_features=16
        )

    yield from both(
        "performer_pytorch.attention",
        attention,
        normal(2, 16, 32),
        normal(2, 16, 32),
        normal(1, 9, 32),
    )
    yield from both(
        "performer_pytorch.language_model",
        language_model,
        integers(50, 2, 16),
        integers(50, 2, 16),
        integers(50, 1, 12),
    )


def reformer() -> Iterator[Case]:
    def attention() -> Any:
        from reformer_pytorch import LSHSelfAttention

        return LSHSelfAttention(dim=32, heads=2, bucket_size=8, n_hashes=2, causal=False)

    def language_model() -> Any:
        from reformer_pytorch import ReformerLM

        return ReformerLM(
            num_tokens=50, dim=32, depth=2, max_seq_len=64, heads=2, bucket_size=8, n_hashes=2
        )

    yield from both(
        "reformer_pytorch.attention",
        attention,
        normal(2, 32, 32),
        normal(2, 32, 32),
        normal(1, 16, 32),
    )
    yield from both(
        "reformer_pytorch.language_model",
        language_model,
        integers(50, 2, 32),
        integers(50, 2, 32),
        integers(50, 1, 64),
    )


def axial() -> Iterator[Case]:
    def attention() -> Any:
        from axial_attention import AxialAttention

        return AxialAttention(dim=16, dim_index=1, heads=2, num_dimensions=2)

    def image_transformer() -> Any:
        from axial_attention import AxialImageTransformer

        return AxialImageTransformer(dim=16, depth=2, heads=2, reversible=False)

    def positions() -> Any:
        from axial_attention import AxialPositionalEmbedding

        return AxialPositionalEmbedding(dim=8, shape=(6, 7), emb_dim_index=1)

    images = (normal(2, 16, 6, 6, grad=True), normal(2, 16, 6, 6, grad=True), normal(1, 16, 5, 7))
    yield from both("axial_attention.attention", attention, *images)
    yield from both("axial_attention.image_transformer", image_transformer, *images)
    yield from both("axial_attention.positions", positions, normal(2, 8, 6, 7), normal(3, 8, 6, 7))


def local() -> Iterator[Case]:
    def attention() -> Any:
        from local_attention import LocalAttention

        return LocalAttention(
            dim=16, window_size=8, causal=True, look_backward=1, look_forward=0, autopad=True
        )

    def transformer() -> Any:
        from local_attention.transformer import LocalTransformer

        return LocalTransformer(
            num_tokens=50, max_seq_len=32, dim=32, depth=1, heads=2, dim_head=16,
            local_attn_window_size=8,
        )  # fmt: skip

    def three(length: int) -> Any:
        return together(*[normal(2, 2, length, 16, grad=True)] * 3)

    yield from both("local_attention.attention", attention, three(16), three(16), three(21))
    yield from both(
        "local_attention.transformer",
        transformer,
        integers(50, 2, 16),
        integers(50, 2, 16),
        integers(50, 1, 24),
    )


def linformer() -> Iterator[Case]:
    def attention() -> Any:
        from linformer import LinformerSelfAttention

        return LinformerSelfAttention(dim=32, seq_len=16, heads=4, k=8, one_kv_head=True)

    def model() -> Any:
        from linformer import Linformer

        return Linformer(dim=32, seq_len=16, depth=2, heads=4, k=8)

    sequences = (normal(2, 16, 32), normal(2, 16, 32), normal(3, 16, 32))
    yield from both("linformer.attention", attention, *sequences)
    yield from both("linformer.model", model, *sequences)


def nystrom() -> Iterator[Case]:
    def attention() -> Any:
        from nystrom_attention import NystromAttention

        return NystromAttention(dim=32, dim_head=8, heads=4, num_landmarks=4, pinv_iterations=4)

    def model() -> Any:
        from nystrom_attention import Nystromformer

        return Nystromformer(dim=32, dim_head=8, heads=4, depth=2, num_landmarks=4)

    sequences = (normal(2, 16, 32), normal(2, 16, 32), normal(1, 13, 32))
    yield from both("nystrom_attention.attention", attention, *sequences)
    yield from both("nystrom_attention.model", model, *sequences)


def perceiver() -> Iterator[Case]:
    def model() -> Any:
        from perceiver_pytorch import Perceiver

        return Perceiver(
            input_channels=3, input_axis=2, num_freq_bands=3, max_freq=5.0, depth=1,
            num_latents=8, latent_dim=16, cross_heads=1, latent_heads=2, cross_dim_head=8,
            latent_dim_head=8, num_classes=5,
        )  # fmt: skip

    def model_io() -> Any:
        from perceiver_pytorch import PerceiverIO

        return PerceiverIO(
            dim=16, queries_dim=12, logits_dim=7, depth=1, num_latents=8, latent_dim=16,
            cross_heads=1, latent_heads=2, cross_dim_head=8, latent_dim_head=8,
        )  # fmt: skip

    yield from both(
        "perceiver_pytorch.perceiver",
        model,
        normal(2, 6, 6, 3),
        normal(2, 6, 6, 3),
        normal(1, 5, 7, 3),
    )
    yield eval_case("perceiver_pytorch.io.eval", model_io, normal(2, 10, 16), normal(1, 6, 16))


def rotary() -> Iterator[Case]:
    def embedding() -> Any:
        from rotary_embedding_torch import RotaryEmbedding

        rotary = RotaryEmbedding(dim=8)

        def rotate(q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
            q, k = rotary.rotate_queries_or_keys(q), rotary.rotate_queries_or_keys(k)
            return q @ k.transpose(-1, -2)

        return rotate

    def axes() -> Any:
        from rotary_embedding_torch import RotaryEmbedding, apply_rotary_emb

        rotary = RotaryEmbedding(dim=8, freqs_for="pixel", max_freq=10)

        def rotate(x: torch.Tensor) -> torch.Tensor:
            return apply_rotary_emb(rotary.get_axial_freqs(x.shape[-3], x.shape[-2]), x)

        return rotate

    def two(length: int) -> Any:
        return together(*[normal(2, 2, length, 16, grad=True)] * 2)

    yield from both("rotary_embedding_torch.embedding", embedding, two(8), two(8), two(13))
    yield from both(
        "rotary_embedding_torch.axes",
        axes,
        normal(1, 4, 4, 32, grad=True),
        normal(1, 4, 4, 32, grad=True),
        normal(2, 3, 5, 32, grad=True),
    )


def cases() -> Iterator[Case]:
    yield from x_transformers()
    yield from performer()
    yield from reformer()
    yield from axial()
    yield from local()
    yield from linformer()
    yield from nystrom()
    yield from perceiver()
    yield from rotary()
