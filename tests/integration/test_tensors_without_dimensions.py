"""What a tensor without dimensions is converted to before it is computed with: the type of elements beside it, not
that of another without dimensions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from compiling import PLUGINS, compile_for

HALVES = (torch.float16, torch.bfloat16)

Binary = Callable[[torch.Tensor, torch.Tensor], Any]
NARROW: dict[str, Binary] = {
    "add": torch.add,
    "sub": torch.sub,
    "rsub": torch.rsub,
    "mul": torch.mul,
    "maximum": torch.maximum,
    "minimum": torch.minimum,
    "lt": torch.lt,
    "le": torch.le,
    "gt": torch.gt,
    "ge": torch.ge,
    "eq": torch.eq,
    "ne": torch.ne,
    "where": lambda a, b: torch.where(a > 1, a, b),
    "clamp": lambda a, b: (a.clamp(min=b), a.clamp(max=b)),
    "remainder": torch.remainder,
    "isin": torch.isin,
    "floor_divide": torch.floor_divide,
}
WHOLE: dict[str, Binary] = {
    "gcd": torch.gcd,
    "lcm": torch.lcm,
    "and": torch.bitwise_and,
    "xor": torch.bitwise_xor,
    "logical_and": torch.logical_and,
}
FLOATS: dict[str, Binary] = {
    "div": torch.div,
    "pow": torch.pow,
    "atan2": torch.atan2,
    "hypot": torch.hypot,
    "fmin": torch.fmin,
    "xlogy": torch.xlogy,
    "logaddexp": torch.logaddexp,
}
BEYOND = {torch.int64: 2**32 + 3, torch.int32: 2**16 + 5, torch.int16: 261}
INTEGERS = [
    (torch.int32, torch.int64),
    (torch.uint8, torch.int64),
    (torch.int8, torch.int16),
    (torch.int16, torch.int32),
]


def compare(plugin: str, program: Binary, *arguments: torch.Tensor) -> None:
    compiled = compile_for(plugin, program, "own")
    try:
        expected = program(*arguments)
    except RuntimeError as error:
        with pytest.raises(type(error)):
            compiled(*arguments)
        return
    got = compiled(*arguments)
    exact = arguments[0].dtype not in (torch.float32, torch.float64, *HALVES)
    tolerance: dict[str, Any] = {"rtol": 0, "atol": 0} if exact else {}
    torch.testing.assert_close(got, expected, equal_nan=True, **tolerance)


def with_plugins(names: list[str]) -> list[tuple[str, str]]:
    """The rule is the recorder's: two plugins for each name, the others for some."""
    some = [(name, plugin) for name in ("add", "lt", "maximum") for plugin in PLUGINS]
    return [
        *some,
        *((n, p) for n in names for p in ("cpu_onednn", "reference") if (n, p) not in some),
    ]


@pytest.mark.parametrize(("name", "plugin"), with_plugins([*NARROW, *WHOLE]))
def test_whole_numbers_wrap_around(name: str, plugin: str) -> None:
    program = {**NARROW, **WHOLE}[name]
    for narrow, wide in INTEGERS:
        values = torch.tensor([1, 5, 127, 3], dtype=narrow)
        beyond = torch.tensor(BEYOND[wide], dtype=wide)
        compare(plugin, program, values, beyond)
        compare(plugin, program, beyond, values)
        compare(plugin, program, values[1], beyond)


@pytest.mark.parametrize(("name", "plugin"), with_plugins([*NARROW, *FLOATS]))
def test_floats_are_rounded(name: str, plugin: str) -> None:
    program = {**NARROW, **FLOATS}[name]
    tenth = torch.tensor(0.1, dtype=torch.float64)
    for values in (torch.tensor([0.1, 3.3371, 2.0]), torch.tensor([1, 2, 3])):
        compare(plugin, program, values, tenth)
        compare(plugin, program, tenth, values)
    for half in HALVES:
        short, long = torch.tensor(0.7, dtype=half), torch.tensor(3.3371)
        for pair in ((short, long), (long, short), (short, tenth), (tenth, short)):
            compare(plugin, program, *pair)
    compare(plugin, program, torch.tensor(70000.0), torch.tensor(1.0, dtype=torch.float16))


@pytest.mark.parametrize("plugin", PLUGINS)
def test_what_does_not_fit_is_refused(plugin: str) -> None:
    def fill(x: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        return x.masked_fill(x > 2, value)

    x = torch.tensor([1, 5], dtype=torch.int8)
    compiled = compile_for(plugin, fill, "own")
    assert torch.equal(compiled(x, torch.tensor(7)), fill(x, torch.tensor(7)))
    with pytest.raises(RuntimeError, match="without overflow"):
        compiled(x, torch.tensor(300))


@pytest.mark.parametrize("plugin", PLUGINS)
def test_the_first_of_one_element(plugin: str) -> None:
    """As PyTorch, which gives the element of a tensor without dims even where none is asked for."""
    for k in (0, 1):
        for x in (torch.tensor(1.5), torch.tensor(7)):

            def program(x: torch.Tensor, k: int = k) -> tuple[torch.Tensor, torch.Tensor]:
                return tuple(torch.topk(x, k, 0))

            actual = compile_for(plugin, program, "own")(x)
            assert all(map(torch.equal, actual, program(x)))


# With indices of two dims that are none: PyTorch asks for no equal dims then.
BY_NO_INDEX: dict[str, Binary] = {
    "gather": lambda x, i: torch.gather(x, -1, i),
    "scatter": lambda x, i: x.scatter(0, i, torch.zeros(i.shape)),
    "scatter of a number": lambda x, i: x.scatter(0, i, 2.0),
    "scatter_add": lambda x, i: x.scatter_add(0, i, torch.zeros(i.shape)),
    "scatter_reduce": lambda x, i: x.scatter_reduce(0, i, torch.zeros(i.shape), "sum"),
    "take": torch.take,
    "put": lambda x, i: x.put(i, torch.zeros(i.shape)),
}


@pytest.mark.parametrize("name", BY_NO_INDEX)
@pytest.mark.parametrize("plugin", PLUGINS)
def test_no_index_into_a_tensor_without_dimensions(name: str, plugin: str) -> None:
    program = BY_NO_INDEX[name]
    compiled = compile_for(plugin, program, "own")
    for columns in (4, 1, 4, 7):
        x, index = torch.tensor(3.0), torch.zeros(0, columns, dtype=torch.long)
        assert torch.equal(compiled(x, index), program(x, index))
