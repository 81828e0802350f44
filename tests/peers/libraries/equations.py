"""Differential equations and recurrences over time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from peers.libraries.common import both, eval_case, normal, train_case
from peers.torch_suites import Case


class Field(torch.nn.Module):
    """A small net's value as a derivative by time."""

    def __init__(self, width: int = 3) -> None:
        super().__init__()
        self.net = torch.nn.Sequential(
            torch.nn.Linear(width, 8), torch.nn.Tanh(), torch.nn.Linear(8, width)
        )

    def forward(self, t: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return self.net(y) * torch.cos(t)


class Solved(torch.nn.Module):
    def __init__(self, solver: str, method: str, points: int = 4) -> None:
        super().__init__()
        self.field, self.solver, self.method = Field(), solver, method
        self.register_buffer("times", torch.linspace(0, 1, points))

    def forward(self, y: torch.Tensor) -> torch.Tensor:
        import torchdiffeq

        solve = getattr(torchdiffeq, self.solver)
        return solve(self.field, y, self.times, method=self.method)


def torchdiffeq() -> Iterator[Case]:
    points = (normal(5, 3, grad=True), normal(5, 3, grad=True), normal(2, 3, grad=True))
    for method in ("euler", "rk4", "dopri5", "midpoint"):
        yield train_case(f"torchdiffeq.{method}", lambda m=method: Solved("odeint", m), *points)
    for method in ("rk4", "dopri5"):
        yield train_case(
            f"torchdiffeq.adjoint.{method}", lambda m=method: Solved("odeint_adjoint", m), *points
        )
    yield eval_case("torchdiffeq.adams", lambda: Solved("odeint", "explicit_adams"), *points)


class Diffusion(torch.nn.Module):
    noise_type, sde_type = "diagonal", "ito"

    def __init__(self) -> None:
        super().__init__()
        self.mu, self.sigma = torch.nn.Linear(3, 3), torch.nn.Linear(3, 3)

    def f(self, t: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return self.mu(y)

    def g(self, t: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.sigmoid(self.sigma(y))


class Sampled(torch.nn.Module):
    def __init__(self, method: str) -> None:
        super().__init__()
        self.sde, self.method = Diffusion(), method

    def forward(self, y: torch.Tensor) -> torch.Tensor:
        import torchsde

        times = torch.linspace(0, 0.5, 3)
        noise = torchsde.BrownianInterval(
            0.0, 0.5, size=y.shape, entropy=11, levy_area_approximation="space-time"
        )
        return torchsde.sdeint(self.sde, y, times, bm=noise, dt=0.125, method=self.method)


def torchsde() -> Iterator[Case]:
    points = (normal(4, 3, grad=True), normal(4, 3, grad=True), normal(2, 3, grad=True))
    for method in ("euler", "milstein", "srk"):
        yield train_case(f"torchsde.{method}", lambda m=method: Sampled(m), *points)


class Controlled(torch.nn.Module):
    def __init__(self, spline: str) -> None:
        super().__init__()
        self.spline = spline
        self.start, self.net = torch.nn.Linear(2, 4), torch.nn.Linear(4, 8)

    def field(self, t: torch.Tensor, z: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.net(z)).view(*z.shape[:-1], 4, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        import torchcde

        if self.spline == "cubic":
            path = torchcde.CubicSpline(
                torchcde.hermite_cubic_coefficients_with_backward_differences(x)
            )
        else:
            path = torchcde.LinearInterpolation(torchcde.linear_interpolation_coeffs(x))
        start = self.start(path.evaluate(path.interval[0]))
        return torchcde.cdeint(
            X=path, func=self.field, z0=start, t=path.interval, adjoint=False, method="rk4",
            options={"step_size": 0.5},
        )  # fmt: skip


def torchcde() -> Iterator[Case]:
    paths = (normal(3, 5, 2, grad=True), normal(3, 5, 2, grad=True), normal(2, 4, 2, grad=True))
    for spline in ("linear", "cubic"):
        yield from both(f"torchcde.{spline}", lambda s=spline: Controlled(s), *paths)


def ncps() -> Iterator[Case]:
    def closed_form(**options: Any) -> Any:
        from ncps.torch import CfC

        return CfC(4, 12, **options)

    def liquid() -> Any:
        from ncps.torch import LTC
        from ncps.wirings import AutoNCP

        return LTC(4, AutoNCP(12, 3, seed=5))

    def wired() -> Any:
        from ncps.torch import CfC
        from ncps.wirings import AutoNCP

        return CfC(4, AutoNCP(12, 3, seed=5))

    sequences = (normal(2, 5, 4, grad=True), normal(2, 5, 4, grad=True), normal(3, 4, 4, grad=True))
    yield from both("ncps.closed_form", closed_form, *sequences)
    yield from both("ncps.wired", wired, *sequences)
    yield from both("ncps.liquid", liquid, *sequences)
    yield train_case("ncps.memory", lambda: closed_form(mixed_memory=True), *sequences)


def mambapy() -> Iterator[Case]:
    def model(**options: Any) -> Any:
        from mambapy.mamba import Mamba, MambaConfig

        return Mamba(MambaConfig(d_model=16, n_layers=2, d_state=4, **options))

    sequences = (normal(2, 8, 16, grad=True), normal(2, 8, 16, grad=True), normal(1, 13, 16))
    yield from both("mambapy.scan", model, *sequences)
    yield from both("mambapy.sequential", lambda: model(pscan=False), *sequences)


def cases() -> Iterator[Case]:
    yield from torchdiffeq()
    yield from torchsde()
    yield from torchcde()
    yield from ncps()
    yield from mambapy()
