"""Memory of training steps: exact counts, early release, and never more than PyTorch's own ways."""

from __future__ import annotations

import itertools
import json
import pathlib
import re
from xml.etree import ElementTree

import pytest
import torch
from compiling import compile_for
from models import zoo
from models.choice import representative_names
from torch import nn
from torch_backplane import _C, cli, memory, picture

PLUGIN = "cpu_onednn"


def compiled(function: object, **options: object) -> object:
    return compile_for(PLUGIN, function, options=options)


def test_measures_what_is_allocated() -> None:
    before = torch.empty(100)
    held = [before]
    first, second = _C.measure_memory(
        lambda: held.append(torch.empty(1000)), lambda: (held.clear(), torch.empty(250))
    )
    del before
    assert [change[1:] for change in first] == [(4000, "tensor")]
    # What was there before does not count when it goes.
    assert [change[1] for change in second] == [-4000, 1000, -1000]


def test_the_arena_of_a_call_is_measured() -> None:
    function = compiled(lambda x: (x @ x).softmax(0) @ x)
    x = torch.randn(64, 64)
    function(x)
    (changes,) = _C.measure_memory(lambda: function(x))
    taken = [change for _, change, use in changes if use == "values"]
    assert len(taken) == 2 and taken[0] == -taken[1] >= x.nbytes


class Chain(nn.Module):
    """Activations are large beside weights: each layer saves one."""

    def __init__(self, layers: int, width: int = 32) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(layers))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return x.sum()


def trace(model: nn.Module, x: torch.Tensor, way: object = compiled) -> memory.Trace:
    torch._dynamo.reset()
    run = way(model)
    return memory.trace_step(lambda: run(x), list(model.parameters()))


def test_saved_values_go_one_by_one() -> None:
    layers = 16
    model, x = Chain(layers), torch.randn(4096, 32)
    found = trace(model, x)
    saved = layers * x.nbytes
    assert saved <= found.after_forward <= saved + 64
    # Beside the saved values: the gradient that comes and the one that goes.
    assert found.peak <= saved + 3 * x.nbytes
    backward = found.live[found.forward_changes :]
    falls = [a - b for a, b in itertools.pairwise(backward) if a > b]
    assert sum(fall == x.nbytes for fall in falls) >= layers - 1


def test_gradients_are_allocated_as_they_are_made() -> None:
    width, layers = 256, 8
    model, x = Chain(layers, width), torch.randn(4, width)
    found = trace(model, x)
    backward = found.live[found.forward_changes :]
    weight = width * width * 4
    rises = [b - a for a, b in itertools.pairwise(backward) if b > a]
    assert sum(rise == weight for rise in rises) == layers
    assert found.after_backward >= layers * weight


def test_retained_values_stay() -> None:
    model, x = Chain(3), torch.randn(8, 32, requires_grad=True)
    loss = compiled(model)(x)
    expected = torch.autograd.grad(Chain.forward(model, x), x)[0]
    for _ in range(2):
        (gradient,) = torch.autograd.grad(loss, x, retain_graph=True)
        torch.testing.assert_close(gradient, expected, rtol=1e-4, atol=1e-5)
    (gradient,) = torch.autograd.grad(loss, x)
    torch.testing.assert_close(gradient, expected, rtol=1e-4, atol=1e-5)


def test_results_of_fallback_nodes_go_early() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        for _ in range(6):
            x = torch.bernoulli(x.sigmoid())  # drawn by PyTorch
        return x

    x = torch.randn(1000, 100)
    run = compiled(function)
    run(x)
    (changes,) = _C.measure_memory(lambda: run(x))
    live, peak = 0, 0
    for _, change, _ in changes:
        live += change
        peak = max(peak, live)
    assert peak <= 4 * x.nbytes


@pytest.mark.parametrize("name", representative_names())
def test_no_more_than_eager_and_pytorch(name: str) -> None:
    case = zoo.case(name)
    assert case.available(), f"install requirements/test.txt: {case.requires}"
    inputs = case.inputs(labels=True)
    peaks = {}
    ways = {
        "eager": lambda model: model,
        "pytorch": memory.pytorch_partitioner,
        "ours": compiled,
    }
    for way, wrap in ways.items():
        torch._dynamo.reset()
        model = case.build().train()
        with case.capture_config():
            run = wrap(model)
            peaks[way] = memory.trace_step(
                lambda r=run: zoo.ModelCase.loss(r(**inputs)), list(model.parameters())
            ).peak
    # Gradients of gradients draw again from here.
    generator = torch.get_rng_state().nbytes if draws(model) else 0
    assert peaks["ours"] <= min(peaks["eager"], peaks["pytorch"]) + generator, peaks


def draws(model: nn.Module) -> bool:
    return any(isinstance(m, nn.Dropout) and m.p > 0 for m in model.modules())


def test_picture_shows_the_numbers() -> None:
    traces = {
        "one": memory.Trace([0, 10, 30, 50], [100, 400, 300, 0], 2),
        "two": memory.Trace([5, 9, 10], [200, 100, 50], 1),
    }
    comparison = memory.Comparison("p", traces)
    tree = ElementTree.fromstring(comparison.svg())
    curves = {
        e.get("data-name").partition(",")[0]: [
            tuple(map(float, point.split(","))) for point in e.get("points").split()
        ]
        for e in tree.iter()
        if e.tag.endswith("polyline")
    }
    assert set(curves) == {"one", "two"}
    scale = picture.Scale(0, 2, 400e-6)
    for name, found in traces.items():
        drawn = [place for i, place in enumerate(curves[name]) if i % 2 == 0]
        expected = [(scale.x(x), scale.y(y / 1e6)) for x, y in found.points()]
        for place, wanted in zip(drawn, expected, strict=True):
            assert place == pytest.approx(wanted, abs=0.06)
    texts = [e.text for e in tree.iter() if e.tag.endswith("text")]
    assert "one, peak 0.000 MB" in texts and "backward" in texts


MODEL = """
import torch
model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 8))
example_inputs = torch.ones(512, 64)
"""


def test_command_explain_train(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, svg = tmp_path / "model.py", tmp_path / "memory.svg"
    file.write_text(MODEL)
    command = ["explain", str(file), "--plugin", PLUGIN, "--train", "--svg", str(svg)]
    assert cli.main([*command, "--json"]) == 0
    training = json.loads(capsys.readouterr().out)["training"]
    assert set(training) == {"eager", "PyTorch's partitioner", f"plugin {PLUGIN}"}
    # The hidden layer is saved for the backward.
    for sizes in training.values():
        assert sizes["peak_bytes"] >= sizes["after_forward_bytes"] >= 512 * 64 * 4
    drawn = re.findall(r'data-name="([^"]*), peak ([0-9.]+) MB"', svg.read_text())
    assert [(n.replace("&#x27;", "'"), p) for n, p in drawn] == [
        (name, f"{sizes['peak_bytes'] / 1e6:.3f}") for name, sizes in training.items()
    ]
    assert cli.main(command) == 0
    assert f"as a picture: {svg}" in capsys.readouterr().out


def test_command_explain_train_needs_a_gradient(
    tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "model.py"
    file.write_text("import torch\nmodel, example_inputs = torch.nn.ReLU(), torch.ones(3)\n")
    assert cli.main(["explain", str(file), "--plugin", PLUGIN, "--train"]) == 2
    assert "no output of the model has a gradient" in capsys.readouterr().err
