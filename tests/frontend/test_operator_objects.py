"""torch.ops.<library>.<name>, called as such: the operator itself, captured."""

from __future__ import annotations

import pytest
import torch
from torch_backplane import frontend

OPERATORS = [torch.ops.aten.add.Tensor, torch.ops.aten.mul.Tensor]


@torch.library.custom_op("backplane_operator_objects::twice", mutates_args=())
def twice(x: torch.Tensor) -> torch.Tensor:
    return x * 2


@twice.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


twice.register_autograd(lambda _, grad: grad * 2)


@torch.library.custom_op("backplane_operator_objects::fill", mutates_args={"x"})
def fill(x: torch.Tensor, value: float) -> None:
    x.fill_(value)


def written_out(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    torch.ops.aten.add.out(x, x, alpha=2, out=out)
    return out


def written_in_place(x: torch.Tensor) -> torch.Tensor:
    y = x.clone()
    torch.ops.aten.mul_.Tensor(y, x)
    torch.ops.aten.add_.Scalar(y, 1)
    return y


def of_a_list(x: torch.Tensor) -> torch.Tensor:
    return torch.ops.aten.cat.default([x, x + 1], dim=1)


def by_keywords(x: torch.Tensor) -> torch.Tensor:
    return torch.ops.aten.sum.dim_IntList(x, dim=[0], keepdim=True)


def without_an_overload(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return *torch.ops.aten.max(x, 1), torch.ops.aten.sub(x, 1, alpha=2)


def several_results(x: torch.Tensor) -> torch.Tensor:
    return torch.ops.aten.native_layer_norm.default(x, [x.size(1)], None, None, 1e-3)[0]


def custom(x: torch.Tensor) -> torch.Tensor:
    return torch.ops.backplane_operator_objects.twice(x) + twice(x)


PROGRAMS = (
    written_out,
    written_in_place,
    of_a_list,
    by_keywords,
    without_an_overload,
    several_results,
    custom,
)
WITHOUT_GRADIENTS = (written_out,)


@pytest.mark.parametrize("backend", ("eager", "reference", "cpu_onednn"))
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.__name__)
def test_is_captured(program, backend: str) -> None:
    compiled = frontend.compile(program, backend=backend)
    for rows in (3, 5, 4):
        x = torch.randn(rows, 7)
        has_grad = program not in WITHOUT_GRADIENTS
        own, other = (x.clone().requires_grad_(has_grad) for _ in range(2))
        expected, actual = program(other), compiled(own)
        torch.testing.assert_close(actual, expected)
        if has_grad and isinstance(expected, torch.Tensor):
            expected.sum().backward()
            actual.sum().backward()
            torch.testing.assert_close(own.grad, other.grad)
    counters = frontend.counters(compiled)
    assert not counters["breaks"] and not counters["plain_reasons"], counters


def test_the_first_use_of_an_operator_is_captured() -> None:
    """Nobody has asked torch.ops for this library, this operator or this overload before."""
    with torch.library._scoped_library("backplane_first_use", "DEF") as library:
        library.define("doubled(Tensor x) -> Tensor")
        library.impl("doubled", lambda x: x * 2, "CompositeImplicitAutograd")

        def program(x: torch.Tensor) -> torch.Tensor:
            return torch.ops.backplane_first_use.doubled.default(x) + 1

        compiled = frontend.compile(program, backend="eager", strict=True)
        assert torch.equal(compiled(torch.ones(3)), torch.full((3,), 3.0))
        assert torch.equal(compiled(torch.zeros(3)), torch.ones(3))
        assert not frontend.counters(compiled)["breaks"]


def test_another_operator_is_another_program() -> None:
    operators = list(OPERATORS)

    def program(x: torch.Tensor) -> torch.Tensor:
        return operators[0](x, x)

    compiled = frontend.compile(program, backend="eager")
    x = torch.randn(4)
    for operator in (*OPERATORS, *OPERATORS):
        operators[0] = operator
        torch.testing.assert_close(compiled(x), operator(x, x))


def test_numbers_of_a_tensor_are_its_own() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        return x * torch.ops.aten._local_scalar_dense(x.sum())

    compiled = frontend.compile(program, backend="eager")
    for x in (torch.ones(3), torch.ones(3) * 2):
        torch.testing.assert_close(compiled(x), program(x))


def test_a_custom_operator_writes() -> None:
    def program(x: torch.Tensor, value: float) -> torch.Tensor:
        y = x + 1
        torch.ops.backplane_operator_objects.fill(y, value)
        return y * x

    compiled = frontend.compile(program, backend="eager")
    x = torch.randn(4)
    for value in (2.0, 3.0):
        torch.testing.assert_close(compiled(x, value), program(x, value))


def test_wrong_arguments_raise_as_in_pytorch() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        return torch.ops.aten.add.Tensor(x)

    with pytest.raises(RuntimeError, match="missing value for argument 'other'"):
        frontend.compile(program, backend="eager")(torch.ones(2))
