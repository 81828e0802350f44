"""Code objects taken apart and put together again: those of torch, byte for byte."""

from __future__ import annotations

import pathlib
import types
from collections.abc import Iterator

import pytest
import torch
from torch_backplane import _C

FOLDER = pathlib.Path(torch.__file__).parent


def code_objects(code: types.CodeType) -> Iterator[types.CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from code_objects(constant)


def test_torch_comes_out_as_it_was() -> None:
    count = 0
    for path in sorted(FOLDER.rglob("*.py")):
        if path.name == "py312_intrinsics.py":  # the syntax of a later Python
            continue
        top = compile(path.read_bytes(), str(path), "exec", dont_inherit=True)
        for code in code_objects(top):
            again = _C.frontend.reassemble(code)
            count += 1
            assert again.co_code == code.co_code, f"{path}: {code.co_qualname}"
            assert again.co_exceptiontable == code.co_exceptiontable, f"{path}: {code.co_qualname}"
            assert again.co_linetable == code.co_linetable, f"{path}: {code.co_qualname}"
            assert again == code, f"{path}: {code.co_qualname}"
    assert count > 50_000


def test_only_code_is_taken() -> None:
    with pytest.raises(TypeError, match="not a code object"):
        _C.frontend.reassemble(test_only_code_is_taken)
