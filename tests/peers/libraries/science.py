"""Operators on functions and spheres, second-order methods, Bayesian layers, quantization, pruning,
reinforcement learning."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from peers.libraries.common import (
    Compile,
    both,
    eval_case,
    normal,
    program,
    train_case,
)
from peers.torch_suites import Case


def neuraloperator() -> Iterator[Case]:
    def planes() -> Any:
        from neuralop.models import FNO

        return FNO(n_modes=(6, 6), hidden_channels=8, in_channels=2, out_channels=1, n_layers=2)

    images = normal(2, 2, 16, 16)
    yield from both("neuraloperator.fno", planes, images, images, normal(3, 2, 16, 16))


class OnSphere(torch.nn.Module):
    """A convolution by the harmonics of the sphere."""

    def __init__(self) -> None:
        import torch_harmonics

        super().__init__()
        self.forward_transform = torch_harmonics.RealSHT(16, 32)
        self.inverse_transform = torch_harmonics.InverseRealSHT(16, 32)
        degrees = self.forward_transform.lmax
        self.weight = torch.nn.Parameter(torch.randn(3, 3, degrees, dtype=torch.cfloat) / 10)
        self.beside = torch.nn.Conv2d(3, 3, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        degrees = torch.einsum("bilm,iol->bolm", self.forward_transform(x), self.weight)
        return self.inverse_transform(degrees) + self.beside(x)


def torch_harmonics() -> Iterator[Case]:
    images = normal(2, 3, 16, 32, grad=True)
    yield from both(
        "torch_harmonics.convolution",
        OnSphere,
        images,
        images,
        normal(1, 3, 16, 32),
    )


def pytorch_minimize() -> Iterator[Case]:
    def valley(x: torch.Tensor) -> torch.Tensor:
        return (100 * (x[1:] - x[:-1] ** 2) ** 2 + (1 - x[:-1]) ** 2).sum()

    def minimum(method: str) -> Case:
        def work(compile_function: Compile) -> Iterator[tuple[str, Any]]:
            import torchmin

            start = torch.tensor([1.0, 2.0, -1.0], dtype=torch.float64)
            found = torchmin.minimize(compile_function(valley), start, method=method, max_iter=15)
            yield "minimum", found.x
            yield "value", found.fun

        return program(f"pytorch_minimize.{method}", work)

    for method in ("bfgs", "l-bfgs", "cg", "newton-cg", "newton-exact", "trust-ncg"):
        yield minimum(method)


def net() -> torch.nn.Sequential:
    return torch.nn.Sequential(torch.nn.Linear(4, 6), torch.nn.ReLU(), torch.nn.Linear(6, 3))


def second_order() -> Iterator[Case]:
    def extended(compile_function: Compile) -> Iterator[tuple[str, Any]]:
        import backpack
        from backpack.extensions import BatchGrad, DiagGGNExact, Variance

        model = backpack.extend(net())
        loss_of = backpack.extend(torch.nn.CrossEntropyLoss())

        def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return loss_of(model(x), y)

        loss = compile_function(step)(torch.randn(5, 4), torch.tensor([0, 1, 2, 1, 0]))
        with backpack.backpack(BatchGrad(), DiagGGNExact(), Variance()):
            loss.backward()
        yield "loss", loss.detach()
        for p in model.parameters():
            yield "gradients", [p.grad, p.grad_batch, p.diag_ggn_exact, p.variance]

    def curvature(compile_function: Compile) -> Iterator[tuple[str, Any]]:
        import curvlinops

        model = net()
        data = [(torch.randn(6, 4), torch.randn(6, 3))]
        for kind in (curvlinops.HessianLinearOperator, curvlinops.GGNLinearOperator):
            held = kind(compile_function(model), torch.nn.MSELoss(), list(model.parameters()), data)
            yield kind.__name__, held @ torch.ones(held.shape[1])

    yield program("backpack", extended)
    yield program("curvlinops", curvature)


def bayesian_torch() -> Iterator[Case]:
    def layer(name: str) -> Any:
        import bayesian_torch.layers

        return getattr(bayesian_torch.layers, name)(4, 3)

    for name in ("LinearReparameterization", "LinearFlipout"):
        yield train_case(
            f"bayesian_torch.{name}", lambda n=name: layer(n), normal(5, 4), normal(2, 4)
        )


def torchao() -> Iterator[Case]:
    def quantized(name: str) -> Case:
        def work(compile_function: Compile) -> Iterator[tuple[str, Any]]:
            import torchao.quantization as ao

            model = torch.nn.Sequential(
                torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 32)
            )
            ao.quantize_(model.eval(), getattr(ao, name)())
            called = compile_function(model)
            with torch.no_grad():
                for rows in (8, 8, 3):
                    yield f"{rows} rows", called(torch.randn(rows, 64))

        return program(f"torchao.{name}", work)

    for name in ("Int8WeightOnlyConfig", "Int8DynamicActivationInt8WeightConfig"):
        yield quantized(name)


def torch_pruning() -> Iterator[Case]:
    def pruned(compile_function: Compile) -> Iterator[tuple[str, Any]]:
        import torch_pruning

        model = torch.nn.Sequential(
            torch.nn.Conv2d(3, 8, 3), torch.nn.BatchNorm2d(8), torch.nn.Conv2d(8, 8, 3)
        )
        image = torch.randn(1, 3, 12, 12)
        called = compile_function(model)
        yield "before", called(image).detach()
        graph = torch_pruning.DependencyGraph().build_dependency(model, example_inputs=image)
        graph.get_pruning_group(
            model[0], torch_pruning.prune_conv_out_channels, idxs=[0, 3]
        ).prune()
        result = called(image)
        result.sum().backward()
        yield "after", result.detach()
        yield "gradients", [p.grad for p in model.parameters()]

    yield program("torch_pruning", pruned)


def reinforcement() -> Iterator[Case]:
    def advantages() -> Any:
        from torchrl.objectives.value import functional

        def estimate(v: torch.Tensor, n: torch.Tensor, r: torch.Tensor, d: torch.Tensor) -> Any:
            return functional.generalized_advantage_estimate(0.99, 0.95, v, n, r, d, d)

        return estimate

    def steps(count: int) -> tuple[torch.Tensor, ...]:
        return (*torch.randn(3, 2, count, 1).unbind(0), torch.rand(2, count, 1) > 0.8)

    def agent(name: str, environment: str, methods: dict[str, list[str]], **settings: Any) -> Case:
        def work(compile_function: Compile) -> Iterator[tuple[str, Any]]:
            import stable_baselines3

            made = getattr(stable_baselines3, name)(
                "MlpPolicy", environment, seed=0, device="cpu", **settings
            )
            for owner, names in methods.items():
                held = getattr(made, owner)
                for method in names:
                    setattr(held, method, compile_function(getattr(held, method)))
            made.learn(40)
            yield "weights", [p.detach() for p in made.policy.parameters()]

        return program(f"stable_baselines3.{name}", work)

    yield eval_case("torchrl.advantages", advantages, lambda: steps(6), lambda: steps(9))
    policy = {"policy": ["forward", "evaluate_actions"]}
    yield agent("PPO", "CartPole-v1", policy, n_steps=16, batch_size=8, n_epochs=2)
    yield agent("A2C", "CartPole-v1", policy)
    critics = {"actor": ["forward"], "critic": ["forward"]}
    small = {"learning_starts": 20, "buffer_size": 200}
    yield agent("SAC", "Pendulum-v1", critics, **small)
    yield agent("TD3", "Pendulum-v1", critics, **small)
    yield agent("DQN", "CartPole-v1", {"q_net": ["forward"]}, **small)


def cases() -> Iterator[Case]:
    yield from neuraloperator()
    yield from torch_harmonics()
    yield from pytorch_minimize()
    yield from second_order()
    yield from bayesian_torch()
    yield from torchao()
    yield from torch_pruning()
    yield from reinforcement()
