"""Numbers beside float16 and bfloat16: factors and divisors as they are, others rounded first."""

import pytest
import torch
import torch.nn.functional as F
import torch_backplane

PROGRAMS = {
    "times": lambda x, n: x * n,
    "over": lambda x, n: x / n,
    "times a tensor": lambda x, n: x * torch.tensor(n),
    "a tensor times": lambda x, n: torch.tensor(n) * x,
    "plus": lambda x, n: x + n,
    "minus": lambda x, n: x - n,
    "from": lambda x, n: n - x,
    "minus a tensor": lambda x, n: x - torch.tensor(n),
    "minus in place": lambda x, n: x.clone().sub_(n),
    "times in place": lambda x, n: x.clone().mul_(n),
    "equals": lambda x, n: x == n,
    "equals a tensor": lambda x, n: x == torch.tensor(n),
    "differs": lambda x, n: x != n,
    "less": lambda x, n: x < n,
    "at least": lambda x, n: x >= n,
    "remainder": lambda x, n: x % n,
    "fmod": torch.fmod,
    "remainder of": lambda x, n: torch.remainder(n, x),
    "floor": lambda x, n: x // n,
    "trunc": lambda x, n: torch.div(x, n, rounding_mode="trunc"),
    "power": lambda x, n: x**n,
    "hardshrink": F.hardshrink,
    "softshrink": F.softshrink,
    "leaky": F.leaky_relu,
    "scalar overload": torch.ops.aten.eq.Scalar,
    "for each": lambda x, n: torch._foreach_mul([x], n)[0],
}


# What is far off, or of another kind: PyTorch's own steps round a little differently.
def is_other(actual: torch.Tensor, expected: torch.Tensor) -> torch.Tensor:
    if not expected.is_floating_point():
        return actual != expected
    eps = torch.finfo(expected.dtype).eps
    a, e = actual.double(), expected.double()
    return ~((a == e) | (a.isnan() & e.isnan()) | ((a - e).abs() <= 2 * eps * e.abs()))


@pytest.mark.parametrize(
    "plugin", ("reference", "cpu_onednn", pytest.param("opencl", marks=pytest.mark.long))
)
@pytest.mark.parametrize("dtype", (torch.bfloat16, torch.float16, torch.float32), ids=str)
@pytest.mark.parametrize("name", PROGRAMS)
def test_numbers(name, dtype, plugin):
    program = PROGRAMS[name]
    for number in (0.3, 0.1, 1.9, 257.0, 2049, 1e-9):
        own = torch.tensor(number).to(dtype).view(1)
        x = torch.randn(60, generator=torch.Generator().manual_seed(0)) * 3
        x = torch.cat([x.to(dtype), own, -own, own * 3, torch.tensor([-1.0, 0.0], dtype=dtype)])
        expected = program(x, number)
        actual = torch_backplane.compile(
            lambda x, number=number: program(x, number), backend=f"plugin:{plugin}"
        )(x)
        wrong = is_other(actual, expected).nonzero()
        assert not len(wrong), (
            number,
            x[wrong[0]],
            actual[wrong[0]],
            expected[wrong[0]],
        )


@pytest.mark.parametrize("plugin", ("cpu_onednn", "opencl"))
@pytest.mark.parametrize("dtype", (torch.bfloat16, torch.float16), ids=str)
def test_factors_are_not_rounded(dtype, plugin):
    x = torch.randn(512, generator=torch.Generator().manual_seed(0)).to(dtype)
    for number in (0.3, 0.125**0.5, 1.9, 7.7):
        compiled = torch_backplane.compile(
            lambda x, n=number: (x * n, x / n), backend=f"plugin:{plugin}"
        )
        for actual, expected in zip(compiled(x), (x * number, x / number), strict=True):
            assert torch.equal(actual, expected), number
