"""Records a program, replays the graph through ATen and compares with eager, bit for bit."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils import _pytree as pytree
from torch_backplane import _C

SEED = 11
Program = Callable[..., Any]


def copy_tensor(tensor: torch.Tensor) -> torch.Tensor:
    """Same values, strides and offset in memory of its own."""
    tensor = tensor.detach()
    new = torch.empty(0, dtype=tensor.dtype)
    new.set_(
        tensor.untyped_storage().clone(), tensor.storage_offset(), tensor.size(), tensor.stride()
    )
    return new


def same_bits(actual: torch.Tensor, expected: torch.Tensor) -> bool:
    if actual.dtype != expected.dtype or actual.shape != expected.shape:
        return False
    if actual.is_complex():
        actual, expected = torch.view_as_real(actual), torch.view_as_real(expected)
    return torch.equal(actual, expected) or bool(
        ((actual == expected) | ((actual != actual) & (expected != expected))).all()
    )


def tensors_in(tree: Any) -> list[torch.Tensor]:
    return [leaf for leaf in pytree.tree_leaves(tree) if isinstance(leaf, torch.Tensor)]


class Eager:
    """The program run by PyTorch on copies of the arguments."""

    def __init__(self, program: Program, arguments: Sequence[torch.Tensor]) -> None:
        self.leaves = [
            copy_tensor(a).requires_grad_(a.requires_grad and torch.is_grad_enabled())
            for a in arguments
        ]
        self.differentiable = [leaf.requires_grad for leaf in self.leaves]
        # What is not a leaf may be written in place.
        given = [
            leaf if a.is_leaf or not leaf.requires_grad else leaf.clone()
            for leaf, a in zip(self.leaves, arguments, strict=True)
        ]
        torch.manual_seed(SEED)
        self.outputs = tensors_in(program(*given))
        self.given = given


def nearly_same(actual: torch.Tensor, expected: torch.Tensor) -> bool:
    """Where a kernel sums in another order from call to call."""
    loose = actual.dtype in (torch.bfloat16, torch.float16)
    relative, absolute = (2e-2, 1e-2) if loose else (1e-4, 1e-5)
    return actual.dtype == expected.dtype and torch.allclose(
        actual, expected, rtol=relative, atol=absolute, equal_nan=True
    )


def differences(
    recording: Any,
    program: Program,
    arguments: Sequence[torch.Tensor],
    same: Callable[[torch.Tensor, torch.Tensor], bool] = same_bits,
) -> list[str]:
    """A line for each tensor of the replay that is not eager's."""
    eager = Eager(program, arguments)
    outputs = [info for info in recording.outputs if info["kind"] != "plain"]
    if len(outputs) != len(eager.outputs):
        return [f"{len(outputs)} outputs, expected {len(eager.outputs)}"]
    differentiated: dict[int, torch.Tensor] = {}
    expected: dict[int, tuple[str, torch.Tensor]] = {}
    wrong = []
    for i, (info, output) in enumerate(zip(outputs, eager.outputs, strict=True)):
        expected[info["graph_output"]] = (f"output {i}", output.detach())
        if info["requires_grad"] != output.requires_grad:
            wrong.append(f"output {i}: requires_grad {info['requires_grad']}")
        if info["tangent"] is not None:
            differentiated[info["tangent"]] = output
    for i, info in enumerate(recording.arguments):
        if info["is_mutated"]:
            expected[info["new_value"]] = (f"new value of argument {i}", eager.given[i].detach())
        if info["tangent"] is not None:
            differentiated[info["tangent"]] = eager.given[i]
    changed = [
        i
        for i, (leaf, argument) in enumerate(zip(eager.given, arguments, strict=True))
        if not same_bits(leaf.detach(), argument.detach())
    ]
    for i in changed:
        if not recording.arguments[i]["is_mutated"]:
            wrong.append(f"argument {i} is written by eager alone")

    positions = sorted(differentiated)
    torch.manual_seed(SEED + 1)
    tangents = [torch.randn_like(differentiated[p].detach()) for p in positions]
    if positions:
        leaves = [(i, leaf) for i, leaf in enumerate(eager.leaves) if eager.differentiable[i]]
        gradients = torch.autograd.grad(
            [differentiated[p] for p in positions],
            [leaf for _, leaf in leaves],
            tangents,
            allow_unused=True,
        )
        for (i, _), gradient in zip(leaves, gradients, strict=True):
            position = recording.arguments[i]["gradient"]
            if gradient is not None and position is not None:
                expected[position] = (f"gradient {i}", gradient)
            elif gradient is not None and gradient.count_nonzero():
                wrong.append(f"gradient {i}: None, unlike eager")

    inputs: dict[int, torch.Tensor] = {}
    for info, argument in zip(recording.arguments, arguments, strict=True):
        inputs[info["graph_input"]] = copy_tensor(argument)
    for position, tangent in zip(positions, tangents, strict=True):
        inputs[position] = tangent
    torch.manual_seed(SEED)
    actual, odd, _ = recording.replay([inputs[i] for i in range(len(inputs))])
    wrong += [f"recorded otherwise than run: {line}" for line in odd]
    for position, (name, value) in expected.items():
        got = actual[position]
        if got.shape != value.shape or not same(got, value.resolve_conj().resolve_neg()):
            wrong.append(f"{name}: {got.dtype}{list(got.shape)}, {_distance(got, value)}")
    return wrong


def _distance(actual: torch.Tensor, expected: torch.Tensor) -> str:
    if actual.shape != expected.shape or actual.dtype != expected.dtype:
        return f"expected {expected.dtype}{list(expected.shape)}"
    if not actual.is_floating_point():
        return f"{int((actual != expected).sum())} elements differ"
    return f"off by {(actual - expected).abs().max().item():.2e}"


def record(program: Program, arguments: Sequence[torch.Tensor], **options: Any) -> Any:
    recording = _C.record(program, list(arguments), **options)
    assert recording.ok, recording.reason
    assert recording.verify() == "ok"
    return recording


def check(program: Program, *arguments: torch.Tensor, **options: Any) -> Any:
    """Records, replays and compares; the recording."""
    recording = record(program, arguments, **options)
    wrong = differences(recording, program, arguments)
    assert not wrong, "\n".join([*wrong, recording.text])
    return recording


def reason(program: Program, *arguments: torch.Tensor) -> str:
    """Why the program is refused."""
    recording = _C.record(program, list(arguments))
    assert not recording.ok, recording.text
    return recording.reason


class ModelProgram:
    """A module as a function of its parameters, buffers and inputs."""

    def __init__(self, model: torch.nn.Module, inputs: dict[str, Any]) -> None:
        self.model = model
        tensors = dict(model.named_parameters()) | dict(model.named_buffers())
        self.names = list(tensors)
        self.inputs = inputs
        self.input_names = [n for n, v in inputs.items() if isinstance(v, torch.Tensor)]
        self.arguments = [*tensors.values(), *(inputs[n] for n in self.input_names)]

    def __call__(self, *arguments: torch.Tensor) -> Any:
        count = len(self.names)
        given = self.inputs | dict(zip(self.input_names, arguments[count:], strict=True))
        state = dict(zip(self.names, arguments[:count], strict=True))
        return torch.func.functional_call(self.model, state, (), given)
