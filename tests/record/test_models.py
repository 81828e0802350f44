"""The models as TorchDynamo captures them, recorded and replayed bit for bit."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from models import zoo
from record import helpers
from torch_backplane import _C

# Takes its LSTM layers apart, which rounds otherwise than the library's kernel.
NEARLY = ("lstm",)


def record_captured(case: zoo.ModelCase, train: bool) -> list[str]:
    """Captures the case; what of its graphs is refused or wrong."""
    faults: list[str] = []
    graphs = 0

    def backend(module: Any, inputs: list[Any]) -> Any:
        nonlocal graphs
        graphs += 1
        recording = _C.record_fx(module, inputs)
        if not recording.ok:
            faults.append(recording.reason)
        elif (fault := recording.verify()) != "ok":
            faults.append(fault)
        else:
            captured = [module.get_buffer(name) for name in recording.captured]
            same = helpers.nearly_same if case.name in NEARLY else helpers.same_bits
            faults.extend(
                helpers.differences(
                    recording,
                    lambda *tensors: module.forward(*tensors[: len(inputs)]),
                    [*inputs, *captured],
                    same,
                )
            )
        return module.forward

    model = case.build().train(train)
    inputs = case.inputs(labels=True) if train else case.inputs()
    with case.capture_config(), torch.set_grad_enabled(train):
        torch.compile(model, backend=backend)(**inputs)
    assert graphs > 0
    return faults


@pytest.mark.parametrize("name", zoo.names())
@pytest.mark.parametrize("train", [False, True], ids=["inference", "training"])
def test_model(name: str, train: bool) -> None:
    case = zoo.case(name)
    if not case.available():
        pytest.skip(f"{name} needs {', '.join(case.requires)}")
    faults = record_captured(case, train)
    assert not faults, "\n".join(faults[:8])
