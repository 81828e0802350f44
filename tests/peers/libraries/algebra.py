"""Tensors by name, in factors, on manifolds, in codebooks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from peers.libraries.common import Compile, both, eval_case, normal, program, together, train_case
from peers.torch_suites import Case


def einops() -> Iterator[Case]:
    def patches() -> Any:
        import einops

        return lambda x: einops.rearrange(x, "b c (h p) (w q) -> b (h w) (p q c)", p=2, q=3)

    def pooled() -> Any:
        import einops

        return lambda x: einops.reduce(x, "b c (h p) (w q) -> b c h w", "max", p=2, q=3)

    def products() -> Any:
        import einops

        def product(x: torch.Tensor) -> torch.Tensor:
            packed, shapes = einops.pack([x, x * 2], "b * h w")
            first, _ = einops.unpack(packed, shapes, "b * h w")
            return einops.einsum(first, x, "b c h w, b d h w -> b c d")

        return product

    def layers() -> Any:
        from einops.layers.torch import EinMix, Rearrange, Reduce

        return torch.nn.Sequential(
            Rearrange("b c (h p) (w q) -> b (h w) (p q c)", p=2, q=3),
            EinMix("b n c -> b n d", weight_shape="c d", bias_shape="d", c=12, d=5),
            Reduce("b n d -> b d", "mean"),
        )

    images = (
        normal(2, 2, 4, 6, grad=True),
        normal(2, 2, 4, 6, grad=True),
        normal(1, 2, 6, 9, grad=True),
    )
    for name, make in {
        "patches": patches, "pooled": pooled, "products": products, "layers": layers
    }.items():  # fmt: skip
        yield from both(f"einops.{name}", make, *images)

    def named() -> Any:
        import einx

        return lambda x: (einx.sum("b c [h w]", x), einx.softmax("b [c] h w", x))

    yield from both("einx.named", named, *images)


def contractions() -> Iterator[Case]:
    def chain() -> Any:
        import opt_einsum

        return lambda a, b, c: opt_einsum.contract("ij,jk,kl->il", a, b, c)

    def three(count: int) -> Any:
        return together(
            normal(count, 4, grad=True), normal(4, 5, grad=True), normal(5, count, grad=True)
        )

    yield train_case("opt_einsum.chain", chain, three(3), three(3), three(6))


def tensorly() -> Iterator[Case]:
    def factorized(rank: str) -> Any:
        def make() -> Any:
            import tltorch

            return tltorch.FactorizedLinear(
                (2, 2), (2, 3), factorization=rank, rank=2, implementation="factorized"
            )

        return make

    def regression() -> Any:
        import tltorch

        return tltorch.TRL((3, 4), (2,), rank="same")

    def decomposed() -> Any:
        import tensorly
        from tensorly.decomposition import parafac

        tensorly.set_backend("pytorch")

        def fit(x: torch.Tensor) -> Any:
            found = parafac(x, rank=2, init="svd", n_iter_max=3)
            return found.weights, list(found.factors)

        return fit

    rows = (normal(4, 4), normal(4, 4), normal(2, 4))
    for kind in ("tucker", "cp", "blocktt"):
        yield from both(f"tltorch.{kind}", factorized(kind), *rows)
    yield from both(
        "tltorch.regression", regression, normal(3, 3, 4), normal(3, 3, 4), normal(2, 3, 4)
    )
    yield eval_case("tensorly.parafac", decomposed, normal(3, 4, 5), normal(3, 4, 5))


def manifolds() -> Iterator[Case]:
    def orthogonal() -> Any:
        import geotorch

        layer = torch.nn.Linear(4, 4)
        geotorch.orthogonal(layer, "weight")
        return layer

    def low_rank() -> Any:
        import geotorch

        layer = torch.nn.Linear(5, 4)
        geotorch.low_rank(layer, "weight", 2)
        return layer

    def positive() -> Any:
        import geotorch

        layer = torch.nn.Linear(4, 4)
        geotorch.positive_definite(layer, "weight")
        return layer

    for name, make in {"orthogonal": orthogonal, "positive": positive}.items():
        yield from both(f"geotorch.{name}", make, normal(3, 4), normal(3, 4), normal(2, 4))
    yield from both("geotorch.low_rank", low_rank, normal(3, 5), normal(3, 5), normal(2, 5))

    def ball() -> Any:
        import geoopt

        space = geoopt.PoincareBall(c=1.0)

        def far(x: torch.Tensor, y: torch.Tensor) -> Any:
            x, y = space.expmap0(x * 0.3), space.expmap0(y * 0.3)
            return space.dist(x, y), space.mobius_add(x, y), space.logmap(x, y)

        return far

    def sphere() -> Any:
        import geoopt

        space = geoopt.Sphere()

        def moved(x: torch.Tensor, y: torch.Tensor) -> Any:
            x = space.projx(x)
            v = space.proju(x, y)
            return space.expmap(x, v), space.transp(x, space.projx(y), v)

        return moved

    def pair(count: int) -> Any:
        return together(normal(count, 4, grad=True), normal(count, 4, grad=True))

    yield train_case("geoopt.ball", ball, pair(3), pair(3), pair(5))
    yield train_case("geoopt.sphere", sphere, pair(3), pair(3), pair(5))


def dictionaries() -> Iterator[Case]:
    def arithmetic() -> Any:
        from tensordict import TensorDict

        def changed(x: torch.Tensor) -> Any:
            held = TensorDict({"a": x, "b": {"c": x * 2}}, batch_size=x.shape[:1])
            held = (held + 1).reshape(-1)[:2]
            return held["a"], held["b", "c"]

        return changed

    def modules() -> Any:
        from tensordict import TensorDict
        from tensordict.nn import TensorDictModule, TensorDictSequential

        net = TensorDictSequential(
            TensorDictModule(torch.nn.Linear(3, 4), in_keys=["x"], out_keys=["h"]),
            TensorDictModule(torch.nn.Linear(4, 2), in_keys=["h"], out_keys=["y"]),
        )

        class Held(torch.nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.net = net

            def forward(self, x: torch.Tensor) -> torch.Tensor:
                return self.net(TensorDict({"x": x}, batch_size=x.shape[:1]))["y"]

        return Held()

    def parameters(compile_: Compile) -> Any:
        from tensordict import TensorDict

        net = torch.nn.Linear(3, 2)
        weights = TensorDict.from_module(net)

        def called(x: torch.Tensor) -> torch.Tensor:
            with weights.to_module(net):
                return net(x)

        called = compile_(called)
        for count in (4, 4, 2):
            yield f"{count} rows", called(torch.randn(count, 3)).detach().clone()

    rows = (normal(4, 3, grad=True), normal(4, 3, grad=True), normal(5, 3, grad=True))
    yield from both("tensordict.arithmetic", arithmetic, *rows)
    yield from both("tensordict.modules", modules, *rows)
    yield program("tensordict.parameters", parameters)


def codebooks() -> Iterator[Case]:
    def quantizer(name: str, **options: Any) -> Any:
        def make() -> Any:
            import vector_quantize_pytorch

            return getattr(vector_quantize_pytorch, name)(**options)

        return make

    rows = (normal(2, 8, 16, grad=True), normal(2, 8, 16, grad=True), normal(1, 5, 16, grad=True))
    for name, options in (
        ("VectorQuantize", {"dim": 16, "codebook_size": 12}),
        ("ResidualVQ", {"dim": 16, "codebook_size": 12, "num_quantizers": 2}),
        ("FSQ", {"dim": 16, "levels": [3, 4, 5]}),
        ("LFQ", {"dim": 16, "codebook_size": 16}),
        ("RandomProjectionQuantizer", {"dim": 16, "num_codebooks": 2, "codebook_dim": 4,
                                       "codebook_size": 10}),
    ):  # fmt: skip
        yield from both(f"vector_quantize_pytorch.{name}", quantizer(name, **options), *rows)


def cases() -> Iterator[Case]:
    yield from einops()
    yield from contractions()
    yield from tensorly()
    yield from manifolds()
    yield from dictionaries()
    yield from codebooks()
