"""Programs of packages that others wrote, in groups: each a function that gives its cases."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from peers.libraries import (
    algebra,
    attention,
    audio,
    diffusion,
    equations,
    flows,
    gaussian_processes,
    graphs,
    metrics,
    science,
    tables,
    training,
    transformer_models,
    vision,
)
from peers.torch_suites import Case

GROUPS: dict[str, Callable[[], Iterator[Case]]] = {
    "algebra": algebra.cases,
    "attention": attention.cases,
    "audio": audio.cases,
    "diffusion": diffusion.cases,
    "equations": equations.cases,
    "flows": flows.cases,
    "gaussian_processes": gaussian_processes.cases,
    "graphs": graphs.cases,
    "metrics": metrics.cases,
    "science": science.cases,
    "tables": tables.cases,
    "training": training.cases,
    "transformer_models": transformer_models.cases,
    "vision": vision.cases,
}
