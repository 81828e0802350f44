"""Changing sizes must not compile again and again."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch
import torch_backplane
from compiling import PLUGINS, close, compile_for
from models import zoo

SIZES = {True: range(2, 202), None: range(2, 40)}  # by the setting of `dynamic`
SMALL = {"bert": 8, "resnet": 16}  # tokens, or the side of the image
CHECKED = 23  # every so many sizes are compared with eager


def count(graphs: list[dict[str, Any]]) -> dict[str, int]:
    """Graphs by role; a graph without partitions of its own would not be on the plugin at all."""
    assert not [g["eager"] for g in graphs if "eager" in g]
    return dict(Counter(g["role"] for g in graphs))


def calls(graphs: list[dict[str, Any]], role: str) -> int:
    return sum(g["function"].report()["calls"] for g in graphs if g["role"] == role)


@pytest.mark.parametrize("dynamic", [True, None])
@pytest.mark.parametrize("name", ["bert", "resnet"])
def test_many_batch_sizes(name: str, dynamic: bool | None) -> None:
    allowed = 2 if dynamic else 3
    case = zoo.case(name)
    model = case.build()
    with torch_backplane.record() as graphs, torch.no_grad():
        compiled = compile_for("cpu_onednn", model, dynamic=dynamic)
        for batch in SIZES[dynamic]:
            inputs = case.inputs(batch=batch, seq=SMALL[name])
            output = zoo.main_output(compiled(**inputs))
            if batch % CHECKED == 0:
                torch.testing.assert_close(
                    output, zoo.main_output(model(**inputs)), rtol=1e-4, atol=1e-4
                )
    assert count(graphs)["inference"] <= allowed
    assert calls(graphs, "inference") == len(SIZES[dynamic]), "some sizes ran without the plugin"


@pytest.mark.parametrize("dynamic", [True, None])
@pytest.mark.parametrize("name", ["bert", "resnet"])
def test_many_batch_sizes_in_training(name: str, dynamic: bool | None) -> None:
    allowed = 2 if dynamic else 3
    case = zoo.case(name)
    model, eager = case.build(), case.build()
    # transformers settles the kind of loss at the first call: that is not about shapes.
    model(**case.inputs(labels=True))
    with torch_backplane.record() as graphs:
        compiled = compile_for("cpu_onednn", model, dynamic=dynamic)
        for batch in SIZES[dynamic]:
            inputs = case.inputs(batch=batch, seq=SMALL[name], labels=True)
            model.zero_grad()
            loss = case.loss(compiled(**inputs))
            loss.backward()
            if batch % CHECKED == 0:
                eager.zero_grad()
                expected = case.loss(eager(**inputs))
                expected.backward()
                torch.testing.assert_close(loss, expected, rtol=1e-4, atol=1e-5)
                for (n, p), (_, q) in zip(
                    model.named_parameters(), eager.named_parameters(), strict=True
                ):
                    if q.grad is not None:
                        torch.testing.assert_close(p.grad, q.grad, rtol=1e-3, atol=1e-5, msg=n)
    found = count(graphs)
    assert found["forward"] <= allowed and found["backward"] <= allowed, found
    assert calls(graphs, "forward") == calls(graphs, "backward") == len(SIZES[dynamic])


@pytest.mark.parametrize("plugin", PLUGINS)
def test_two_dims_vary(plugin: str) -> None:
    case = zoo.case("bert")
    model = case.build()
    with torch_backplane.record() as graphs, torch.no_grad():
        compiled = compile_for(plugin, model)
        for batch, seq in ((2, 16), (3, 12), (5, 7), (2, 31), (4, 4), (7, 16), (3, 3)):
            inputs = case.mark_dynamic(case.inputs(batch=batch, seq=seq))
            close(compiled(**inputs).logits, model(**inputs).logits)
    assert count(graphs) == {"inference": 1}


@pytest.mark.parametrize("plugin", PLUGINS)
def test_sizes_after_another_process_compiled(plugin: str) -> None:
    """The second compile takes the executable of the first from the disk cache."""
    model = torch.nn.Sequential(torch.nn.Linear(24, 9), torch.nn.Tanh()).requires_grad_(False)
    for _ in range(2):
        torch._dynamo.reset()
        compiled = compile_for(plugin, model, dynamic=True)
        for batch in (3, 5, 2):
            x = torch.randn(batch, 24)
            close(compiled(x), model(x))
