"""What users are told: totals, explanations, the command line."""

from __future__ import annotations

import json
import pathlib
import re

import pytest
import torch
import torch_backplane
from compiling import PLUGINS, compile_for, mlp
from torch import nn
from torch_backplane import cli, doctor, plugin_search, probe, reports


def test_stats_keys_are_documented() -> None:
    documented = set(re.findall(r"^ *``(\w+)``  ", reports.stats.__doc__, re.MULTILINE))
    assert documented == set(torch_backplane.stats())


@pytest.mark.parametrize("plugin", PLUGINS)
def test_totals(plugin: str) -> None:
    torch_backplane.reset()
    model = mlp()
    compiled = compile_for(plugin, model)
    compiled(torch.randn(2, 16)).sum().backward()
    compiled(torch.randn(2, 16))
    stats = torch_backplane.stats()
    assert stats["graphs"] == 2 and stats["eager_graphs"] == 0
    assert stats["calls"] == 3  # forward, backward, forward
    assert stats["plugin_nodes"] >= 4 and stats["fallback_nodes"] == 0
    assert stats["compile_ns"] > 0
    torch_backplane.reset()
    stats = torch_backplane.stats()
    assert stats["graphs"] == stats["calls"] == stats["host_to_device_bytes"] == 0


def test_record_is_told_of_fallback() -> None:
    with torch_backplane.record() as graphs:
        compile_for("reference", lambda x: torch.bernoulli(x.sigmoid()))(torch.randn(3))
    compile_for("reference", lambda x: x.exp())(torch.randn(3))
    (graph,) = graphs
    assert graph["plugin"] == "reference" and graph["role"] == "inference"
    assert (graph["nodes"], graph["plugin_nodes"], graph["fallback_nodes"]) == (2, 1, 1)
    (node,) = graph["fallback"]
    assert node["op"].startswith("aten.bernoulli") and node["reason"]
    assert pathlib.Path(__file__).name in node["location"]


def test_coverage_line(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO", logger="torch_backplane"):
        torch.compile(mlp().requires_grad_(False), backend="plugin:reference")(torch.randn(2, 16))
    (line,) = [r.getMessage() for r in caplog.records if "compiled" in r.getMessage()]
    assert re.search(r"reference compiled 1 inference graph: (\d+)/\1 nodes in 1 partition", line)


def test_explain() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        y = torch.bernoulli(x.sigmoid()) + 1
        torch._dynamo.graph_break()
        return y.exp()

    explanation = torch_backplane.explain(function, "reference")(torch.randn(3))
    text = str(explanation)
    assert "on the CPU: aten.bernoulli" in text and pathlib.Path(__file__).name in text
    assert "graph break 1" in text
    assert re.search(
        r"partition 0 on reference:0: \d+ nodes with views, predicted [\d.]+ ms, measured", text
    )
    data = json.loads(json.dumps(explanation.as_dict(), default=str))
    assert len(data["graphs"]) == 2 and len(data["graph_breaks"]) == 1
    moved = data["transfers"]["reference:0"]
    assert moved["host_to_device"]["weight"] == [0, 0]
    assert moved["host_to_device"]["input"][0] >= 12


def test_explain_of_many_saved_values() -> None:
    layers = [nn.Linear(4, 4) if n % 2 else nn.ReLU() for n in range(40)]
    text = str(torch_backplane.explain(nn.Sequential(*layers), "reference")(torch.randn(2, 4)))
    saved = text[text.index("saves ") : text.index("computes ")].strip().splitlines()
    assert len(saved) == 10 and not any("an argument" in line for line in saved[:-1]), text
    count = int(saved[0].split()[1])
    assert saved[-1].strip().startswith(f"and {count - 8} more, "), text


def test_explain_of_a_plugin_that_declares_no_speeds() -> None:
    explanation = torch_backplane.explain(lambda x: x.exp(), "reference")(torch.randn(3))
    explanation.reports = explanation.as_dict()["graphs"]
    explanation.reports[0]["partitions"][0]["predicted_ns"] = 0  # as where all rates are 0
    text = str(explanation)
    assert "1 nodes with views, of undeclared speed, measured" in text and "predicted" not in text


@pytest.mark.parametrize("target", [mlp(), lambda x: x.exp()], ids=["module", "function"])
def test_explain_of_a_compiled_model(target) -> None:
    compiled = torch.compile(target, backend="plugin:reference")
    assert torch_backplane.explain(compiled)(torch.randn(2, 16)).plugin == "reference"


@pytest.mark.parametrize("door", ["torch", "own"])
def test_explain_takes_the_options_of_the_compiled_model(door: str) -> None:
    linear = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU(), torch.nn.Linear(4, 4))
    options = {"memory_budget": 0.0}
    compile = torch.compile if door == "torch" else torch_backplane.compile
    compiled = compile(linear, backend="plugin:reference", options=options)
    saved = [
        sum(graph["saved_bytes"] for graph in torch_backplane.explain(model, **more)(x).reports)
        for x in [torch.randn(2, 4)]
        for model, more in [(compiled, {}), (compiled, {"memory_budget": 1.0})]
    ]
    assert saved[0] < saved[1]


# --- command line --------------------------------------------------------------------------------

MODEL = """
import torch
model = torch.nn.Linear(4, 3).requires_grad_(False)
example_inputs = {inputs}
"""


@pytest.mark.parametrize(
    "inputs", ["torch.ones(2, 4)", "(torch.ones(2, 4),)", "{'input': torch.ones(2, 4)}"]
)
def test_command_explain(
    inputs: str, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "model.py"
    file.write_text(MODEL.replace("{inputs}", inputs))
    assert cli.main(["explain", str(file), "--plugin", "reference", "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["plugin"] == "reference" and data["graphs"][0]["fallback_nodes"] == 0


def test_command_explain_of_inference(
    tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "model.py"
    file.write_text(
        "import torch\nmodel = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Dropout(0.5))\n"
        "example_inputs = torch.ones(2, 4)\n"
    )
    for more, roles in (([], ["forward", "backward"]), (["--inference"], ["inference"])):
        assert cli.main(["explain", str(file), "--plugin", "reference", "--json", *more]) == 0
        graphs = json.loads(capsys.readouterr().out)["graphs"]
        assert [graph["role"] for graph in graphs] == roles
        assert (graphs[0]["nodes"] > 1) == (not more)  # dropout
    assert cli.main(["explain", str(file), "--option", "no_such=1"]) == 2
    assert "BP-0101" in capsys.readouterr().err
    assert cli.main(["explain", str(file), "--option", "strict"]) == 2


def test_command_explain_with_main(
    tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "model.py"
    file.write_text("import torch\ndef main():\n    return torch.nn.ReLU(), torch.ones(3)\n")
    assert cli.main(["explain", str(file), "--plugin", "reference"]) == 0
    assert "1 of 1 nodes on reference" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("text", "plugin", "message"),
    [
        (None, "reference", "no such file"),
        ("x = 1", "reference", "must define `model` and `example_inputs`"),
        ("def main(): return 1", "reference", "the pair (model, example_inputs)"),
        ("model, example_inputs = 3, 4", "reference", "cannot be called"),
        ("", "refrence", "did you mean 'reference'?"),
    ],
)
def test_command_explain_says_what_is_wrong(
    text: str | None,
    plugin: str,
    message: str,
    tmp_path: pathlib.Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    file = tmp_path / "model.py"
    if text is not None:
        file.write_text(text)
    assert cli.main(["explain", str(file), "--plugin", plugin]) == 2
    assert message in capsys.readouterr().err


def test_command_plugins(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["plugins"]) == 0
    text = capsys.readouterr().out
    assert "reference" in text and "cpu_onednn" in text
    assert cli.main(["plugins", "--json"]) == 0
    assert {e["name"] for e in json.loads(capsys.readouterr().out)} >= set(PLUGINS)


def test_command_doctor(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["doctor"]) == 0
    text = capsys.readouterr().out
    for word in (
        f"torch {torch.__version__}",
        "reference",
        "cpu_onednn",
        "OpenMP",
        "cache",
        "waiting policy",
        "reference:0: 4096 bytes went there and back, a graph of two nodes ran there",
    ):
        assert word in text
    assert cli.main(["doctor", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["findings"]


@pytest.mark.parametrize("policy", ["", "active", "passive"])
def test_doctor_names_the_waiting_policy(policy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """OpenMP threads that spin take the cores of an OpenCL driver on the CPU."""
    monkeypatch.setenv("OMP_WAIT_POLICY", policy)
    shared = [f for f in doctor.examine() if f.topic == "OpenCL"]
    assert len(shared) == (0 if policy == "passive" else 1)
    assert all("OMP_WAIT_POLICY=PASSIVE" in f.remedy for f in shared)
    (threads,) = [f for f in doctor.examine() if f.topic == "threads"]
    assert (policy.upper() or "default") in threads.text


def test_doctor_finds_a_broken_plugin(monkeypatch: pytest.MonkeyPatch) -> None:
    entry = {"name": "acme", "path": "/x/libbackplane_acme.so", "error": "no", "loaded": False}
    monkeypatch.setattr(plugin_search, "plugins", lambda: [entry])
    (finding,) = [f for f in doctor.examine() if f.topic == "plugin"]
    assert (
        finding.state == "error"
        and "refused: no" in finding.text
        and entry["path"] in finding.remedy
    )


def test_doctor_finds_another_torch_than_it_was_built_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_backplane._C, "torch_version", "2.99.0")
    (finding,) = [f for f in doctor.examine() if f.topic == "extension"]
    assert finding.state == "error" and "built for torch 2.99.0" in finding.text
    assert torch.__version__ in finding.remedy


def test_doctor_survives_its_own_faults(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise OSError("disk on fire")

    monkeypatch.setattr(doctor, "cache_directory", fail)
    assert any("disk on fire" in f.text and f.state == "error" for f in doctor.examine())


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ({"BACKPLANE_REFERENCE_FAILS_AT": "1"}, "a simulated parity error"),
        ({"BACKPLANE_REFERENCE_HANGS_AT": "1"}, "it did not answer within 20 s; still at work"),
    ],
)
def test_doctor_tells_of_a_device_that_does_not_work(
    fault: dict[str, str], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in fault.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(probe, "SILENT_SECONDS", 20.0)
    entry = {"name": "reference", "path": "", "error": "", "origin": "package"}
    monkeypatch.setattr(plugin_search, "plugins", lambda: [entry])
    (finding,) = [f for f in doctor.examine() if f.topic == "device"]
    assert finding.state == "error" and finding.remedy
    assert finding.text.startswith("reference:0: ") and said in finding.text


def test_what_is_asked_about_is_named() -> None:
    with pytest.raises(TypeError, match=r"a function or a torch\.nn\.Module, got 3"):
        torch_backplane.explain(3)
    with pytest.raises(TypeError, match=r"expected a torch\.nn\.Module, got 3"):
        torch_backplane.invalidate(3)
