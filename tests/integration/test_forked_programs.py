"""Compiled programs in children of fork(), such as the workers of a data loader: their plugin's devices
are the parent's, and PyTorch runs them there."""

from __future__ import annotations

import pytest
from compiling import DOORS, run_python

BEGIN = """
import os, signal, sys, threading, torch, torch_backplane
from torch.utils.data import DataLoader, Dataset
def compiled(program, **options):
    if {door!r} == "own":
        return torch_backplane.compile(program, backend={plugin!r}, options=options)
    return torch.compile(program, backend="plugin:" + {plugin!r}, options=options)
def in_child(call):
    child = os.fork()
    if child == 0:
        signal.alarm(60)
        try:
            call()
        except BaseException as error:
            print(repr(error), file=sys.stderr, flush=True)
            os._exit(1)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
def plain_calls():
    stats = torch_backplane.stats()
    return stats["plain_calls"] + stats["eager_calls"] + stats["eager_graphs"]
"""

LOADER = """
program = compiled(lambda x: (x * 2).relu() + 1)
assert program(torch.ones(3)).tolist() == [3.0] * 3
class Numbers(Dataset):
    def __len__(self):
        return 8
    def __getitem__(self, i):
        return program(torch.full((3,), float(i)))
found = [row for batch in DataLoader(Numbers(), batch_size=2, num_workers=2) for row in batch]
assert [row.tolist() for row in found] == [[2.0 * i + 1] * 3 for i in range(8)]
before = plain_calls()
assert program(torch.ones(3)).tolist() == [3.0] * 3 and plain_calls() == before  # the parent
"""

CALLS = """
def program(x, w):
    y = (x @ w).relu()
    return y.sum(), y
w = torch.ones(3, 3, requires_grad=True)
run, other, late = compiled(program), compiled(lambda x: x.sin() * 2), compiled(lambda x: x + 1)
run(torch.ones(2, 3), w), other(torch.ones(2))
def calls():
    before = plain_calls()
    for rows in (2, 2, 5):  # known sizes and new ones
        x = torch.ones(rows, 3)
        loss, y = run(x, w)
        loss.backward()
        assert torch.equal(y, x @ w) and torch.equal(w.grad, x.t() @ torch.ones(rows, 3))
        w.grad = None
    assert torch.equal(other(torch.ones(2)), torch.ones(2).sin() * 2)
    assert torch.equal(late(torch.ones(2)), torch.full((2,), 2.0))  # compiled at its first call
    assert plain_calls() > before
    assert in_child(lambda: other(torch.ones(2))) == 0  # a child of the child
assert in_child(calls) == 0
assert torch.equal(other(torch.ones(2)), torch.ones(2).sin() * 2)
"""

NEW = """
compiled(lambda x: x - 1)(torch.ones(2))
def calls():
    before = plain_calls()
    for factor in (3, 5):
        run = compiled(lambda x: (x * factor).relu())
        for rows in (2, 2, 4):
            x = torch.ones(rows, requires_grad=True)
            run(x).sum().backward()
            assert torch.equal(x.grad, torch.full((rows,), float(factor)))
    assert plain_calls() > before
def refused():
    try:
        compiled(lambda x: x * 7, strict=True)(torch.ones(2))
    except Exception as error:
        assert "BP-0105" in str(error) and "fork()" in str(error), error
    else:
        raise AssertionError("no error")
assert in_child(calls) == 0
assert in_child(refused) == 0
"""

BACKWARD = """
def program(x, w):
    return torch.nn.functional.dropout((x @ w).relu(), 0.5).sum()
w = torch.ones(8, 8, requires_grad=True)
x = torch.linspace(1, 2, 64).reshape(8, 8)
torch.manual_seed(1)
program(x, w).backward()
expected, w.grad = w.grad, None
run = compiled(program)
torch.manual_seed(1)
loss = run(x.clone(), w)
def backward():
    loss.backward()
    assert torch.allclose(w.grad, expected), (w.grad, expected)
assert in_child(backward) == 0
backward()  # the parent's own is as it was
"""

STRICT = """
run = compiled(lambda x: x.sin() * 2, strict=True)
run(torch.ones(2))
def call():
    try:
        run(torch.ones(2))
    except torch_backplane.BackplaneError as error:
        assert error.code == "BP-0108" and "fork()" in str(error), error
    else:
        raise AssertionError("no error")
assert in_child(call) == 0
"""

THREADS = """
run = compiled(lambda x: (x @ x).sin())
x = torch.ones(64, 64)
expected = run(x)
torch.set_num_threads(1)
stop = threading.Event()
def work():
    while not stop.is_set():
        run(x)
threads = [threading.Thread(target=work) for _ in range(3)]
for thread in threads:
    thread.start()
def call():
    torch.set_num_threads(1)
    assert torch.allclose(run(x), expected)
codes = {{in_child(call) for _ in range(20)}}
stop.set()
for thread in threads:
    thread.join()
assert codes == {{0}}, codes
"""


def succeeds(code: str, door: str, plugin: str) -> str:
    done = run_python((BEGIN + code).format(door=door, plugin=plugin))
    assert done.returncode == 0, done.stderr
    return done.stderr


@pytest.mark.parametrize("plugin", ["cpu_onednn", "opencl", "reference"])
@pytest.mark.parametrize("door", DOORS)
def test_workers_of_a_data_loader_run_them_with_pytorch(door: str, plugin: str) -> None:
    said = succeeds(LOADER, door, plugin)
    assert 1 <= said.count("fork()") <= 2  # once a worker


@pytest.mark.parametrize("door", DOORS)
def test_gradients_other_sizes_and_first_calls(door: str) -> None:
    succeeds(CALLS, door, "cpu_onednn")


@pytest.mark.parametrize("door", DOORS)
def test_functions_that_a_child_compiles(door: str) -> None:
    said = succeeds(NEW, door, "cpu_onednn")
    assert said.count("fork()") == 1


@pytest.mark.parametrize("door", DOORS)
def test_the_backward_of_a_forward_of_the_parent(door: str) -> None:
    succeeds(BACKWARD, door, "cpu_onednn")


@pytest.mark.parametrize("door", DOORS)
def test_strict_is_an_error(door: str) -> None:
    succeeds(STRICT, door, "cpu_onednn")


# TorchDynamo holds a lock of its own while it checks guards, which a child finds taken.
def test_no_hang_where_threads_of_the_parent_call_the_program() -> None:
    succeeds(THREADS, "own", "cpu_onednn")
