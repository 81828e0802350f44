"""One program on every rung: plain Python, the captured graph, gradients of ours, other back ends."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch_backplane
from frontend.helpers import captured, check
from models import zoo
from models.steps import tensors_of
from torch import nn
from torch_backplane import BackplaneError, frontend

RUNGS = ("eager", "aot_eager", "reference", "inductor")


def custom(graph: torch.fx.GraphModule, examples: list[torch.Tensor]) -> Any:
    custom.graphs.append(graph)
    assert all(isinstance(one, torch.Tensor) for one in examples)
    return graph.forward


custom.graphs = []
CUSTOM = pytest.param(custom, id="custom")  # str(custom) has its address


def written(x: torch.Tensor, y: torch.Tensor) -> Any:
    """Views, shared results, a written argument, a constant, an absent value."""
    scaled = x * torch.tensor([2.0, 3.0])
    y.add_(scaled.sum())
    top = scaled[0]
    return {"all": scaled, "top": top, "x": x, "part": x[1:], "none": None}, y


@pytest.mark.parametrize("backend", [*RUNGS, CUSTOM])
def test_results_and_effects(backend: Any) -> None:
    compiled = check(written, (torch.rand(2, 2), torch.rand(3)), backend=backend)
    check(written, (torch.rand(3, 2), torch.rand(3)), compiled=compiled)
    assert captured(compiled), frontend.counters(compiled)


@pytest.mark.parametrize("backend", [*RUNGS, CUSTOM])
def test_training(backend: Any) -> None:
    def function(x: torch.Tensor, w: torch.Tensor, state: torch.Tensor) -> torch.Tensor:
        state.mul_(0.5).add_(w.sum(0) * 0.5)
        return torch.nn.functional.gelu(x @ w + state).square().mean()

    compiled = frontend.compile(function, backend=backend, options={"report": False})
    w = torch.linspace(-1, 1, 12).reshape(4, 3)
    for rows in (2, 5, 2):
        x, found = torch.linspace(-2, 1, rows * 4).reshape(rows, 4), []
        for call in (compiled, function):
            weight, base = w.clone().requires_grad_(), torch.ones(3, requires_grad=True)
            state = base * 1
            loss = call(x, weight, state)
            (loss + state.sum()).backward()
            found.append((loss.detach(), weight.grad, base.grad, state.detach()))
        torch.testing.assert_close(*found)
    assert captured(compiled), frontend.counters(compiled)


@pytest.mark.parametrize("backend", RUNGS)
def test_a_model(backend: str) -> None:
    case = zoo.case("bert")
    model, plain = case.build(), case.build()
    compiled = frontend.compile(model, backend=backend, options={"report": False})
    inputs = case.inputs(labels=True)
    outputs = [m(**inputs) for m in (compiled, plain)]
    for output in outputs:
        output.loss.backward()
    torch.testing.assert_close(*[tensors_of(one) for one in outputs], rtol=1e-4, atol=1e-5)
    for ours, expected in zip(model.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, expected.grad, rtol=1e-3, atol=1e-5)
    assert frontend.counters(compiled)["plain_calls"] == 0


def test_graphs_behind_breaks_go_to_the_back_end() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        y = x.sin()
        if y.sum() > 0:
            y = y + 1
        return y * 2

    custom.graphs.clear()
    compiled = frontend.compile(function, backend=custom)
    for sign in (1, -1, 1):
        x = sign * torch.ones(3)
        assert torch.equal(compiled(x), function(x))
    targets = {str(node.target) for graph in custom.graphs for node in graph.graph.nodes}
    assert len(custom.graphs) == 3 and "aten.sin.default" in targets
    assert captured(compiled)


@pytest.mark.parametrize("backend", [*RUNGS, CUSTOM])
def test_gradients_that_the_program_cuts(backend: Any) -> None:
    def function(x: torch.Tensor, w: torch.Tensor) -> Any:
        with torch.no_grad():
            scale = x * 2
        y = scale * w + (x * w).detach() + x
        return y, y.detach(), y[:2]

    compiled = frontend.compile(function, backend=backend, options={"report": False})
    found = []
    for call in (compiled, function):
        x, w = (torch.linspace(-1, 2, 4, requires_grad=True) for _ in range(2))
        y, cut, part = call(x, w)
        assert y.requires_grad and part.requires_grad and not cut.requires_grad
        (y.sum() + part.square().sum()).backward()
        found.append((y.detach(), cut, x.grad, w.grad))
    torch.testing.assert_close(*found)
    assert captured(compiled)


def test_graphs_with_gradients_are_run_by_pytorch(capfd: pytest.CaptureFixture[str]) -> None:
    custom.graphs.clear()
    compiled = frontend.compile(lambda x: x.sin() * 2, backend=custom)
    compiled(torch.ones(2, requires_grad=True)).sum().backward()
    assert not custom.graphs and "has gradients: PyTorch runs" in capfd.readouterr().err
    compiled(torch.ones(2))
    with torch.no_grad():
        compiled(torch.ones(2, requires_grad=True))
    assert [entry["is_foreign"] for entry in frontend.entries(compiled)] == [True, True, False]
    explanation = torch_backplane.explain(compiled)(torch.ones(2, requires_grad=True))
    assert "run by PyTorch" in str(explanation)


def test_random_numbers() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.dropout(x, 0.5) * torch.rand(3)

    for backend in ("eager", "aot_eager", custom):
        check(function, (torch.ones(3),), backend=backend)


def test_a_back_end_that_fails() -> None:
    calls = []

    def failing(graph: Any, examples: Any) -> Any:
        calls.append(graph)
        raise ValueError("no such operator")

    compiled = frontend.compile(lambda x: x + 1, backend=failing)
    for _ in range(9):
        assert torch.equal(compiled(torch.ones(2)), torch.full((2,), 2.0))
    counters = frontend.counters(compiled)
    (reason,) = counters["plain_reasons"]
    assert "ValueError: no such operator" in reason and counters["plain_calls"] == 9
    assert len(calls) <= 3
    strict = frontend.compile(lambda x: x + 1, backend=failing, strict=True)
    with pytest.raises(RuntimeError, match="no such operator"):
        strict(torch.ones(2))


def test_names() -> None:
    with pytest.raises(BackplaneError, match=r"BP-0103.*'inductr' is no plugin.*cpu_onednn.*eager"):
        frontend.compile(written, backend="inductr")
    with pytest.raises(BackplaneError, match="BP-0102"):
        frontend.compile(written, backend=3)
    torch._dynamo.register_backend(custom, name="of_the_tests")
    try:
        compiled = frontend.compile(lambda x: x * 3, backend="of_the_tests")
        assert torch.equal(compiled(torch.ones(2)), torch.full((2,), 3.0))
    finally:
        torch._dynamo.backends.registry._COMPILER_FNS.pop("of_the_tests")


class Broken(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x @ torch.ones(3, 2)).relu()


def test_the_ladder_names_the_stage() -> None:
    x = torch.rand(2, 3, requires_grad=True)
    rungs = torch_backplane.ladder(Broken(), "reference")(x)
    assert [rung.backend for rung in rungs] == ["eager", "reference"]
    assert not any(rung.difference for rung in rungs) and rungs[0].entries == 1

    def wrong(graph: torch.fx.GraphModule, examples: Any) -> Any:
        return lambda *inputs: [out + 1 for out in graph(*inputs)]

    rungs = torch_backplane.ladder(frontend.compile(Broken(), backend=wrong))(x.detach())
    assert [bool(rung.difference) for rung in rungs] == [False, True]
    assert "wrong: the result has other values" in str(rungs)


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "reference", CUSTOM])
def test_explain_says_who_runs_it(backend: Any) -> None:
    compiled = frontend.compile(Broken(), backend=backend, options={"report": False})
    explanation = torch_backplane.explain(compiled)(torch.rand(2, 3))
    name = getattr(backend, "__name__", backend)
    assert explanation.as_dict()["backend"].startswith(
        {
            "eager": "forward and backward graphs",
            "aot_eager": "forward and backward graphs",
            "reference": "plugin reference",
            "custom": "TorchDynamo's back end custom",
        }[name]
    )
    assert "3 operators" in str(explanation) or "3 of 3 nodes on reference" in str(explanation)
