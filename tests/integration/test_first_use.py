"""The first use of the package in a process: by threads at once, and interrupted."""

from __future__ import annotations

import sys

import pytest
from compiling import run_python

THREADS = """
import threading, torch, torch_backplane
start = threading.Barrier(6)
failed = []
def use(number):
    start.wait()
    try:
        if number % 2:
            assert any(plugin["name"] == "cpu_onednn" for plugin in torch_backplane.plugins())
        else:
            compiled = torch_backplane.compile(lambda x: x + 1, backend="cpu_onednn")
            assert compiled(torch.ones(1)).item() == 2
    except BaseException as error:
        failed.append(error)
threads = [threading.Thread(target=use, args=(number,)) for number in range(6)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
assert not failed, failed
"""

# Children, because a process imports once.
INTERRUPTED = """
import os, signal, torch, torch._dynamo
def handler(number, frame):
    raise KeyboardInterrupt
signal.signal(signal.SIGALRM, handler)
def use():
    import torch_backplane
    compiled = torch_backplane.compile(lambda x: x + 1, backend="cpu_onednn")
    assert compiled(torch.ones(1)).item() == 2
def child(seconds):
    try:
        signal.setitimer(signal.ITIMER_REAL, seconds)
        use()
        signal.setitimer(signal.ITIMER_REAL, 0)
    except KeyboardInterrupt:
        pass
    use()
for i in range(150):
    pid = os.fork()
    if pid == 0:
        child(0.0005 + i * 0.0005)
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0, i
"""

QUIET = {"BACKPLANE_QUIET": "1", "BACKPLANE_QUARANTINE": "off"}

pytestmark = pytest.mark.skipif(
    sys.version_info >= (3, 13), reason="this Python has no front end of its own"
)


def test_threads_at_once() -> None:
    for _ in range(4):
        done = run_python(THREADS, QUIET)
        assert done.returncode == 0, done.stderr


def test_an_interrupted_one_is_made_anew() -> None:
    done = run_python(INTERRUPTED, QUIET)
    assert done.returncode == 0, done.stderr


WITHIN_A_TRANSFORM = """
import torch, torch_backplane
from torch.func import vmap

within = torch_backplane.compile(lambda w: (w * 2).relu(), backend="plugin:reference")
vmap(within)(torch.randn(4, 3, requires_grad=True))
for compile in (torch_backplane.compile, torch.compile):
    before = torch_backplane.stats()["plugin_nodes"]
    model = compile(torch.nn.Linear(2, 2), backend="plugin:reference")
    model(torch.ones(1, 2)).sum().backward()
    assert torch_backplane.stats()["plugin_nodes"] > before, torch_backplane.stats()
"""


def test_within_a_transform_it_forbids_nothing_later() -> None:
    done = run_python(WITHIN_A_TRANSFORM, QUIET)
    assert done.returncode == 0, done.stderr
