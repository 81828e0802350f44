"""How results lie where the program writes tensors that are not contiguous, and results that have no
strides, or are none."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import torch_backplane

T = torch.Tensor
WRITES: dict[str, Callable[[T], Any]] = {
    "tril_": lambda z: z.tril_(),
    "cumsum_": lambda z: z.cumsum_(0),
    "masked_fill_": lambda z: z.masked_fill_(z > 2, 0.0),
    "index_add_": lambda z: z.index_add_(0, torch.tensor([0, 1]), torch.ones(2, z.size(1))),
    "scatter_": lambda z: z.scatter_(0, torch.zeros(1, 2, dtype=torch.long), 5.0),
    "addmm_": lambda z: z.addmm_(torch.ones(z.size(0), 2), torch.ones(2, z.size(1))),
    "add out": lambda z: torch.add(z, 1, out=z),
    "cumsum out": lambda z: torch.cumsum(z.clone(), 0, out=z),
    "sort out": lambda z: torch.sort(
        z.clone(), 0, out=(z, torch.empty(z.size(1), z.size(0), dtype=torch.long).t())
    ),
}


def compiled_by(door: str, program: Callable[..., Any], plugin: str = "cpu_onednn") -> Any:
    torch._dynamo.reset()
    if door == "own":
        return torch_backplane.compile(program, backend=plugin)
    return torch.compile(program, backend=f"plugin:{plugin}", dynamic=False)


@pytest.mark.parametrize("reads", ["whole", "strides", "view", "sum"])
@pytest.mark.parametrize("name", WRITES)
def test_a_written_tensor_lies_as_it_did(name: str, reads: str) -> None:
    def program(x: T) -> Any:
        z = (x * 1).t()
        WRITES[name](z)
        if reads == "strides":
            return z.as_strided((4,), (1,))
        if reads == "view":
            return z.t().view(-1)
        return z if reads == "whole" else z * 2

    x = torch.arange(1.0, 7).view(3, 2)
    expected, found = program(x), compiled_by("own", program)(x)
    assert found.stride() == expected.stride()
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("door", ["own", "torch"])
def test_one_sample_in_channels_last(door: str) -> None:
    x = torch.rand(4, 6, 6, 8).permute(3, 0, 1, 2)

    def program(x: T) -> T:
        return F.max_pool3d(x, 2)

    found = compiled_by(door, program)(x)
    assert found.stride() == program(x).stride()
    torch.testing.assert_close(found, program(x))


@pytest.mark.parametrize("door", ["own", "torch"])
def test_sparse_gradient_of_bags(door: str) -> None:
    def run(transform: Callable[..., Any]) -> Any:
        def program(w: T, indices: T, offsets: T) -> T:
            return F.embedding_bag(indices, w, offsets, mode="sum", sparse=True).sum()

        w = torch.ones(4, 2, requires_grad=True)
        transform(program)(w, torch.tensor([1, 2, 3]), torch.tensor([0, 2])).backward()
        assert w.grad is not None
        return w.grad.is_sparse, w.grad.to_dense()

    torch.testing.assert_close(run(lambda f: compiled_by(door, f)), run(lambda f: f))


def test_opaque_tensors_run_with_pytorch() -> None:
    def program(x: T) -> T:
        return x.to_mkldnn().to_dense() + 1

    torch.testing.assert_close(compiled_by("own", program)(torch.ones(3)), torch.full((3,), 2.0))


@pytest.mark.parametrize("door", ["own", "torch"])
def test_a_result_that_is_none(door: str) -> None:
    def program(q: T, w: T, b: T, w2: T, b2: T) -> Any:
        return torch._native_multi_head_attention(
            q, q, q, 4, 2, w, b, w2, b2, None, need_weights=False
        )

    inputs = [torch.rand(*s) for s in ((2, 3, 4), (12, 4), (12,), (4, 4), (4,))]
    with torch.no_grad():
        found, expected = compiled_by(door, program)(*inputs), program(*inputs)
    assert found[1] is expected[1] is None
    torch.testing.assert_close(found[0], expected[0])


DATA: dict[str, tuple[Callable[[T], Any], T]] = {
    "inverse": (torch.linalg.inv, torch.zeros(2, 2)),
    "cholesky": (torch.linalg.cholesky, -torch.ones(2, 2)),
    "multinomial": (lambda x: torch.multinomial(x, 1), torch.tensor([-1.0, 2])),
    "division": (lambda x: torch.ones(3, dtype=torch.long) // x, torch.tensor([0])),
    "entropy": (lambda x: F.binary_cross_entropy(x, torch.ones(1)), torch.tensor([3.0])),
    "gather": (lambda x: torch.gather(torch.ones(3), 0, x), torch.tensor([7])),
}


@pytest.mark.parametrize("name", DATA)
def test_the_program_catches_what_its_data_raises(name: str) -> None:
    function, data = DATA[name]

    def program(x: T) -> Any:
        try:
            y = function(x)
        except (RuntimeError, IndexError):
            return "caught"
        return y

    compiled = compiled_by("own", program)
    assert [compiled(data) for _ in range(2)] == ["caught"] * 2


@pytest.mark.parametrize("door", ["own", "torch"])
@pytest.mark.parametrize("offset", [0.0, 1e5, 1e7])
def test_logarithms_of_large_numbers(offset: float, door: str) -> None:
    x = torch.randint(100, (16, 4)).float() + offset
    exact = F.log_softmax(x.double(), -1)
    found = compiled_by(door, lambda x: F.log_softmax(x, -1))(x)
    torch.testing.assert_close(found.double(), exact, rtol=1e-6, atol=1e-5)


def test_norms_of_long_rows() -> None:
    x = torch.rand(1, 4_000_003)
    exact = F.layer_norm(x.double(), (x.shape[1],))
    found = compiled_by("own", lambda x: F.layer_norm(x, (x.shape[1],)))(x)
    torch.testing.assert_close(found.double(), exact, rtol=1e-5, atol=2e-6)
