"""An operator in place whose operand is larger than what it writes is refused, as PyTorch refuses it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch_backplane

Write = Callable[[torch.Tensor, torch.Tensor], object]
WRITES: dict[str, Write] = {
    "compare": lambda v, y: v.gt_(y),
    "power": lambda v, y: v.pow_(y),
    "quotient": lambda v, y: v.floor_divide_(y),
    "rest": lambda v, y: v.fmod_(y),
    "limits": lambda v, y: v.clamp_(min=y),
    "logarithm": lambda v, y: v.xlogy_(y),
    "sum": lambda v, y: v.add_(y),
    "list": lambda v, y: torch._foreach_add_([v], [y]),
    "scatter": lambda v, y: v.masked_scatter_(y > 2, y),
    "sign": lambda v, y: v.copysign_(y),
    "product": lambda v, y: v.addr_(y, y),
}
WRITTEN: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "result": lambda x: x.sum(),
    "copy": lambda x: x[torch.tensor([0])],
    "argument": lambda x: x,
    "view": lambda x: x[:1],
}


@pytest.mark.parametrize("door", ["own", "torch"])
@pytest.mark.parametrize("written", WRITTEN)
@pytest.mark.parametrize("write", WRITES)
def test_is_refused(write: str, written: str, door: str) -> None:
    def program(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        v = WRITTEN[written](x)
        WRITES[write](v, y)
        return v

    compiled = (
        torch_backplane.compile(program, backend="plugin:cpu_onednn")
        if door == "own"
        else torch.compile(program, backend="plugin:cpu_onednn")
    )
    for y in (torch.tensor([1.0, 5.0]), torch.tensor([3.0])):
        eager, ours = torch.ones(1), torch.ones(1)
        try:
            expected: torch.Tensor | None = program(eager, y)
        except RuntimeError:
            expected = None
        if expected is None:
            with pytest.raises(RuntimeError):
                compiled(ours, y)
        else:
            torch.testing.assert_close(compiled(ours, y), expected)
        torch.testing.assert_close(ours, eager)
