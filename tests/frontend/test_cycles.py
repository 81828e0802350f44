"""Compiled objects in reference cycles end with them, and with the interpreter."""

from __future__ import annotations

import contextlib
import gc
import importlib.util
import io
import pathlib
import sys
import types
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch_backplane
from compiling import compile_for
from frontend.programs import catalog
from patience import run
from torch import nn


class Thing:
    """What has attributes."""

    def __init__(self, **attributes: Any) -> None:
        self.__dict__.update(attributes)


X = torch.ones(2, 4)


def own(target: Callable[..., Any]) -> Any:
    return compile_for("cpu_onednn", target, "own")


def method_of_a_module() -> Any:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 4)
            self.step = own(self._step)

        def _step(self, x: torch.Tensor) -> torch.Tensor:
            return self.layer(x)

    model = Model()
    model.step(X)
    return model


def closure_over_its_owner() -> Any:
    thing = Thing(weight=torch.ones(4))
    thing.call = own(lambda x: x * thing.weight)
    thing.call(X)
    return thing


def module_that_holds_itself() -> Any:
    module = nn.Linear(4, 4)
    module.compiled = [own(module)]
    module.compiled[0](X).sum().backward()
    return module


def list_that_is_closed_over() -> Any:
    thing = Thing()
    held: list[Any] = [thing]
    held.append(own(lambda x: x * len(held)))
    held[1](X)
    return thing


def recursion() -> Any:
    thing = Thing()

    def program(x: torch.Tensor, depth: int = 2) -> torch.Tensor:
        return compiled(x + 1, depth - 1) if depth and thing else x

    compiled = own(program)
    compiled(X)
    return thing


def globals_of_its_own() -> Any:
    names = {"own": own, "thing": Thing()}
    exec("def f(x): return x + 1\ng = own(f)\ndef h(x): return g(x) * 2\nh = own(h)", names)
    names["h"](X)
    return names["thing"]


def frames() -> Any:
    thing = Thing(count=0)

    def program(x: torch.Tensor) -> torch.Tensor:
        x = x + 1
        print(end="")
        thing.count += 1
        x = x * 2
        print(end="")
        thing.last = x
        return x

    thing.call = own(program)
    thing.call(X)
    thing.call(X)
    return thing


def global_of_another_module() -> Any:
    names: dict[str, Any] = {"thing": Thing()}
    exec("count = 0\ndef inc(x):\n    global count\n    count += 1\n    return x * 2", names)
    inc = names["inc"]

    def program(x: torch.Tensor) -> torch.Tensor:
        x = inc(x)
        print(end="")
        return x + 1

    names["call"] = own(program)
    names["call"](X)
    names["call"](X)
    assert names["count"] == 2
    return names["thing"]


def key_of_a_dict() -> Any:
    def key() -> None: ...

    thing = Thing(key=key, table={})

    def program(x: torch.Tensor) -> torch.Tensor:
        thing.table[key] = 1
        x = x + 1
        print(end="")
        return x * 2

    key.call = own(program)  # type: ignore[attr-defined]
    for _ in range(2):
        key.call(X)  # type: ignore[attr-defined]
        assert thing.table.pop(key) == 1
    return thing


def back_end_of_its_own() -> Any:
    thing = Thing()

    def backend(module: Any, examples: Any) -> Any:
        assert thing
        return module.forward

    thing.call = torch_backplane.compile(lambda x: x + 1, backend=backend)
    thing.call(X)
    return thing


def attribute_of_a_tensor() -> Any:
    thing = Thing(tensor=torch.ones(4))
    thing.tensor.owner = thing
    thing.call = own(lambda x: x + thing.tensor)
    thing.call(X)
    return thing


@pytest.mark.parametrize(
    "make",
    [
        method_of_a_module,
        closure_over_its_owner,
        module_that_holds_itself,
        list_that_is_closed_over,
        recursion,
        globals_of_its_own,
        frames,
        global_of_another_module,
        key_of_a_dict,
        back_end_of_its_own,
        attribute_of_a_tensor,
    ],
)
def test_a_cycle_is_freed(make: Callable[[], Any]) -> None:
    watch = weakref.ref(make())
    gc.collect()
    assert watch() is None


# Enums and dataclasses stay in caches of the standard library.
GROUPS = [
    path.stem
    for path in sorted(pathlib.Path(catalog.__file__).parent.glob("*.py"))
    if path.stem not in ("catalog", "report", "records")
]


@pytest.mark.parametrize("group", GROUPS)
def test_all_that_entries_hold_is_seen_by_the_collector(
    group: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each program is held by the module that it is of."""
    watch = weakref.ref(_run_programs(group, monkeypatch))
    gc.collect()
    assert watch() is None


def _run_programs(group: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    path = pathlib.Path(catalog.__file__).with_name(f"{group}.py")
    programs: dict[str, Any] = {}
    monkeypatch.setattr(catalog, "PROGRAMS", programs)
    spec = importlib.util.spec_from_file_location(f"collected_{group}", path)
    assert spec and spec.loader
    module: types.ModuleType = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    try:
        spec.loader.exec_module(module)
        module.held = held = []  # type: ignore[attr-defined]

        def compile(*args: Any, **settings: Any) -> Any:
            held.append(torch_backplane.compile(*args, backend="eager", **settings))
            return held[-1]

        with contextlib.redirect_stdout(io.StringIO()):
            for program in programs.values():
                for _ in program.run(compile):
                    pass
    finally:
        del sys.modules[spec.name]
        programs.clear()
    torch._dynamo.reset()
    assert held
    thing = module.thing = Thing()  # type: ignore[attr-defined]
    return thing


AT_EXIT = """
import pathlib, torch, torch_backplane
class Ends:
    def __del__(self):
        print("ended")
ends = Ends()
log = open({path!r}, "w")
log.write("written")
weight = torch.ones(4, requires_grad=True)
@torch_backplane.compile(backend="cpu_onednn")
def inner(x):
    return x * weight
@torch_backplane.compile(backend="cpu_onednn")
def outer(x):
    x = x + 1
    print(end="")
    return inner(x) + x
outer(torch.ones(4)).sum().backward()
"""


def test_globals_end_with_the_interpreter(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "log"
    code = AT_EXIT.format(path=str(path))
    done = run([sys.executable, "-c", code], fresh=True)
    assert done.stdout == "ended\n", done
    assert path.read_text() == "written"
