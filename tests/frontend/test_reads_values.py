"""Operators whose code reads the values of its tensors: a break, which is told in our words."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch_backplane
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence


@pytest.mark.parametrize("layer", (torch.nn.LSTM, torch.nn.GRU))
def test_packed_sequences(layer: Any) -> None:
    recurrent = layer(4, 8, batch_first=True)

    def program(x: torch.Tensor, lengths: torch.Tensor) -> Any:
        x = x.tanh() * 2
        packed = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        return pad_packed_sequence(recurrent(packed)[0], batch_first=True)[0].exp().sum(1)

    x, lengths = torch.randn(3, 5, 4), torch.tensor([5, 3, 2])
    torch_backplane.reset()
    compiled = torch_backplane.compile(program, backend="plugin:reference")
    for _ in range(3):
        torch.testing.assert_close(compiled(x, lengths), program(x, lengths))
    counters = torch_backplane.counters(compiled)
    told = " ".join(map(str, counters["plain_reasons"])) + str(counters)
    assert "not allocated" not in told
    assert "caffe2" not in told.lower()
