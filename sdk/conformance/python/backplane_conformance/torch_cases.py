"""Level 3: what PyTorch makes of a plugin. Models through both doors, eager operators on the device,
and the figures that it declares beside what is measured."""

from __future__ import annotations

import copy
import functools
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
import torch_backplane
from torch import Tensor, nn

from backplane_conformance import torch_models, torch_operators
from backplane_conformance.torch_agreement import (
    BFLOAT16,
    FLOAT32,
    Tolerance,
    differences,
    to_float64,
)

LEVEL = 3
STEPS = 30
# Thirty steps carry on what the first has rounded.
MANY_STEPS = Tolerance(factor=10.0, share=5e-5, small_share=5e-5, floor=1e-5)
TYPES = {"f32": torch.float32, "bf16": torch.bfloat16}
DOORS = ("torch.compile", *(("own",) if sys.version_info < (3, 13) else ()))
SAMPLES = 2
# A figure may be off as far as that, either way: machines are busy, links are shared.
FIGURE_FACTOR = 10.0
FIGURES = ("to-device", "from-device", "memory", "launch")


class Outcome(NamedTuple):
    verdict: str
    text: str = ""
    share: float = 0.0  # of the nodes that ran on the plugin


class Plugin(NamedTuple):
    name: str
    index: int


Tensors = dict[str, Tensor | None]


def identities() -> Iterator[str]:
    for model in torch_models.MODELS:
        for door in DOORS:
            yield f"model:{model}/f32/{door}"
            yield f"model:{model}/bf16/{door}"
            yield f"model:{model}/f32.gradient/{door}"
            yield f"model:{model}/bf16.gradient/{door}"
            yield f"model:{model}/f32.steps/{door}"
    for op in torch_operators.operators(torch.float32):
        yield f"eager:{op}/f32/0"
    for figure in FIGURES:
        yield f"figures:{figure}"


def run(case: str, plugin: Plugin) -> Outcome:
    kind, rest = case.split(":", 1)
    try:
        return {"model": _model, "eager": _eager, "figures": _figure}[kind](rest, plugin)
    except Exception as error:  # whatever a plugin, or PyTorch because of it, raises
        return Outcome("fail", f"{type(error).__name__}: {error}"[:2000])


# ---- Models


def _compiled(model: nn.Module, door: str, plugin: Plugin) -> Callable[..., Any]:
    options = {"report": False, "device": plugin.index}
    if door == "own":
        return torch_backplane.compile(model, backend=plugin.name, options=options)
    return torch.compile(model, backend=f"plugin:{plugin.name}", options=options)


def _typed(value: Tensor, dtype: torch.dtype) -> Tensor:
    return value.to(dtype) if value.is_floating_point() else value


def _inference(call: Callable[..., Any], module: nn.Module, inputs: list[Tensor]) -> Tensors:
    module.eval()
    with torch.no_grad():
        call(*inputs)
        return {"output": call(*inputs)}


def _loss(output: Tensor) -> Tensor:
    return (output if output.dtype is torch.float64 else output.float()).square().mean()


def _gradient(call: Callable[..., Any], module: nn.Module, inputs: list[Tensor]) -> Tensors:
    module.train()
    given = [x.clone().requires_grad_(x.is_floating_point()) for x in inputs]
    loss = _loss(call(*given))
    loss.backward()
    found: Tensors = {"loss": loss.detach()}
    found |= {f"gradient of {name}": p.grad for name, p in module.named_parameters()}
    found |= {f"gradient of input {i}": x.grad for i, x in enumerate(given)}
    return found | {f"buffer {name}": b.clone() for name, b in module.named_buffers()}


def _steps(call: Callable[..., Any], module: nn.Module, inputs: list[Tensor]) -> Tensors:
    module.train()
    optimizer = torch.optim.SGD(module.parameters(), lr=0.01, momentum=0.9)
    losses = []
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = _loss(call(*inputs))
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    found: Tensors = {"losses": torch.stack(losses)}
    return found | {name: p.detach() for name, p in module.named_parameters()}


MODES = {"": _inference, "gradient": _gradient, "steps": _steps}


def _model(rest: str, plugin: Plugin) -> Outcome:
    name, kind, door = rest.split("/")
    type_name, _, mode = kind.partition(".")
    dtype, step = TYPES[type_name], MODES[mode]
    model, inputs = torch_models.build(name)
    model = model.to(dtype)
    given = [_typed(x, dtype) for x in inputs]
    exact_model, eager_model = to_float64(model), copy.deepcopy(model)
    exact = step(exact_model, exact_model, [to_float64(x) for x in given])
    eager = step(eager_model, eager_model, given)
    torch._dynamo.reset()
    torch_backplane.reset()
    with torch._dynamo.config.patch(allow_rnn=True):
        actual = step(_compiled(model, door, plugin), model, given)
    stats = torch_backplane.stats()
    on_plugin, on_cpu = stats["plugin_nodes"], stats["fallback_nodes"]
    if on_plugin == 0:
        return Outcome("unsupported", "no node of it is claimed")
    share = on_plugin / (on_plugin + on_cpu)
    tolerance = FLOAT32 if dtype is torch.float32 else BFLOAT16
    if mode == "steps":
        tolerance = MANY_STEPS
    wrong = differences(actual, eager, exact, tolerance)
    if wrong:
        return Outcome("fail", "\n".join(wrong[:8]), share)
    return Outcome("pass", share=share)


# ---- Eager operators


def _eager(rest: str, plugin: Plugin) -> Outcome:
    name = rest.split("/")[0]
    op = torch_operators.operators(torch.float32)[name]
    device = torch_backplane.device(plugin.name, plugin.index)
    before = torch_backplane.stats()
    equal = functools.partial(
        torch.testing.assert_close, equal_nan=True, check_device=False, check_stride=False
    )
    nearer = (torch.float32,)
    count = torch_operators.check(op, torch.float32, str(device), SAMPLES, equal, nearer)
    after = torch_backplane.stats()
    if count == 0:
        return Outcome("unsupported", "the CPU takes none of its samples")
    ran, left = (after[key] - before[key] for key in ("eager_plugin_ops", "eager_fallback_ops"))
    return Outcome("pass", share=ran / (ran + left) if ran + left else 0.0)


# ---- Figures


def _seconds(work: Callable[[], Any], device: torch.device) -> float:
    """The best of some."""
    best = float("inf")
    for _ in range(7):
        torch.accelerator.synchronize(device)
        begin = time.perf_counter()
        work()
        torch.accelerator.synchronize(device)
        best = min(best, time.perf_counter() - begin)
    return best


def _figure(name: str, plugin: Plugin) -> Outcome:
    from torch_backplane import _C

    declared = _C.plugin_info(plugin.name)["devices"][plugin.index]["declared"]
    device = torch_backplane.device(plugin.name, plugin.index)
    host = torch.ones(8 << 20)
    there = host.to(device)
    large = 4 * host.numel()
    small = torch.ones(8).to(device)
    measured = {
        "to-device": lambda: large / _seconds(lambda: host.to(device), device),
        "from-device": lambda: large / _seconds(there.cpu, device),
        "memory": lambda: 2 * large / _seconds(lambda: there + 1, device),
        "launch": lambda: 1e9 * _seconds(lambda: small + 1, device),
    }[name]()
    if not declared[name]:
        return Outcome("unsupported", f"not declared; measured {measured:.3g}")
    text = f"declared {declared[name]:.3g}, measured {measured:.3g}"
    text += " ns" if name == "launch" else " bytes/s"
    # A call from Python takes longer than a launch: only what is faster than declared is a lie.
    if name == "launch":
        return Outcome("pass" if measured * FIGURE_FACTOR > declared[name] else "fail", text, 1.0)
    near = 1 / FIGURE_FACTOR < measured / declared[name] < FIGURE_FACTOR
    return Outcome("pass" if near else "fail", text, 1.0)
