"""What a call raises is one thing by whichever door the program came, and what eager raises."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch_backplane
from compiling import run_python
from torch import nn

PLUGINS = ("cpu_onednn", "opencl", "reference")
OPTIONS = {"report": False}
DOORS: dict[str, Callable[..., Any]] = {
    "torch.compile": lambda f, plugin, **options: torch.compile(
        f, backend=f"plugin:{plugin}", options={**OPTIONS, **options}
    ),
    "own": lambda f, plugin, **options: torch_backplane.compile(
        f, backend=plugin, options={**OPTIONS, **options}
    ),
}
INDEXED: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "index": lambda x, i: (x * 2)[i],
    "index_select": lambda x, i: (x * 2).index_select(0, i),
    "embedding": lambda x, i: nn.functional.embedding(i, x * 2),
    "gather": lambda x, i: (x * 2).gather(0, i.unsqueeze(1)),
    "take": lambda x, i: (x * 2).take(i),
    "nll_loss": lambda x, i: nn.functional.nll_loss((x * 2).t()[:2], i),
    "index_put": lambda x, i: (x * 2).index_put((i,), x[0]),
    "scatter_add": lambda x, i: (x * 2).scatter_add(0, i.unsqueeze(1), x[:2, :1]),
    "index_add": lambda x, i: (x * 2).index_add(0, i, x[:2]),
}


def error_of(call: Callable[[], Any]) -> Exception:
    with pytest.raises(Exception) as caught:
        call()
    return caught.value


@pytest.fixture(params=PLUGINS)
def plugin(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(params=DOORS)
def door(request: pytest.FixtureRequest) -> Callable[..., Any]:
    torch._dynamo.reset()
    return DOORS[request.param]


@pytest.mark.parametrize("what", INDEXED)
@pytest.mark.parametrize("learns", [False, True])
def test_a_bad_index_raises_what_eager_raises(
    door: Callable[..., Any], plugin: str, what: str, learns: bool
) -> None:
    function = INDEXED[what]
    x = torch.arange(12.0).reshape(4, 3).requires_grad_(learns)
    good, bad = torch.tensor([1, 0]), torch.tensor([1, 77])
    expected = error_of(lambda: function(x, bad))
    compiled = door(function, plugin)
    torch.testing.assert_close(compiled(x, good), function(x, good))
    for _ in range(2):
        raised = error_of(lambda: compiled(x, bad))
        assert type(raised) is type(expected), (raised, expected)
    # And goes on.
    torch.testing.assert_close(compiled(x, good), function(x, good))


def test_a_program_catches_it_itself(plugin: str) -> None:
    def pick(x: torch.Tensor, i: torch.Tensor, log: list[str]) -> torch.Tensor:
        log.append("begun")
        try:
            return x.index_select(0, i) * 2
        except IndexError:
            log.append("caught")
            return x * 0

    compiled = torch_backplane.compile(pick, backend=plugin, options=OPTIONS)
    x, log = torch.ones(3), []
    assert compiled(x, torch.tensor([1]), log).tolist() == [2]
    assert compiled(x, torch.tensor([9]), log).tolist() == [0, 0, 0]
    assert log == ["begun", "begun", "caught"]
    reasons = torch_backplane.frontend.counters(compiled)["plain_reasons"]
    assert any("refused the data" in reason for reason in reasons)


def test_a_program_with_breaks_catches_it_itself(plugin: str) -> None:
    def pick(x: torch.Tensor, i: torch.Tensor, log: list[Any]) -> torch.Tensor:
        y = x + 1
        log.append(y.sum().item())  # a break
        try:
            return y.index_select(0, i) * 2
        except IndexError:
            log.append("caught")
            return y * 0

    compiled = torch_backplane.compile(pick, backend=plugin, options=OPTIONS)
    x, log = torch.ones(3), []
    assert compiled(x, torch.tensor([1]), log).tolist() == [4]
    assert compiled(x, torch.tensor([9]), log).tolist() == [0, 0, 0]
    assert log == [6.0, 6.0, "caught"]


def test_strict_runs_nothing_as_plain_pytorch(door: Callable[..., Any]) -> None:
    compiled = door(INDEXED["index_select"], "reference", strict=True)
    x = torch.ones(4, 3)
    compiled(x, torch.tensor([1, 0]))
    raised = error_of(lambda: compiled(x, torch.tensor([1, 9])))
    assert isinstance(raised, torch_backplane.BackplaneDataError) and raised.code == "BP-0108"
    assert isinstance(raised, IndexError) and isinstance(raised, torch_backplane.BackplaneError)


def test_strict_refusals_have_codes_at_the_own_door() -> None:
    def breaks(x: torch.Tensor) -> torch.Tensor:
        return x + float(input_of(x))

    def input_of(x: torch.Tensor) -> str:
        return str(x.sum().item())

    compiled = torch_backplane.compile(
        breaks, backend="reference", options={**OPTIONS, "strict": True}
    )
    raised = error_of(lambda: compiled(torch.ones(2)))
    assert isinstance(raised, torch_backplane.BackplaneError) and raised.code == "BP-0105"


FAILING = """
import os, torch, torch_backplane
doors = {
    "torch.compile": lambda f: torch.compile(f, backend="plugin:reference", options={"report": False}, dynamic=False),
    "own": lambda f: torch_backplane.compile(f, backend="reference", options={"report": False}),
}
name = os.environ["DOOR"]
for learns in (False, True):
    torch._dynamo.reset()
    f = doors[name](lambda x: (x @ x).sin().sum())
    f(torch.ones(4, 4, requires_grad=learns))
    try:
        f(torch.ones(1024, 1024, requires_grad=learns))
        print(name, "no error")
    except torch_backplane.BackplaneError as error:
        print(type(error).__name__, error.code, "out of memory" in str(error))
"""


@pytest.mark.parametrize("name", DOORS)
def test_a_plugins_failure_is_one_error_at_both_doors(name: str) -> None:
    # Where this Python has no such door, the test is skipped here as any other.
    DOORS[name](torch.neg, "reference")
    done = run_python(FAILING, {"BACKPLANE_REFERENCE_MEMORY": "1000000", "DOOR": name})
    assert done.stdout.splitlines() == ["BackplaneOutOfMemoryError BP-0115 True"] * 2, (
        done.stdout + done.stderr
    )


def test_a_second_size_that_cannot_be_made_runs_as_pytorch_does(door: Callable[..., Any]) -> None:
    """A factory whose size is no size: eager raises, and so does each door, as eager."""

    def program(x: torch.Tensor) -> torch.Tensor:
        return x.sum() + torch.zeros(5 - x.shape[0]).sum()

    compiled = door(program, "reference")
    assert compiled(torch.ones(3)).item() == 3
    assert compiled(torch.ones(4)).item() == 4
    expected = error_of(lambda: program(torch.ones(7)))
    assert isinstance(error_of(lambda: compiled(torch.ones(7))), type(expected))
    assert compiled(torch.ones(2)).item() == 2
