"""Recurrent modules, and the pieces of a tensor that they work on, on every plugin."""

import pytest
import torch
import torch_backplane
from compiling import PLUGINS
from torch import nn

CASES = {
    "gru": lambda: nn.GRU(8, 6),
    "gru_layers": lambda: nn.GRU(8, 6, num_layers=2, batch_first=True),
    "gru_bidirectional": lambda: nn.GRU(8, 6, bidirectional=True),
    "gru_no_bias": lambda: nn.GRU(8, 6, bias=False),
    "gru_one": lambda: nn.GRU(1, 1),
    "lstm_bidirectional": lambda: nn.LSTM(8, 6, bidirectional=True),
    "lstm_projection": lambda: nn.LSTM(8, 6, proj_size=3),
    "lstm_projection_no_bias": lambda: nn.LSTM(8, 6, proj_size=3, bias=False),
    "rnn": lambda: nn.RNN(8, 6, bidirectional=True),
}


@pytest.mark.parametrize("plugin", PLUGINS)
@pytest.mark.parametrize("name", CASES)
def test_inference(name, plugin):
    module = CASES[name]().eval()
    compiled = torch_backplane.compile(module, backend=plugin)
    for length in (1, 5, 5, 9):
        x = torch.randn(length, 3, module.input_size)
        with torch.no_grad():
            torch.testing.assert_close(compiled(x), module(x), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("plugin", PLUGINS)
@pytest.mark.parametrize("name", CASES)
def test_training(name, plugin):
    module = CASES[name]()
    compiled = torch_backplane.compile(module, backend=plugin)
    x = torch.randn(5, 3, module.input_size, requires_grad=True)
    inputs = [x, *module.parameters()]
    want, _ = module(x)
    wanted = torch.autograd.grad(want.square().sum(), inputs)
    got, _ = compiled(x)
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)
    gradients = torch.autograd.grad(got.square().sum(), inputs)
    for a, b in zip(gradients, wanted, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-4)


SPLITS = {
    "unsafe_chunk": lambda y: torch.unsafe_chunk(y, 3, 1),
    "unsafe_split": lambda y: torch.unsafe_split(y, 4, 1),
    "unsafe_split_with_sizes": lambda y: torch.unsafe_split_with_sizes(y, [2, 7, 3], 1),
    "chunk": lambda y: torch.chunk(y, 3, 1),
}


@pytest.mark.parametrize("plugin", PLUGINS)
@pytest.mark.parametrize("name", SPLITS)
def test_pieces_of_a_product(name, plugin):
    """Pieces outlive what they were cut from: its memory goes to the next products."""
    split = SPLITS[name]
    linear = nn.Linear(12, 12)

    def run(x):
        pieces = split(linear(x))
        y = linear(linear(x * 2) + 1)
        z = linear(y - 3)
        return [piece * 2 for piece in pieces], pieces[0] + z[:, : pieces[0].shape[1]]

    compiled = torch_backplane.compile(run, backend=plugin)
    with torch.no_grad():
        for rows in (4, 64):
            x = torch.randn(rows, 12)
            torch.testing.assert_close(compiled(x), run(x), rtol=1e-4, atol=1e-5)
