"""PyTorch's operator database on tensors of the device, operator by operator, against the CPU.

Not collected by name: taking the device is for a process of its own, which test_op_db.py and
scripts/op_db_device.py start with BACKPLANE_DEVICE=<plugin> and BACKPLANE_OP_DB_SAMPLES=<count>.
"""

from __future__ import annotations

import functools
import json
import os
from typing import Any

import torch
import torch_backplane
from backplane_conformance.torch_operators import check, is_chosen
from torch.testing._internal.common_device_type import instantiate_device_type_tests, ops
from torch.testing._internal.common_methods_invocations import op_db
from torch.testing._internal.common_utils import TestCase, run_tests

SAMPLES = int(os.environ.get("BACKPLANE_OP_DB_SAMPLES", "3"))
DTYPES = tuple(
    getattr(torch, name) for name in os.environ.get("BACKPLANE_OP_DB_DTYPES", "float32").split(",")
)
FIRST, LAST = (int(n) for n in os.environ.get("BACKPLANE_OP_DB_RANGE", "0:100000").split(":"))
CHOSEN = [op for op in op_db[FIRST:LAST] if is_chosen(op)]


class TestOpDb(TestCase):
    @ops(CHOSEN, allowed_dtypes=DTYPES)
    def test_equals_the_cpu(self, device: str, dtype: torch.dtype, op: Any) -> None:
        equal = functools.partial(self.assertEqual, exact_device=False)
        if check(op, dtype, device, SAMPLES, equal) == 0:
            self.skipTest("the CPU takes none of its samples")


def write_counts() -> None:
    """What ran where, for whoever started the process."""
    if path := os.environ.get("BACKPLANE_OP_DB_COUNTS"):
        stats = torch_backplane.stats()
        counts = {key: stats[key] for key in stats if key.startswith("eager_")}
        with open(path, "w", encoding="utf-8") as file:
            json.dump(counts, file)


instantiate_device_type_tests(TestOpDb, globals(), only_for=("backplane", "privateuse1"))

if __name__ == "__main__":
    import atexit

    atexit.register(write_counts)
    run_tests()
