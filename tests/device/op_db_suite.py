"""PyTorch's operator database on tensors of the device, operator by operator, against the CPU.

Not collected by name: taking the device is for a process of its own, which test_op_db.py and
scripts/op_db_device.py start with BACKPLANE_DEVICE=<plugin> and BACKPLANE_OP_DB_SAMPLES=<count>.
"""

from __future__ import annotations

import json
import os
import warnings
from typing import Any

import torch
import torch_backplane
from torch.testing._internal.common_device_type import instantiate_device_type_tests, ops
from torch.testing._internal.common_methods_invocations import op_db
from torch.testing._internal.common_utils import TestCase, run_tests
from torch.utils._pytree import tree_leaves, tree_map

SAMPLES = int(os.environ.get("BACKPLANE_OP_DB_SAMPLES", "3"))
DTYPES = tuple(
    getattr(torch, name) for name in os.environ.get("BACKPLANE_OP_DB_DTYPES", "float32").split(",")
)
FIRST, LAST = (int(n) for n in os.environ.get("BACKPLANE_OP_DB_RANGE", "0:100000").split(":"))
# Memory that nobody has written has no value to compare.
UNWRITTEN = (
    "empty",
    "empty_like",
    "empty_permuted",
    "empty_strided",
    "new_empty",
    "new_empty_strided",
)
# The device holds strided tensors: these make or take others.
SPARSE = ("sparse.mm", "sparse.sampled_addmm", "to_sparse")
# Unique but for signs or order, and sensitive to the last bit; each has identities for a test.
UP_TO_SIGNS = ("linalg.eig", "linalg.eigh", "linalg.svd", "svd", "svd_lowrank", "pca_lowrank")
# Asks for an argument on the CPU, on every device.
HOST_ARGUMENT = ("tensor_split",)
# Which of equal values comes first is open, unless a stable order is asked for.
ORDERING = ("sort", "argsort", "topk")
LEFT_OUT = (*UNWRITTEN, *SPARSE, *UP_TO_SIGNS, *HOST_ARGUMENT)
CHOSEN = [
    op
    for op in op_db[FIRST:LAST]
    # A view whose base stays behind shows another memory.
    if op.name not in LEFT_OUT
    and (op.name, op.variant_test_name) != ("as_strided", "partial_views")
]
TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 2e-2, torch.float16: 4e-3}


def ordered(op: Any, sample: Any, result: Any) -> Any:
    """The values at the positions that an ordering gave, for comparison instead of these."""
    if op.name not in ORDERING or sample.kwargs.get("stable"):
        return result
    names = ("dim",) if op.name != "topk" else ("k", "dim")
    given = {**dict(zip(names, sample.args, strict=False)), **sample.kwargs}
    positions = result if op.name == "argsort" else result[1]
    positions = positions.detach().cpu()
    values, dim = sample.input.detach(), given.get("dim", -1)
    flat = positions.unsqueeze(0) if positions.dim() == 0 else positions
    each = flat.sort(dim).values
    assert flat.shape[dim] < 2 or not (each.diff(dim=dim) == 0).any(), "a position twice"
    chosen = values.gather(dim, positions)
    return chosen if op.name == "argsort" else (result[0], chosen)


class TestOpDb(TestCase):
    @ops(CHOSEN, allowed_dtypes=DTYPES)
    def test_equals_the_cpu(self, device: str, dtype: torch.dtype, op: Any) -> None:
        def moved(value: Any) -> Any:
            if isinstance(value, torch.Tensor):
                return value.detach().to(device)
            return torch.device(device) if isinstance(value, torch.device) else value

        warnings.simplefilter("ignore")
        compared = 0
        for sample in op.sample_inputs("cpu", dtype):
            torch.manual_seed(0)
            try:
                expected = op(sample.input, *sample.args, **sample.kwargs)
            except (RuntimeError, ValueError, NotImplementedError, IndexError, TypeError):
                continue  # not for the CPU either
            settings = dict(sample.kwargs)
            if settings.get("device") == "cpu":
                settings["device"] = device
            torch.manual_seed(0)
            actual = op(*tree_map(moved, (sample.input, *sample.args)), **tree_map(moved, settings))
            actual, expected = (ordered(op, sample, result) for result in (actual, expected))
            close = TOLERANCE.get(dtype)
            actual = tree_map(
                lambda v: v.detach().cpu() if isinstance(v, torch.Tensor) else v, actual
            )
            try:
                self.assertEqual(actual, expected, atol=close, rtol=close, exact_device=False)
            except AssertionError:
                # Some kernels of the CPU add in bfloat16: whose result is nearer to float32's?
                if dtype not in (torch.bfloat16, torch.float16):
                    raise
                torch.manual_seed(0)
                given = tree_map(widened, (sample.input, sample.args, sample.kwargs))
                exact = ordered(op, sample, op(given[0], *given[1], **given[2]))
                if error_of(actual, exact) > error_of(expected, exact):
                    raise
            compared += 1
            if compared == SAMPLES:
                break
        if compared == 0:
            self.skipTest("the CPU takes none of its samples")


def widened(value: Any) -> Any:
    is_narrow = isinstance(value, torch.Tensor) and value.is_floating_point()
    return value.float() if is_narrow else value


def error_of(found: Any, exact: Any) -> float:
    """The largest; infinite where a tensor is of another shape, or no number."""
    worst = 0.0
    for a, e in zip(tree_leaves(found), tree_leaves(exact), strict=True):
        if not isinstance(e, torch.Tensor):
            continue
        off = (a.double() - e.double()).abs() if a.shape == e.shape else e.new_tensor(torch.inf)
        worst = max(worst, float(off.nan_to_num(torch.inf).max()) if off.numel() else 0.0)
    return worst


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
