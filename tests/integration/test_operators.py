"""`backplane ops`, and one node of `backplane explain`: what a vendor asks."""

from __future__ import annotations

import json
import pathlib
import re
from collections.abc import Callable

import pytest
import torch
from compiling import run_python
from torch_backplane import cli, operators

# digamma has no kernel in plugin:opencl; the two layers around it have.
MODEL = """
import torch

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = torch.nn.Linear(8, 8), torch.nn.Linear(8, 4)

    def forward(self, x):
        return self.b(torch.digamma(self.a(x).abs() + 1)).sum(1, keepdim=True)

model, example_inputs = Model(), torch.randn(3, 8)
"""

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def backplane(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> Run:
    (tmp_path / "model.py").write_text(MODEL)

    def run(*arguments: str) -> tuple[int, str, str]:
        given = [a.replace("MODEL", str(tmp_path / "model.py")) for a in arguments]
        capsys.readouterr()
        code = cli.main(given)
        return code, *capsys.readouterr()

    return run


def test_operators_of_the_table(backplane: Run) -> None:
    code, out, _ = backplane("ops", "cumsum")
    assert code == 0
    assert out.startswith("aten.cumsum(self; dim: int; dtype: Optional[int]=None)  ")
    code, out, _ = backplane("ops", "aten.add.*", "--json")
    assert [row["name"] for row in json.loads(out)] == ["aten.add.Scalar", "aten.add.Tensor"]
    code, out, error = backplane("ops", "no_such")
    assert (code, out) == (2, "")
    assert "'no_such'" in error


def test_operators_of_a_model(backplane: Run) -> None:
    code, out, _ = backplane("ops", "MODEL", "--plugin", "opencl", "--json")
    assert code == 0
    found = json.loads(out)
    assert found["partitions"] == 2
    by_name = {row["op"]: row for row in found["operators"]}
    assert by_name["aten.linear"]["count"] == by_name["aten.linear"]["taken"] == 2
    assert by_name["aten.linear"]["forms"] == {"f32:2 f32:2 f32:1 -> f32:2": 2}
    assert by_name["aten.sum.dim_IntList"]["attributes"] == {"dim": ["[1]"], "keepdim": ["true"]}
    left = by_name["aten.digamma"]
    assert left["taken"] == 0
    assert left["reasons"] == {"opencl:0: no kernel for aten.digamma": 1}
    assert left["crossing_bytes"] == 2 * 3 * 8 * 4
    text = backplane("ops", "MODEL", "--plugin", "opencl", "--train")[1]
    assert "aten.polygamma" in text
    assert "graphs 2: opencl leaves 2 to PyTorch" in text
    code, _, error = backplane("ops", "MODEL", "--plugin", "absent")
    assert code == 2
    assert "absent" in error


def test_one_node(backplane: Run) -> None:
    code, out, _ = backplane("explain", "MODEL", "--plugin", "opencl", "--node", "3")
    assert code == 0
    assert "aten.digamma" in out
    assert "because opencl:0: no kernel for aten.digamma" in out
    assert "(96 bytes) from partition 0: node 2, aten.add.Tensor" in out
    assert "(96 bytes) to partition 1: node 4, aten.linear" in out
    code, _, error = backplane("explain", "MODEL", "--plugin", "opencl", "--node", "900")
    assert code == 2
    names = re.findall(r"(graph_\d+_\w+) \(0 to \d+\)", error)
    assert [name.rpartition("_")[2] for name in names] == ["forward", "backward"]


def test_attributes_of_a_text() -> None:
    text = '%1 = aten.f(%a, [%b, %c], dim=[0, 1], s="a, (b]", x=1e-05) : f32[2, 3] strides(1, 2)'
    assert operators.attribute_texts(text) == ["dim=[0, 1]", 's="a, (b]"', "x=1e-05"]
    types = [("f32[]", 4, 0), None, ("bf16[s0, 3] strides(1, 2)", 8, 0)]
    assert operators.form_of(types) == "f32:0 - bf16:2"


def test_a_model_without_a_graph() -> None:
    uses = operators.uses(lambda x: x, "reference")(torch.ones(2))
    assert uses.as_dict()["operators"] == []


FAILING = """
import sys
import torch
from torch_backplane import BackplaneError

x = torch.randn(5, 4)
compiled = torch.compile(lambda x, i: (x * 2).index_select(0, i) + 1, backend="plugin:opencl")
try:
    compiled(x, torch.tensor([1, 9]))
except (IndexError, BackplaneError) as error:
    print(str(error), file=sys.stderr)
"""


# Two calls, of which the second fails after it was queued.
QUEUED = """
import torch, torch_backplane

torch_backplane.device("reference", 0)
x = torch.ones(3).to("DEVICE")
doubled, squashed = (torch.compile(f, backend="plugin:reference") for f in (lambda x: x * 2, torch.tanh))
squashed(doubled(x)).cpu()
"""


@pytest.mark.parametrize("device", ["cpu", "backplane"])
def test_a_partition_that_failed_in_its_queue_is_kept(device: str, tmp_path: pathlib.Path) -> None:
    environment = {"BACKPLANE_REFERENCE_FAILS_AT": "2", "BACKPLANE_REPLAY": str(tmp_path)}
    done = run_python(QUEUED.replace("DEVICE", device), environment)
    (file,) = tmp_path.glob("*.bpir")
    assert "a simulated parity error" in done.stderr
    assert f"again: backplane replay {file}" in done.stderr
    assert file.read_text().startswith("// reference:0: ")
    assert "aten.tanh" in file.read_text() and "aten.mul" not in file.read_text()


def test_a_partition_that_failed_runs_by_itself(
    tmp_path: pathlib.Path, capfd: pytest.CaptureFixture[str]
) -> None:
    done = run_python(FAILING, {"BACKPLANE_REPLAY": str(tmp_path / "kept")})
    (file,) = (tmp_path / "kept").glob("*.bpir")
    assert f"again: backplane replay {file}" in done.stderr
    assert file.read_text().startswith("// opencl:0: ")
    code = cli.main(["replay", str(file)])
    out, error = capfd.readouterr()
    assert "it failed on opencl:0 with: " in out
    assert code in (0, 1), error  # indices are drawn: in range or not
    assert cli.main(["replay", str(tmp_path / "absent")]) == 2
    (tmp_path / "plain.bpir").write_text("graph @g() -> () {\n  return\n}\n")
    assert cli.main(["replay", str(tmp_path / "plain.bpir")]) == 2
    assert "give --plugin" in capfd.readouterr().err
