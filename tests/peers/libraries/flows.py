"""Normalizing flows and distributions."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from peers.libraries.common import both, normal, train_case, uniform
from peers.torch_suites import Case


class LogProbability(torch.nn.Module):
    """Of points, under what a flow makes of a context."""

    def __init__(self, flow: torch.nn.Module, context: bool = False) -> None:
        super().__init__()
        self.flow, self.context = flow, context

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made = self.flow(x[..., :2]) if self.context else self.flow()
        return made.log_prob(x)


def zuko() -> Iterator[Case]:
    def masked() -> Any:
        import zuko

        return LogProbability(zuko.flows.MAF(3, transforms=2, hidden_features=(16, 16)))

    def conditional() -> Any:
        import zuko

        flow = zuko.flows.NSF(3, 2, transforms=2, bins=4, hidden_features=(16,))
        return LogProbability(flow, context=True)

    def coupled() -> Any:
        import zuko

        return LogProbability(zuko.flows.NICE(4, transforms=2, hidden_features=(16,)))

    def mixture() -> Any:
        import zuko

        return LogProbability(zuko.mixtures.GMM(3, components=3))

    def distribution() -> Any:
        import zuko

        def density(x: torch.Tensor) -> torch.Tensor:
            return zuko.distributions.BoxUniform(-torch.ones(3), torch.ones(3)).log_prob(x)

        return density

    points = (normal(6, 3, grad=True), normal(6, 3, grad=True), normal(4, 3))
    yield from both("zuko.masked", masked, *points)
    yield from both("zuko.conditional", conditional, *points)
    yield from both("zuko.coupled", coupled, normal(6, 4), normal(6, 4), normal(3, 4))
    yield from both("zuko.mixture", mixture, *points)
    yield train_case("zuko.box", distribution, uniform(5, 3), uniform(5, 3), uniform(2, 3))


def normflows() -> Iterator[Case]:
    def coupled() -> Any:
        import normflows

        layers = []
        for _ in range(2):
            net = normflows.nets.MLP([1, 16, 2], init_zeros=False)
            layers += [normflows.flows.AffineCouplingBlock(net), normflows.flows.Permute(2)]
        return Likelihood(
            normflows.NormalizingFlow(normflows.distributions.DiagGaussian(2), layers)
        )

    def spline() -> Any:
        import normflows

        layers = [normflows.flows.AutoregressiveRationalQuadraticSpline(2, 1, 16)]
        return Likelihood(
            normflows.NormalizingFlow(normflows.distributions.DiagGaussian(2), layers)
        )

    def planar() -> Any:
        import normflows

        return normflows.flows.Planar((2,))

    points = (normal(6, 2), normal(6, 2), normal(4, 2))
    yield from both("normflows.coupled", coupled, *points)
    yield from both("normflows.spline", spline, *points)
    yield from both("normflows.planar", planar, *points)


class Likelihood(torch.nn.Module):
    def __init__(self, flow: torch.nn.Module) -> None:
        super().__init__()
        self.flow = flow

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.flow.forward_kld(x)


def pyro() -> Iterator[Case]:
    def affine() -> Any:
        import pyro.distributions.transforms as transforms

        return Transformed(transforms.affine_autoregressive(3, hidden_dims=[12]))

    def spline() -> Any:
        import pyro.distributions.transforms as transforms

        return Transformed(transforms.Spline(3, count_bins=4, bound=3.0))

    def network() -> Any:
        from pyro.nn import AutoRegressiveNN

        return AutoRegressiveNN(4, [12], param_dims=[1, 1])

    def mixture() -> Any:
        import pyro.distributions as distributions

        def density(x: torch.Tensor) -> torch.Tensor:
            parts = distributions.Normal(torch.tensor([-1.0, 0.5]), torch.tensor([0.5, 1.0]))
            weights = distributions.Categorical(torch.tensor([0.3, 0.7]))
            return distributions.MixtureSameFamily(weights, parts).log_prob(x)

        return density

    points = (normal(6, 3), normal(6, 3), normal(4, 3))
    yield from both("pyro.affine_autoregressive", affine, *points)
    yield from both("pyro.spline", spline, *points)
    yield from both("pyro.network", network, normal(5, 4), normal(5, 4), normal(2, 4))
    yield train_case(
        "pyro.mixture", mixture, normal(6, grad=True), normal(6, grad=True), normal(3, grad=True)
    )


class Transformed(torch.nn.Module):
    def __init__(self, transform: torch.nn.Module) -> None:
        super().__init__()
        self.transform = transform

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = self.transform(x)
        return y, self.transform.log_abs_det_jacobian(x, y)


def cases() -> Iterator[Case]:
    yield from zuko()
    yield from normflows()
    yield from pyro()
