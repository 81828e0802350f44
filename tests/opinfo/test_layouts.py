"""Every operator of PyTorch's database on operands, and tangents, that lie in every way in memory.

The views are part of the graph, so that a kernel meets the strides themselves. Results that are far
off are the kernel's: roundings are checked elsewhere.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable

import pytest
import torch
import torch_backplane
from torch_backplane.opinfo import entries
from torch_backplane.opinfo.entries import Case, Sample

pytestmark = pytest.mark.slow

View = Callable[[torch.Tensor], torch.Tensor]
SAMPLES = 2
# The gradient at 0, the order of equal eigenvalues.
AT_AN_EDGE = {
    "std",
    "std.unbiased",
    "std_mean",
    "std_mean.unbiased",
    "linalg.eig",
    "linalg.eigvals",
}
UNSPECIFIED = entries.UNINITIALIZED | entries.TIES | AT_AN_EDGE
# Their operand has a conjugation pending, which a graph has as a value: the library of transforms
# lays what it gives otherwise.
CONJUGATED = "fft.hfft"


def every_second(value: torch.Tensor) -> tuple[torch.Tensor, View]:
    wide = value.new_zeros([2 * size for size in value.shape])
    parts = tuple(slice(1, None, 2) for _ in value.shape)
    wide[parts] = value
    return wide, lambda stored: stored[parts]


def turned(value: torch.Tensor) -> tuple[torch.Tensor, View]:
    order = tuple(reversed(range(value.dim())))
    return value.permute(order).contiguous(), lambda stored: stored.permute(order)


def behind_another(value: torch.Tensor) -> tuple[torch.Tensor, View]:
    shape, count = value.shape, value.numel()
    stored = value.new_zeros(count + 3)
    stored[3:] = value.reshape(-1)
    return stored, lambda stored: stored[3:].view(shape)


def shown_often(value: torch.Tensor) -> tuple[torch.Tensor, View]:
    """The first along each dimension, for all: other numbers, which eager gets as well."""
    shape = value.shape
    first = value[tuple(slice(0, 1) for _ in shape)].clone()
    return first, lambda stored: stored.expand(shape)


LAYOUTS = {f.__name__: f for f in (every_second, turned, behind_another, shown_often)}


class Laid:
    """A sample whose operands lie otherwise; sums of results, so that tangents are expanded."""

    def __init__(self, sample: Sample, layout: Callable[..., tuple[torch.Tensor, View]]) -> None:
        self.sample = sample
        made = [layout(tensor.detach()) for tensor in sample.tensors]
        self.views = [view for _, view in made]
        self.result_count = 0
        self.stored = [
            stored.requires_grad_(tensor.requires_grad)
            for (stored, _), tensor in zip(made, sample.tensors, strict=True)
        ]

    def __call__(self, *stored: torch.Tensor) -> list[torch.Tensor]:
        values = [view(one) for view, one in zip(self.views, stored, strict=True)]
        results = self.sample.call_for_gradients(*values)
        sums = [r.sum() for r in results if r.requires_grad and r.is_floating_point()]
        return results + sums

    def run(
        self, function: Callable[..., list[torch.Tensor]], scale: float = 1.0
    ) -> list[torch.Tensor | None]:
        inputs = [entries.copy_tensor(stored) for stored in self.stored]
        with torch.no_grad():
            for one in inputs:
                if scale != 1 and (one.is_floating_point() or one.is_complex()):
                    one.mul_(scale)
        entries.seed()
        results = function(*inputs)
        self.result_count = len(results)  # what follows are gradients
        ends = [r for r in results if r.requires_grad and r.dim() == 0 and r.is_floating_point()]
        leaves = [i for i in inputs if i.requires_grad]
        gradients = torch.autograd.grad(sum(ends), leaves, allow_unused=True) if ends else ()
        return [*(r.detach() for r in results), *gradients]


def is_rounding(laid: Laid, expected: list[torch.Tensor | None], number: int) -> bool:
    """Whether eager's own result is another for numbers that differ in their last places: gradients of
    a decomposition whose eigenvalues are equal, say."""
    for scale in (1 + 2e-7, 1 - 2e-7, 1 + 1e-6):
        try:
            if is_far_off(laid.run(laid, scale)[number], expected[number]):
                return True
        except Exception:
            return True
    return False


def strides_of(results: list[torch.Tensor | None]) -> list[tuple[int, ...] | None]:
    """Those that say something."""
    return [
        None if r is None else tuple(s for s, n in zip(r.stride(), r.shape, strict=True) if n != 1)
        for r in results
    ]


def is_far_off(actual: torch.Tensor | None, expected: torch.Tensor | None) -> bool:
    if actual is None or expected is None:
        return actual is not expected
    if actual.shape != expected.shape or actual.dtype != expected.dtype:
        return True
    if not expected.is_floating_point() and not expected.is_complex():
        return not torch.equal(actual, expected)
    kind = torch.complex128 if expected.is_complex() else torch.float64
    return not torch.allclose(
        actual.to(kind), expected.to(kind), rtol=2e-2, atol=2e-2, equal_nan=True
    )


def differences(name: str, case: Case, layout: str, plugin: str) -> list[str]:
    entry = entries.database()[name]
    found = []
    try:
        samples = list(entries.samples(entry, case, SAMPLES))
    except entries.EagerRefuses:
        return []
    for number, sample in enumerate(samples):
        if any(t.layout != torch.strided or t.is_conj() or t.is_neg() for t in sample.tensors):
            continue
        laid = Laid(sample, LAYOUTS[layout])
        try:
            expected = laid.run(laid)
            again = laid.run(laid)
        except Exception:
            continue  # eager refuses this layout, or these numbers
        if any(is_far_off(a, e) for a, e in zip(again, expected, strict=True)):
            continue
        if any(e is not None and not e.isfinite().all() for e in expected):
            continue  # of numbers that were not meant
        try:
            actual = laid.run(torch_backplane.compile(laid.__call__, backend=f"plugin:{plugin}"))
        except Exception as error:
            found.append(f"{name} {case.column} sample {number}: {type(error).__name__}: {error}")
            continue
        lie, lay = (strides_of(r[: laid.result_count]) for r in (actual, expected))
        if lie != lay and not name.startswith(CONJUGATED):
            found.append(f"{name} {case.column} sample {number}: strides {lie}, expected {lay}")
        for i, (a, e) in enumerate(zip(actual, expected, strict=True)):
            if is_far_off(a, e) and not is_rounding(laid, expected, i):
                found.append(f"{name} {case.column} sample {number}: result {i}: {a}, expected {e}")
                break
    return found


OFTEN = {("cpu_onednn", "turned")}


@pytest.mark.parametrize(
    ("plugin", "layout"),
    [
        pytest.param(plugin, layout, marks=() if (plugin, layout) in OFTEN else pytest.mark.long)
        for plugin in ("reference", "cpu_onednn", "opencl")
        for layout in LAYOUTS
    ],
)
def test_operands_that_lie_otherwise(plugin: str, layout: str) -> None:
    warnings.simplefilter("ignore")
    found = []
    for name, entry in entries.database().items():
        if name in UNSPECIFIED or name.startswith(entries.GPU_ONLY_PREFIX):
            continue
        for case in entries.cases(entry):
            gives_gradients = Case("backward", case.dtype) in entries.cases(entry)
            if case.dtype.itemsize > 1 and not (case.column == "float" and gives_gradients):
                found += differences(name, case, layout, plugin)
    assert not found, "\n".join(found)
