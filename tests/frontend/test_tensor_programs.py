"""Programs over tensors that the fuzzer of tensors found something with, as small as it made them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch_backplane

T = torch.Tensor


def leaf() -> T:
    return torch.linspace(0.25, 1.5, 6).view(2, 3).clone().requires_grad_()


def plain() -> T:
    return torch.linspace(-1, 1, 6).view(2, 3).clone()


def same(program: Callable[..., Any], *make: Callable[[], T], check: Callable[..., Any]) -> None:
    """``check`` of a function and its arguments gives what it gives of the plain program."""
    expected = check(program, *(one() for one in make))
    compiled = torch_backplane.compile(program, backend="reference")
    for _ in range(2):
        torch.testing.assert_close(check(compiled, *(one() for one in make)), expected)


# --- gradients of gradients ------------------------------------------------------------------------


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, t: T) -> T:
        ctx.save_for_backward(t)
        return t * 2

    @staticmethod
    def backward(ctx: Any, g: T) -> T:
        (t,) = ctx.saved_tensors
        return g * (2 + t)


def writes_what_a_function_gave(x: T) -> T:
    return Doubled.apply(x.sum()).exp_()


def writes_data_of_a_value(x: T) -> T:
    y = x.sin()
    y.data.mul_(2.0)
    return y * y


def writes_a_detached_argument(x: T) -> T:
    x.detach().fill_(2.0)
    return x.sin()


@pytest.mark.parametrize(
    "program", [writes_what_a_function_gave, writes_data_of_a_value, writes_a_detached_argument]
)
def test_second_order(program: Callable[[T], T]) -> None:
    def check(function: Callable[[T], T], x: T) -> tuple[T, T | None]:
        loss = function(x).square().sum()
        (first,) = torch.autograd.grad(loss, x, create_graph=True)
        first.square().sum().backward()
        return first.detach(), x.grad

    same(program, leaf, check=check)


def test_second_order_by_an_argument_that_was_added_to() -> None:
    def add(x: T, into: T) -> T:
        into.add_(x)
        return into.to(x.dtype)

    def check(function: Callable[..., T], x: T, into: T) -> T | None:
        loss = function(x, into).square().sum()
        (first,) = torch.autograd.grad(loss, x, create_graph=True)
        first.square().sum().backward()
        return x.grad

    same(add, leaf, plain, check=check)


def test_a_gradient_that_is_written() -> None:
    def program(x: T) -> T:
        (first,) = torch.autograd.grad(x.sin().sum(), x, create_graph=True)
        (second,) = torch.autograd.grad(first.sum(), x, retain_graph=True)
        product = second * x
        second.addcmul_(product, product, value=0.5)
        return second

    same(program, leaf, check=lambda function, x: function(x).detach())


def test_a_gradient_that_is_asked_for_below_a_transformation() -> None:
    def program(x: T) -> Any:
        (ones,) = torch.autograd.grad(x.sum(), x)
        shifted = x + ones

        def inner(t: T) -> T:
            (slope,) = torch.autograd.grad(shifted, x, torch.ones_like(x), retain_graph=True)
            return (t * slope).sum()

        return torch.func.grad(inner)(shifted.detach())

    same(program, leaf, check=lambda function, x: function(x))


# --- what a backward comes by ----------------------------------------------------------------------


def two_parts(x: T, y: T) -> tuple[T, T]:
    return (x * x).sum(), y.exp().sum()


def test_a_part_that_is_not_differentiated_keeps_its_graph() -> None:
    def check(function: Callable[..., Any], x: T, y: T) -> tuple[T | None, T | None]:
        first, second = function(x, y)
        second.backward()
        first.backward(retain_graph=True)
        first.backward()
        return x.grad, y.grad

    same(two_parts, leaf, leaf, check=check)


def test_parts_that_save_the_same() -> None:
    scale = plain()

    def program(x: T, y: T) -> tuple[T, T]:
        return x * scale, (y * scale).sum(0)

    def check(function: Callable[..., Any], x: T, y: T) -> tuple[T | None, T | None]:
        first, second = function(x, y)
        torch.autograd.backward([first, second], [torch.ones_like(first), torch.ones_like(second)])
        first, second = function(x, y)
        second.sum().backward()
        with pytest.raises(RuntimeError, match="second time"):
            second.sum().backward()
        first.sum().backward()
        return x.grad, y.grad

    same(program, leaf, leaf, check=check)


def test_hooks_of_a_leaf_are_not_called_for_another_part() -> None:
    def check(function: Callable[..., Any], x: T, y: T) -> list[Any]:
        seen: list[Any] = []
        y.register_hook(lambda g: seen.append(g is None))
        y.register_post_accumulate_grad_hook(lambda t: seen.append(t.grad is None))
        function(x, y)[0].backward()
        return seen

    same(two_parts, leaf, leaf, check=check)


def test_a_result_whose_gradient_is_zeros_alone() -> None:
    def program(x: T) -> tuple[T, T]:
        y = x.sgn()
        return y, y.sum()

    def check(function: Callable[..., Any], x: T) -> list[T | None]:
        y, total = function(x)
        return [
            *torch.autograd.grad(y, x, torch.ones_like(y), retain_graph=True, allow_unused=True),
            *torch.autograd.grad(total, x, allow_unused=True),
        ]

    same(program, leaf, check=check)


def test_a_part_whose_gradient_is_zeros_of_what_was_saved() -> None:
    def program(x: T, y: T) -> tuple[T, T]:
        return torch.nn.functional.avg_pool1d(x, 2), torch.poisson(y)

    def check(function: Callable[..., Any], x: T, y: T) -> list[T | None]:
        torch.manual_seed(0)
        return list(torch.autograd.grad([one.sum() for one in function(x, y)], [x, y]))

    same(program, leaf, leaf, check=check)


def test_what_was_saved_for_results_goes_with_the_first_that_comes_by() -> None:
    def program(x: T) -> tuple[T, T]:
        y = (x.sin() * x.exp()).cos()
        return y, y.square().sum()

    def check(function: Callable[..., Any], x: T) -> T | None:
        y, loss = function(x)
        loss.backward()
        with pytest.raises(RuntimeError, match="a second time"):
            y.sum().backward()
        return x.grad

    same(program, leaf, check=check)


def test_a_written_result_that_nobody_has_saved_for_this() -> None:
    def check(function: Callable[[T], Any], x: T) -> T | None:
        first, _ = function(x)
        with torch.no_grad():
            first.add_(1)
        first.sum().backward()
        return x.grad

    def program(x: T) -> tuple[T, T]:
        first = 2 * x
        return first, x.sin() * first

    same(program, leaf, check=check)


def test_retain_graph_holds_behind_a_backward_that_did_not() -> None:
    weight = leaf()

    def program(x: T) -> T:
        mean = x.mean().reshape(1)
        weight.sum().backward()
        return mean.sort()[0]

    def check(function: Callable[[T], T], x: T) -> T | None:
        result = function(x)
        result.backward(retain_graph=True)
        result.backward()
        return x.grad

    same(program, leaf, check=check)


# --- gradients of intermediates, behind other breaks -----------------------------------------------


def asked_behind_a_break(x: T) -> Any:
    part = x.movedim(0, -1)
    squares = part.pow(2)
    x.data_ptr()
    return torch.autograd.grad(squares.sum(), part)


def asked_in_a_closure(x: T) -> Any:
    part = x.as_strided((2, 2), (1, 2))
    narrow = part.narrow(0, 1, 1)

    def inner(p: T) -> Any:
        return torch.autograd.grad(narrow.sum(), p)

    return inner(part)


@pytest.mark.parametrize("program", [asked_behind_a_break, asked_in_a_closure])
def test_gradients_of_intermediates(program: Callable[[T], Any]) -> None:
    same(program, leaf, check=lambda function, x: function(x))


def test_the_gradient_of_an_argument_that_was_written() -> None:
    def program(x: T) -> Any:
        with torch.autograd.forward_ad.dual_level():
            x.fill_(1.0)
            shifted = 1 + x
        return torch.autograd.grad(shifted.sin().sum(), x)

    same(program, lambda: leaf() * 1, check=lambda function, x: function(x))


# --- memory ----------------------------------------------------------------------------------------


def beyond_a_view(x: T) -> T:
    rows = x[[0, 0]]
    rows.select(1, 0).as_strided((2,), (2,)).add_(3)
    return rows


def refused_and_caught(x: T) -> T:
    pairs = torch.stack([x, x], -1)
    same_pairs = pairs.view_as(pairs)
    with contextlib.suppress(RuntimeError):
        same_pairs.as_strided((2,), (2,)).add_(1.5)
    return same_pairs


def asks_whether_it_is_itself(x: T) -> list[bool]:
    y = x.exp()
    return [x.is_set_to(x), y.is_set_to(y), x.is_set_to(y)]


def offset_behind_a_write(x: T) -> int:
    row = x[1]
    row.fill_(0.5)
    return row.storage_offset()


def smaller_than_out(x: T) -> T:
    whole = torch.ones(2, 2, 3)
    torch.mul(x[0], 0.0, out=whole.detach())
    return whole


def out_of_another_rank(x: T) -> T:
    flat = (x * 1).flatten()
    torch.add(x, x, out=flat)
    return flat


@pytest.mark.parametrize(
    "program",
    [
        *(beyond_a_view, refused_and_caught, asks_whether_it_is_itself, offset_behind_a_write),
        *(smaller_than_out, out_of_another_rank),
    ],
)
@pytest.mark.filterwarnings("ignore:An output with one or more elements was resized")
def test_memory(program: Callable[[T], Any]) -> None:
    same(program, plain, check=lambda function, x: function(x))


def test_the_offset_of_an_argument_behind_a_write() -> None:
    def program(x: T) -> int:
        x.fill_(0.5)
        return x.storage_offset()

    same(program, lambda: plain()[1], check=lambda function, x: function(x))


def test_data_counts_its_own_writes() -> None:
    def check(function: Callable[..., Any], x: T) -> tuple[int, T | None]:
        view = x.view(-1)
        data, shown = function(x, view)
        data.add_(1)
        shown.sum().backward()
        return x._version, x.grad

    same(lambda x, view: (x.data, view), leaf, check=check)


def test_a_write_of_what_is_read_as_well() -> None:
    def program(x: T) -> T:
        return x.index_put_((torch.tensor([0, 1]),), x)

    compiled = torch_backplane.compile(program, backend="reference")
    for function in (program, compiled):
        with pytest.raises(RuntimeError, match="memory"):
            function(plain())


def test_a_view_of_a_view_that_was_made_without_gradients() -> None:
    def program(x: T) -> T:
        with torch.no_grad():
            bare = x.view(-1)
        return bare.split(1)[0]

    def check(function: Callable[[T], T], x: T) -> list[bool]:
        part = function(x * 1)
        return [part.requires_grad, part.grad_fn.next_functions[0][0] is None]

    same(program, leaf, check=check)


@torch.library.custom_op("backplane_tests::doubles_in_place", mutates_args=("t",))
def doubles_in_place(t: T) -> None:
    t.mul_(2)


def test_an_operator_that_the_recording_alone_refuses() -> None:
    def program(x: T) -> T:
        y = x.softmax(1)
        with contextlib.suppress(RuntimeError):
            doubles_in_place(y)
        return y

    def check(function: Callable[[T], T], x: T) -> T:
        with torch.inference_mode():
            return function(x).clone()

    same(program, plain, check=check)


def test_a_tensor_of_inference_mode_that_is_written_outside() -> None:
    def program(x: T) -> T:
        with torch.inference_mode():
            y = x * 2
        y.detach().add_(3)
        return y

    same(program, plain, check=lambda function, x: function(x).clone())


# --- torch.compile ---------------------------------------------------------------------------------


def test_one_tensor_that_is_two_results() -> None:
    def program(x: T) -> tuple[T, T]:
        y = x + x
        return torch.atleast_2d(y), y

    first, second = torch.compile(program, backend="plugin:reference")(leaf())
    assert first is second
