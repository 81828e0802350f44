"""The option verify: results of plugins with one fault each are noticed, and PyTorch's are given."""

from __future__ import annotations

import pathlib
import subprocess
import sys

import pytest
import torch
import torch_backplane
from compiling import run_python
from conformance import mutants
from torch import nn

PACKAGE = pathlib.Path(torch_backplane.__file__).parent
DOORS = [
    "torch",
    pytest.param(
        "own", marks=pytest.mark.skipif(sys.version_info >= (3, 13), reason="no front end here")
    ),
]
# Faults whose results are wrong in whatever a program computes.
FAULTS = (
    "result-zeros",
    "result-one-element-wrong",
    "result-reversed",
    "result-last-unwritten",
    "result-never-negative",
    "result-absolute-error",
    "graph-reads-one-operand-twice",
    "none",
)

PROGRAM = """
import torch, torch_backplane

torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 4))
options = {{"verify": 1.0, "report": False, "strict": {strict}}}
if "{door}" == "own":
    compiled = torch_backplane.compile(model, backend="mutant", options=options)
else:
    compiled = torch.compile(model, backend="plugin:mutant", options=options)

def step(called, x):
    model.zero_grad()
    out = called(x)
    (out.square().sum() + out.sum()).backward()
    return [out, *(p.grad.clone() for p in model.parameters())]

for i in range(3):
    x = torch.randn(5, 8)
    expected = step(model, x.clone())
    actual = step(compiled, x.clone())
    for a, b in zip(actual, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=2e-3, atol=2e-3)
stats = torch_backplane.stats()
print(stats["wrong_results"], stats["transfers"]["mutant:0"]["health"], stats["verified_calls"])
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    return mutants.build(PACKAGE, tmp_path_factory.mktemp("mutant"))


def run(
    library: pathlib.Path, fault: str, door: str, strict: bool = False, **more: str
) -> subprocess.CompletedProcess[str]:
    environment = {
        "BACKPLANE_PLUGIN_PATH": str(library.parent),
        "BACKPLANE_MUTANT": fault,
        "BACKPLANE_MUTANT_OF": str(PACKAGE / "plugins" / "libbackplane_reference.so"),
        "BACKPLANE_CACHE": "0",
        **more,
    }
    return run_python(PROGRAM.format(door=door, strict=strict), environment)


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("fault", FAULTS)
def test_a_wrong_result_is_told_and_replaced(library: pathlib.Path, fault: str, door: str) -> None:
    done = run(library, fault, door)
    assert done.returncode == 0, done.stdout + done.stderr
    wrong, health, verified = done.stdout.split()
    if fault == "none":
        assert (wrong, health, verified) == ("0", "ok", "6")  # forward and backward, three times
        assert "wrong result" not in done.stderr
        return
    assert (wrong, health) == ("1", "distrusted"), done.stderr
    assert done.stderr.count("mutant:0 gave a wrong result: output ") == 1
    assert "programs that verify their results run with PyTorch from now on" in done.stderr


def test_what_was_wrong_is_kept_for_replay(library: pathlib.Path, tmp_path: pathlib.Path) -> None:
    done = run(library, "result-reversed", "torch", BACKPLANE_REPLAY=str(tmp_path))
    (kept,) = tmp_path.glob("*.bpir")
    assert f"; again: backplane replay {kept}; programs that verify" in done.stderr
    assert "aten.linear" in kept.read_text()


@pytest.mark.parametrize("door", DOORS)
def test_strict_makes_it_an_error(library: pathlib.Path, door: str) -> None:
    done = run(library, "result-zeros", door, strict=True)
    assert done.returncode != 0
    assert "mutant:0 gave a wrong result: output 0 (Float[5, 4]) differs in " in done.stderr
    assert "BackplaneError: BP-0108" in done.stderr


def test_the_share_of_calls_that_are_verified() -> None:
    model = nn.Linear(4, 4)
    for rate, calls, least, most in ((0.0, 50, 0, 0), (1e-6, 50, 1, 1), (0.1, 100, 10, 11)):
        torch._dynamo.reset()
        options = {"verify": rate, "report": False}
        compiled = torch.compile(model, backend="plugin:reference", options=options, dynamic=False)
        before = torch_backplane.stats()["verified_calls"]
        with torch.no_grad():
            for _ in range(calls):
                compiled(torch.rand(2, 4))
        assert least <= torch_backplane.stats()["verified_calls"] - before <= most, rate


@pytest.mark.parametrize("value", [-0.1, 1.5, "all", True])
def test_what_is_no_share_is_refused(value: object) -> None:
    with pytest.raises(torch_backplane.BackplaneError, match=r"BP-0102.*verify"):
        torch_backplane.options.Options.parse({"verify": value})


def test_numbers_drawn_are_drawn_once() -> None:
    model = nn.Sequential(nn.Linear(8, 64), nn.Dropout(0.5), nn.Linear(64, 4))
    options = {"verify": 1.0, "report": False}
    compiled = torch.compile(model, backend="plugin:reference", options=options)
    for _ in range(2):
        x = torch.rand(3, 8)
        torch.manual_seed(3)
        expected, after = model(x), torch.get_rng_state()
        torch.manual_seed(3)
        torch.testing.assert_close(compiled(x), expected)
        assert torch.equal(torch.get_rng_state(), after)
    assert torch_backplane.stats()["transfers"]["reference:0"]["health"] == "ok"
