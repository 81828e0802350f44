"""Graphs, and what keeps its symmetry."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from peers.libraries.common import Inputs, both, normal, together, train_case
from peers.torch_suites import Case

FEATURES = 6


def _graph(nodes: int, edges: int) -> Inputs:
    return together(normal(nodes, FEATURES, grad=True), lambda: torch.randint(nodes, (2, edges)))


GRAPHS = (_graph(8, 20), _graph(8, 20), _graph(5, 9))


def torch_geometric() -> Iterator[Case]:
    def layer(name: str, *args: Any, **options: Any) -> Any:
        def make() -> Any:
            import torch_geometric.nn as layers

            return getattr(layers, name)(FEATURES, *args, **options)

        return make

    for name, make in {
        "gcn": layer("GCNConv", 5),
        "gat": layer("GATConv", 4, heads=2),
        "gatv2": layer("GATv2Conv", 4, heads=2),
        "sage": layer("SAGEConv", 5),
        "graph": layer("GraphConv", 5, aggr="max"),
        "cheb": layer("ChebConv", 5, K=2),
        "tag": layer("TAGConv", 5),
        "transformer": layer("TransformerConv", 4, heads=2),
        "arma": layer("ARMAConv", 5),
        "model_gin": layer("GIN", 8, 2),
        "model_pna": layer("GraphSAGE", 8, 2, out_channels=3),
    }.items():
        yield from both(f"torch_geometric.{name}", make, *GRAPHS)

    def pooled() -> Any:
        import torch_geometric.nn as layers

        def pool(x: torch.Tensor, edges: torch.Tensor) -> Any:
            batch = edges[0, : len(x)].sort().values % 2
            return [
                function(x, batch, size=2)
                for function in (
                    layers.global_add_pool, layers.global_mean_pool, layers.global_max_pool
                )
            ]  # fmt: skip

        return pool

    def batched() -> Any:
        from torch_geometric.data import Batch, Data
        from torch_geometric.nn import GCNConv

        net = GCNConv(FEATURES, 3)

        class Batched(torch.nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.net = net

            def forward(self, x: torch.Tensor, edges: torch.Tensor) -> torch.Tensor:
                both = Batch.from_data_list([Data(x, edges), Data(x * 2, edges.flip(0))])
                return self.net(both.x, both.edge_index)

        return Batched()

    def utilities() -> Any:
        import torch_geometric.utils as utilities

        def used(x: torch.Tensor, edges: torch.Tensor) -> Any:
            looped, _ = utilities.add_self_loops(edges, num_nodes=len(x))
            return (
                utilities.softmax(x[looped[0]], looped[1], num_nodes=len(x)),
                utilities.degree(looped[1], len(x)),
                utilities.to_dense_adj(looped, max_num_nodes=len(x)),
            )

        return used

    yield train_case("torch_geometric.pools", pooled, *GRAPHS)
    yield train_case("torch_geometric.batch", batched, *GRAPHS)
    yield train_case("torch_geometric.utilities", utilities, *GRAPHS)


def egnn() -> Iterator[Case]:
    def dense(**options: Any) -> Any:
        from egnn_pytorch import EGNN

        return EGNN(dim=8, m_dim=4, **options)

    def network() -> Any:
        from egnn_pytorch import EGNN_Network

        return EGNN_Network(num_tokens=10, dim=8, depth=2, num_nearest_neighbors=3)

    def cloud(count: int) -> Inputs:
        return together(normal(2, count, 8, grad=True), normal(2, count, 3, grad=True))

    clouds = (cloud(6), cloud(6), cloud(8))
    yield from both("egnn_pytorch.dense", dense, *clouds)
    yield from both("egnn_pytorch.fourier", lambda: dense(fourier_features=2), *clouds)

    def tokens(count: int) -> Inputs:
        return together(lambda: torch.randint(10, (2, count)), normal(2, count, 3))

    yield from both("egnn_pytorch.network", network, tokens(6), tokens(6), tokens(9))


def e3nn() -> Iterator[Case]:
    def linear() -> Any:
        from e3nn import o3

        return o3.Linear("4x0e + 2x1o", "3x0e + 2x1o")

    def harmonics() -> Any:
        from e3nn import o3

        return o3.SphericalHarmonics([0, 1, 2], normalize=True)

    def product() -> Any:
        from e3nn import o3

        return o3.FullyConnectedTensorProduct("2x0e + 1x1o", "1x0e + 1x1o", "2x0e + 1x1o")

    def gate() -> Any:
        from e3nn.nn import Gate

        return Gate("2x0e", [torch.tanh], "1x0e", [torch.sigmoid], "1x1o")

    def norm() -> Any:
        from e3nn.nn import BatchNorm

        return BatchNorm("2x0e + 2x1o")

    def radial() -> Any:
        from e3nn.math import soft_one_hot_linspace

        return lambda x: soft_one_hot_linspace(x, 0.0, 2.0, 4, basis="smooth_finite", cutoff=True)

    def rows(*widths: int) -> tuple[Inputs, ...]:
        return tuple(
            together(*[normal(count, width, grad=True) for width in widths]) for count in (5, 5, 3)
        )

    yield from both("e3nn.linear", linear, *rows(10))
    yield from both("e3nn.harmonics", harmonics, *rows(3))
    yield from both("e3nn.product", product, *rows(5, 4))
    yield from both("e3nn.gate", gate, *rows(6))
    yield from both("e3nn.norm", norm, *rows(8))
    yield train_case("e3nn.radial", radial, *[lambda n=n: torch.rand(n) * 2 for n in (6, 6, 3)])


def cases() -> Iterator[Case]:
    yield from torch_geometric()
    yield from egnn()
    yield from e3nn()
