"""Memory of one training step over time, measured: real allocations, not estimates.

What counts is all that the step allocates: intermediates, saved values, outputs and gradients, also
those in the arenas of compiled calls. Scratch memory of kernels is counted apart. Weights and inputs were there before, and
packs of weights are apart (``_C.resident_weight_bytes()``). Host memory only: a device with memory
of its own keeps its own counters.
"""

from __future__ import annotations

import dataclasses
import gc
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.utils import _pytree as pytree

from torch_backplane import _C, picture


@dataclasses.dataclass(frozen=True)
class Trace:
    """Live bytes of one step.

    Attributes:
        times: nanoseconds since the step began, per change.
        live: bytes after that change, without the scratch memory of kernels.
        forward_changes: how many of the changes are the forward's.
        peak_with_scratch: the most at any time, with it. Kernels of PyTorch take theirs where no
            allocator sees it, so only ``peak`` compares.
    """

    times: list[int]
    live: list[int]
    forward_changes: int
    peak_with_scratch: int = 0

    @property
    def peak(self) -> int:
        return max(self.live, default=0)

    @property
    def after_forward(self) -> int:
        """What the forward leaves: saved values and outputs."""
        return self.live[self.forward_changes - 1] if self.forward_changes else 0

    @property
    def after_backward(self) -> int:
        """What the step leaves: gradients and outputs."""
        return self.live[-1] if self.live else 0

    def points(self) -> list[tuple[float, float]]:
        """Live bytes over the step: the forward from 0 to 1, the backward from 1 to 2."""
        out = [(0.0, 0.0)]
        for part, first, last in (
            (0, 0, self.forward_changes),
            (1, self.forward_changes, len(self.live)),
        ):
            if first == last:
                continue
            start, end = self.times[first], self.times[last - 1]
            out += [
                (part + (self.times[i] - start) / ((end - start) or 1), float(self.live[i]))
                for i in range(first, last)
            ]
        return out


def trace_step(forward: Callable[[], torch.Tensor], leaves: Sequence[torch.Tensor]) -> Trace:
    """Runs ``forward`` for a scalar and its backward, after two steps that are not measured."""
    held: list[torch.Tensor] = []

    def step() -> None:
        held.append(forward())

    def backward() -> None:
        held.pop().backward()

    def forget_gradients() -> None:
        for leaf in leaves:
            leaf.grad = None

    for _ in range(2):
        forget_gradients()
        step()
        backward()
    forget_gradients()
    gc.collect()
    collects = gc.isenabled()
    gc.disable()
    try:
        parts = _C.measure_memory(step, backward)
    finally:
        if collects:
            gc.enable()
    forget_gradients()
    times: list[int] = []
    live: list[int] = []
    now = scratch = peak = forward_changes = 0
    for part in parts:
        forward_changes = len(live)
        for at, change, use in part:
            if use == "scratch":
                scratch += change
            else:
                now += change
                times.append(at)
                live.append(now)
            peak = max(peak, now + scratch)
    return Trace(times, live, forward_changes, peak)


def pytorch_partitioner(function: Any) -> Any:
    """The function under PyTorch's own ahead-of-time autograd with its minimum cut."""
    from torch._dynamo.backends.common import aot_autograd
    from torch._dynamo.backends.debugging import boxed_nop
    from torch._functorch.partitioners import min_cut_rematerialization_partition

    backend = aot_autograd(fw_compiler=boxed_nop, partition_fn=min_cut_rematerialization_partition)
    return torch.compile(function, backend=backend)


def _leaves(model: Any, inputs: Any) -> list[torch.Tensor]:
    parameters: Iterator[torch.Tensor] = (
        model.parameters() if isinstance(model, torch.nn.Module) else iter(())
    )
    tensors = [leaf for leaf in pytree.tree_leaves(inputs) if isinstance(leaf, torch.Tensor)]
    return [t for t in (*parameters, *tensors) if t.is_leaf and t.requires_grad]


def _loss(output: Any) -> torch.Tensor:
    """The model's own loss, else the sum of the means of what it differentiates."""
    loss = output.get("loss") if isinstance(output, Mapping) else getattr(output, "loss", None)
    if isinstance(loss, torch.Tensor):
        return loss
    tensors = [
        leaf.float().mean()
        for leaf in pytree.tree_leaves(output)
        if isinstance(leaf, torch.Tensor) and leaf.requires_grad
    ]
    if not tensors:
        raise ValueError("no output of the model has a gradient: there is no training step")
    return torch.stack(tensors).sum()


@dataclasses.dataclass(frozen=True)
class Comparison:
    """One training step as eager, PyTorch's partitioner and a plugin run it."""

    plugin: str
    traces: Mapping[str, Trace]

    def as_dict(self) -> dict[str, Any]:
        return {
            name: {
                "peak_bytes": trace.peak,
                "peak_with_scratch_bytes": trace.peak_with_scratch,
                "after_forward_bytes": trace.after_forward,
                "after_backward_bytes": trace.after_backward,
            }
            for name, trace in self.traces.items()
        }

    def __str__(self) -> str:
        lines = ["memory of a training step, MB: peak, after forward, after backward"]
        for name, trace in self.traces.items():
            sizes = (trace.peak, trace.after_forward, trace.after_backward)
            lines.append(f"  {name:<22}" + "".join(f"{size / 1e6:10.3f}" for size in sizes))
        return "\n".join(lines)

    def svg(self) -> str:
        lines = [
            picture.Line(
                f"{name}, peak {trace.peak / 1e6:.3f} MB",
                [(x, y / 1e6) for x, y in trace.points()],
                steps=True,
            )
            for name, trace in self.traces.items()
        ]
        marks = [(0.0, "forward"), (1.0, "backward"), (2.0, "end")]
        return picture.draw(
            "Memory of a training step: what is saved and what is computed with",
            lines,
            unit="MB",
            x_marks=marks,
        )


def compare(model: Any, plugin: str = "cpu_onednn", **options: Any) -> Callable[..., Comparison]:
    """``compare(model, plugin)(*args)`` runs training steps of ``model`` and measures their memory.

    The loss is the output's own (``output.loss``), else a mean of all that is differentiated. The
    model stays in the mode that it is in; its gradients are dropped.
    """
    settings = {"report": False, **options}
    ways: dict[str, Callable[[Any], Any]] = {
        "eager": lambda function: function,
        "PyTorch's partitioner": pytorch_partitioner,
        f"plugin {plugin}": lambda function: torch.compile(
            function, backend=f"plugin:{plugin}", options=settings
        ),
    }

    def run(*args: Any, **kwargs: Any) -> Comparison:
        leaves = _leaves(model, (args, kwargs))
        traces = {}
        for name, way in ways.items():
            torch._dynamo.reset()
            compiled = way(model)
            traces[name] = trace_step(lambda c=compiled: _loss(c(*args, **kwargs)), leaves)
        torch._dynamo.reset()
        return Comparison(plugin, traces)

    return run
