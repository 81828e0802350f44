"""What cannot be recorded is refused with its reason; nothing escapes and nothing is guessed."""

from __future__ import annotations

from typing import Any

import numpy
import pytest
import torch
import torch.nn.functional as F
import torch_backplane
from autograd.helpers import record
from record import helpers
from threads import run_in_threads
from torch import nn
from torch.utils.checkpoint import checkpoint
from torch_backplane import _C

X = torch.arange(6.0)
OUTSIDE = torch.randn(6)


def caught(program: Any) -> Any:
    """The program catches what the recorder throws, and goes another way."""

    def run(x: torch.Tensor) -> torch.Tensor:
        try:
            return program(x)
        except RuntimeError:
            return x

    return run


def reseed(x: torch.Tensor) -> torch.Tensor:
    torch.manual_seed(0)
    return x + torch.rand(6)


def restate(x: torch.Tensor) -> torch.Tensor:
    torch.set_rng_state(STATE)
    return x + torch.rand(6)


def call_backward(x: torch.Tensor) -> torch.Tensor:
    w = x.detach().requires_grad_()
    (w * x).sum().backward()
    return w.grad


def raise_error(x: torch.Tensor) -> torch.Tensor:
    raise ValueError("the program's own")


STATE = torch.Generator().manual_seed(12345).get_state()
MEMORY = "reads the memory of a tensor while the program is being recorded"
VALUES = "needs the values of a tensor that depends on inputs"
REFUSED = {
    "numpy": (lambda x: torch.from_numpy(x.sin().numpy()), f"numpy() {MEMORY}"),
    "asarray": (lambda x: torch.from_numpy(numpy.asarray(x)), f"numpy() {MEMORY}"),
    "data_ptr": (lambda x: x + x.data_ptr(), f"data_ptr() {MEMORY}"),
    "dlpack": (torch.from_dlpack, MEMORY),
    "apply_": (lambda x: x.sin().apply_(abs), f"apply_() {MEMORY}"),
    "map_": (lambda x: x.sin().map_(x, max), f"map_() {MEMORY}"),
    "map2_": (lambda x: x.sin().map2_(x, x, lambda a, b, c: a), f"map2_() {MEMORY}"),
    "resize of a storage": (
        lambda x: x.sin().untyped_storage().resize_(0),
        "resize_() changes the memory of a tensor that has none",
    ),
    "to_dlpack": (torch.utils.dlpack.to_dlpack, MEMORY),
    "storage": (lambda x: x + x.untyped_storage().data_ptr(), "data pointer"),
    "tolist": (lambda x: x * x.tolist()[0], ""),
    "item": (lambda x: x * x[0].item(), f"aten._local_scalar_dense {VALUES}"),
    "branch": (lambda x: x if x.sum() > 0 else -x, f"aten._local_scalar_dense {VALUES}"),
    "mask": (lambda x: x[x > 2], f"aten.index.Tensor {VALUES}"),
    "nonzero": (lambda x: x.nonzero(), f"aten.nonzero {VALUES}"),
    "unique": (lambda x: x.unique(), VALUES),
    "equal": (lambda x: x + torch.equal(x, x.sin()), VALUES),
    "caught": (caught(lambda x: x * x[0].item()), f"aten._local_scalar_dense {VALUES}"),
    "caught numpy": (caught(lambda x: torch.from_numpy(x.numpy())), f"numpy() {MEMORY}"),
    "outside tensor": (lambda x: x + OUTSIDE, "neither an argument nor made by the program"),
    "write outside": (lambda x: OUTSIDE.add_(1) + x, ""),
    "returns outside": (lambda x: OUTSIDE, "neither an argument nor made by the program"),
    "reseed": (reseed, "manual_seed() sets a random generator"),
    "restate": (restate, "set_state() sets a random generator"),
    "generator": (
        lambda x: x + torch.rand(6, generator=torch.Generator()),
        "draws from a generator of its own",
    ),
    "sparse": (lambda x: x.view(2, 3).to_sparse(), ""),
    "other device": (lambda x: x.to("meta"), "device 'meta'"),
    "error": (raise_error, "the program's own"),
    "shapes": (lambda x: x + torch.zeros(5), "must match the size"),
    "output": (lambda x: object(), "the program returns a object"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str) -> None:
    program, expected = REFUSED[name]
    outside = OUTSIDE.clone()
    assert expected in helpers.reason(program, X.clone())
    assert torch.equal(OUTSIDE, outside)


def test_backward_inside() -> None:
    reason = helpers.reason(lambda x: (x * x).sum().backward(), torch.randn(4, requires_grad=True))
    assert "calls backward()" in reason


def test_checkpoint_with_dropout() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        return checkpoint(lambda a: F.dropout(a.sin(), 0.5).exp(), x, use_reentrant=False)

    reason = helpers.reason(program, torch.randn(4, requires_grad=True))
    assert "draws random numbers in the backward" in reason


class Subclass(torch.Tensor):
    pass


@pytest.mark.parametrize(
    ("argument", "expected"),
    [
        (torch.randn(2, 2).to_sparse(), "argument 0 is sparse"),
        (torch.randn(2, 2).as_subclass(Subclass), "argument 0 is of the tensor subclass Subclass"),
        (torch.randn(2, dtype=torch.complex64).conj(), "argument 0 is pending conjugation"),
        (torch.randn(2, device="meta"), "argument 0 is on the meta device"),
        (3, "argument 0 is a int, not a tensor"),
        (torch.zeros(2, dtype=torch.float8_e4m3fn), "Float8"),
    ],
)
def test_arguments(argument: Any, expected: str) -> None:
    assert expected in helpers.reason(lambda x: x * 1, argument)


def test_higher_order_operators() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        return torch.cond(x.sum() > 0, lambda a: a.sin(), lambda a: a.cos(), (x,))

    found: list[Any] = []

    def backend(module: Any, inputs: list[Any]) -> Any:
        found.append(_C.record_fx(module, inputs))
        return module.forward

    torch.compile(program, backend=backend, fullgraph=True)(X)
    assert not found[0].ok
    assert found[0].reason == "the higher-order operator cond"


def test_sizes_as_arguments() -> None:
    found: list[Any] = []

    def backend(module: Any, inputs: list[Any]) -> Any:
        found.append(_C.record_fx(module, inputs))
        return module.forward

    torch.compile(lambda x: x * x.shape[0], backend=backend, dynamic=True)(X)
    assert "not a tensor" in found[0].reason


def test_a_dispatch_mode_is_active() -> None:
    from torch.utils.flop_counter import FlopCounterMode

    with FlopCounterMode(display=False):
        assert helpers.reason(lambda x: x * 1, X) == "a TorchDispatchMode is active"


def test_functionalization_is_switched_on() -> None:
    def program() -> torch.Tensor:
        x = torch.zeros(3, 3)
        x[:, 0] = 1
        return x

    captured = torch_backplane.compile(program, backend="plugin:reference")
    for function in (captured, program, captured):
        torch._enable_functionalization(reapply_views=True)
        try:
            assert torch._is_functional_tensor(function())
        finally:
            torch._disable_functionalization()
    assert torch.equal(captured(), program())


def test_recording_inside_of_a_recording() -> None:
    reasons = []

    def program(x: torch.Tensor) -> torch.Tensor:
        reasons.append(_C.record(lambda y: y * 2, [x]).reason)
        return x * 3

    recording = _C.record(program, [X])
    assert reasons == ["a recording inside of another"]
    assert recording.ok


def test_interrupts_pass() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        _C.record(program, [X])
    helpers.check(lambda x: x * 2, X)


def test_dual_tensors() -> None:
    import torch.autograd.forward_ad as forward_ad

    with forward_ad.dual_level():
        dual = forward_ad.make_dual(torch.randn(3), torch.randn(3))
        assert "forward-mode" in helpers.reason(lambda x: x * 2, dual)


def test_a_tensor_that_outlives_its_recording() -> None:
    kept = []

    def program(x: torch.Tensor) -> torch.Tensor:
        kept.append(x)
        return x * 2

    assert _C.record(program, [X]).ok
    with pytest.raises(RuntimeError, match="whose recording has ended"):
        kept[0] + 1
    with pytest.raises(RuntimeError, match="reads the memory"):
        kept[0].numpy()
    reason = helpers.reason(lambda x: x + kept[0], X)
    assert "reads a tensor of another recording" in reason


def test_real_tensors_keep_their_memory() -> None:
    assert _C.record(lambda x: x * 2, [X]).ok
    assert X.numpy()[1] == 1
    assert X.data_ptr() == X.untyped_storage().data_ptr()
    assert torch.equal(torch.from_dlpack(X), X)
    assert numpy.asarray(X).shape == (6,)


def test_a_refusal_leaves_the_thread_as_it_was() -> None:
    for _ in range(3):
        helpers.reason(lambda x: x * x[0].item(), X)
        w = torch.randn(4, requires_grad=True)
        (w * 2).sum().backward()
        assert torch.equal(w.grad, torch.full((4,), 2.0))
        helpers.check(lambda x: x * 2, X)


def test_threads() -> None:
    texts: list[str] = []

    def work(number: int) -> None:
        model = nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.LayerNorm(8), nn.Dropout(0.5))
        program = helpers.ModelProgram(model, {"input": torch.randn(2, 8)})
        for _ in range(20):
            texts.append(helpers.record(program, program.arguments).text)
            reason = _C.record(lambda x: x * x[0].item(), [X]).reason
            assert VALUES in reason
            assert torch.equal((X * number).sum(), X.sum() * number)

    run_in_threads(work)
    assert len(texts) == 80
    assert len(set(texts)) == 1


def test_pivots_count_from_one() -> None:
    """The trial of a factorization's kernels on the CPU gives them pivots that they take."""
    x = torch.randn(4, 4) + 4 * torch.eye(4)
    for dtype in (torch.float32, torch.complex64):
        a, b = x.to(dtype).requires_grad_(), torch.randn(4, 2, dtype=dtype)
        recorded = record(torch.linalg.solve, 2)
        (actual,) = recorded(a, b)
        assert torch.allclose(actual, torch.linalg.solve(a, b), atol=1e-5)
