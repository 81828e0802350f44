"""Gaussian processes and what is optimized with them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from peers.libraries.common import Compile, both, normal, program, uniform
from peers.torch_suites import Case

DOUBLE = torch.float64


def _kernel(name: str) -> Any:
    import gpytorch.kernels as kernels

    class Covariance(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            base = {
                "rbf": lambda: kernels.RBFKernel(ard_num_dims=2),
                "matern": lambda: kernels.MaternKernel(nu=2.5),
                "periodic": kernels.PeriodicKernel,
                "linear": kernels.LinearKernel,
                "sum": lambda: kernels.RBFKernel() + kernels.PolynomialKernel(power=2),
            }[name]()
            self.kernel = kernels.ScaleKernel(base)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.kernel(x).to_dense()

    return Covariance().double()


def _regression(x: torch.Tensor, y: torch.Tensor) -> tuple[Any, Any]:
    import gpytorch

    class Regression(gpytorch.models.ExactGP):
        def __init__(self, likelihood: Any) -> None:
            super().__init__(x, y, likelihood)
            self.mean = gpytorch.means.ConstantMean()
            self.covariance = gpytorch.kernels.ScaleKernel(gpytorch.kernels.RBFKernel())

        def forward(self, x: torch.Tensor) -> Any:
            return gpytorch.distributions.MultivariateNormal(self.mean(x), self.covariance(x))

    likelihood = gpytorch.likelihoods.GaussianLikelihood()
    return Regression(likelihood).double(), likelihood.double()


def gpytorch() -> Iterator[Case]:
    points = (
        uniform(6, 2, grad=True, dtype=DOUBLE),
        uniform(6, 2, grad=True, dtype=DOUBLE),
        uniform(4, 2, grad=True, dtype=DOUBLE),
    )
    for name in ("rbf", "matern", "periodic", "linear", "sum"):
        yield from both(f"gpytorch.{name}", lambda n=name: _kernel(n), *points)

    def likelihood(compile_: Compile) -> Any:
        import gpytorch

        x = torch.rand(8, 2, dtype=DOUBLE)
        y = torch.sin(x.sum(-1))
        model, noise = _regression(x, y)
        loss_of = gpytorch.mlls.ExactMarginalLogLikelihood(noise, model)
        model.train()

        def loss(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return -loss_of(model(x), y)

        loss = compile_(loss)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(3):
            optimizer.zero_grad()
            value = loss(x, y)
            value.backward()
            optimizer.step()
            yield "loss", value.detach().clone()
            yield "parameters", [p.detach().clone() for p in model.parameters()]

    def posterior(compile_: Compile) -> Any:
        x = torch.rand(8, 2, dtype=DOUBLE)
        model, noise = _regression(x, torch.sin(x.sum(-1)))
        model.eval()
        noise.eval()

        def predict(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            found = noise(model(x))
            return found.mean, found.variance

        predict = compile_(predict)
        for count in (4, 4, 3):
            with torch.no_grad():
                yield f"{count} points", predict(torch.rand(count, 2, dtype=DOUBLE))

    yield program("gpytorch.likelihood", likelihood)
    yield program("gpytorch.posterior", posterior)


def botorch() -> Iterator[Case]:
    def function(name: str) -> Any:
        import botorch.test_functions as functions

        return getattr(functions, name)(dim=3) if name != "Branin" else functions.Branin()

    def acquisition(kind: str, compile_: Compile) -> Any:
        import botorch.acquisition as acquisition
        from botorch.models import SingleTaskGP

        x = torch.rand(6, 2, dtype=DOUBLE)
        model = SingleTaskGP(x, torch.sin(3 * x.sum(-1, keepdim=True)))
        model.eval()
        value = {
            "expected": lambda: acquisition.LogExpectedImprovement(model, best_f=0.2),
            "bound": lambda: acquisition.UpperConfidenceBound(model, beta=0.3),
            "mean": lambda: acquisition.PosteriorMean(model),
        }[kind]()
        called = compile_(value)
        for count in (3, 3, 2):
            points = torch.rand(count, 1, 2, dtype=DOUBLE, requires_grad=True)
            result = called(points)
            (slope,) = torch.autograd.grad(result.sum(), points)
            yield f"{count} points", (result.detach().clone(), slope)

    for name in ("Ackley", "Rosenbrock", "Branin"):
        width = 2 if name == "Branin" else 3
        yield from both(
            f"botorch.{name}",
            lambda n=name: function(n),
            uniform(5, width, grad=True, dtype=DOUBLE),
            uniform(5, width, grad=True, dtype=DOUBLE),
            uniform(2, width, grad=True, dtype=DOUBLE),
        )
    for kind in ("expected", "bound", "mean"):
        yield program(f"botorch.{kind}", lambda compile_, k=kind: acquisition(k, compile_))


def linear_operator() -> Iterator[Case]:
    def solve() -> Any:
        import linear_operator

        def solved(a: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            operator = linear_operator.to_linear_operator(a @ a.mT).add_jitter(1.0)
            right = torch.ones(a.shape[0], 1, dtype=a.dtype)
            return operator.solve(right), operator.logdet()

        return solved

    def kronecker() -> Any:
        from linear_operator.operators import DenseLinearOperator, KroneckerProductLinearOperator

        def product(a: torch.Tensor) -> torch.Tensor:
            left, right = DenseLinearOperator(a @ a.mT), DenseLinearOperator(a.mT @ a)
            whole = KroneckerProductLinearOperator(left, right)
            return whole @ torch.ones(whole.shape[-1], 2, dtype=a.dtype)

        return product

    matrices = (
        normal(4, 3, grad=True, dtype=DOUBLE),
        normal(4, 3, grad=True, dtype=DOUBLE),
        normal(5, 2, grad=True, dtype=DOUBLE),
    )
    yield from both("linear_operator.solve", solve, *matrices)
    yield from both("linear_operator.kronecker", kronecker, *matrices)


def cases() -> Iterator[Case]:
    yield from gpytorch()
    yield from botorch()
    yield from linear_operator()
