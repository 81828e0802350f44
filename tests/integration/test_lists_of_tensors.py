"""Operators over lists of tensors run as one operator a tensor, on the plugin; clipping of gradients is one program."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch_backplane
from compiling import PLUGINS, compile_for
from torch import nn
from torch.testing._internal.common_methods_invocations import (
    foreach_binary_op_db,
    foreach_other_op_db,
    foreach_pointwise_op_db,
    foreach_reduce_op_db,
    foreach_unary_op_db,
)

OPERATORS = [
    *foreach_unary_op_db,
    *foreach_binary_op_db,
    *foreach_pointwise_op_db,
    *foreach_reduce_op_db,
    *foreach_other_op_db,
]
HARNESS = (
    "zero_size",
    "disable_fastpath",
    "is_fastpath",
)  # what samples say to PyTorch's own tests


def copied(value: Any, given: list[torch.Tensor]) -> Any:
    if isinstance(value, torch.Tensor):
        given.append(value.detach().clone())
        return given[-1]
    return type(value)(copied(v, given) for v in value) if isinstance(value, list) else value


def tensors_of(value: Any) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    return [t for v in value for t in tensors_of(v)] if isinstance(value, list | tuple) else []


@pytest.mark.parametrize("door", ["own", "torch"])
@pytest.mark.parametrize("operator", OPERATORS, ids=lambda o: o.name)
def test_as_eager(operator: Any, door: str) -> None:
    samples = list(operator.sample_inputs("cpu", torch.float32, requires_grad=False))
    compared = 0
    for sample in samples[:: max(1, len(samples) // 3)]:
        options = {k: v for k, v in sample.kwargs.items() if k not in HARNESS}

        def outcome(run: Callable[..., Any], with_gradients: bool, sample: Any = sample) -> Any:
            given: list[torch.Tensor] = []
            arguments = copied([sample.input, *sample.args], given)
            if with_gradients:
                for tensor in given:
                    tensor.requires_grad_(tensor.is_floating_point())
            results = tensors_of(run(*arguments))
            differentiable = [r.nan_to_num(0, 0, 0).sum() for r in results if r.requires_grad]
            if differentiable:
                torch.stack(differentiable).sum().backward()
            return results, [t.grad if with_gradients else t for t in given]

        def program(*arguments: Any, options: Any = options) -> Any:
            return operator.method_variant(*arguments, **options)

        for with_gradients in (True, False):
            try:
                expected = outcome(program, with_gradients)
            except (RuntimeError, IndexError):  # of leaves that are written, and of empty tensors
                continue
            got = outcome(compile_for("cpu_onednn", program, door), with_gradients)
            # A product's sums have an order of their own, by what the CPU has.
            loose = {"rtol": 1e-4, "atol": 1e-4} if "mm" in operator.name else {}
            torch.testing.assert_close(got, expected, equal_nan=True, check_stride=True, **loose)
            compared += 1
    assert compared


@pytest.mark.parametrize("clip", [nn.utils.clip_grad_norm_, nn.utils.clip_grad_value_])
@pytest.mark.parametrize("plugin", PLUGINS)
def test_clipping_is_one_program(plugin: str, clip: Callable[..., Any]) -> None:
    def gradients() -> list[nn.Parameter]:
        torch.manual_seed(0)
        parameters = [nn.Parameter(torch.randn(3, 4)), nn.Parameter(torch.randn(5).double())]
        for p in parameters:
            p.grad = torch.randn_like(p) * 3
        return parameters

    def program(parameters: list[nn.Parameter]) -> torch.Tensor | None:
        return clip(parameters, 1.0)

    compiled = torch_backplane.compile(
        program, backend=f"plugin:{plugin}", options={"strict": plugin in ("reference", "opencl")}
    )
    for _ in range(2):
        plain, clipped = gradients(), gradients()
        torch.testing.assert_close(compiled(clipped), program(plain))
        torch.testing.assert_close([p.grad for p in clipped], [p.grad for p in plain])
    counted = torch_backplane.counters(compiled)
    assert (counted["programs"], counted["breaks"], counted["plain_calls"]) == (1, {}, 0)
