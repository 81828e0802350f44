"""The entries of PyTorch's operator database: which samples are taken, with which dtypes."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import random
from collections.abc import Iterator, Sequence
from typing import Any

import numpy
import torch
from torch.testing._internal.common_device_type import toleranceOverride
from torch.testing._internal.opinfo.core import DecorateInfo, OpInfo, SampleInput
from torch.utils import _pytree as pytree

SEED = 20240229
# Preferred first. What an entry supports first is its column "float", then its column "int".
FLOATS = (
    torch.float32,
    torch.float64,
    torch.bfloat16,
    torch.float16,
    torch.complex64,
    torch.float8_e4m3fn,
)
INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool)

# Their results are memory that nobody wrote: only shape, dtype and strides can be compared.
UNINITIALIZED = frozenset(
    {
        "empty",
        "empty_like",
        "empty_permuted",
        "empty_strided",
        "new_empty",
        "new_empty_strided",
        "resize_",
        "resize_as_",
    }
)
# Which of equal elements these name is not specified.
TIES = frozenset({"argsort", "kthvalue", "median", "mode", "nanmedian", "sort", "topk"})
# Eager's vector code for 8-bit images rounds in fixed point: the last bit is not specified.
FIXED_POINT_PREFIXES = ("nn.functional.interpolate", "nn.functional.upsample", "_upsample")
GPU_ONLY_PREFIX = "jiterator"
# So many samples are passed over because a tensor is empty, or because eager refuses them.
LOOK_AHEAD = 100


def seed() -> None:
    random.seed(SEED)
    numpy.random.seed(SEED)
    torch.manual_seed(SEED)


@functools.cache
def database() -> dict[str, OpInfo]:
    """Entries by name; variants are called ``name.variant``."""
    from torch.testing._internal.common_methods_invocations import op_db

    return {
        entry.name + (f".{entry.variant_test_name}" if entry.variant_test_name else ""): entry
        for entry in op_db
    }


def wider_tolerances(entry: OpInfo) -> dict[torch.dtype, tuple[float, float]]:
    """What the entry's own tests allow on a CPU: (atol, rtol) by dtype."""
    out: dict[torch.dtype, tuple[float, float]] = {}
    for info in entry.decorators:
        if not isinstance(info, DecorateInfo) or info.device_type not in (None, "cpu"):
            continue
        for decorator in info.decorators:
            if isinstance(decorator, toleranceOverride):
                for dtype, (atol, rtol) in decorator.d.items():
                    old = out.get(dtype, (0.0, 0.0))
                    out[dtype] = (max(old[0], atol), max(old[1], rtol))
    if entry.name.startswith(FIXED_POINT_PREFIXES):
        out[torch.uint8] = (1.0, 0.0)
    return out


@dataclasses.dataclass(frozen=True)
class Case:
    """What is checked on its own: an entry in one dtype, forward only or with its backward."""

    column: str  # "float", "int" or "backward"
    dtype: torch.dtype

    @property
    def grad(self) -> bool:
        return self.column == "backward"


def cases(entry: OpInfo, dtype: torch.dtype | None = None, backward: bool = True) -> list[Case]:
    """At most one per column; with ``dtype``, that one alone, if the entry supports it."""
    supported = entry.supported_dtypes("cpu")
    if dtype is None:
        wanted = [("float", FLOATS), ("int", INTEGERS)]
    else:
        wanted = [("int" if dtype in INTEGERS else "float", (dtype,))]
    out = []
    for column, choices in wanted:
        found = next((choice for choice in choices if choice in supported), None)
        if found is None:
            continue
        out.append(Case(column, found))
        differentiable = entry.supports_autograd and found in entry.supported_backward_dtypes("cpu")
        if column == "float" and backward and differentiable:
            out.append(Case("backward", found))
    return out


def copy_tensor(tensor: torch.Tensor) -> torch.Tensor:
    """A leaf over memory of its own with the same sizes, strides and offset."""
    old = tensor.detach()
    if tensor.layout != torch.strided or tensor.is_conj() or tensor.is_neg():
        new = old.clone()
    else:
        new = torch.empty(0, dtype=tensor.dtype)
        new.set_(old.untyped_storage().clone(), old.storage_offset(), old.size(), old.stride())
    return new.requires_grad_(tensor.requires_grad)


def tensors_in(tree: Any) -> list[torch.Tensor]:
    return [leaf for leaf in pytree.tree_leaves(tree) if isinstance(leaf, torch.Tensor)]


class Sample:
    """One call of an operator as a function over its tensors."""

    def __init__(self, entry: OpInfo, sample: SampleInput) -> None:
        self.entry = entry
        self.values, self.spec = pytree.tree_flatten((sample.input, sample.args, sample.kwargs))
        self.positions = [i for i, v in enumerate(self.values) if isinstance(v, torch.Tensor)]
        self.tensors = [
            self.values[i].detach().requires_grad_(self.values[i].requires_grad)
            for i in self.positions
        ]
        self.process = sample.output_process_fn_grad

    def copies(self) -> list[torch.Tensor]:
        return [copy_tensor(tensor) for tensor in self.tensors]

    def call(self, *tensors: torch.Tensor) -> list[torch.Tensor]:
        """The results that are tensors."""
        return tensors_in(self._call(tensors))

    def _call(self, tensors: Sequence[torch.Tensor]) -> Any:
        values = list(self.values)
        for position, tensor in zip(self.positions, tensors, strict=True):
            values[position] = tensor
        first, rest, named = pytree.tree_unflatten(values, self.spec)
        return self.entry(first, *rest, **named)

    def call_for_gradients(self, *tensors: torch.Tensor) -> list[torch.Tensor]:
        """As ``call``, less what has no unique gradient, like the signs of singular vectors."""
        return tensors_in(self.process(self._call(tensors)))

    def in_float64(self) -> Sample:
        """The same call, every float32 and narrower tensor and dtype as float64."""

        def widen(value: Any) -> Any:
            if isinstance(value, torch.Tensor):
                wide = widen(value.dtype)
                if wide == value.dtype:
                    return value
                return value.detach().to(wide).requires_grad_(value.requires_grad)
            if isinstance(value, torch.dtype) and value.is_floating_point:
                return torch.float64
            if isinstance(value, torch.dtype) and value.is_complex:
                return torch.complex128
            return value

        out = object.__new__(Sample)
        out.entry, out.spec, out.process = self.entry, self.spec, self.process
        out.positions = self.positions
        out.values = [widen(value) for value in self.values]
        out.tensors = [out.values[i] for i in out.positions]
        return out

    def __str__(self) -> str:
        def text(value: Any) -> str:
            if isinstance(value, torch.Tensor):
                kind = str(value.dtype).removeprefix("torch.")
                if value.layout != torch.strided:
                    return f"{kind}{list(value.shape)} {value.layout}"
                tail = "" if value.is_contiguous() else f" strides {list(value.stride())}"
                return f"{kind}{list(value.shape)}{tail}"
            return repr(value)

        first, rest, named = pytree.tree_unflatten([text(v) for v in self.values], self.spec)
        flat = [str(first), *map(str, rest), *(f"{name}={v}" for name, v in named.items())]
        return ", ".join(flat).replace("'", "")


class EagerRefuses(Exception):
    """No sample that eager accepts."""


def samples(entry: OpInfo, case: Case, limit: int | None) -> Iterator[Sample]:
    """Samples that eager accepts: all, or the first ``limit``, preferably with elements."""
    seed()
    made = entry.sample_inputs("cpu", case.dtype, requires_grad=case.grad)
    if limit is not None:
        made = itertools.islice(made, 2 * limit + LOOK_AHEAD)
    refusal = "the entry has no samples"
    empty: list[Sample] = []
    count = 0

    for one in made:
        sample = Sample(entry, one)
        if limit is not None and any(t.numel() == 0 for t in sample.tensors):
            empty.append(sample)
            continue
        try:
            with torch.no_grad():
                results = sample.call(*sample.copies())
        except Exception as error:
            refusal = " ".join(f"{type(error).__name__}: {error}".split())
            continue
        if limit is not None and results and all(r.numel() == 0 for r in results):
            empty.append(sample)
            continue
        yield sample
        count += 1
        if count == limit:
            return
    for sample in empty:
        try:
            with torch.no_grad():
                sample.call(*sample.copies())
        except Exception as error:
            refusal = " ".join(f"{type(error).__name__}: {error}".split())
            continue
        yield sample
        count += 1
        if count == limit:
            return
    if count == 0:
        raise EagerRefuses(refusal)
