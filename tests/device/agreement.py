"""The same call on the device and on the CPU: values, exceptions, addresses, aliases."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils import _pytree as pytree

# What programs catch, the most special first.
FAMILIES = (
    IndexError,
    ValueError,
    TypeError,
    NotImplementedError,
    torch.linalg.LinAlgError,
    RuntimeError,
)


def name_of(op: Any) -> str:
    """Of an OpInfo, with its variant."""
    return f"{op.name}.{op.variant_test_name}" if op.variant_test_name else op.name


class Mover:
    """Moves values to the device; tensors that share memory share it there, at the same places."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.storages: dict[int, torch.Tensor] = {}

    def __call__(self, value: Any) -> Any:
        return pytree.tree_map(self._moved, value)

    def _moved(self, value: Any) -> Any:
        if isinstance(value, torch.device):
            return self.device if value.type == "cpu" else value
        if not isinstance(value, torch.Tensor) or value.device.type != "cpu":
            return value
        if value.is_sparse or value.layout != torch.strided or value.is_conj() or value.is_neg():
            return value.detach().to(self.device).requires_grad_(value.requires_grad)
        storage = value.untyped_storage()
        there = self.storages.get(storage._cdata)
        if there is None:
            whole = torch.empty(0, dtype=torch.uint8).set_(storage)
            there = self.storages[storage._cdata] = whole.to(self.device)
        moved = torch.empty(0, dtype=value.dtype, device=self.device)
        moved.set_(there.untyped_storage(), value.storage_offset(), value.size(), value.stride())
        return moved.requires_grad_(value.requires_grad)


def to_host(value: Any) -> Any:
    return pytree.tree_map(
        lambda one: one.detach().cpu() if isinstance(one, torch.Tensor) else one, value
    )


def outcome(call: Callable[[], Any]) -> tuple[Any, Exception | None]:
    """What a call gave, on the host, or what it raised; work that is under way belongs to it."""
    try:
        return to_host(call()), None
    except Exception as error:
        return None, error


def family_of(error: Exception) -> type[Exception]:
    return next((family for family in FAMILIES if isinstance(error, family)), type(error))


def assert_refused_alike(actual: Exception | None, expected: Exception) -> None:
    """Whoever catches the CPU's error catches the device's."""
    assert actual is not None, f"the device takes what the CPU refuses: {expected}"
    assert isinstance(actual, family_of(expected)), (
        f"{type(actual).__name__}, not {type(expected).__name__}: {actual}\nthe CPU: {expected}"
    )


def alias_of(tensor: torch.Tensor) -> torch.Tensor:
    """Another tensor over the same address, through DLPack, that knows nothing of its storage."""
    return torch.utils.dlpack.from_dlpack(torch.utils.dlpack.to_dlpack(tensor.detach()))


class Watch:
    """Whether tensors keep their addresses, and whoever else has these sees what is written."""

    def __init__(self, *tensors: torch.Tensor) -> None:
        self.tensors = [tensor for tensor in tensors if tensor.numel() != 0]
        self.addresses = [tensor.data_ptr() for tensor in self.tensors]
        self.aliases = [alias_of(tensor) for tensor in self.tensors]

    def check(self) -> None:
        for tensor, address, alias in zip(self.tensors, self.addresses, self.aliases, strict=True):
            assert tensor.data_ptr() == address
            torch.testing.assert_close(
                alias.cpu(), tensor.detach().cpu(), rtol=0, atol=0, equal_nan=True
            )
