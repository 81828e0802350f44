"""Calls whose operands PyTorch's kernels trust or refuse late: the device computes or refuses them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch_backplane
from compiling import DOORS, compile_for
from device.helpers import PLUGINS

aten = torch.ops.aten


@pytest.fixture(params=PLUGINS)
def npu(request: pytest.FixtureRequest) -> torch.device:
    return torch_backplane.device(request.param, 0)


OUTPUTS: dict[str, Callable[[torch.Tensor], Any]] = {
    "range without a step": lambda out: aten.range.out_(0.5, 2.5, out=out),
    "a negative shape of a window": lambda out: aten.kaiser_window.beta_out(
        5, False, -3.0, out=out
    ),
    "a negative shape of a period": lambda out: aten.kaiser_window.beta_out(4, True, -0.5, out=out),
}


@pytest.mark.parametrize("name", OUTPUTS)
def test_numbers_are_written_to_the_device(name: str, npu: torch.device) -> None:
    expected = OUTPUTS[name](torch.empty(0))
    made = OUTPUTS[name](torch.empty(0, device=npu))
    torch.testing.assert_close(made.cpu(), expected)


def test_modes_are_written_to_the_device(npu: torch.device) -> None:
    x = torch.tensor([[1, 2, 2], [3, 3, 1]])
    outputs = (torch.empty(0, device=npu).long(), torch.empty(0, device=npu).long())
    torch.mode(x.to(npu), 1, out=outputs)
    for made, expected in zip(outputs, torch.mode(x, 1), strict=True):
        assert made.tolist() == expected.tolist()


@pytest.mark.parametrize("dtype", [torch.float32, torch.complex128])
@pytest.mark.parametrize("sizes", [(0, 3), (3, 0), (0, 0), (0, 2, 2)])
@pytest.mark.parametrize("upper", [False, True])
def test_a_factor_of_nothing(
    sizes: tuple[int, ...], upper: bool, dtype: torch.dtype, npu: torch.device
) -> None:
    empty = torch.zeros(sizes, dtype=dtype)
    assert torch.cholesky(empty, upper).shape == sizes
    assert torch.cholesky(empty.to(npu), upper).shape == sizes


ADAM = {"lr": 0.1, "beta1": 0.9, "beta2": 0.99, "weight_decay": 0.0, "eps": 1e-8}
SGD = {"weight_decay": 0.0, "lr": 0.1, "dampening": 0.0, "nesterov": False}


@pytest.mark.parametrize("operator", [aten._fused_adam_, aten._fused_adamw_])
@pytest.mark.parametrize("short", range(1, 6))
def test_lists_of_a_fused_step_are_equally_long(
    operator: Any, short: int, npu: torch.device
) -> None:
    lists = [[torch.ones(1, device=npu) for _ in range(2)] for _ in range(6)]
    lists[short].pop()
    with pytest.raises(RuntimeError, match="expected 2 tensors"):
        operator(*lists, **ADAM, amsgrad=short == 4, maximize=False)


@pytest.mark.parametrize("short", [1, 2])
def test_lists_of_a_fused_sgd_step_are_equally_long(short: int, npu: torch.device) -> None:
    lists = [[torch.ones(1, device=npu) for _ in range(2)] for _ in range(3)]
    lists[short].pop()
    with pytest.raises(RuntimeError, match="expected 2 tensors"):
        aten._fused_sgd_(*lists, momentum=0.5, maximize=False, is_first_step=False, **SGD)


def test_no_statistics_to_evaluate_with(npu: torch.device) -> None:
    x, mean = torch.ones(2, 3, device=npu), torch.zeros(3, device=npu)
    for statistics in ((None, None), (mean, None), (None, mean)):
        with pytest.raises(RuntimeError, match="must be defined"):
            torch.native_batch_norm(x, None, None, *statistics, False, 0.1, 1e-5)


@pytest.mark.parametrize("probability", [0.0, 0.5, 1.0])
def test_dropout_of_integers(probability: float, npu: torch.device) -> None:
    x = torch.ones(4, dtype=torch.int32)
    for drop in (
        lambda x: torch.nn.functional.dropout(x, probability),
        lambda x: torch.native_dropout(x, probability, True),
    ):
        outcomes = []
        for operand in (x, x.to(npu)):
            try:
                outcomes.append(drop(operand).tolist())
            except RuntimeError as error:
                outcomes.append(str(error).splitlines()[0])
        assert outcomes[0] == outcomes[1]


@pytest.mark.parametrize("door", DOORS)
def test_dropout_of_integers_that_is_compiled(door: str) -> None:
    compiled = compile_for("reference", lambda x: torch.native_dropout(x, 0.5, True), door)
    with pytest.raises(RuntimeError, match="can't be cast"):
        compiled(torch.ones(4, dtype=torch.int32))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("bounds", [(0, 1), (-1.3, 2.7), (0, 0)])
def test_short_floats_fall_into_the_bins_of_eager_mode(
    bounds: tuple[float, float], dtype: torch.dtype, npu: torch.device
) -> None:
    x = torch.linspace(0, 1, 1001).to(dtype)
    expected = torch.histc(x, 100, *bounds)
    torch.testing.assert_close(torch.histc(x.to(npu), 100, *bounds).cpu(), expected)


def of(dtype: torch.dtype, number: float, device: torch.device | str) -> torch.Tensor:
    return torch.full((3,), number, device=device).to(dtype)


SCALED: dict[str, Callable[[torch.device | str], torch.Tensor]] = {
    "bytes": lambda d: torch.add(of(torch.int64, 1, d), of(torch.uint8, 100, d), alpha=3),
    "bytes from integers": lambda d: of(torch.int64, 1, d).sub(of(torch.uint8, 100, d), alpha=3),
    "integers to short floats": lambda d: torch.add(
        of(torch.bfloat16, 1, d), of(torch.int32, 1, d), alpha=0.5
    ),
    "floats to doubles": lambda d: torch.add(
        of(torch.float64, 1, d), of(torch.float32, 0.1, d), alpha=3.3
    ),
    "in place": lambda d: of(torch.int64, 1, d).add_(of(torch.uint8, 100, d), alpha=3),
    "a product of bytes": lambda d: torch.addcmul(
        of(torch.int64, 1, d), of(torch.uint8, 100, d), of(torch.uint8, 3, d), value=2
    ),
    "a quotient of floats": lambda d: torch.addcdiv(
        of(torch.float64, 1, d), of(torch.float32, 0.1, d), of(torch.float32, 0.3, d), value=2.7
    ),
    "lists": lambda d: torch._foreach_add(
        [of(torch.int64, 1, d)], [of(torch.uint8, 100, d)], alpha=3
    )[0],
}


@pytest.mark.parametrize("name", SCALED)
def test_tensors_of_several_types_meet_before_they_are_scaled(name: str, npu: torch.device) -> None:
    torch.testing.assert_close(SCALED[name](npu).cpu(), SCALED[name]("cpu"), rtol=1e-12, atol=0)


@pytest.mark.parametrize("has", [(True, True), (True, False), (False, False)])
def test_statistics_are_updated(has: tuple[bool, bool], npu: torch.device) -> None:
    def update(device: torch.device | str) -> list[torch.Tensor]:
        kept = [torch.full((3,), 0.5, device=device) if one else None for one in has]
        x = torch.arange(12.0, device=device).view(4, 3)
        return [*torch.batch_norm_update_stats(x, *kept, 0.25), *(k for k in kept if k is not None)]

    torch.testing.assert_close([t.cpu() for t in update(npu)], update("cpu"))


NORMS = (0.0, 1.0, 2.0, float("inf"), -float("inf"))


def embed(norm: float, i: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.embedding(i, weight, max_norm=0.4, norm_type=norm)


@pytest.mark.parametrize("norm", NORMS)
def test_rows_are_scaled_by_every_norm(norm: float, npu: torch.device) -> None:
    i, weight = torch.tensor([0]), torch.tensor([[1.0, 0.5, 3.0], [2.0, 0.0, 1.0]])
    made = embed(norm, i.to(npu), weight.to(npu))
    torch.testing.assert_close(made.cpu(), embed(norm, i, weight))


@pytest.mark.parametrize("norm", NORMS)
def test_rows_are_scaled_by_every_norm_in_graphs(norm: float) -> None:
    i, weight = torch.tensor([0]), torch.tensor([[1.0, 0.5, 3.0], [2.0, 0.0, 1.0]])
    compiled = compile_for("reference", lambda i, w: embed(norm, i, w), "own")
    torch.testing.assert_close(compiled(i, weight.clone()), embed(norm, i, weight.clone()))


def test_nothing_is_scattered_from_a_source_of_any_sizes(npu: torch.device) -> None:
    x, none = torch.ones(2, 3, device=npu), torch.zeros(0, dtype=torch.int64, device=npu)
    for source in (torch.ones(4, device=npu), torch.ones(2, 3, 4, 4, device=npu)):
        for made in (
            x.scatter(0, none, source),
            x.scatter_add(0, none.view(0, 3), source),
            x.scatter_reduce(0, none, source, "sum", include_self=False),
        ):
            assert made.tolist() == x.tolist()


def test_lengths_of_segments_add_up(npu: torch.device) -> None:
    x, short = torch.ones(3, device=npu), torch.tensor([1, 1], device=npu)
    with pytest.raises(RuntimeError):
        torch.segment_reduce(x, "sum", lengths=short).tolist()
    assert torch.segment_reduce(x, "sum", lengths=short, unsafe=True).tolist() == [1, 1]


SHORT: dict[str, Callable[..., torch.Tensor]] = {
    "add": lambda a, b, c: torch.add(a, b, alpha=0.3),
    "sub": lambda a, b, c: torch.sub(a, b, alpha=0.7),
    "addcmul": lambda a, b, c: torch.addcmul(a, b, c, value=0.3),
    "addcdiv": lambda a, b, c: torch.addcdiv(a, b, c, value=0.3),
    "lerp": lambda a, b, c: torch.lerp(a, b, 0.3),
}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", SHORT)
def test_short_floats_are_rounded_once(name: str, dtype: torch.dtype, npu: torch.device) -> None:
    torch.manual_seed(0)
    operands = [(torch.randn(2000) * 4).to(dtype) for _ in range(3)]
    made = SHORT[name](*(one.to(npu) for one in operands)).cpu()
    # The order of products may tell in the last bit, here and there.
    assert (made != SHORT[name](*operands)).sum() < 10
    numbers = [one[0] for one in operands]
    made = SHORT[name](*(one.to(npu) for one in numbers)).cpu()
    torch.testing.assert_close(made, SHORT[name](*numbers))


@pytest.mark.parametrize("bounds", [{}, {"range": (-1.3, 2.7)}])
def test_edges_of_bins_are_those_of_eager_mode(bounds: dict[str, Any], npu: torch.device) -> None:
    torch.manual_seed(0)
    for number in torch.randn(20):
        for bins in (2, 5, 7, 64):
            made = torch.histogram(number.to(npu), bins, **bounds)
            for one, expected in zip(made, torch.histogram(number, bins, **bounds), strict=True):
                assert one.tolist() == expected.tolist()
