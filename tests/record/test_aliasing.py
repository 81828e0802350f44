"""Written arguments, and outputs that share memory: what a recording says of them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from record import helpers
from torch import nn


def leaf(*sizes: int) -> torch.Tensor:
    return torch.randn(*sizes, requires_grad=True)


def inner(*sizes: int) -> torch.Tensor:
    """Requires gradients, but is no leaf: may be written in place."""
    return leaf(*sizes) * 1


def mutated(recording: Any) -> list[int]:
    return [i for i, info in enumerate(recording.arguments) if info["is_mutated"]]


def kinds(recording: Any) -> list[tuple[str, int | None]]:
    return [(info["kind"], info["base"]) for info in recording.outputs]


def write(x: torch.Tensor) -> torch.Tensor:
    x.add_(1)
    return x * 2


def write_view(x: torch.Tensor) -> torch.Tensor:
    x.view(-1)[2:5].mul_(3)
    return x + 1


def write_twice(x: torch.Tensor) -> torch.Tensor:
    x.mul_(2)
    y = x * 3  # does not need x in its backward
    x.add_(y)
    return y


def write_with_other(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    x.mul_(w)
    return x.sum()


def write_part(x: torch.Tensor) -> torch.Tensor:
    x[0] = 0
    x[1:, 1].fill_(4)
    return x.exp()


def write_without_grad(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        x.copy_(x * 0.5)
    return x * w


def write_detached(x: torch.Tensor) -> torch.Tensor:
    x.detach().mul_(2)
    return x.sum()


WRITES = {
    "simple": (write, [torch.randn(4)], [0]),
    "of a view": (write_view, [torch.randn(3, 4)], [0]),
    "twice": (write_twice, [torch.randn(4)], [0]),
    "differentiated": (write, [inner(4)], [0]),
    "twice, differentiated": (write_twice, [inner(4)], [0]),
    "now requires gradients": (write_with_other, [torch.randn(4), leaf(4)], [0]),
    "both differentiated": (write_with_other, [inner(4), leaf(4)], [0]),
    "part": (write_part, [torch.randn(3, 3)], [0]),
    "part, differentiated": (write_part, [inner(3, 3)], [0]),
    "without gradients": (write_without_grad, [torch.randn(4), leaf(4)], [0]),
    "detached": (write_detached, [torch.randn(4)], [0]),
    "of a copy": (lambda x: x.clone().add_(1), [leaf(4)], []),
    "with its own value": (lambda x: x.copy_(x + 0), [torch.randn(4)], [0]),
}


@pytest.mark.parametrize("name", WRITES)
def test_writes(name: str) -> None:
    program, arguments, expected = WRITES[name]
    assert mutated(helpers.check(program, *arguments)) == expected


def test_write_to_a_leaf_is_pytorchs_error() -> None:
    assert "leaf Variable that requires grad" in helpers.reason(write, leaf(4))


def return_written(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    x.add_(1)
    return x, x.view(-1), x + 1


def views_of_intermediate(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    y = x * 2
    return y, y.view(-1), y[1:], x.sin()


OUTPUTS = {
    "argument": (lambda x: x, [leaf(4)], [("argument", 0)]),
    "second argument": (
        lambda x, y: (y, x * 1),
        [leaf(4), leaf(4)],
        [("argument", 1), ("fresh", None)],
    ),
    "view of argument": (lambda x: x.view(-1)[1:], [leaf(3, 4)], [("view_of_argument", 0)]),
    "detached argument": (lambda x: x.detach(), [leaf(3, 4)], [("view_of_argument", 0)]),
    "written argument": (
        return_written,
        [torch.randn(3, 4)],
        [("argument", 0), ("view_of_argument", 0), ("fresh", None)],
    ),
    "views of an intermediate": (
        views_of_intermediate,
        [leaf(3, 4)],
        [("fresh", None), ("view_of_output", 0), ("view_of_output", 0), ("fresh", None)],
    ),
    "one twice": (lambda x: (x.sin(),) * 2, [leaf(4)], [("fresh", None), ("fresh", None)]),
    "parts": (
        lambda x: (x * 2).unbind(0),
        [leaf(2, 4)],
        [("shared_with_output", 0), ("shared_with_output", 0)],
    ),
    "mixed": (
        lambda x: [x.exp(), None, 3, x.t(), 2.5],
        [leaf(2, 4)],
        [
            ("fresh", None),
            ("plain", None),
            ("plain", None),
            ("view_of_argument", 0),
            ("plain", None),
        ],
    ),
}


@pytest.mark.parametrize("name", OUTPUTS)
def test_outputs(name: str) -> None:
    program, arguments, expected = OUTPUTS[name]
    found = kinds(helpers.check(program, *arguments))
    if name == "one twice":
        expected = [("fresh", None), ("view_of_output", 0)]
    assert found == expected


def test_view_of_argument_says_which() -> None:
    info = helpers.check(lambda x: x[1:, ::2], leaf(3, 4)).outputs[0]
    assert (info["sizes"], info["strides"], info["storage_offset"]) == ([2, 2], [4, 2], 4)
    # The caller differentiates views of its own tensors.
    assert info["requires_grad"]
    assert info["tangent"] is None


def test_equal_arguments_are_one_input() -> None:
    x = torch.randn(4)

    def program(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        a.add_(1)
        return b * 2

    recording = helpers.record(program, [x, x])
    assert [info["graph_input"] for info in recording.arguments] == [0, 0]
    outputs, _, _ = recording.replay([torch.ones(4)])
    assert torch.equal(outputs[0], torch.full((4,), 4.0))


def test_arguments_that_share_memory() -> None:
    base = torch.randn(6)
    recording = helpers.check(lambda a, b: a * b, base[:4], base[2:])
    assert not mutated(recording)
    text = helpers.reason(lambda a, b: a.add_(1) * b, base[:4], base[2:])
    assert text == "the program writes argument 0, which shares memory with argument 1"


def test_tied_parameters() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    model[1].weight = model[0].weight
    program = helpers.ModelProgram(model, {"input": torch.randn(2, 4)})
    assert len(program.names) == 3
    helpers.check(program, *program.arguments)


@pytest.mark.parametrize(
    ("program", "expected"),
    [
        (lambda x: x.t_() * 2, "changes the shape or storage of argument 0"),
        (lambda x: x.unsqueeze_(0) * 2, "changes the shape or storage of argument 0"),
        (lambda x: x.set_(torch.zeros(5)) * 2, "argument 0"),
        (lambda x: x.requires_grad_() * 2, "changes requires_grad of argument 0"),
        (lambda x: setattr(x, "data", x * 2), "changes the shape or storage of argument 0"),
        (
            lambda x: x.untyped_storage().resize_(0),
            "resize_() changes the memory of a tensor that has none",
        ),
    ],
)
def test_other_changes_are_refused(program: Any, expected: str) -> None:
    assert expected in helpers.reason(program, torch.randn(3, 4))


def test_nothing_remains_on_the_arguments() -> None:
    x, w = torch.randn(4), leaf(4)
    before, version = x.clone(), x._version
    helpers.record(write_with_other, [x, w])
    assert torch.equal(x, before)
    assert x._version == version
    assert not x.requires_grad
    assert w.grad is None
