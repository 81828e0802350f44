"""What AOTAutograd's functionalization writes wrong runs with PyTorch, where AOTAutograd is to trace."""

import math

import pytest
import torch
import torch_backplane

UNEVEN = {
    "expanded": lambda x: x.expand(1, 1, 4).fill_(2),
    "one shown often": lambda x: x[:1].expand(3).fill_(5),
    "windows": lambda x: x.unfold(0, 2, 3).fill_(7),
    "a row of what is shown often": lambda x: x[:1].expand(3, 1)[0].fill_(3),
}
EVEN = {
    "all": lambda x: x.add_(1),
    "slice": lambda x: x[1:3].mul_(2),
    "beside one that is read": lambda x: (x.view(1, 4).expand(3, 4) * 2, x.add_(1)),
}


@pytest.mark.parametrize("start", (1.5, 1e10, math.inf))
@pytest.mark.parametrize("name", [*UNEVEN, *EVEN])
def test_writes(name: str, start: float) -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        (UNEVEN | EVEN)[name](x)
        return x * 2

    torch._dynamo.reset()
    torch_backplane.reset()
    backend = "plugin:reference"
    compiled = torch.compile(program, backend=backend, options={"recorder": False})
    x, y = torch.full((4,), start), torch.full((4,), start)
    torch.testing.assert_close(compiled(x), program(y), equal_nan=True)
    torch.testing.assert_close(x, y, equal_nan=True)
    assert torch_backplane.stats()["eager_graphs"] == (name in UNEVEN)


def test_the_state_of_an_optimizer_is_written_once() -> None:
    """It is no input of the graph, but an attribute: looking for uneven writes wrote to it."""

    def train(wrap) -> list[torch.Tensor]:
        weight = torch.nn.Parameter(torch.ones(2))
        optimizer = torch.optim.SGD([weight], 0.1, momentum=0.9, foreach=False)

        def step() -> None:
            optimizer.step()

        compiled = wrap(step)
        seen = []
        for i in range(4):
            weight.grad = torch.full((2,), i + 1.0)
            compiled()
            seen += [weight.detach().clone(), optimizer.state[weight]["momentum_buffer"].clone()]
        return seen

    torch._dynamo.reset()
    options = {"recorder": False, "report": False}
    actual = train(lambda f: torch.compile(f, backend="plugin:reference", options=options))
    torch.testing.assert_close(actual, train(lambda f: f))


def test_looking_leaves_no_level_of_forward_mode_behind() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        return torch.func.hessian(lambda z: z.pow(3).sum())(x)

    torch._dynamo.reset()
    options = {"recorder": False, "report": False}
    compiled = torch.compile(program, backend="plugin:reference", options=options)
    x = torch.randn(3)
    torch.testing.assert_close(compiled(x), program(x))
