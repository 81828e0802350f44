"""Random numbers are eager's own, in the order in which the memory that they go to lies."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch_backplane

Draw = Callable[[torch.Tensor], torch.Tensor]
DRAWS: dict[str, Draw] = {
    "normal_": lambda s: s.normal_(),
    "uniform_": lambda s: s.uniform_(),
    "bernoulli_": lambda s: s.bernoulli_(0.5),
    "bernoulli_ of tensors": lambda s: s.bernoulli_(s.sigmoid()),
    "exponential_": lambda s: s.exponential_(),
    "random_": lambda s: s.random_(10),
    "log_normal_": lambda s: s.log_normal_(),
    "cauchy_": lambda s: s.cauchy_(),
    "geometric_": lambda s: s.geometric_(0.5),
    "dropout": lambda s: torch.nn.functional.dropout(s, 0.5, True, True),
    "rrelu": lambda s: torch.nn.functional.rrelu(s, training=True, inplace=True),
    "randn_like": lambda s: s.copy_(torch.randn_like(s)),
    "rand_like": lambda s: s.copy_(torch.rand_like(s)),
    "normal": lambda s: s.copy_(torch.normal(s, s.abs() + 1)),
    "poisson": lambda s: s.copy_(torch.poisson(s.abs())),
}
# Of an argument with gaps in its memory: where numbers are drawn to.
PLACES: dict[str, Draw] = {
    "argument": lambda x: x,
    "part of it": lambda x: x[:, 1:],
    "result with gaps": lambda x: torch.select_scatter(x, x[:, 2], 1, 0),
    "part of a result": lambda x: x.clone()[:, ::2],
    "turned result": lambda x: (x * 1).contiguous().transpose(0, 2),
    "result": lambda x: x * 1,
}


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("name", DRAWS)
def test_draws_are_eager_s(name: str, place: str) -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        into = PLACES[place](x)
        DRAWS[name](into)
        return into

    compiled = torch_backplane.compile(program, backend="reference")
    outcomes = []
    for function in (program, compiled, compiled):
        torch.manual_seed(0)
        memory = torch.rand(6, 10, 14)
        outcomes.append(function(memory[1::2, 1::2, 1::2]))
    torch.testing.assert_close(outcomes[1], outcomes[0])
    torch.testing.assert_close(outcomes[2], outcomes[0])


@pytest.mark.parametrize("plugin", ["reference", "cpu_onednn"])
@pytest.mark.parametrize(
    "program",
    [
        lambda x: torch.normal(0.0, x),
        lambda x: torch.normal(x, 1.0),
        lambda x: torch.normal(x, x),
    ],
)
def test_normal_numbers_lie_as_in_eager_mode(
    program: Callable[[torch.Tensor], torch.Tensor], plugin: str
) -> None:
    image = torch.rand(2, 3, 4, 4).to(memory_format=torch.channels_last)
    compiled = torch_backplane.compile(program, backend=f"plugin:{plugin}")
    for x in (torch.rand(4, 5).t(), image):
        torch.manual_seed(0)
        drawn = compiled(x)
        torch.manual_seed(0)
        expected = program(x)
        assert torch.equal(drawn, expected)
        assert drawn.stride() == expected.stride()
