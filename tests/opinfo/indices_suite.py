"""Indices that PyTorch refuses: an operator's samples, the last index far outside, in processes that
may die of it.

usage: python -m opinfo.indices_suite BACKEND
"""

from __future__ import annotations

import copy
import itertools
import sys
import warnings
from typing import Any

import torch
from device.agreement import assert_refused_alike, name_of, outcome
from fuzz import pool
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils import _pytree as pytree

LEAST_REFUSED = 80
OUTSIDE = (10**6, -(10**6))
UNCHECKED_BY_PYTORCH = {"_segment_reduce.offsets"}  # reads memory far outside, and may die of it
SAMPLES = 12  # looked through for one with indices


def is_index(value: Any) -> bool:
    integers = (torch.int64, torch.int32)
    return isinstance(value, torch.Tensor) and value.dtype in integers and value.numel() > 0


def with_last(value: Any, index: int) -> Any:
    def changed(one: Any) -> Any:
        if not is_index(one):
            return one
        one = one.detach().clone()
        one.view(-1)[-1] = index
        return one

    return pytree.tree_map(changed, value)


def sample_with_indices(op: Any) -> Any:
    for sample in itertools.islice(op.sample_inputs("cpu", torch.float32), SAMPLES):
        if any(map(is_index, pytree.tree_leaves((sample.args, sample.kwargs)))):
            return sample
    return None


def judge_call(op: Any, given: Any) -> str | None:
    """Empty where a call is refused as PyTorch refuses it, else how not; None where it is taken."""
    import torch_backplane

    def program(given: Any) -> Any:
        return op.op(given[0], *given[1], **given[2])

    _, expected = outcome(lambda: program(copy.deepcopy(given)))
    if expected is None:
        return None
    compiled = torch_backplane.compile(program, backend=sys.argv[1])
    _, actual = outcome(lambda: compiled(copy.deepcopy(given)))
    try:
        assert_refused_alike(actual, expected)
    except AssertionError as error:
        return str(error)
    return ""


def judge(place: int) -> tuple[int, list[str]]:
    """How many calls of an operator PyTorch refuses, and which are not refused alike."""
    op = op_db[place]
    refused, wrong = 0, []
    sample = None if name_of(op) in UNCHECKED_BY_PYTORCH else sample_with_indices(op)
    for index in OUTSIDE if sample is not None else ():
        given = (sample.input, with_last(sample.args, index), with_last(sample.kwargs, index))
        said = judge_call(op, given)
        refused += said is not None
        if said:
            wrong.append(f"{name_of(op)}, index {index}: {said}")
    return refused, wrong


def main() -> int:
    pool.prepare()
    warnings.simplefilter("ignore")
    places = [i for i, op in enumerate(op_db) if op.supports_dtype(torch.float32, "cpu")]
    refused = 0
    wrong = []
    for place, said, ended in pool.Pool(judge, jobs=2).run(places):
        if said is None:
            wrong.append(f"{name_of(op_db[place])}: {ended}")
            continue
        refused += said[0]
        wrong += said[1]
    print(f"{refused} refused by PyTorch, {len(wrong)} wrong", *wrong, sep="\n")
    return 1 if wrong or refused < LEAST_REFUSED else 0


if __name__ == "__main__":
    sys.exit(main())
