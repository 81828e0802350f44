"""Writes through views that show an element of memory several times: the device leaves there what
the CPU leaves."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch_backplane
from device.helpers import PLUGINS

Write = Callable[[torch.Tensor], Any]


@pytest.fixture(params=PLUGINS)
def npu(request: pytest.FixtureRequest) -> torch.device:
    return torch_backplane.device(request.param, 0)


def windows(x: torch.Tensor) -> torch.Tensor:
    return x.unfold(0, 2, 1)


def mask(x: torch.Tensor) -> torch.Tensor:
    return torch.tensor([[0, 1], [0, 0], [0, 0], [1, 0]], device=x.device) > 0


def at(x: torch.Tensor, *places: int) -> torch.Tensor:
    return torch.tensor(places, device=x.device)


WRITES: dict[str, Write] = {
    "masked_fill_": lambda x: windows(x).masked_fill_(mask(x), -1),
    "assignment": lambda x: windows(x).__setitem__(at(x, 0, 3), -1),
    "assignment by mask": lambda x: windows(x).__setitem__(mask(x), -1),
    "index_put_": lambda x: windows(x).index_put_((at(x, 1),), x[:1], accumulate=True),
    "index_fill_": lambda x: windows(x).index_fill_(0, at(x, 0), -1),
    "index_copy_": lambda x: windows(x).index_copy_(0, at(x, 2), x.new_tensor([[-1.0, -2.0]])),
    "index_add_": lambda x: windows(x).index_add_(0, at(x, 1), x.new_ones(1, 2)),
    "scatter_": lambda x: windows(x).scatter_(1, at(x, 1).view(1, 1), -1.0),
    "scatter_add_": lambda x: windows(x).scatter_add_(1, at(x, 1).view(1, 1), x.new_ones(1, 1)),
    "put_": lambda x: windows(x).put_(at(x, 1), x.new_tensor([-1.0])),
    "masked_scatter_": lambda x: windows(x).masked_scatter_(mask(x), x.new_tensor([-1.0, -2.0])),
    "tril_": lambda x: x.as_strided((2, 2), (1, 1)).tril_(),
    "add_": lambda x: windows(x).add_(1),
    "copy_": lambda x: windows(x).copy_(torch.arange(8.0, device=x.device).view(4, 2)),
    "out": lambda x: torch.add(x.new_ones(4, 2), 1, out=windows(x)),
    "out of another size": lambda x: torch.add(x.new_ones(3), 1, out=windows(x)),
    "normal_": lambda x: windows(x).normal_(),
    "beside its own memory": lambda x: windows(x).masked_scatter_(mask(x), x),
    "behind an offset": lambda x: windows(x[1:]).index_fill_(0, at(x, 0), -1),
    "integers": lambda x: windows(x.view(torch.int32)).masked_fill_(mask(x), 7),
    "conjugates": lambda x: windows(x.to(torch.complex64)).conj().index_fill_(0, at(x, 0), 1j),
    "index_fill_ of rows": lambda x: x[:3].view(1, 3).expand(2, 3).index_fill_(0, at(x, 0), 5),
    "assignment to rows": lambda x: x[:3].view(1, 3).expand(2, 3).__setitem__(at(x, 0), 5),
    "index_fill_ of a number": lambda x: x[:1].expand(3).index_fill_(0, at(x, 1), 1),
    "add_ to rows": lambda x: x[:3].view(1, 3).expand(2, 3).add_(1),  # refused
}


@pytest.mark.parametrize("name", WRITES)
def test_an_element_that_is_shown_twice(name: str, npu: torch.device) -> None:
    outcomes = []
    for device in (torch.device("cpu"), npu):
        torch.manual_seed(3)
        x = torch.arange(5.0, device=device)
        try:
            result = WRITES[name](x)
        except RuntimeError as error:
            outcomes.append((str(error).splitlines()[0], x.tolist()))
            continue
        shown = None if result is None else result.tolist()
        outcomes.append((shown, x.tolist()))
        assert result is None or result.device == device
    assert outcomes[0] == outcomes[1]


def test_the_tensor_that_was_written_is_given_back(npu: torch.device) -> None:
    x = torch.arange(5.0, device=npu)
    shown = windows(x)
    version = x._version
    assert shown.masked_fill_(mask(x), -1) is shown
    assert x._version == version + 1
    assert x.untyped_storage().data_ptr() == shown.untyped_storage().data_ptr()
