"""The runner itself: it must notice what is wrong, and survive what it runs."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
from patience import run as run_patiently
from torch_backplane.opinfo import check, compare, entries, report, tracing, watched
from torch_backplane.opinfo.check import Problem, Result
from torch_backplane.opinfo.entries import Case

ROOT = Path(__file__).resolve().parents[2]
ALLOWED = compare.tolerances({})
FLOAT = Case("float", torch.float32)
BACKWARD = Case("backward", torch.float32)

OPINFO = [sys.executable, "-m", "torch_backplane.cli", "opinfo"]


def problem(name: str, case: Case = FLOAT) -> Problem:
    return Problem(next(entries.samples(entries.database()[name], case, 1)), case)


@pytest.mark.parametrize(
    "actual",
    [
        torch.tensor([1.0, 2.0, 3.1]),
        torch.tensor([1.0, 2.0, float("nan")]),
        torch.tensor([1.0, 2.0, float("inf")]),
    ],
)
def test_values_differ(actual: torch.Tensor) -> None:
    assert compare.value_difference([actual], [torch.tensor([1.0, 2.0, 3.0])], ALLOWED)


def test_nan_and_infinity_in_the_same_places_are_equal() -> None:
    values = torch.tensor([float("nan"), float("inf"), -float("inf"), 1.0])
    assert not compare.value_difference([values.clone()], [values], ALLOWED)
    swapped = values[[0, 2, 1, 3]]
    assert compare.value_difference([swapped], [values], ALLOWED)


@pytest.mark.parametrize(
    "actual",
    [
        None,
        torch.zeros(3, 2),
        torch.zeros(2, 3, dtype=torch.float64),
        torch.zeros(3, 2).t(),
    ],
)
def test_metadata_differs(actual: torch.Tensor | None) -> None:
    assert compare.metadata_difference([actual], [torch.zeros(2, 3)])


def test_strides_of_single_elements_do_not_matter() -> None:
    actual = torch.zeros(1, 3).as_strided((1, 3), (7, 1))
    assert not compare.metadata_difference([actual], [torch.zeros(1, 3)])


@pytest.mark.parametrize("case", [FLOAT, BACKWARD], ids=["forward", "backward"])
@pytest.mark.parametrize("name", ["add", "softmax", "linalg.svd", "nn.functional.batch_norm"])
def test_each_wrong_result_is_noticed(name: str, case: Case) -> None:
    made = problem(name, case)
    right = [tensor.clone() for tensor in made.run_graph()]
    assert made.difference(list(right)) == ("", "")
    for number, tensor in enumerate(right):
        wrong: list[torch.Tensor | None] = [t.clone() for t in right]
        wrong[number] = tensor * 1.01 + 0.01
        assert made.difference(wrong)[0], f"result {number}"


def test_wrong_order_is_noticed_but_not_the_choice_among_equals() -> None:
    source = torch.tensor([3, 1, 3, 2])
    values = torch.tensor([3, 3])
    expected = [values, torch.tensor([0, 2])]
    other = [values, torch.tensor([2, 0])]
    assert compare.breaks_ties_otherwise(source, other, expected)
    for wrong in ([0, 0], [0, 1], [0, 4]):
        assert not compare.breaks_ties_otherwise(source, [values, torch.tensor(wrong)], expected)


def test_as_exact_as_eager_needs_an_exact_eager() -> None:
    exact = [torch.tensor([1.0], dtype=torch.float64)]
    eager = [torch.tensor([1.001])]
    assert compare.as_exact_as([torch.tensor([0.999])], eager, exact, ALLOWED)
    assert not compare.as_exact_as([torch.tensor([1.01])], eager, exact, ALLOWED)
    assert not compare.as_exact_as([torch.tensor([2.0])], [torch.tensor([3.0])], exact, ALLOWED)


def test_random_numbers_look_alike() -> None:
    made, again = torch.rand(1000), torch.rand(1000)
    assert compare.looks_alike([made], [again])
    assert not compare.looks_alike([made * 2], [again])
    assert not compare.looks_alike([made / 0], [again])


def test_a_mutated_input_is_a_result() -> None:
    def function(a: torch.Tensor, b: torch.Tensor) -> list[torch.Tensor]:
        b[0].mul_(2)
        return [a + b]

    inputs = [torch.ones(2, 2), torch.ones(2, 2)]
    graph, changed = tracing.trace(function, inputs, check.table(), grad=False)
    assert changed == [1]
    assert not any(
        node.target._schema.is_mutable
        for node in graph.graph.nodes
        if isinstance(node.target, torch._ops.OpOverload)
    )
    result, updated = graph(*inputs)
    assert torch.equal(updated, torch.tensor([[2.0, 2.0], [1.0, 1.0]]))
    assert torch.equal(result, 1 + updated)


def test_a_size_that_depends_on_data_is_an_exclusion() -> None:
    with pytest.raises(tracing.DATA_DEPENDENT):
        problem("nonzero")


def test_the_first_sample_has_elements() -> None:
    sample = next(entries.samples(entries.database()["svd"], FLOAT, 1))
    assert all(tensor.numel() for tensor in sample.tensors)


def test_an_entry_has_the_worst_status_of_its_checks() -> None:
    def results(*statuses: str) -> list[Result]:
        return [Result("a", "float", "float32", i, "p", s) for i, s in enumerate(statuses)]

    assert report.worst(results("pass", "excluded")) == "pass"
    assert report.worst(results("pass", "fallback", "excluded")) == "fallback"
    assert report.worst(results("fallback", "wrong", "error")) == "wrong"
    found = report.by_entry(results("pass", "wrong"), "p")
    assert report.summary(found).share == 0.0


# Replaces the step on the plugin, in a process of its own, because the runner forks.
HARNESS = """
import os, sys, time
sys.argv = ["opinfo", "--plugin", "none", "--jobs", "2", "--no-backward", "--dtype", "float32",
            "--op", "add", "--op", "sub", "--op", "mul", "--op", "div.no_rounding_mode",
            "--op", "neg", "--op", "abs", "--step-seconds", "5", "--verbose"]
from torch_backplane.opinfo import check
original = check.run_on_plugin
def replaced(problem, plugin, result):
    name = problem.sample.entry.name
    if name == "add":
        os.abort()
    if name == "sub":
        time.sleep(60)
    if name == "mul":
        raise ValueError("x")
    if name == "div":
        problem.expected[0] += 1
        problem.run_graph = lambda: problem.expected
        problem.exact = list
    original(problem, plugin, result)
check.run_on_plugin = replaced
from torch_backplane.opinfo import command
sys.exit(command.main(sys.argv[1:]))
"""


def test_what_happens_to_one_entry_spares_the_others() -> None:
    done = run_patiently([sys.executable, "-c", HARNESS], cwd=ROOT)
    assert done.returncode == 1, done.stderr
    for line in (
        "error: none: add float float32 sample 0: the process died with signal 6",
        "error: none: sub float float32 sample 0: over 5 seconds",
        "error: none: mul float float32 sample 0: ValueError: x",
        "wrong: none: div.no_rounding_mode float float32 sample 0: result 0",
    ):
        assert line in done.stdout
    assert "neg float float32 0 none: fallback" in done.stderr
    assert "abs float float32 0 none: fallback" in done.stderr
    assert "2 fallback, 3 error, 1 wrong" in done.stdout


def test_a_plugin_that_is_not_there() -> None:
    done = run_patiently([*OPINFO, "--plugin", "absent", "--op", "add"])
    assert done.returncode == 2
    assert "absent" in done.stderr


def test_kernels_can_be_watched() -> None:
    done = run_patiently(
        [
            *OPINFO,
            *["--plugin", "opencl", "--oclgrind", "--jobs", "1", "--op", "cumsum"],
            *["--no-backward", "--dtype", "float32", "--verbose"],
        ]
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "cumsum float float32 0 opencl: pass" in done.stderr
    assert "oclgrind found nothing" in done.stdout


def test_what_oclgrind_finds_is_a_failure(tmp_path: Path) -> None:
    (tmp_path / "17.log").write_text("Invalid write of size 4 at global memory address\n")
    (tmp_path / "18.log").write_text("")
    assert watched.findings(tmp_path).startswith("Invalid write")


def test_only_opencl_can_be_watched() -> None:
    done = run_patiently([*OPINFO, "--plugin", "reference", "--oclgrind"])
    assert done.returncode == 2 and "--plugin opencl" in done.stderr
