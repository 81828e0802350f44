"""Networks over tables, and mixtures of experts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from peers.libraries.common import Inputs, both, integers, normal, together, train_case
from peers.torch_suites import Case


def _rows(width: int) -> tuple[Inputs, ...]:
    return normal(6, width, grad=True), normal(6, width, grad=True), normal(4, width, grad=True)


def tabnet() -> Iterator[Case]:
    def network() -> Any:
        from pytorch_tabnet.tab_network import TabNetNoEmbeddings

        return TabNetNoEmbeddings(6, 3, n_d=4, n_a=4, n_steps=2, virtual_batch_size=8)

    def encoder() -> Any:
        from pytorch_tabnet.tab_network import FeatTransformer

        shared = torch.nn.ModuleList([torch.nn.Linear(6, 16)])
        return FeatTransformer(6, 8, shared, n_glu_independent=1, virtual_batch_size=8)

    def sparse(name: str) -> Any:
        def make() -> Any:
            import pytorch_tabnet.sparsemax as sparsemax

            return getattr(sparsemax, name)(dim=-1)

        return make

    # Statistics are those of eight rows: of a few alone their gradients have no digits left.
    batches = tuple(normal(count, 6, grad=True) for count in (16, 16, 8))
    yield from both("pytorch_tabnet.network", network, *batches)
    yield from both("pytorch_tabnet.features", encoder, *batches)
    for name in ("Sparsemax", "Entmax15"):
        yield from both(f"pytorch_tabnet.{name}", sparse(name), *_rows(5))


def entmax() -> Iterator[Case]:
    def function(name: str, **options: Any) -> Any:
        def make() -> Any:
            import entmax

            return lambda x: getattr(entmax, name)(x, **options)

        return make

    def loss(name: str) -> Any:
        def make() -> Any:
            import entmax

            return getattr(entmax, name)()

        return make

    for name, options in (
        ("sparsemax", {}),
        ("entmax15", {}),
        ("entmax_bisect", {"alpha": 1.3}),
        ("normmax_bisect", {"alpha": 2.0}),
    ):
        yield from both(f"entmax.{name}", function(name, **options), *_rows(7))

    def pair(count: int) -> Inputs:
        return together(normal(count, 5, grad=True), integers(5, count))

    for name in ("SparsemaxLoss", "Entmax15Loss"):
        yield train_case(f"entmax.{name}", loss(name), pair(4), pair(4), pair(2))


def rtdl() -> Iterator[Case]:
    def perceptron() -> Any:
        from rtdl_revisiting_models import MLP

        return MLP(d_in=6, d_out=2, n_blocks=2, d_block=8, dropout=0.1)

    def residual() -> Any:
        from rtdl_revisiting_models import ResNet

        return ResNet(
            d_in=6, d_out=2, n_blocks=1, d_block=8, d_hidden=None, d_hidden_multiplier=2.0,
            dropout1=0.1, dropout2=0.0,
        )  # fmt: skip

    def transformer() -> Any:
        from rtdl_revisiting_models import FTTransformer

        return FTTransformer(
            n_cont_features=4, cat_cardinalities=[3, 5], d_out=2, n_blocks=1, d_block=16,
            attention_n_heads=2, attention_dropout=0.0, ffn_d_hidden=None,
            ffn_d_hidden_multiplier=1.5, ffn_dropout=0.0, residual_dropout=0.0,
        )  # fmt: skip

    def periodic() -> Any:
        from rtdl_num_embeddings import PeriodicEmbeddings

        return PeriodicEmbeddings(6, 4, lite=False)

    def pieces() -> Any:
        from rtdl_num_embeddings import PiecewiseLinearEmbeddings, compute_bins

        bins = compute_bins(torch.randn(40, 6), n_bins=4)
        return PiecewiseLinearEmbeddings(bins, 4, activation=False, version="B")

    def mixed(count: int) -> Inputs:
        return together(normal(count, 4, grad=True), integers(3, count, 2))

    yield from both("rtdl_revisiting_models.mlp", perceptron, *_rows(6))
    yield from both("rtdl_revisiting_models.resnet", residual, *_rows(6))
    yield from both("rtdl_revisiting_models.transformer", transformer, mixed(5), mixed(5), mixed(3))
    yield from both("rtdl_num_embeddings.periodic", periodic, *_rows(6))
    yield from both("rtdl_num_embeddings.pieces", pieces, *_rows(6))


def tabm() -> Iterator[Case]:
    def model(kind: str) -> Any:
        def make() -> Any:
            from tabm import TabM

            return TabM.make(n_num_features=6, d_out=2, k=3, n_blocks=1, d_block=8, arch_type=kind)

        return make

    for kind in ("tabm", "tabm-mini"):
        yield from both(f"tabm.{kind}", model(kind), *_rows(6))


def tab_transformer() -> Iterator[Case]:
    def model(name: str, **options: Any) -> Any:
        def make() -> Any:
            import tab_transformer_pytorch

            return getattr(tab_transformer_pytorch, name)(
                categories=(3, 5), num_continuous=4, dim=16, depth=1, heads=2, dim_head=8, **options
            )

        return make

    def mixed(count: int) -> Inputs:
        return together(integers(3, count, 2), normal(count, 4))

    for name, options in (
        ("TabTransformer", {"mlp_act": torch.nn.ReLU()}),
        ("FTTransformer", {}),
    ):
        yield from both(
            f"tab_transformer_pytorch.{name}", model(name, **options), mixed(5), mixed(5), mixed(3)
        )


def experts() -> Iterator[Case]:
    def model(name: str) -> Any:
        def make() -> Any:
            import soft_moe_pytorch

            sizes = {"SoftMoE": {"seq_len": 8}, "DynamicSlotsSoftMoE": {}}[name]
            return getattr(soft_moe_pytorch, name)(dim=16, num_experts=2, **sizes)

        return make

    sequences = (normal(2, 8, 16), normal(2, 8, 16), normal(3, 8, 16))
    for name in ("SoftMoE", "DynamicSlotsSoftMoE"):
        yield from both(f"soft_moe_pytorch.{name}", model(name), *sequences)


def crf() -> Iterator[Case]:
    def model() -> Any:
        from torchcrf import CRF

        return CRF(4, batch_first=True)

    def decoded() -> Any:
        from torchcrf import CRF

        class Decoded(torch.nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.crf = CRF(4, batch_first=True)

            def forward(self, x: torch.Tensor) -> Any:
                return self.crf.decode(x)

        return Decoded()

    def tagged(count: int, length: int) -> Inputs:
        return together(normal(count, length, 4, grad=True), integers(4, count, length))

    yield from both("torchcrf.likelihood", model, tagged(2, 5), tagged(2, 5), tagged(3, 7))
    yield train_case("torchcrf.decode", decoded, normal(2, 5, 4), normal(2, 5, 4), normal(3, 4, 4))


def cases() -> Iterator[Case]:
    yield from tabnet()
    yield from entmax()
    yield from rtdl()
    yield from tabm()
    yield from tab_transformer()
    yield from experts()
    yield from crf()
