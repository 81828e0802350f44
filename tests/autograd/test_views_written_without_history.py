"""A view that has a history and is written where autograd counts it and keeps none has its history
made anew: a gradient with respect to it is one of what is read afterwards."""

import pytest
import torch
from compiling import DOORS, compile_for


def written(view, y):
    with torch.no_grad():
        view.mul_(2)
    return (view * y).sum()


def read_before_and_after(view, y):
    before = view * y
    with torch.no_grad():
        view.mul_(2)
    return before.sum() + view.sum()


def part_taken_before(view, y):
    part = view[0]
    with torch.no_grad():
        view.mul_(2)
    return part.sum() + (view * y).sum()


def detached(view, y):
    view.detach().mul_(2)
    return (view * y).sum()


def by_data(view, y):
    view.data.mul_(2)
    return (view * y).sum()


def not_read(view, y):
    with torch.no_grad():
        view.mul_(2)
    return (y * y.exp()).sum()


PROGRAMS = (written, read_before_and_after, part_taken_before, detached, by_data, not_read)


def view_of_result(base):
    return (base * 1).view(3, 2)


def view_of_leaf(base):
    return base.view(3, 2)


def result(base):
    return base.view(3, 2) * 1


def leaf_in_a_buffer(base):
    return base.detach().clone()[:].view(3, 2).requires_grad_()


def outcome(program, make):
    base = torch.arange(1.0, 7.0).reshape(2, 3).requires_grad_()
    y = torch.arange(1.0, 7.0).reshape(3, 2).requires_grad_()
    view = make(base)
    try:
        loss = program(view, y)
        gradients = torch.autograd.grad(loss, [base, view, y], allow_unused=True)
    except RuntimeError as error:
        return [str(error).partition(":")[0]]
    return [*gradients, view.detach()]


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.__name__)
def test_views_written_without_history(program, door):
    torch._dynamo.reset()
    compiled = compile_for("reference", program, door)
    # One program may serve tensors that are views and others.
    for make in (result, view_of_result, view_of_leaf, leaf_in_a_buffer, result):
        expected, actual = outcome(program, make), outcome(compiled, make)
        assert len(actual) == len(expected), make.__name__
        for ours, its in zip(actual, expected, strict=True):
            if isinstance(its, torch.Tensor):
                assert ours is not None, make.__name__
                torch.testing.assert_close(ours, its)
            else:
                assert ours == its, make.__name__
