"""Calls that no plugin can take: at the end of the process, and of tensors without memory."""

from __future__ import annotations

import pytest
import torch
import torch_backplane
from compiling import DOORS, compile_for, run_python
from torch._subclasses import FakeTensorMode

AT_EXIT = """
import atexit, torch
atexit.register(lambda: last())  # runs after those that are registered later
import torch_backplane
def compiled(program, **options):
    if {door!r} == "own":
        return torch_backplane.compile(program, backend="cpu_onednn", options=options)
    return torch.compile(program, backend="plugin:cpu_onednn", options=options)
x = torch.ones(2, requires_grad=True)
import torch_backplane.frontend  # with the extension module
if {is_kept}:
    known = compiled(lambda x: x * 2)
    known(x)
def last():
    if {is_kept}:
        assert known(x).tolist() == [2.0, 2.0]
        assert known(torch.ones(3)).tolist() == [2.0] * 3
    for factor in (3, 5):
        compiled(lambda x: x * factor)(x).sum().backward()
    assert x.grad.tolist() == [8.0, 8.0]
    stats = torch_backplane.stats()
    if {is_kept}:  # the plugin stays open for those that are alive
        return print("kept", stats["eager_graphs"])
    assert stats["eager_graphs"] >= 2, stats
    try:
        compiled(lambda x: x * 7, strict=True)(x)
    except Exception as error:
        assert "BP-0105" in str(error), error
        print("refused")
"""


@pytest.mark.parametrize("door", DOORS)
def test_new_functions_at_exit_run_with_pytorch(door: str) -> None:
    done = run_python(AT_EXIT.format(door=door, is_kept=False))
    assert done.stdout == "refused\n", done.stderr
    assert done.stderr.count("was shut down") == 1, done.stderr


@pytest.mark.parametrize("door", DOORS)
def test_a_plugin_that_programs_use_stays_to_the_end(door: str) -> None:
    done = run_python(AT_EXIT.format(door=door, is_kept=True))
    assert done.stdout == "kept 0\n", done.stderr


@pytest.mark.parametrize("door", DOORS)
def test_fake_tensors_are_pytorch_s_in_their_mode_and_outside(door: str) -> None:
    mode = FakeTensorMode()
    with mode:
        fake = torch.ones(2, 3)
    compiled = compile_for("cpu_onednn", lambda x: (x @ x.t()).relu(), door)
    before = torch_backplane.stats()
    assert compiled(fake).shape == (2, 2)
    assert torch.equal(compiled(torch.ones(2, 3)), torch.full((2, 2), 3.0))
    result = compiled(fake)
    with mode:
        within = compiled(fake)
    assert type(result) is type(within) is type(fake)
    assert result.shape == within.shape == (2, 2)
    after = torch_backplane.stats()
    assert all(after[key] == before[key] for key in ("eager_calls", "eager_graphs"))
