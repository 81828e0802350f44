"""Compiled functions are copied and pickled as the functions underneath."""

from __future__ import annotations

import copy
import functools
import io
import pickle
from typing import Any

import pytest
import torch
import torch_backplane
from compiling import close
from torch import nn
from torch_backplane import frontend

X = torch.linspace(-1, 1, 8).reshape(2, 4)
compiled_with = functools.partial(torch_backplane.compile, backend="eager", dynamic=True)


def plain(x: torch.Tensor) -> torch.Tensor:
    return x + 1


compiled_plain = compiled_with(plain)


@torch_backplane.compile(backend="eager")
def decorated(x: torch.Tensor) -> torch.Tensor:
    return x * 2


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.step = compiled_with(self._step)
        self.activation = compiled_plain

    def _step(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.twice(self.step(self.activation(decorated(x))))

    @torch_backplane.compile(backend="eager")
    def twice(self, x: torch.Tensor) -> torch.Tensor:
        return x * 2


class Scaled:
    def __init__(self) -> None:
        self.factor = 3

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.factor


def by_pickle(thing: Any) -> Any:
    return pickle.loads(pickle.dumps(thing))


def by_file(thing: Any) -> Any:
    file = io.BytesIO()
    torch.save(thing, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


@pytest.mark.parametrize("duplicate", [copy.copy, copy.deepcopy])
def test_a_function_is_its_own_copy(duplicate: Any) -> None:
    for function in (compiled_plain, decorated):
        assert duplicate(function) is function
        assert duplicate([function])[0] is function


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_pickled_functions(protocol: int) -> None:
    """By name, where that leads to the compiled object; else compiled anew in the same way."""
    for function in (decorated, Model.twice):
        assert pickle.loads(pickle.dumps(function, protocol)) is function
    made = pickle.loads(pickle.dumps(compiled_plain, protocol))
    assert frontend.original(made) == frontend.original(compiled_plain)
    assert torch.equal(made(X), plain(X))


@pytest.mark.parametrize("duplicate", [copy.deepcopy, by_pickle, by_file])
def test_a_module_that_holds_some(duplicate: Any) -> None:
    model = Model()
    expected = model(X)
    made = duplicate(model)
    assert torch.equal(made(X), expected)
    assert made.step.target.__self__ is made
    with torch.no_grad():
        made.layer.weight.zero_()
    close(made(X), (2 * made.layer.bias).expand(2, 4))
    assert torch.equal(model(X), expected)


@pytest.mark.parametrize("duplicate", [copy.deepcopy, by_pickle])
def test_a_method_whose_object_holds_it(duplicate: Any) -> None:
    model = Model()
    made = duplicate(model.step)
    owner = made.target.__self__
    assert owner is not model and owner.step is made
    assert torch.equal(made(X), model.step(X))


@pytest.mark.parametrize("duplicate", [copy.copy, copy.deepcopy, by_pickle])
def test_a_callable_object(duplicate: Any) -> None:
    compiled = compiled_with(Scaled())
    made = duplicate(compiled)
    made.target.factor = 5
    assert torch.equal(compiled(X), X * 3) and torch.equal(made(X), X * 5)


def test_what_plain_pickle_refuses() -> None:
    function = compiled_with(lambda x: x)
    with pytest.raises((pickle.PicklingError, AttributeError), match="lambda"):
        pickle.dumps(function)


def of_its_class(compiled: nn.Module) -> nn.Module:
    return type(compiled)(4, 3)


def with_its_state(compiled: nn.Module) -> nn.Module:
    made = type(compiled).__new__(type(compiled))
    made.__dict__.update(compiled.__dict__)
    return made


def of_a_class_below(compiled: nn.Module) -> nn.Module:
    class Below(type(compiled)):  # type: ignore[misc]
        def __init__(self) -> None:
            nn.Module.__init__(self)
            self.weight, self.bias = compiled.weight, compiled.bias

    return Below()


@pytest.mark.parametrize("make", [of_its_class, with_its_state, of_a_class_below])
def test_other_objects_of_a_compiled_modules_class_are_plain(make: Any) -> None:
    compiled = compiled_with(nn.Linear(4, 3))
    made = make(compiled)
    for one in (made, copy.copy(made), copy.deepcopy(made)):
        close(one(X), nn.functional.linear(X, made.weight, made.bias))
    assert copy.copy(made).weight is made.weight
    assert copy.deepcopy(made).weight is not made.weight
