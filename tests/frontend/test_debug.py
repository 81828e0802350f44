"""Calls beside plain Python (debug="compare"), and the folder of readable files."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys
from typing import Any

import pytest
import torch
import torch_backplane
from patience import run as run_patiently
from torch import nn
from torch_backplane import BackplaneError, frontend
from torch_backplane.compare import difference

STATE: dict[str, Any] = {"calls": 0}
COUNT = 0


def wrong(change: Any) -> Any:
    """A back end whose graphs give something else than they should."""

    def backend(graph: torch.fx.GraphModule, examples: list[torch.Tensor]) -> Any:
        return lambda *inputs: change(list(graph(*inputs)))

    return backend


def compared(function: Any, backend: Any = "eager") -> Any:
    return frontend.compile(function, backend=backend, debug="compare", options={"report": False})


def uncompared(compiled: Any) -> dict[str, int]:
    return compiled._backplane_comparison.uncompared


def test_what_agrees_passes() -> None:
    def function(x: torch.Tensor, log: list[Any], scale: float = 2.0) -> Any:
        global COUNT
        COUNT += 1
        STATE["calls"] += 1
        log.append(x.shape[0])
        x.mul_(scale)
        y = torch.nn.functional.dropout(x, 0.5)
        return {"y": y if y.sum() > 0 else -y, "n": len(log)}

    before = COUNT, STATE["calls"]
    compiled, seen = compared(function), []
    for n in (2, 3, 2, 4):
        x = torch.ones(n)
        compiled(x, seen)
        assert torch.equal(x, torch.full((n,), 2.0))
    assert seen == [2, 3, 2, 4]
    assert (COUNT, STATE["calls"]) == (before[0] + 4, before[1] + 4)
    assert frontend.counters(compiled)["plain_calls"] == 0 and not uncompared(compiled)


def helper(x: torch.Tensor) -> torch.Tensor:
    global COUNT
    COUNT += 1
    STATE.setdefault("seen", []).append(x.shape[0])
    return x + COUNT


@frontend.compile
def also_compiled(x: torch.Tensor) -> torch.Tensor:
    return x * 3


def test_helpers_globals_and_closures_change_once() -> None:
    total = [0]

    def function(x: torch.Tensor) -> torch.Tensor:
        nonlocal total
        total = [*total, x.shape[0]]
        return helper(also_compiled(x)) * len(total)

    STATE.pop("seen", None)
    before, compiled = COUNT, compared(function)
    for n in (2, 3):
        compiled(torch.ones(n))
    assert (COUNT, STATE["seen"], total) == (before + 2, [2, 3], [0, 2, 3])
    assert not uncompared(compiled)


def test_a_wrong_result() -> None:
    compiled = compared(
        lambda x: {"out": [x * 2]}, wrong(lambda out: [out[0] + (out[0].shape[0] == 3)])
    )
    assert torch.equal(compiled(torch.ones(2))["out"][0], torch.full((2,), 2.0))
    with pytest.raises(
        BackplaneError, match=r"BP-0112.*call 2 of .*result\['out'\]\[0\] has other values"
    ):
        compiled(torch.ones(3))


@pytest.mark.parametrize("plugin", ("reference", "cpu_onednn"))
@pytest.mark.parametrize(
    "draw",
    (
        lambda x: torch.rand(3, device=x.device) + x,
        nn.functional.dropout,
        lambda x: x.clone().normal_(),
    ),
    ids=("rand", "dropout", "normal_"),
)
def test_numbers_that_a_device_draws(draw: Any, plugin: str) -> None:
    x = torch.ones(3, device=torch_backplane.device(plugin))
    compiled = compared(draw, plugin)
    torch.manual_seed(5)
    results = [compiled(x).cpu() for _ in range(2)]
    torch.manual_seed(5)
    assert all(torch.equal(result, draw(x).cpu()) for result in results)
    assert not uncompared(compiled)


def test_a_device_that_draws_more() -> None:
    x = torch.ones(3, device=torch_backplane.device("reference"))

    def draw_too(out: list[torch.Tensor]) -> list[torch.Tensor]:
        torch.rand(1, device=x.device)
        return out

    with pytest.raises(BackplaneError, match="the random numbers that are drawn next"):
        compared(lambda x: x * 2, wrong(draw_too))(x)


def test_a_wrong_effect() -> None:
    def function(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        y.add_(x)
        return x + 1

    compiled = compared(function, wrong(lambda out: [one * 1.5 for one in out]))
    with pytest.raises(BackplaneError, match=r"call 1 of .*function: the result has other values"):
        compiled(torch.ones(2), torch.ones(2))

    def writes(x: torch.Tensor, y: torch.Tensor) -> None:
        y.add_(x)

    compiled = compared(writes, wrong(lambda out: [one * 1.5 for one in out]))
    with pytest.raises(BackplaneError, match=r"call 1 of .*writes: argument 1 has other values"):
        compiled(torch.ones(2), torch.ones(2))


def test_other_exceptions() -> None:
    def fails(graph: Any, examples: Any) -> Any:
        def run(*inputs: Any) -> Any:
            raise IndexError("too far")

        return run

    compiled = compared(lambda x: x + 1, fails)
    with pytest.raises(
        BackplaneError, match=r"raises IndexError: too far; plain Python raises nothing"
    ):
        compiled(torch.ones(2))

    def raises(x: torch.Tensor, log: list[int]) -> None:
        log.append(1)
        raise KeyError("mine")

    compiled, log = compared(raises), []
    for _ in range(2):
        with pytest.raises(KeyError, match="mine"):
            compiled(torch.ones(2), log)
    assert log == [1, 1]


def test_modules_and_methods() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3), nn.Dropout(0.5))
    compiled = compared(model, "reference")
    for _ in range(2):
        compiled(torch.rand(4, 3)).sum().backward()
    assert model[0].weight.grad is not None
    assert model[1].num_batches_tracked == 2
    assert frontend.counters(compiled)["plain_calls"] == 0

    class Counter:
        total = 0

        def add(self, x: torch.Tensor) -> torch.Tensor:
            self.total += x.shape[0]
            return x * self.total

    counter = Counter()
    add = compared(counter.add)
    assert torch.equal(add(torch.ones(2)), torch.full((2,), 2.0))
    assert torch.equal(add(torch.ones(3)), torch.full((3,), 5.0)) and counter.total == 5


def test_what_cannot_be_copied_is_counted() -> None:
    compiled = compared(lambda x, it: x * next(it))
    numbers = (n for n in (2, 3))
    assert torch.equal(compiled(torch.ones(2), numbers), torch.full((2,), 2.0))
    (reason,) = uncompared(compiled)
    assert "generator" in reason


def test_history_of_arguments() -> None:
    leaf = torch.rand(3, requires_grad=True)
    compiled = compared(lambda x: x * 2)
    compiled(leaf * 3).sum().backward()
    assert torch.equal(leaf.grad, torch.full((3,), 6.0))


@pytest.mark.parametrize(
    ("actual", "expected", "text"),
    [
        ((1, 2), (1, 3), r"result\[1\] is 2, 3 in plain"),
        ([1], [1, 2], "1 elements, 2 in"),
        ({"a": 1}, {"b": 1}, "the keys"),
        (1, 1.0, "is a int, a float"),
        (torch.ones(2), torch.ones(3), "shape"),
        (torch.ones(2), torch.ones(2).double(), "dtype"),
        (torch.tensor([1]), torch.tensor([2]), "other values"),
        (float("nan"), float("nan"), ""),
        (torch.tensor(float("nan")), torch.tensor(float("nan")), ""),
    ],
)
def test_differences(actual: Any, expected: Any, text: str) -> None:
    import re

    found = difference(actual, expected)
    assert bool(found) == bool(text) and re.search(text, found), found


PROGRAM = """
import torch, torch_backplane

@torch_backplane.compile
def toy(a, b):
    x = a / (torch.abs(a) + 1)
    if b.sum() < 0:
        b = b * -1
    return x * b

toy(torch.rand(3), torch.rand(3))
toy(torch.rand(3), -torch.rand(3))
toy(torch.rand(4).double(), torch.rand(4).double())

@torch_backplane.compile
def whole(a):
    return a + 1

whole(torch.rand(3))
print("compared", hasattr(toy, "_backplane_comparison"))
"""


def run(**environment: str) -> subprocess.CompletedProcess[str]:
    return run_patiently([sys.executable, "-c", PROGRAM], env={**os.environ, **environment})


def test_the_dump_folder(tmp_path: pathlib.Path) -> None:
    done = run(BACKPLANE_DUMP=str(tmp_path / "new"), BACKPLANE_DEBUG="compare")
    assert done.returncode == 0, done.stderr
    assert done.stdout == "compared True\n"
    toy, whole = (
        tmp_path / "new" / "__compiled_fn_0_toy",
        tmp_path / "new" / "__compiled_fn_1_whole",
    )
    first = toy / "__compiled_fn_0_toy"
    assert {file.name for file in first.iterdir()} == {
        "guards.txt",
        "graph.txt",
        "graph.ir",
        "original.txt",
        "modified.txt",
        "break.txt",
    }
    assert "TENSOR_MATCH a: float [3]" in (first / "guards.txt").read_text()
    assert "aten.div.Tensor" in (first / "graph.txt").read_text()
    assert (first / "graph.ir").read_text().startswith("graph @")
    assert "COMPARE_OP" in (first / "original.txt").read_text()
    assert "__compiled_fn_0" in (first / "modified.txt").read_text()
    assert "_local_scalar_dense" in (first / "break.txt").read_text()
    assert "GRAPH BREAK in toy" in (toy / "breaks.txt").read_text()
    assert "dtype is double, expected float" in (toy / "recompiles.txt").read_text()
    resumed = [folder.name for folder in toy.iterdir() if "resume_at" in folder.name]
    assert len(resumed) == 3
    (entry,) = [folder for folder in whole.iterdir() if folder.is_dir()]
    assert "BINARY_OP" in (entry / "original.txt").read_text()
    assert not (entry / "modified.txt").exists()


def test_bad_values(tmp_path: pathlib.Path) -> None:
    with pytest.raises(BackplaneError, match=r"BP-0102.*debug takes None or 'compare', got 'no'"):
        torch_backplane.compile(abs, debug="no")
    (tmp_path / "file").write_text("")
    with pytest.raises(BackplaneError, match=r"BP-0102.*dump takes a folder"):
        torch_backplane.compile(abs, dump=tmp_path / "file")
    assert "BP-0102" in run(BACKPLANE_DEBUG="yes").stderr
