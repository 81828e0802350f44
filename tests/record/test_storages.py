"""What the recorder watches is left alone where nothing is recorded."""

from __future__ import annotations

import torch
import torch_backplane


def test_storages_without_memory_may_be_resized() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        storage = torch.empty(5, device="meta").untyped_storage()
        storage.resize_(80)
        return x + storage.nbytes()

    compiled = torch_backplane.compile(program, backend="plugin:reference")
    for _ in range(2):
        assert compiled(torch.ones(2)).tolist() == program(torch.ones(2)).tolist() == [81, 81]
