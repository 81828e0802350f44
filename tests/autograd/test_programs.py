"""The cases of PyTorch's own tests of ahead-of-time autograd, each beside eager."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from autograd.helpers import check, record
from record.helpers import nearly_same, same_bits
from torch.nn import functional as F
from torch_backplane import _C


def leaf(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(shape, dtype=dtype).requires_grad_(True)


def plain(*shape: int) -> torch.Tensor:
    return torch.randn(shape)


def written(*shape: int) -> torch.Tensor:
    """Requires a gradient, and may be written in place."""
    return leaf(*shape).mul(1.5)


def write_no_grad(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    y.add_(x.detach().sum())
    return x * y


def write_and_save(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    z = x * y.sin()  # eager saves the sine; the cut saves y as it was
    y.mul_(3)
    return z


def write_view(x: torch.Tensor) -> torch.Tensor:
    x[0].mul_(2)
    return x.sin()


def write_and_return_view(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    x.add_(1)
    return x[1:], x.cos()


def set_items(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    z = x.new_zeros(4, 3)
    z[1:3].copy_(x)
    z[:, 0].copy_(y)
    return z * 2


def inner_no_grad(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    y = x.exp()
    return y.detach() * x, y


def all_kinds(x: torch.Tensor, y: torch.Tensor) -> Any:
    h = x * y
    return x, x.view(-1), h, h.view(-1), h[0], y.detach(), (h > 0)


def complex_views(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    z = torch.view_as_complex(x)
    return z * 1j, torch.view_as_real(z * z)


def saved_output(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    y = x.exp()
    return y, y.tanh()


def same_twice(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return x + 1, x + 1


def running_mean(x: torch.Tensor, mean: torch.Tensor, var: torch.Tensor) -> torch.Tensor:
    return F.batch_norm(x, mean, var, training=True, momentum=0.3)


def dropout(x: torch.Tensor) -> torch.Tensor:
    return F.dropout(F.dropout(x, 0.4).sin(), 0.2) * torch.rand_like(x)


PROGRAMS: dict[str, tuple[Any, list[torch.Tensor]]] = {
    "pointwise": (lambda x, y: (x * y).sin(), [leaf(3, 4), leaf(4)]),
    "no gradient": (lambda x, y: x + y, [plain(3), plain(3)]),
    "one of two needs it": (lambda x, y: (x * y, y.cos()), [leaf(3), plain(3)]),
    "unused argument": (lambda x, y: x * 2, [leaf(3), leaf(3)]),
    "argument returned": (lambda x, y: (x, x * y), [leaf(3), leaf(3)]),
    "view of argument": (lambda x: (x.t(), x[1:], x * 1), [leaf(3, 4)]),
    "expanded argument": (lambda x: x.expand(5, 4), [leaf(4)]),
    "detached": (lambda x: (x.detach(), x.detach().sin(), x * x.detach()), [leaf(4)]),
    "all kinds": (all_kinds, [leaf(3, 4), leaf(3, 4)]),
    "parts": (lambda x: x.chunk(3), [leaf(6, 2)]),
    "parts of an intermediate": (lambda x: (x * 2).chunk(3), [leaf(6, 2)]),
    "view without base": (lambda x: (x * 2)[1:], [leaf(4, 3)]),
    "one output twice": (lambda x: (x.sin(),) * 2, [leaf(3)]),
    "equal outputs": (same_twice, [leaf(3)]),
    "saved output": (saved_output, [leaf(3)]),
    "integer output": (lambda x: (x.argmax(1), x.max(1).values), [leaf(3, 4)]),
    "no output": (lambda x: (), [leaf(3)]),
    "written": (lambda x: x.mul_(2).sin(), [plain(3, 4)]),
    "written, differentiated": (lambda x: x.mul_(2).sin(), [written(3, 4)]),
    "written without gradient": (write_no_grad, [leaf(3), plain(3)]),
    "written by what has one": (lambda x, y: y.add_(x), [leaf(3), plain(3)]),
    "written after it was saved": (write_and_save, [leaf(3), plain(3)]),
    "written through a view": (write_view, [written(3, 4)]),
    "written and viewed": (write_and_return_view, [written(3, 4)]),
    "transposed, written": (lambda x: x.t().add_(1) * 2, [written(3, 4)]),
    "items set": (set_items, [leaf(2, 3), leaf(4)]),
    "same argument twice": (lambda x, y: x * y, [leaf(3)] * 2),
    "tied weights": (
        lambda x, w, v: F.linear(F.linear(x, w).relu(), v),
        [plain(2, 3)] + [leaf(3, 3)] * 2,
    ),
    "no_grad region": (inner_no_grad, [leaf(3)]),
    "complex": (complex_views, [leaf(3, 2)]),
    "complex arithmetic": (lambda x: (x * x.conj()).real, [leaf(3, dtype=torch.complex64)]),
    "statistics": (running_mean, [leaf(8, 3), torch.zeros(3), torch.ones(3)]),
    "dropout": (dropout, [leaf(16, 8)]),
    "strided argument": (lambda x: x.relu() @ x.t(), [torch.randn(4, 6).t().requires_grad_()]),
    "double": (lambda x: x.softmax(-1).log(), [leaf(3, 5, dtype=torch.float64)]),
    "bfloat16": (lambda x: F.gelu(x * 0.1) + 3.3, [leaf(3, 5, dtype=torch.bfloat16)]),
    "scalar": (lambda x: x * x.sum(), [leaf()]),
    "empty": (lambda x: (x * 2, x.sum()), [leaf(0, 3)]),
    "convolution": (
        lambda x, w: F.conv2d(x, w, padding=1).relu(),
        [leaf(2, 3, 5, 5), leaf(4, 3, 3, 3)],
    ),
    "attention": (
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True),
        [leaf(2, 2, 5, 8), leaf(2, 2, 5, 8), leaf(2, 2, 5, 8)],
    ),
    "embedding": (
        lambda i, w: F.embedding(i, w).sum(1),
        [torch.tensor([[1, 2], [0, 1]]), leaf(4, 3)],
    ),
}


# Several gradients of one argument, which autograd's engine sums in another order.
SUMMED = ("view of argument", "written and viewed")


@pytest.mark.parametrize("name", PROGRAMS)
def test_same_as_eager(name: str) -> None:
    program, arguments = PROGRAMS[name]
    check(program, *arguments, same=nearly_same if name in SUMMED else same_bits)


WRITES_AFTER: dict[str, tuple[Any, list[torch.Tensor], Any]] = {
    "output": (lambda x: x * 2, [leaf(3)], lambda o: o[0].mul_(3)),
    "one of equal outputs": (same_twice, [leaf(3)], lambda o: o[0].mul_(3)),
    "view of output": (lambda x: (lambda y: (y, y.view(-1)))(x * 2), [leaf(3, 2)], lambda o: o[1].mul_(3)),
    "base of a view": (lambda x: (lambda y: (y, y[1:]))(x * 2), [leaf(3, 2)], lambda o: o[0].mul_(3)),
    "view of argument": (lambda x: (x[1:], x * 1), [written(3)], lambda o: o[0].mul_(3)),
    "argument": (lambda x: (x, x * 1), [written(3)], lambda o: o[0].mul_(3)),
    "without gradient": (lambda x: (lambda y: (y, y[1:]))(x * 2), [plain(3)], lambda o: o[1].mul_(3)),
}  # fmt: skip


@pytest.mark.parametrize("name", WRITES_AFTER)
def test_outputs_may_be_written(name: str) -> None:
    program, arguments, after = WRITES_AFTER[name]
    check(program, *arguments, after=after)


def test_parts_of_an_intermediate_refuse_writes() -> None:
    first, _ = record(lambda x: (x * 2).chunk(2), 1)(leaf(4))
    with pytest.raises(RuntimeError, match="view and is being modified inplace"):
        first.mul_(2)


def test_saved_output_that_is_written_is_an_error() -> None:
    (y,) = record(lambda x: x.exp(), 1)(leaf(3))
    y.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def test_saved_argument_that_is_written_is_an_error() -> None:
    x, y = leaf(3), plain(3)
    (z,) = record(lambda x, y: x * y, 2)(x, y)
    y.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        z.sum().backward()


def test_backward_twice() -> None:
    x = leaf(3)
    function = record(lambda x: x.exp(), 1)
    (y,) = function(x)
    y.sum().backward(retain_graph=True)
    y.sum().backward()
    torch.testing.assert_close(x.grad, 2 * x.detach().exp())
    with pytest.raises(RuntimeError, match="backward through the graph a second time"):
        y.sum().backward()


def test_wrong_tangents() -> None:
    (y,) = record(lambda x: x.exp(), 1)(leaf(3))
    with pytest.raises(RuntimeError, match="Mismatch in shape"):
        y.backward(torch.ones(4))
    with pytest.raises(RuntimeError, match="can be implicitly created only for scalar"):
        y.backward()


def test_some_tangents_are_missing() -> None:
    x = leaf(3)
    y, _ = record(lambda x: (x * 2, x.exp()), 1)(x)
    y.sum().backward()
    torch.testing.assert_close(x.grad, torch.full((3,), 2.0))


def test_gradient_arrives_without_a_copy() -> None:
    w = leaf(64, 64)
    found = []
    w.register_hook(lambda gradient: found.append(gradient.data_ptr()))
    (y,) = record(lambda x, w: (x @ w).sin(), 2)(plain(4, 64), w)
    y.sum().backward()
    assert w.grad is not None
    pointer = w.grad.data_ptr()
    # Accumulated in place the second time.
    (y,) = record(lambda x, w: (x @ w).sin(), 2)(plain(4, 64), w)
    y.sum().backward()
    assert w.grad.data_ptr() == pointer
    assert found[0] == pointer


def test_second_derivative_runs_by_pytorch_and_is_counted() -> None:
    before = _C.second_differentiations()
    results = []
    for run in (lambda x, y: x.exp() * y, record(lambda x, y: x.exp() * y, 2)):
        torch.manual_seed(0)
        x, y = leaf(3), leaf(3)
        outputs = run(x, y)
        z = outputs[0] if isinstance(outputs, tuple) else outputs
        (g,) = torch.autograd.grad(z.sum(), x, create_graph=True)
        results.append([*torch.autograd.grad((g * g).sum(), [x, y]), g.detach()])
    for ours, eager in zip(results[1], results[0], strict=True):
        torch.testing.assert_close(ours, eager)
    assert _C.second_differentiations() == before + 1


def test_gradient_check() -> None:
    function = record(lambda x, w: F.gelu(x @ w).softmax(-1), 2)
    x, w = leaf(3, 4, dtype=torch.float64), leaf(4, 2, dtype=torch.float64)
    assert torch.autograd.gradcheck(lambda x, w: function(x, w)[0], (x, w))


def test_hooks_for_saved_tensors() -> None:
    packed = []

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        packed.append(tensor.shape)
        return tensor * 2

    x = leaf(3)
    function = record(lambda x: x.exp(), 1)
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor / 2):
        (y,) = function(x)
    y.sum().backward()
    assert packed == [torch.Size([3])], "once, and not while it was recorded"
    torch.testing.assert_close(x.grad, x.detach().exp())


def test_anomaly_mode_names_the_node() -> None:
    x = leaf(3)
    with torch.autograd.detect_anomaly(check_nan=True):
        (y,) = record(lambda x: (x - x).sqrt(), 1)(x)
        with pytest.raises(RuntimeError, match="BackplaneBackward"):
            y.sum().backward()


def test_hooks_on_outputs_and_arguments_see_gradients() -> None:
    seen = []
    x = leaf(3)
    h = x * 1
    h.register_hook(lambda g: seen.append(("h", g.clone())))
    (y,) = record(lambda h: h * 3, 1)(h)
    y.register_hook(lambda g: g * 2)
    y.sum().backward()
    torch.testing.assert_close(x.grad, torch.full((3,), 6.0))
    assert seen[0][0] == "h" and seen[0][1].tolist() == [6.0] * 3


def test_writes_to_shared_memory_are_not_served() -> None:
    function = record(lambda x, y: x.add_(y), 2)
    function(plain(3), plain(3))
    base = plain(6)
    assert function.function(base[:3], base[2:5]) is None
    with pytest.raises(_C.StatusError, match="shares memory"):
        function.function.add(base[:3], base[2:5])


def test_grad_mode_is_part_of_the_key() -> None:
    function = record(lambda x: x * 2, 1)
    x = leaf(3)
    assert function(x)[0].requires_grad
    with torch.no_grad():
        assert not function(x)[0].requires_grad
    with torch.inference_mode():
        assert function(x)[0].is_inference()
    assert function(x)[0].requires_grad
    assert function.function.counts()["structures"] == 2


def test_subclass_is_refused() -> None:
    class Marked(torch.Tensor):
        pass

    with pytest.raises(_C.StatusError, match="tensor subclass"):
        record(lambda x: x * 2, 1).function.add(plain(3).as_subclass(Marked))


def test_an_int_beyond_64_bits_is_refused() -> None:
    with pytest.raises(_C.StatusError, match="argument 1 is an int beyond 64 bits"):
        record(lambda x, k: x * 2, 2).function.add(plain(3), 2**70)
    with pytest.raises(_C.StatusError, match="returns an int beyond 64 bits"):
        record(lambda x, k: (x * 2, k * 2**50), 2).function.add(plain(3), 2**30)
