"""Attention of halves on plugin:cuda: one kernel with an online softmax, compared with float64."""

from __future__ import annotations

import json
import pathlib
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch_backplane
from compiling import compile_for, run_python
from torch import nn

attend = nn.functional.scaled_dot_product_attention
BOUNDS = {torch.bfloat16: 2e-2, torch.float16: 3e-3, torch.float32: 1e-4}
HALVES = (torch.bfloat16, torch.float16)
LENGTHS = [(1, 1), (7, 65), (64, 64), (65, 7), (130, 200)]


def halves(dtype: torch.dtype, *shape: int) -> torch.Tensor:
    return torch.randn(shape).to(dtype)


def compare(function: Callable[..., Any], *inputs: torch.Tensor, **settings: Any) -> None:
    """With float64, and within what halves are rounded to."""
    wide = [x.double() if x.is_floating_point() else x for x in inputs]
    settings.setdefault("dynamic", False)
    found = compile_for("cuda", function, **settings)(*inputs)
    bound = BOUNDS[inputs[0].dtype]
    torch.testing.assert_close(found.double(), function(*wide), rtol=bound, atol=bound)
    assert found.dtype == inputs[0].dtype


@pytest.mark.parametrize("causal", [False, True], ids=["whole", "causal"])
@pytest.mark.parametrize("depth", [8, 16, 40, 64, 80, 96, 112, 128])
@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_depths(dtype: torch.dtype, depth: int, causal: bool) -> None:
    q, k, v = (halves(dtype, 1, 2, n, depth) for n in (70, 130, 130))
    compare(lambda q, k, v: attend(q, k, v, is_causal=causal), q, k, v)


@pytest.mark.parametrize("causal", [False, True], ids=["whole", "causal"])
@pytest.mark.parametrize("lengths", LENGTHS, ids=str)
def test_lengths(lengths: tuple[int, int], causal: bool) -> None:
    q, k, v = (halves(torch.bfloat16, 2, 3, n, 64) for n in (lengths[0], lengths[1], lengths[1]))
    compare(lambda q, k, v: attend(q, k, v, is_causal=causal, scale=0.3), q, k, v)


def test_odd_depths_and_scales() -> None:
    for depth, scale in ((1, 0.5), (20, 2.0), (36, -0.5), (64, 0.0)):
        q, k, v = (halves(torch.float16, 1, 2, n, depth) for n in (9, 33, 33))
        compare(lambda q, k, v, s=scale: attend(q, k, v, scale=s), q, k, v)


MASKS = {
    "bool": lambda: torch.rand(2, 1, 100, 90) > 0.3,
    "keys": lambda: torch.rand(2, 1, 1, 90) > 0.3,
    "matrix": lambda: torch.randn(100, 90).bfloat16(),
    "heads": lambda: torch.randn(1, 2, 100, 90).bfloat16(),
    "float32": lambda: torch.randn(2, 2, 100, 90),
    "transposed": lambda: torch.randn(90, 100).bfloat16().t(),
}


@pytest.mark.parametrize("depth", [64, 96, 128])
@pytest.mark.parametrize("kind", MASKS)
def test_masks(kind: str, depth: int) -> None:
    q, k, v = (halves(torch.bfloat16, 2, 2, n, depth) for n in (100, 90, 90))
    compare(attend, q, k, v, MASKS[kind]())


@pytest.mark.parametrize("causal", [False, True], ids=["whole", "causal"])
def test_shared_heads(causal: bool) -> None:
    q, k, v = (halves(torch.bfloat16, 2, heads, 70, 64) for heads in (6, 2, 2))
    compare(lambda q, k, v: attend(q, k, v, is_causal=causal, enable_gqa=True), q, k, v)


def test_views_of_one_projection() -> None:
    """As models have them: rows of three heads side by side, and rows that begin anywhere."""
    for first, width in ((0, 3 * 2 * 32), (8, 200), (1, 200), (3, 197)):

        def run(x: torch.Tensor, first: int = first) -> torch.Tensor:
            packed = x[..., first : first + 3 * 2 * 32].unflatten(-1, (3, 2, 32))
            q, k, v = packed.permute(2, 0, 3, 1, 4)
            return attend(q, k, v, is_causal=True).transpose(1, 2).flatten(2)

        compare(run, halves(torch.bfloat16, 2, 70, width))


def test_columns_of_any_stride() -> None:
    def run(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return attend(q[..., ::2], k.transpose(-2, -1), v[:, :1].expand(-1, 2, -1, -1))

    compare(
        run,
        halves(torch.float16, 1, 2, 33, 64),
        halves(torch.float16, 1, 2, 32, 40),
        halves(torch.float16, 1, 2, 40, 32),
    )


@pytest.mark.parametrize("causal", [False, True], ids=["whole", "causal"])
def test_logarithms_of_sums(causal: bool) -> None:
    q, k, v = (halves(torch.float16, 2, 2, n, 64) for n in (130, 70, 70))

    def run(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Any:
        return torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
            q, k, v, is_causal=causal, scale=0.25
        )

    out, sums = compile_for("cuda", run, dynamic=False)(q, k, v)
    scores = q.double() @ k.double().mT * 0.25
    if causal:
        scores = scores.masked_fill(torch.ones(130, 70).triu(1).bool(), -torch.inf)
    assert sums.dtype == torch.float32
    torch.testing.assert_close(sums.double(), scores.logsumexp(-1), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(out.double(), scores.softmax(-1) @ v.double(), rtol=3e-3, atol=3e-3)


@pytest.mark.parametrize("depth", [64, 128])
def test_rows_with_nothing_to_attend_to(depth: int) -> None:
    q, k, v = (halves(torch.bfloat16, 1, 2, n, depth) for n in (20, 90, 90))
    mask = torch.zeros(20, 90, dtype=torch.bfloat16)
    mask[3] = mask[17] = -torch.inf
    mask[5, :80] = -torch.inf

    def run(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor) -> Any:
        return torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(q, k, v, attn_mask=mask)

    out, sums = compile_for("cuda", run, dynamic=False)(q, k, v, mask)
    scores = q.double() @ k.double().mT * depth**-0.5 + mask.double()
    expected = scores.softmax(-1).nan_to_num() @ v.double()
    torch.testing.assert_close(out.double(), expected, rtol=2e-2, atol=2e-2)
    assert (out[:, :, [3, 17]] == 0).all()
    assert (sums[:, :, [3, 17]] == -torch.inf).all()
    assert sums.isinf().sum() == 4


def test_large_scores_and_what_is_not_finite() -> None:
    q, k, v = (halves(torch.bfloat16, 1, 1, n, 64) for n in (70, 70, 70))
    compare(lambda q, k, v: attend(q * 128, k, v), q, k, v)
    k[0, 0, 68] = torch.inf  # the last two causal rows see it
    run = compile_for("cuda", lambda q, k, v: attend(q, k, v, is_causal=True), dynamic=False)
    assert run(q, k, v)[0, 0, :68].isfinite().all()


def test_sizes_that_change() -> None:
    run = compile_for("cuda", lambda q, k, v: attend(q, k, v, is_causal=True), dynamic=True)
    for batch, length in ((1, 20), (2, 70), (3, 130), (2, 200)):
        q, k, v = (halves(torch.bfloat16, batch, 2, length, 32) for _ in range(3))
        expected = attend(q.double(), k.double(), v.double(), is_causal=True)
        torch.testing.assert_close(run(q, k, v).double(), expected, rtol=2e-2, atol=2e-2)


def run_both_ways(
    causal: bool, scale: float | None = None
) -> Callable[..., tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
    aten = torch.ops.aten
    options: dict[str, Any] = {"dropout_p": 0.0, "is_causal": causal, "scale": scale}

    def run(q: Any, k: Any, v: Any, grad: Any, mask: Any = None) -> Any:
        forward = aten._scaled_dot_product_flash_attention_for_cpu
        backward = aten._scaled_dot_product_flash_attention_for_cpu_backward
        out, sums = forward(q, k, v, attn_mask=mask, **options)
        return backward(grad, q, k, v, out, sums, attn_mask=mask, **options)

    return run


def compare_gradients(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    mask: torch.Tensor | None = None,
    causal: bool = False,
    scale: float | None = None,
) -> None:
    grad = torch.randn(q.shape).to(q.dtype)
    given = [q, k, v, grad, *([] if mask is None else [mask])]
    found = compile_for("cuda", run_both_ways(causal, scale), dynamic=False)(*given)
    wide = [x.double().requires_grad_() for x in (q, k, v)]
    keys, values = (x.repeat_interleave(q.shape[1] // k.shape[1], 1) for x in wide[1:])
    scores = wide[0] @ keys.mT * (q.shape[-1] ** -0.5 if scale is None else scale)
    if mask is not None:
        scores = scores + mask.double()
    if causal:
        scores = scores.masked_fill(torch.ones(scores.shape[-2:]).triu(1).bool(), -torch.inf)
    nothing = (scores == -torch.inf).all(-1, keepdim=True)
    weights = scores.masked_fill(nothing, 0).softmax(-1).masked_fill(nothing, 0)
    expected = torch.autograd.grad(weights @ values, wide, grad.double())
    for one, exact in zip(found, expected, strict=True):
        bound = BOUNDS[q.dtype] * max(1.0, exact.abs().max().item())
        torch.testing.assert_close(one.double(), exact, rtol=BOUNDS[q.dtype], atol=bound)


@pytest.mark.parametrize("causal", [False, True], ids=["whole", "causal"])
@pytest.mark.parametrize("depth", [16, 40, 64, 96, 128])
@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_gradients(dtype: torch.dtype, depth: int, causal: bool) -> None:
    q, k, v = (halves(dtype, 1, 2, n, depth) for n in (70, 100, 100))
    compare_gradients(q, k, v, causal=causal)


@pytest.mark.parametrize("causal", [False, True], ids=["whole", "causal"])
@pytest.mark.parametrize("lengths", LENGTHS, ids=str)
def test_gradients_of_lengths(lengths: tuple[int, int], causal: bool) -> None:
    q, k, v = (halves(torch.float16, 2, 3, n, 64) for n in (lengths[0], lengths[1], lengths[1]))
    compare_gradients(q, k, v, causal=causal, scale=0.2)


@pytest.mark.parametrize("depth", [64, 80, 128])
@pytest.mark.parametrize("kind", ["matrix", "heads", "float32", "transposed"])
def test_gradients_with_masks(kind: str, depth: int) -> None:
    q, k, v = (halves(torch.bfloat16, 2, 2, n, depth) for n in (100, 90, 90))
    mask = MASKS[kind]()
    mask[..., 5, :] = -torch.inf
    mask[..., 20:40, :70] = -torch.inf
    compare_gradients(q, k, v, mask)


@pytest.mark.parametrize("causal", [False, True], ids=["whole", "causal"])
def test_gradients_of_shared_heads(causal: bool) -> None:
    q, k, v = (halves(torch.bfloat16, 2, heads, 70, 64) for heads in (6, 2, 2))
    with torch_backplane.record() as graphs:
        compare_gradients(q, k, v, causal=causal)
    assert not any(graph["fallback"] for graph in graphs)
    with torch_backplane.record() as graphs:  # which only that kernel has
        compare_gradients(*(x.float() for x in (q, k, v)), causal=causal)
    assert [node["op"] for graph in graphs for node in graph["fallback"]]


def test_gradients_of_views_and_of_some() -> None:
    packed = halves(torch.bfloat16, 2, 70, 3 * 2 * 32 + 1)

    def run(x: torch.Tensor, first: int) -> torch.Tensor:
        q, k, v = (
            x[..., first : first + 3 * 2 * 32].unflatten(-1, (3, 2, 32)).permute(2, 0, 3, 1, 4)
        )
        return attend(q, k.detach() if first else k, v, is_causal=True).transpose(1, 2).flatten(2)

    for first in (0, 1):
        x, wide = packed.clone().requires_grad_(), packed.double().requires_grad_()
        weight = torch.randn(2, 70, 64)
        (compile_for("cuda", run, dynamic=False)(x, first).float() * weight).sum().backward()
        (run(wide, first) * weight).sum().backward()
        torch.testing.assert_close(x.grad.double(), wide.grad, rtol=3e-2, atol=6e-2)


ONE_CALL = """
import torch, torch_backplane
q, k, v = (torch.randn(1, 2, 40, {depth}, dtype=torch.{dtype}, requires_grad=True) for _ in range(3))
attend = torch.nn.functional.scaled_dot_product_attention
run = torch.compile(attend, backend="plugin:cuda", options={{"report": False}}, dynamic=False)
run(q, k, v).sum().backward()
"""


@pytest.mark.parametrize(
    ("dtype", "depth", "is_one"),
    [
        ("bfloat16", 64, True),
        ("float16", 128, True),
        ("float16", 136, False),
        ("float32", 64, False),
    ],
)
def test_no_scores_are_in_memory(
    dtype: str, depth: int, is_one: bool, tmp_path: pathlib.Path
) -> None:
    trace = tmp_path / "trace.json"
    done = run_python(ONE_CALL.format(depth=depth, dtype=dtype), {"BACKPLANE_TRACE": str(trace)})
    assert done.returncode == 0, done.stderr
    events = json.loads(trace.read_text())["traceEvents"]
    kernels = [e for e in events if e["ph"] == "X" and e["cat"] == "cuda:0" and e["args"]["nodes"]]
    count = {way: sum(f"cpu{way} (" in e["name"] for e in kernels) for way in ("", "_backward")}
    assert (count == {"": 1, "_backward": 3}) == is_one, kernels
