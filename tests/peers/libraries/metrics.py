"""Metrics, losses between embeddings, and explanations."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from peers.libraries.common import Compile, Inputs, normal, program, together, train_case
from peers.torch_suites import Case


def torchmetrics() -> Iterator[Case]:
    def measured(make: Any, give: Any, compile_: Compile) -> Any:
        metric = make()
        update = compile_(metric.update)
        for count in (8, 8, 5):
            update(*give(count))
            yield f"{count} more", metric.compute()

    def functional(name: str, **options: Any) -> Any:
        def make() -> Any:
            import torchmetrics.functional as functional

            found = getattr(functional, name)
            return lambda a, b: found(a, b, **options)

        return make

    def metric(name: str, **options: Any) -> Any:
        def make() -> Any:
            import torchmetrics

            return getattr(torchmetrics, name)(**options)

        return make

    def classes(count: int) -> Any:
        return torch.randn(count, 4).softmax(-1), torch.randint(4, (count,))

    def values(count: int) -> Any:
        return torch.randn(count), torch.randn(count)

    for name, make, give in (
        ("accuracy", metric("Accuracy", task="multiclass", num_classes=4), classes),
        ("f1", metric("F1Score", task="multiclass", num_classes=4, average="macro"), classes),
        ("confusion", metric("ConfusionMatrix", task="multiclass", num_classes=4), classes),
        ("auroc", metric("AUROC", task="multiclass", num_classes=4, thresholds=5), classes),
        ("calibration", metric("CalibrationError", task="multiclass", num_classes=4), classes),
        ("squared_error", metric("MeanSquaredError"), values),
        ("pearson", metric("PearsonCorrCoef"), values),
        ("r2", metric("R2Score"), values),
        ("mean", metric("MeanMetric"), lambda count: (torch.randn(count),)),
    ):
        yield program(
            f"torchmetrics.{name}",
            lambda compile_, make=make, give=give: measured(make, give, compile_),
        )

    def collection(compile_: Compile) -> Any:
        import torchmetrics

        options = {"task": "multiclass", "num_classes": 4}
        metrics = torchmetrics.MetricCollection(
            [torchmetrics.Precision(**options), torchmetrics.Recall(**options)]
        )
        called = compile_(metrics)
        for count in (8, 8, 5):
            yield f"{count} more", called(*classes(count))
        yield "all", metrics.compute()

    yield program("torchmetrics.collection", collection)

    def pair(*shape: int) -> Inputs:
        return together(normal(*shape, grad=True), normal(*shape))

    def images(*shape: int) -> Inputs:
        return lambda: (torch.rand(*shape, requires_grad=True), torch.rand(*shape))

    yield train_case(
        "torchmetrics.ssim",
        functional("structural_similarity_index_measure", data_range=1.0, kernel_size=5),
        images(2, 1, 12, 12),
        images(2, 1, 12, 12),
        images(1, 3, 16, 14),
    )
    yield train_case(
        "torchmetrics.sdr",
        functional("scale_invariant_signal_distortion_ratio"),
        pair(2, 40),
        pair(2, 40),
        pair(3, 25),
    )
    yield train_case(
        "torchmetrics.cosine",
        functional("pairwise_cosine_similarity"),
        pair(4, 6),
        pair(4, 6),
        pair(7, 3),
    )


def metric_learning() -> Iterator[Case]:
    def loss(name: str, **options: Any) -> Any:
        def make() -> Any:
            from pytorch_metric_learning import losses

            return getattr(losses, name)(**options)

        return make

    def batch(count: int) -> Inputs:
        return together(normal(count, 8, grad=True), lambda: torch.arange(count) % 3)

    batches = (batch(9), batch(9), batch(6))
    for name, options in (
        ("TripletMarginLoss", {}),
        ("ContrastiveLoss", {}),
        ("NTXentLoss", {"temperature": 0.5}),
        ("SupConLoss", {}),
        ("MultiSimilarityLoss", {}),
        ("CircleLoss", {}),
        ("ArcFaceLoss", {"num_classes": 3, "embedding_size": 8}),
        ("ProxyAnchorLoss", {"num_classes": 3, "embedding_size": 8}),
    ):
        yield train_case(f"pytorch_metric_learning.{name}", loss(name, **options), *batches)

    def mined() -> Any:
        from pytorch_metric_learning import losses, miners

        miner, loss = miners.MultiSimilarityMiner(), losses.TripletMarginLoss()
        return lambda x, labels: loss(x, labels, miner(x, labels))

    yield train_case("pytorch_metric_learning.mined", mined, *batches)


class Classifier(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = torch.nn.Linear(6, 8), torch.nn.Linear(8, 3)
        self.relu = torch.nn.ReLU()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(self.relu(self.first(x)))


def captum() -> Iterator[Case]:
    def attributed(name: str, on: str, options: dict[str, Any], compile_: Compile) -> Any:
        import captum.attr as attribution

        model = Classifier().eval()
        parts = {"layer": (model, model.first), "model": (model,)}[on]
        method = getattr(attribution, name)(*parts)

        def attribute(x: torch.Tensor) -> torch.Tensor:
            return method.attribute(x, target=1, **options)

        attribute = compile_(attribute)
        for count in (4, 4, 2):
            x = torch.randn(count, 6, requires_grad=True)
            torch.manual_seed(8)
            found = attribute(x)
            found = found if isinstance(found, torch.Tensor) else found[0]
            yield f"{count} rows", found.detach().clone()

    for name, on, options in (
        ("IntegratedGradients", "model", {"n_steps": 5}),
        ("Saliency", "model", {}),
        ("InputXGradient", "model", {}),
        ("GuidedBackprop", "model", {}),
        ("FeatureAblation", "model", {}),
        ("GradientShap", "model", {"baselines": torch.zeros(2, 6), "n_samples": 2}),
        ("LayerGradCam", "layer", {}),
        ("LayerConductance", "layer", {"n_steps": 5}),
    ):
        yield program(
            f"captum.{name}",
            lambda compile_, n=name, on=on, o=options: attributed(n, on, o, compile_),
        )

    def compiled_model(compile_: Compile) -> Any:
        from captum.attr import IntegratedGradients

        method = IntegratedGradients(compile_(Classifier().eval()))
        for count in (4, 4, 2):
            x = torch.randn(count, 6)
            yield f"{count} rows", method.attribute(x, target=0, n_steps=4).detach().clone()

    yield program("captum.compiled_model", compiled_model)


def cases() -> Iterator[Case]:
    yield from torchmetrics()
    yield from metric_learning()
    yield from captum()
