"""Views of arguments that the program writes in place and returns: they show the argument's memory
where and as in plain PyTorch, however the argument lies there. And writes that no graph of values
can do, through views that show an element twice or leave some out, or before a `reshape` that may
be a view: PyTorch itself runs those programs, at both doors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from compiling import compile_for

Program = Callable[[torch.Tensor], Any]
LAYOUTS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "dense": lambda storage: storage[:16].view(4, 4),
    "transposed": lambda storage: storage[:16].view(4, 4).t(),
    "slice": lambda storage: storage[:54].view(6, 9)[1:5, 2:6],
    "steps": lambda storage: storage.view(8, 8)[::2, 1::2],
    "plane": lambda storage: storage[:48].view(3, 4, 4)[1],
    "permuted": lambda storage: storage[:32].view(4, 2, 4).permute(2, 1, 0)[:, 1],
}
VIEWS: dict[str, Program] = {
    "view_as": lambda x: x.view_as(x),
    "transpose": lambda x: x.t(),
    "row": lambda x: x[1],
    "columns": lambda x: x[:, 1:3],
    "unsqueeze": lambda x: x.unsqueeze(0),
    "diagonal": lambda x: x.diagonal(),
    "permute": lambda x: x.permute(0, 1),
    "split": lambda x: x.split(2, 1)[1],
    "expand": lambda x: x.expand(1, 1, 4, 4),
    "select": lambda x: x.select(1, 2),
    "unfold": lambda x: x.unfold(1, 2, 2),
}


def write_base(x: torch.Tensor, view: torch.Tensor) -> torch.Tensor:
    x.addmm_(torch.ones(4, 4), torch.ones(4, 4))
    return view


def write_other_view(x: torch.Tensor, view: torch.Tensor) -> torch.Tensor:
    x.t().clamp_(0, 1)
    return view


WRITES: list[Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = [
    lambda _, view: view.zero_(),
    lambda _, view: view.add_(1.5),
    lambda _, view: view.masked_fill_(view > 0, 3.0),
    lambda _, view: view.copy_(torch.ones_like(view) * 2),
    write_base,
    write_other_view,
]


def compiled(function: Program, door: str) -> Program:
    torch._dynamo.reset()
    return compile_for("reference", function, door)


def run(layout: str, function: Program) -> list[Any]:
    """What the results hold and where they lie, and the argument's whole storage."""
    storage = torch.linspace(-1e6, 1e6, 64)
    x = LAYOUTS[layout](storage)
    written, view, copy = function(x)
    found: list[Any] = [written, view, copy, storage]
    for result in (written, view):
        where = result.data_ptr() - storage.data_ptr(), result.storage_offset()
        found.append((result.stride(), *where, result._base is storage))
    return found


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("door", ["own", "torch"])
def test_a_written_view_shows_the_memory_of_its_argument(
    door: str, layout: str, view: str, request: pytest.FixtureRequest
) -> None:
    first = list(VIEWS).index(view)
    count = len(WRITES) if request.config.getoption("--long") else 1
    for i in range(count):
        write = WRITES[(first + i) % len(WRITES)]

        def program(x: torch.Tensor, write: Any = write) -> Any:
            shown = VIEWS[view](x)
            return write(x, shown), shown, x * 1

        torch.testing.assert_close(
            run(layout, compiled(program, door)), run(layout, program), rtol=1e-6, atol=0
        )


def fill_row(view: torch.Tensor) -> torch.Tensor:
    return view[0].fill_(2)


def flatten_written(x: torch.Tensor, write: Callable[[torch.Tensor], object]) -> torch.Tensor:
    """A copy, unless `x` is contiguous."""
    write(x)
    return x.reshape(-1).add_(1)


def add_product(x: torch.Tensor) -> torch.Tensor:
    return x.addmm_(torch.ones(4, 4), torch.ones(4, 4))


def write_seen_with_strides(x: torch.Tensor) -> torch.Tensor:
    seen = x.as_strided((2,), (2,))
    add_product(x)
    return seen.add_(1)


def transposed(x: torch.Tensor) -> torch.Tensor:
    return x.repeat(4, 1).t()


ONLY_EAGER: dict[str, Program] = {
    "expand": lambda x: x.expand(3, 4).add_(1),
    "row of expand": lambda x: fill_row(x.expand(3, 4)),
    "row of broadcast_to": lambda x: fill_row(torch.broadcast_to(x, (2, 3, 4))[1]),
    "row of a broadcast tensor": lambda x: fill_row(
        torch.broadcast_tensors(x, x.new_ones(2, 4))[0]
    ),
    "item of a row": lambda x: x.expand(3, 4)[1].__setitem__(2, 5.0),
    "index_put": lambda x: x.expand(3, 4).index_put_((torch.tensor([0, 1]),), x.new_ones(())),
    "scatter": lambda x: x.expand(3, 4).scatter_(0, torch.zeros(1, 4, dtype=torch.long), 2.0),
    "window of unfold": lambda x: x.unfold(1, 2, 1)[0, 1].fill_(2),
    "row of as_strided": lambda x: fill_row(x.as_strided((3, 4), (0, 1))),
    "window of as_strided": lambda x: fill_row(x.as_strided((3, 2), (1, 1))),
    "of a tensor of its own": lambda x: fill_row((x * 1).expand(3, 4)),
    "an expanded argument": fill_row,
    "masked windows": lambda x: x.as_strided((3, 2), (1, 1)).masked_fill_(x.new_ones(2) > 0, 2.0),
    "windows that are an argument": fill_row,
    "one window of an argument": lambda x: x[1].zero_(),
    "windows with gaps": lambda x: x.unfold(1, 1, 3).zero_(),
    "windows before the end": lambda x: x.unfold(1, 3, 3).fill_(1),
    "reshape of a written slice": lambda x: flatten_written(x, torch.Tensor.zero_),
    "reshape of a turned matrix": lambda x: flatten_written(x, add_product),
    "reshape of a written view": lambda x: flatten_written(x.view_as(x), add_product),
    "reshape of what follows": lambda x: flatten_written(add_product(x) + 1, torch.Tensor.zero_),
    "strides after a write": lambda x: add_product(x).as_strided((2,), (2,)).add_(1),
    "strides before a write": write_seen_with_strides,
    "a question after a write": lambda x: x.zero_() + (1 if x.is_contiguous() else 2),
    "strides asked for after a write": lambda x: add_product(x) + x.stride(0),
}
ARGUMENTS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "an expanded argument": lambda x: x.expand(3, 4),
    "windows that are an argument": lambda x: x[0].unfold(0, 2, 1),
    "one window of an argument": lambda x: x[0].unfold(0, 2, 1),
    "reshape of a written slice": lambda x: x.repeat(3, 1)[:, 1:3],
    "reshape of a turned matrix": transposed,
    "reshape of a written view": transposed,
    "reshape of what follows": transposed,
    "strides after a write": transposed,
    "strides before a write": transposed,
    "a question after a write": lambda x: x.repeat(3, 1)[:, 1:3],
    "strides asked for after a write": transposed,
}


@pytest.mark.parametrize("name", ONLY_EAGER)
@pytest.mark.parametrize("door", ["own", "torch"])
def test_writes_that_no_graph_can_do_are_pytorchs(door: str, name: str) -> None:
    def outcome(function: Program) -> Any:
        x = ARGUMENTS.get(name, lambda x: x)(torch.tensor([[1e10, 1.0, 2.0, 3.0]]))
        try:
            return function(x), x
        except RuntimeError as error:
            return str(error).splitlines()[0]

    expected, found = outcome(ONLY_EAGER[name]), outcome(compiled(ONLY_EAGER[name], door))
    assert str(found) == str(expected)


ONE_OF_TWO = torch.tensor([[False, True], [False, False]])
WINDOWS: dict[str, tuple[Program, Program]] = {
    "made of strides": (lambda x: x, lambda x: x.as_strided((2, 2), (1, 1))),
    "an argument": (lambda x: x[:3].unfold(0, 2, 1), lambda shown: shown),
    "a part of an argument": (lambda x: x.as_strided((3, 2), (1, 1)), lambda shown: shown[:2]),
}


@pytest.mark.parametrize("sizes", [None, True], ids=["fixed", "open"])
@pytest.mark.parametrize("name", WINDOWS)
def test_windows_where_pytorch_traces(name: str, sizes: bool | None) -> None:
    argument, windows = WINDOWS[name]

    def program(x: torch.Tensor) -> torch.Tensor:
        return windows(x).masked_fill_(ONE_OF_TWO, -1.0) + 1

    torch._dynamo.reset()
    traced = torch.compile(
        program, backend="plugin:reference", options={"recorder": False}, dynamic=sizes
    )
    outcomes = []
    for function in (program, traced):
        x = torch.arange(4.0)
        outcomes.append((function(argument(x)).tolist(), x.tolist()))
    assert outcomes[0] == outcomes[1]


def test_strict_refuses_what_only_pytorch_can_run() -> None:
    strict = torch.compile(
        ONLY_EAGER["row of expand"], backend="plugin:reference", options={"strict": True}
    )
    with pytest.raises(Exception, match=r"BP-0105.*shows an element twice"):
        strict(torch.ones(1, 4))
