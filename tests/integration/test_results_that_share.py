"""Results that share memory in ways that a graph of values does not say: conjugated, detached, or made
as a view where gradients are off. They are what eager mode gives, and so is what is done with them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from compiling import DOORS, compile_for

CONJUGATED = {
    "conjugate alone": lambda z: (z.conj(),),
    "conjugate and itself": lambda z: (z.conj(), z),
    "itself and conjugate": lambda z: (z, z.conj()),
    "adjoint and transpose": lambda z: (z.conj().t(), z.t()),
    "conjugate and its memory": lambda z: (z.conj(), torch.view_as_real(z)),
    "conjugate and imaginary part": lambda z: (z.conj(), z.imag),
    "parts of both": lambda z: (z.conj().imag, z.real),
    "parts": lambda z: (z.imag, z.real),
}


@pytest.mark.parametrize("name", CONJUGATED)
@pytest.mark.parametrize("door", DOORS)
def test_results_that_show_one_another_conjugated(name: str, door: str) -> None:
    def program(x: torch.Tensor, y: torch.Tensor) -> Any:
        return CONJUGATED[name](torch.complex(x, y))

    x = torch.arange(4.0).view(2, 2) + 1
    expected = program(x, 2 * x)
    got = compile_for("reference", program, door)(x, 2 * x)
    for _ in range(2):
        for one, other in zip(expected, got, strict=True):
            assert torch.equal(one, other)
            assert (one.is_conj(), one.is_neg()) == (other.is_conj(), other.is_neg())
        expected[0].mul_(5)  # seen in the others that share its memory
        got[0].mul_(5)


def _breaks() -> None:
    """Ends a graph."""
    print(end="")


def _view(x: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        return x.view(-1)


def over_a_break(x: torch.Tensor) -> Any:
    view = _view(x)
    _breaks()
    return (view * 3).sum() + x.sum()


def beside_its_base(x: torch.Tensor) -> Any:
    y = x * 2
    return y, _view(y)


def two_of_an_intermediate(x: torch.Tensor) -> Any:
    y = x * 2
    return _view(y)[:1], _view(y)[2:]


def itself_a_part_and_a_product(x: torch.Tensor) -> Any:
    view = _view(x)
    return view, view[1:], view * 3


def beside_a_sum(x: torch.Tensor) -> Any:
    y = x[0]
    with torch.no_grad():
        view = y[1:]
    return y.sum(), view


def of_what_is_detached(x: torch.Tensor) -> Any:
    return x.detach().view(-1), _view(x.detach())


NO_GRAD = [
    over_a_break,
    _view,
    beside_its_base,
    lambda x: _view(x * 2),
    two_of_an_intermediate,
    itself_a_part_and_a_product,
    lambda x: (_view(x) * 3).relu(),
    beside_a_sum,
    of_what_is_detached,
]


def _facts(program: Any) -> list[Any]:
    x = torch.ones(2, 2, requires_grad=True)
    results = program(x * 1)
    results = results if isinstance(results, tuple) else (results,)
    facts: list[Any] = [(r.requires_grad, r.is_leaf, r._is_view()) for r in results]
    loss = sum((r * (k + 2)).sum() for k, r in enumerate(results))
    if loss.requires_grad:
        loss.backward()
    facts.append(None if x.grad is None else x.grad.tolist())
    for result in results:
        try:
            result.mul_(2)
            facts.append("written")
        except RuntimeError as error:
            facts.append(str(error)[:40])
    return facts


@pytest.mark.parametrize("number", range(len(NO_GRAD)))
@pytest.mark.parametrize("door", DOORS)
def test_views_made_where_gradients_are_off_let_none_through(number: int, door: str) -> None:
    compiled = compile_for("reference", NO_GRAD[number], door)
    expected = _facts(NO_GRAD[number])
    for _ in range(2):
        assert _facts(compiled) == expected


DETACHED = {
    "a part and the whole": lambda y: (y[1:], y.detach()),
    "itself first": lambda y: (y, y.detach(), y.view(-1), y.detach().view(-1), y.data),
    "itself last": lambda y: (y.detach(), y),
    "a part of what is detached": lambda y: (y.detach()[1:], y * 1, y),
}


def _written(program: Any, position: int, grad: bool) -> list[Any]:
    x = torch.ones(2, 2, requires_grad=True)
    results = program(x)
    with torch.set_grad_enabled(grad):
        results[position].mul_(3)
    sum(r.sum() * (k + 1) for k, r in enumerate(results)).backward()
    assert x.grad is not None
    return [x.grad.tolist(), *(r.tolist() for r in results)]


@pytest.mark.parametrize("grad", [True, False])
@pytest.mark.parametrize("position", [0, 1, -1])
@pytest.mark.parametrize("name", DETACHED)
@pytest.mark.parametrize("door", DOORS)
def test_a_result_beside_its_detached_alias_may_be_written(
    name: str, position: int, grad: bool, door: str
) -> None:
    def program(x: torch.Tensor) -> Any:
        return DETACHED[name](x * 2)

    compiled = compile_for("reference", program, door)
    assert _written(compiled, position, grad) == _written(program, position, grad)


@pytest.mark.parametrize("door", DOORS)
def test_a_copy_of_an_inference_tensor_is_saved_for_backward(door):
    with torch.inference_mode():
        weights = torch.arange(4.0).view(2, 2)
    x = torch.ones(2, 2, requires_grad=True)
    compiled = compile_for("reference", lambda x, w: (x * w.clone()).sum(), door)
    for _ in range(2):
        (gradient,) = torch.autograd.grad(compiled(x, weights), x)
        assert torch.equal(gradient, weights)


PARTS = {
    "halves": lambda h: (h[:2], h[2:]),
    "columns": lambda h: (h[:, :2], h[:, 2:]),
    "overlapping": lambda h: (h[:3], h[1:]),
    "before their whole": lambda h: (h[:2], h[2:], h),
    "after their whole": lambda h: (h, h[:2], h[2:]),
    "before another look at the whole": lambda h: (h[:2], h.view(-1), h),
    "beside another look at the whole": lambda h: (h[:2], h.t()),
    "parts of parts": lambda h: (h[:2], h[:2][1:], h[2:]),
    "with one that is detached": lambda h: (h[:2], h[2:].detach(), h[2:]),
    "after one that is detached": lambda h: (h.detach(), h[:2], h[2:]),
    "chunks": lambda h: h.chunk(2),
    "a chunk and a slice": lambda h: (h.chunk(2)[0], h[2:]),
    "parts of chunks": lambda h: (h.chunk(2)[0][1:], h.chunk(2)[1]),
    "the whole and chunks": lambda h: (h, *h.chunk(2)),
    "chunks and the whole": lambda h: (*h.split([1, 3]), h),
    "rows": lambda h: h.unbind(0),
}
WHOLES = {
    "product": lambda x: x * 2,
    "written": lambda x: torch.zeros(4, 4).copy_(x),
    "written in a part": lambda x: (h := x * 2, h[:, :2].mul_(3))[0],
    "argument": lambda x: x,
}


def _after_writes(program: Any, positions: tuple[int, ...]) -> list[Any]:
    leaf = torch.arange(16.0).view(4, 4).requires_grad_()
    results = program(leaf * 1)
    facts: list[Any] = [(r.requires_grad, r._is_view()) for r in results]
    for position in positions:
        try:
            results[position].mul_(3)
            facts.append("written")
        except RuntimeError as error:
            facts.append("in place" if "modified inplace" in str(error) else str(error))
    try:
        sum((r * (k + 1)).sum() for k, r in enumerate(results)).backward()
        assert leaf.grad is not None
        facts.append(leaf.grad.tolist())
    except RuntimeError as error:
        facts.append("in place" if "modified inplace" in str(error) else str(error))
    return [*facts, *(r.tolist() for r in results)]


@pytest.mark.parametrize("parts", PARTS)
@pytest.mark.parametrize("whole", WHOLES)
@pytest.mark.parametrize("door", DOORS)
def test_differentiated_parts_may_be_written_where_eager_mode_lets_them(
    parts: str, whole: str, door: str
) -> None:
    def program(x: torch.Tensor) -> Any:
        return PARTS[parts](WHOLES[whole](x))

    compiled = compile_for("reference", program, door)
    for positions in [(), (0,), (1,), (-1,), (0, 1)]:
        assert _after_writes(compiled, positions) == _after_writes(program, positions)


@pytest.mark.parametrize("door", DOORS)
def test_parts_are_differentiated_twice(door: str) -> None:
    def program(x: torch.Tensor) -> Any:
        h = x.sin()
        return h[:2], h[2:]

    def second(run: Any) -> torch.Tensor:
        x = torch.arange(8.0).view(4, 2).requires_grad_()
        a, b = run(x)
        (first,) = torch.autograd.grad((a * b).sum(), x, create_graph=True)
        (second,) = torch.autograd.grad(first.square().sum(), x)
        return second

    torch.testing.assert_close(second(compile_for("reference", program, door)), second(program))


def written_after(h: torch.Tensor, view: torch.Tensor) -> Any:
    h.mul_(3)
    return (view * 2).sum()


def written_where_gradients_are_off(h: torch.Tensor, view: torch.Tensor) -> Any:
    with torch.no_grad():
        h.mul_(3)
    return (view * 2).sum()


def written_through_another_view(h: torch.Tensor, view: torch.Tensor) -> Any:
    h[:1].mul_(3)
    return (view * 2).sum()


def written_over_a_break(h: torch.Tensor, view: torch.Tensor) -> Any:
    _breaks()
    h.mul_(3)
    _breaks()
    return (view * 2).sum()


WRITERS = [
    written_after,
    written_where_gradients_are_off,
    written_through_another_view,
    written_over_a_break,
    lambda h, view: (h.mul_(3), view)[1],
    lambda h, view: view.mul_(3),
    lambda h, view: view[:1].mul_(3),
    lambda h, view: (h.mul_(3), view.detach(), h)[1:],
    lambda h, view: view,
    lambda h, view: view[1:],
]
VIEWERS = {
    "chunk": lambda h: h.chunk(2)[0],
    "split": lambda h: h.split([3, 1])[0],
    "unbind": lambda h: h.unbind(0)[2],
    "slice": lambda h: h[:2],
}
BASES = {
    "product": lambda x: x * 2,
    "argument": lambda x: x,
    "without a gradient at first": lambda x: torch.zeros(4, 4),
}


def _outcome(program: Any) -> list[Any]:
    """What the call gives, then what is known of it, a write to it and the gradient."""
    leaf = torch.arange(16.0).view(4, 4).requires_grad_()

    def run() -> Any:
        results = program(leaf * 1)
        return results if isinstance(results, tuple) else (results,)

    steps: list[Any] = []

    def attempt(step: Any) -> Any:
        try:
            out = step()
        except RuntimeError as error:
            assert "is a view and" in str(error), error
            steps.append("refused")
            return None
        steps.append("done")
        return out

    results = attempt(run)
    if results is None:
        return steps
    attempt(lambda: [(r.requires_grad, r.grad_fn is None) for r in results])
    attempt(lambda: results[0].mul_(5))
    if any(r.requires_grad for r in results):
        attempt(lambda: sum(r.sum() for r in results).backward())
    return [
        *steps,
        *(r.tolist() for r in results),
        leaf.grad if leaf.grad is None else leaf.grad.tolist(),
    ]


@pytest.mark.parametrize("writer", range(len(WRITERS)))
@pytest.mark.parametrize("viewer", VIEWERS)
@pytest.mark.parametrize("base", BASES)
@pytest.mark.parametrize("door", DOORS)
def test_views_that_come_several_at_a_time_are_refused_where_eager_mode_refuses_them(
    base: str, viewer: str, writer: int, door: str
) -> None:
    def program(x: torch.Tensor) -> Any:
        h = BASES[base](x)
        return WRITERS[writer](h, VIEWERS[viewer](h))

    compiled = compile_for("reference", program, door)
    expected = _outcome(program)
    for _ in range(2):
        assert _outcome(compiled) == expected


PARTS_OF_CONSTANTS = {
    "part and whole": lambda t: (t[:-1], t),
    "two parts": lambda t: (t[:-1], t[1:]),
    "part and its rows": lambda t: (t[:-1], t.view(3, 1)),
    "whole and part": lambda t: (t, t[:-1]),
}


@pytest.mark.parametrize("name", PARTS_OF_CONSTANTS)
@pytest.mark.parametrize("door", DOORS)
def test_results_that_show_one_constant(name: str, door: str) -> None:
    def program(x: torch.Tensor) -> Any:
        return PARTS_OF_CONSTANTS[name](torch.tensor([1.0, 2.0, 3.0]))

    compiled = compile_for("reference", program, door)
    for _ in range(2):  # a new one each time
        expected, got = program(torch.ones(1)), compiled(torch.ones(1))
        for results in (expected, got):
            results[1].mul_(5)
        for one, other in zip(expected, got, strict=True):
            assert torch.equal(one, other)


def whole_turned(a: torch.Tensor) -> torch.Tensor:
    part = a[1:]
    a.t_()
    return (part * part)[0]


def whole_turned_and_returned(a: torch.Tensor) -> torch.Tensor:
    part = a[1:]
    a.squeeze_().swapaxes_(0, 1)
    a.mul_(2)
    return (part * part).sum() + a[0]


def part_turned_and_written(a: torch.Tensor) -> torch.Tensor:
    part = a[1:]
    part.swapaxes_(0, 1)
    part.mul_(2)
    return (a * a)[0] + part.sum()


@pytest.mark.parametrize(
    "program", [whole_turned, whole_turned_and_returned, part_turned_and_written]
)
@pytest.mark.parametrize("door", DOORS)
def test_gradients_of_what_is_turned_beside_its_views(program: Any, door: str) -> None:
    compiled = compile_for("reference", lambda x: program(x * 1), door)
    for _ in range(2):
        gradients = []
        for run in (compiled, lambda x: program(x * 1)):
            x = torch.arange(1.0, 10.0).reshape(3, 3).requires_grad_()
            y = run(x)
            (y * torch.arange(y.numel()).view_as(y)).sum().backward()
            gradients.append((y, x.grad))
        torch.testing.assert_close(*gradients)


IN_ONE_MEMORY: dict[str, Any] = {
    "detached view and view": lambda x: ((y := (x + 1).t()).detach(), y),
    "view and detached view": lambda x: ((y := (x + 1).t()), y.detach()),
    "detached part and another part": lambda x: ((y := x + 1)[:2].detach(), y[1:]),
    "written before": lambda x: ((y := (x + 1).t()).add_(1).detach(), y),
    "view and its data": lambda x: ((y := (x + 1).t()), y.data),
    "whole and its bits": lambda x: ((y := x + 1), y.view(torch.int32)),
    "bits and their whole": lambda x: ((y := x + 1).view(torch.int32), y),
    "bits of the argument": lambda x: (x, x.view(torch.int32)),
}


@pytest.mark.parametrize("name", IN_ONE_MEMORY)
@pytest.mark.parametrize("door", DOORS)
def test_results_in_one_memory_count_their_writes_together(name: str, door: str) -> None:
    program = IN_ONE_MEMORY[name]
    compiled = compile_for("reference", program, door)

    def versions(run: Any, written: int) -> list[int]:
        results = run(torch.ones(3, 3, requires_grad=True) * 1)
        with torch.no_grad():
            results[written].zero_()
        return [one._version for one in results]

    for written in range(len(program(torch.ones(3, 3)))):
        assert versions(compiled, written) == versions(program, written)


@pytest.mark.parametrize("door", DOORS)
def test_a_write_to_a_detached_view_spoils_what_is_saved_of_the_view(door: str) -> None:
    compiled = compile_for("reference", IN_ONE_MEMORY["detached view and view"], door)
    detached, view = compiled(torch.ones(3, 3, requires_grad=True))
    squares = (view * view).sum()
    detached.mul_(3)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        squares.backward()


def turned(x: torch.Tensor) -> torch.Tensor:
    return x.t_()


VERSIONS = {
    "a view that is turned": lambda x: turned(x[:2]),
    "a detached view that is turned": lambda x: turned(x.detach()),
    "data that are turned": lambda x: turned(x.data),
    "data that are written": lambda x: x.data.add_(1),
    "data of a result": lambda x: (lambda y: (y, turned(y.data.add_(1))))(x * 2),
    "turned and written": lambda x: turned(x[:2]).add_(1),
    "turned back": lambda x: (turned(turned(x.view(-1, 4))), x * 1)[1],
}


@pytest.mark.parametrize("name", VERSIONS)
@pytest.mark.parametrize("door", DOORS)
def test_versions_of_what_shares_memory(name: str, door: str) -> None:
    torch._dynamo.reset()
    program = VERSIONS[name]
    found = []
    for run in (program, compile_for("reference", program, door)):
        x = torch.arange(12.0).view(3, 4)
        for _ in range(2):
            results = run(x)
            results = results if isinstance(results, tuple) else (results,)
            found.append([x._version, *(t._version for t in results)])
    assert found[:2] == found[2:]


OF_ANOTHER_TYPE = {
    "complex": lambda x: torch.view_as_complex(x[..., :2]),
    "complex, without a dimension": lambda x: torch.view_as_complex(x[0, 2:]),
    "complex and its part": lambda x: torch.view_as_complex(x.view(3, 2, 2))[1:, 0],
    "bits": lambda x: x.view(torch.int32)[1:],
}


@pytest.mark.parametrize("mode", [torch.enable_grad, torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("name", OF_ANOTHER_TYPE)
@pytest.mark.parametrize("door", DOORS)
def test_parts_of_another_type(name: str, door: str, grad: bool, mode: Any) -> None:
    torch._dynamo.reset()
    program = (
        OF_ANOTHER_TYPE[name]
        if not (grad and name == "bits")
        else lambda x: OF_ANOTHER_TYPE[name](x.detach())
    )
    compiled = compile_for("reference", program, door)
    for start in (0, 4):
        x = torch.arange(20.0)[start : start + 12].view(3, 4).clone().requires_grad_(grad)
        with mode():
            expected, actual = program(x), compiled(x)
        assert torch.equal(actual, expected) and actual.is_inference() == expected.is_inference()
        assert actual.data_ptr() == expected.data_ptr()
        assert actual.requires_grad == expected.requires_grad
        if expected.grad_fn is not None:
            ours, theirs = (
                torch.autograd.grad(torch.view_as_real(one).square().sum(), x)[0]
                for one in (actual, expected)
            )
            assert torch.equal(ours, theirs)


def _part_before_its_whole(a: torch.Tensor) -> Any:
    whole = torch.cat([a, a])[:2]
    return whole[:], whole


def _whole_before_its_part(a: torch.Tensor) -> Any:
    whole = torch.cat([a, a])[:2]
    return whole, whole[:1]


def _equal_parts(a: torch.Tensor) -> Any:
    both = torch.cat([a, a])
    return both[:2], both[:2]


def _part_in_another(a: torch.Tensor) -> Any:
    both = torch.cat([a, a])
    return both[:3], both[:2], both[1:2]


def _parts_of_parts(a: torch.Tensor) -> Any:
    both = torch.cat([a, a])
    part = both[:3]
    return part[:2][:1], part, both.view(-1), part[:2]


def _apart_since_a_write(a: torch.Tensor) -> Any:
    both = torch.cat([a, a])
    part = both[:3]
    smaller = part[:2]
    both.mul_(2)
    return part, smaller


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize(
    "program",
    (
        _part_before_its_whole,
        _whole_before_its_part,
        _equal_parts,
        _part_in_another,
        _parts_of_parts,
        _apart_since_a_write,
    ),
    ids=lambda p: p.__name__,
)
def test_a_gradient_comes_to_a_part_by_its_own_views_alone(program: Any, door: str) -> None:
    outcomes = []
    for called in (program, compile_for("reference", program, door)):
        a = torch.arange(1.0, 7.0).reshape(2, 3).requires_grad_()
        results = called(a)
        found = [
            torch.autograd.grad(one.sum(), [*results, a], allow_unused=True, retain_graph=True)
            for one in results
        ]
        results[0].mul_(2)
        found.append([one.detach() for one in results])
        found.append(torch.autograd.grad([one.sum() for one in results], [a]))
        outcomes.append(found)
    for eager, ours in zip(*outcomes, strict=True):
        assert [one is None for one in ours] == [one is None for one in eager]
        torch.testing.assert_close(
            [one for one in ours if one is not None], [one for one in eager if one is not None]
        )
