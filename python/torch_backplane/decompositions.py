"""Operators that AOTAutograd takes apart before the graph is imported: the few whose only form is
private to one CPU library."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

_LSTM = 2  # the mode's number in aten.mkldnn_rnn_layer


def _rnn_layer(
    inputs: torch.Tensor,
    w_input: torch.Tensor,
    w_hidden: torch.Tensor,
    b_input: torch.Tensor,
    b_hidden: torch.Tensor,
    hidden: torch.Tensor,
    cell: torch.Tensor,
    reverse: bool,
    batch_sizes: list[int],
    mode: int,
    hidden_size: int,
    num_layers: int,
    has_biases: bool,
    bidirectional: bool,
    batch_first: bool,
    train: bool,
) -> Any:
    """One direction of one LSTM layer. inputs [time, batch, features]; hidden, cell [1, batch, size]."""
    if mode != _LSTM or num_layers != 1 or bidirectional or batch_first or len(batch_sizes) > 0:
        return NotImplemented
    bias = b_input + b_hidden if has_biases else None
    gates_of_inputs = torch.nn.functional.linear(inputs, w_input, bias)
    state, memory = hidden[0], cell[0]
    steps = gates_of_inputs.unbind(0)
    outputs = []
    for gates_of_input in reversed(steps) if reverse else steps:
        gates = torch.nn.functional.linear(state, w_hidden) + gates_of_input
        enter, forget, value, leave = gates.chunk(4, 1)
        memory = forget.sigmoid() * memory + enter.sigmoid() * value.tanh()
        state = leave.sigmoid() * memory.tanh()
        outputs.append(state)
    if reverse:
        outputs.reverse()
    workspace = inputs.new_empty(0, dtype=torch.uint8)
    return torch.stack(outputs, 0), state.unsqueeze(0), memory.unsqueeze(0), workspace


def table() -> dict[Any, Callable[..., Any]]:
    """Decompositions by operator overload, as ``aot_module_simplified`` takes them."""
    return {torch.ops.aten.mkldnn_rnn_layer.default: _rnn_layer}
