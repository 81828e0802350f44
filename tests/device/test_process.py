"""What taking the device means for a process: nothing without a request, and room for others."""

from __future__ import annotations

import os
import pathlib

import pytest
from compiling import run_python


def succeeds(code: str, **environment: str) -> str:
    done = run_python(code, environment)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_importing_takes_nothing() -> None:
    out = succeeds("""
import torch, torch_backplane
print(torch._C._get_privateuse1_backend_name(), torch.accelerator.current_accelerator())
torch_backplane.plugins()
print(torch._C._get_privateuse1_backend_name(), hasattr(torch, "backplane"))
""")
    assert out.split() == ["privateuseone", "None", "privateuseone", "False"]


def test_import_torch_loads_no_code_of_ours_even_when_asked() -> None:
    code = "import torch, sys; print([m for m in sys.modules if 'backplane' in m], torch.ones(1))"
    done = run_python(code, {"BACKPLANE_DEVICE": "1"})
    names_alone = "['torch_backplane_names'] "  # no more than a name to find plugins by
    assert done.stdout.startswith(names_alone) and done.stderr == ""


@pytest.mark.parametrize(
    ("wish", "expected"),
    [
        ("1", "backplane 0"),
        ("reference", "backplane 1"),
        ("reference:0, cpu_onednn", "backplane 2"),
    ],
)
def test_the_environment_asks_for_it(wish: str, expected: str) -> None:
    out = succeeds(
        "import torch, torch_backplane\n"
        "print(torch._C._get_privateuse1_backend_name(), torch.backplane.device_count())",
        BACKPLANE_DEVICE=wish,
    )
    assert out.strip() == expected


def test_an_index_without_a_device_is_explained() -> None:
    done = run_python(
        "import torch, torch_backplane as b; b.init_device(); torch.ones(1, device='backplane')"
    )
    assert "torch_backplane.device(" in done.stderr and done.returncode == 1


@pytest.mark.parametrize(
    "theirs",
    [
        "torch.utils.rename_privateuse1_backend('npu'); import types; "
        "theirs = types.ModuleType('torch.npu'); theirs.is_available = lambda: False; "
        "torch._register_device_module('npu', theirs)",
        "L = torch.library.Library('_', 'IMPL'); L.fallback(lambda *a, **k: None, 'PrivateUse1')",
        "L = torch.library.Library('aten', 'IMPL', 'PrivateUse1'); "
        "L.impl('empty.memory_format', lambda *a, **k: None)",
    ],
)
def test_another_package_has_the_name(theirs: str) -> None:
    out = succeeds(f"""
import torch, torch_backplane
{theirs}
name = torch._C._get_privateuse1_backend_name()
for _ in range(2):
    try:
        torch_backplane.device("reference")
    except torch_backplane.BackplaneError as error:
        print(error.code, "another package" in str(error))
assert torch._C._get_privateuse1_backend_name() == name
f = torch.compile(lambda t: t + 1, backend="plugin:reference", options={{"report": False}})
print(f(torch.ones(2)).tolist())
""")
    assert out.splitlines() == ["BP-0109 True", "BP-0109 True", "[2.0, 2.0]"]


THREADS = "len(__import__('os').listdir('/proc/self/task'))"

FORK = """
import os, torch, torch_backplane
{before}
def backward():
    w = torch.ones(4, requires_grad=True)
    (w * 2).sum().backward()
    return w.grad.tolist() == [2.0] * 4
assert backward()
{after}
child = os.fork()
if child == 0:
    os._exit(0 if backward() else 1)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("", ""),
        ("torch_backplane.init_device()", ""),
        (
            "torch_backplane.init_device()",
            "torch.ones(2, device=torch_backplane.device('reference'))",
        ),
        ("d = torch_backplane.device('reference'); torch.ones(2, device=d)", ""),
    ],
)
def test_cpu_programs_differentiate_after_a_fork(before: str, after: str) -> None:
    assert succeeds(FORK.format(before=before, after=after)).split() == ["0"]


def test_no_engine_threads_without_a_use() -> None:
    out = succeeds(f"""
import torch, torch_backplane
torch.set_num_threads(1)
torch_backplane.init_device()
before = {THREADS}
torch.ones(2, requires_grad=True).sum().backward()
print({THREADS} - before)
""")
    assert out.strip() == "0"


def test_a_forked_child_gets_an_error_and_no_hang() -> None:
    out = succeeds("""
import os, torch, torch_backplane
npu = torch_backplane.device("reference")
there = torch.ones(2, device=npu)
child = os.fork()
if child == 0:
    try:
        (there + 1).cpu()
    except RuntimeError as error:
        os._exit(0 if "fork" in str(error) else 1)
    os._exit(2)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), there.sum().item())
""")
    assert out.split() == ["0", "2.0"]


def test_late_use_after_a_cpu_backward() -> None:
    out = succeeds("""
import torch, torch_backplane
torch.ones(2, requires_grad=True).sum().backward()
npu = torch_backplane.device("reference")
w = torch.ones(3, device=npu, requires_grad=True)
(w * w).sum().backward()
print(w.grad.tolist())
""")
    assert out.strip() == "[2.0, 2.0, 2.0]"


FORKED = """
import os, signal, sys, torch, torch_backplane
npu = torch_backplane.device("{plugin}")
there = torch.ones(64, device=npu)
picked = torch.arange(4.0, device=npu)[there[:2].long()]
kept = [torch.ones(100, device=npu) for _ in range(3)]
pinned = torch.ones(4).pin_memory()
compiled = torch.compile(lambda t: (t @ t).sin(), backend="plugin:{plugin}")
host = torch.ones(8, 8)
compiled(host)
child = os.fork()
if child == 0:
    signal.alarm(60)
    outcomes = []
    def attempt(name, call):
        try:
            call()
            outcomes.append((name, "no error"))
        except RuntimeError as error:
            if "fork" not in str(error):
                outcomes.append((name, str(error)))
    attempt("use", lambda: there + 1)
    attempt("known use", lambda: there * 2)
    attempt("read", lambda: there.cpu())
    attempt("item", lambda: there[0].item())
    attempt("new", lambda: torch.empty(3, device=npu))
    attempt("move", lambda: torch.ones(3).to(npu))
    attempt("print", lambda: repr(there))
    attempt("in place", lambda: there.add_(1))
    attempt("draw", lambda: torch.rand(3, device=npu))
    attempt("synchronize", lambda: torch.accelerator.synchronize())
    attempt("event", lambda: torch.Event(device=npu).record())
    attempt("compiled", lambda: compiled(there.view(8, 8)))
    attempt("device", lambda: torch_backplane.device("{plugin}"))
    torch.manual_seed(1)          # what data loaders' workers do
    del kept, there, picked, pinned
    assert torch.ones(2).sum().item() == 2
    assert torch.equal(compiled(host), (host @ host).sin())  # with PyTorch
    assert torch.backplane._is_in_bad_fork()
    print(outcomes, flush=True)
    os._exit(0 if not outcomes else 1)
code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
print(code, there.sum().item(), not torch.backplane._is_in_bad_fork())
"""


@pytest.mark.parametrize("plugin", ["cpu_onednn", "opencl", "reference"])
def test_whatever_a_forked_child_does_with_the_device_is_an_error(plugin: str) -> None:
    out = succeeds(FORKED.format(plugin=plugin))
    assert out.splitlines() == ["[]", "0 64.0 True"]


NUMBERS_FIRST = """
import torch, torch_backplane
where = torch_backplane.device("good")  # claims nothing
x, number = torch.arange(1.0, 5.0), torch.tensor(2.0)
calls = (
    lambda n, t: 1 - t,
    lambda n, t: n - t,
    lambda n, t: torch.xlogy(1, t),
    lambda n, t: torch.special.zeta(n, t),
    lambda n, t: torch.where(t > 2, n, t),
    lambda n, t: torch.nextafter(n, t),
    lambda n, t: torch.copysign(n, t) + torch.heaviside(n, t),
)
for call in calls:
    found = call(number, x.to(where))
    assert found.device == where, found.device
    torch.testing.assert_close(found.cpu(), call(number, x))
assert (1 - x.to(where).half()).dtype is torch.float16
"""


def test_results_are_on_the_device_where_a_number_comes_first() -> None:
    folder = pathlib.Path(os.environ.get("BACKPLANE_BUILD", "build/dev")).absolute()
    succeeds(NUMBERS_FIRST, BACKPLANE_PLUGIN_PATH=str(folder / "testing_plugins"))
