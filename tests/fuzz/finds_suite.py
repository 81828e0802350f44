"""Faults put in by hand are found: by the judges, by the whole fuzzers, and shrunk to what matters."""

from __future__ import annotations

import ast
import contextlib
import functools
import re
import sys
from pathlib import Path

import pytest
import torch
from patience import run as run_patiently

from fuzz import (
    graph_check,
    graph_fuzzer,
    judge,
    observe,
    pool,
    program_fuzzer,
    run,
    shrink,
    size_fuzzer,
    tensor_fuzzer,
    tensor_programs,
)
from fuzz.judge import Finding
from fuzz.programs import make_program
from fuzz.sizes import make_sizes

PROGRAMS = 300
GRAPHS = 300


def once(function):
    """A compiler without guards: every value from outside is what it was at the first call."""
    kept = {}

    def run(x, *args, **kwargs):
        key = tuple(x.shape)
        if key not in kept:
            kept[key] = (args, kwargs)
        args, kwargs = kept[key]
        return function(x, *args, **kwargs)

    return function if isinstance(function, torch.nn.Module) else run


def without_effects(function):
    """A compiler that loses what a call does to its arguments."""
    import copy

    def run(x, *args, **kwargs):
        args, kwargs = copy.deepcopy((args, kwargs))
        return function(x, *args, **kwargs)

    return function if isinstance(function, torch.nn.Module) else run


def raises_another(function):
    def run(*args, **kwargs):
        try:
            return function(*args, **kwargs)
        except Exception as error:
            raise RuntimeError(str(error)) from None

    return function if isinstance(function, torch.nn.Module) else run


def prints_nothing(function):
    import io

    def run(*args, **kwargs):
        with contextlib.redirect_stdout(io.StringIO()):
            return function(*args, **kwargs)

    return function if isinstance(function, torch.nn.Module) else run


@pytest.mark.parametrize("compiler", [once, without_effects, raises_another, prints_nothing])
def test_faults_of_a_front_end_are_found(compiler):
    for number in range(PROGRAMS):
        if judge.judge(make_program(f"self:{number}"), compiler) is not None:
            return
    pytest.fail(f"none of {PROGRAMS} programs noticed")


def test_plain_python_has_no_findings():
    for number in range(60):
        text = make_program(f"self:{number}")
        assert judge.judge(text, judge.plain) is None, text


CALLED_WITH_ITS_OWN_RESULTS = """
import torch
OPTIONS = {'backend': 'cpu_onednn'}
def main(compile):
    def raw(x, k):
        x += (x * k).sin()
        return x * 2
    f = compile(raw)
    x = tensor(4)
    for k in range(3, 15, 2):
        yield call(f, x, k), x
"""


def test_a_rounding_that_grows_from_call_to_call_is_no_finding():
    def off_from(first, function):
        return lambda x, k: function(x, k) * (1.0 if k < first else 1.001)

    assert judge.judge(CALLED_WITH_ITS_OWN_RESULTS) is None
    early = functools.partial(off_from, 3)
    assert judge.judge(CALLED_WITH_ITS_OWN_RESULTS, early) is not None


def detaches(function):
    """A compiler that loses the history of what a call gives."""

    def run(*args):
        given = function(*args)
        return torch.utils._pytree.tree_map_only(torch.Tensor, torch.Tensor.detach, given)

    return function if isinstance(function, torch.nn.Module) else run


def copies(function):
    """A compiler whose results share no memory with anything."""

    def run(*args):
        given = function(*args)
        return torch.utils._pytree.tree_map_only(torch.Tensor, torch.clone, given)

    return function if isinstance(function, torch.nn.Module) else run


def writes_copies(function):
    """A compiler that loses what a call writes to its arguments."""

    def run(*args):
        return function(*(a.clone() if isinstance(a, torch.Tensor) else a for a in args))

    return function if isinstance(function, torch.nn.Module) else run


def calls_twice(function):
    """A compiler that runs a function once more, to see what it does."""

    def run(*args):
        with contextlib.suppress(Exception):
            function(*args)
        return function(*args)

    return function if isinstance(function, torch.nn.Module) else run


@pytest.mark.parametrize("compiler", [detaches, copies, writes_copies, calls_twice])
def test_faults_with_tensors_are_found(compiler):
    assert any(judged_tensors(PROGRAMS, compiler)), f"none of {PROGRAMS} programs noticed"


def test_plain_tensors_have_no_findings():
    assert not any(judged_tensors(60, judge.plain))


def judged_tensors(count, compiler):
    return in_worker(
        lambda i: tensor_fuzzer.judge(tensor_programs.make_program(f"self:{i}"), compiler), count
    )


def test_the_same_seed_makes_the_same_program():
    assert make_program("1:7") == make_program("1:7") != make_program("1:8")


def eagerly(change):
    """A compiler of graphs that runs them with PyTorch, and does something wrong."""

    def compile(function, plugin, inputs):
        try:
            graph = graph_check.graph_of(function)
        except (RuntimeError, TypeError):  # FX takes no sizes of its inputs in lists of sizes
            return function
        return lambda *args: change(graph, args)

    return compile


def wrong_operator(graph, args):
    aten = torch.ops.aten
    taken_for = {
        aten.add.Tensor: aten.sub.Tensor,
        aten.cos.default: aten.sin.default,
        aten.fmax.default: aten.fmin.default,
        aten.ge.Tensor: aten.lt.Tensor,
        aten.log.default: aten.exp.default,
        aten.maximum.default: aten.minimum.default,
        aten.mul.Tensor: aten.add.Tensor,
        aten.neg.default: aten.abs.default,
        aten.relu.default: aten.neg.default,
        aten.round.default: aten.floor.default,
        aten.sigmoid.default: aten.tanh.default,
        aten.sin.default: aten.cos.default,
        aten.sqrt.default: aten.exp.default,
        aten.sub.Tensor: aten.add.Tensor,
        aten.sum.default: aten.mean.default,
    }
    for node in graph.graph.nodes:
        node.target = taken_for.get(node.target, node.target)
    graph.recompile()
    return graph(*args)


def wrong_offset(graph, args):
    results = graph(*args)
    return [r.flatten().roll(1).view(r.shape) if r.dim() else r for r in results]


def last_row_lost(graph, args):
    results = graph(*args)
    with torch.no_grad():
        for r in results:
            if r.dim() and r.is_floating_point() and not r.requires_grad and r.shape[0] > 1:
                r[-1:] = 0.25
    return results


def doubled_gradient(graph, args):
    def double(result):
        return result * 2 - result.detach() if result.requires_grad else result

    return [double(r) for r in graph(*args)]


def sizes_of_the_first_call(graph, args):
    kept = graph.__dict__.setdefault("kept", [a.shape for a in args])
    if any(a.shape != k for a, k in zip(args, kept, strict=True)):
        raise ValueError("another size")
    return graph(*args)


@pytest.mark.parametrize(
    "fault",
    [wrong_operator, wrong_offset, last_row_lost, doubled_gradient, sizes_of_the_first_call],
)
def test_faults_of_a_plugin_are_found(fault):
    assert any(judged(GRAPHS, eagerly(fault))), f"none of {GRAPHS} graphs noticed"


def test_eager_has_no_findings():
    assert not any(judged(40, eagerly(lambda graph, args: graph(*args))))


def last_block_twice(function, backend):
    """What a library does that goes over some of the elements once more."""

    def run(*args):
        y = function(*args)
        return torch.cat((y.flatten()[:-16], 2 * y.flatten()[-16:])).view(y.shape)

    return run


def test_a_block_too_many_is_found_at_real_sizes():
    def judge(compiler, i):
        return size_fuzzer.judge(make_sizes("reference", f"self:{i}"), compile=compiler)

    assert any(in_worker(functools.partial(judge, last_block_twice), 10))
    assert not any(in_worker(functools.partial(judge, lambda function, backend: function), 40))


def test_an_operator_at_a_real_size_runs_alone(tmp_path: Path):
    text = make_sizes("reference", "1:5")
    path = tmp_path / "found.py"
    path.write_text(size_fuzzer.write(Finding("differs", "an example", text), "a test"))
    done = run_patiently([sys.executable, str(path)])
    assert done.returncode == 0, done.stderr
    assert "import fuzz" not in path.read_text() and "from fuzz" not in path.read_text()


def judged(count, compiler):
    return in_worker(
        lambda i: graph_fuzzer.judge(graph_fuzzer.make("reference", (), f"self:{i}"), compiler),
        count,
    )


def in_worker(step, count):
    """What is said of each number: PyTorch alone dies of some programs and sizes."""
    with contextlib.closing(pool.Pool(step, 1)) as workers:
        for _, said, _ in workers.run(range(count)):
            yield said


def test_noise_allows_rounding_and_nothing_else():
    want = torch.linspace(1, 2, 8)
    noisy = [want * (1 + 2e-7), want * (1 - 2e-7)]
    assert not graph_check.tensor_difference(want * (1 + 1e-6), want, noisy)
    assert graph_check.tensor_difference(want * (1 + 1e-4), want, noisy)
    assert graph_check.tensor_difference(want.double(), want, noisy)
    nan = want.clone()
    nan[3] = torch.nan
    assert graph_check.tensor_difference(nan, want, noisy)


def shrunk(text, wanted):
    def test(texts):
        return next((i for i, t in enumerate(texts) if re.search(wanted, t)), None)

    return shrink.shrink(text, test, 2000)


def test_what_does_not_matter_goes():
    text = (
        "a = 1\nif a:\n    for i in [1, 2]:\n        b = f(g(i) + 1, key=2)\n    c = 3\nprint(a)\n"
    )
    assert shrunk(text, r"g\(") in ("b = g()", "g()")
    assert len(list(ast.walk(ast.parse(shrunk(make_program("1:3"), "def main"))))) < 10


def test_a_finding_runs_alone(tmp_path: Path):
    text = (
        "OPTIONS = {'backend': 'eager'}\n\n"
        "def main(compile):\n    f = compile(lambda x: x + 1)\n    yield call(f, tensor(4))\n"
    )
    path = tmp_path / "found.py"
    path.write_text(program_fuzzer.write(Finding("other value", "an example", text), "a test"))
    done = run_patiently([sys.executable, str(path)])
    assert done.returncode == 0, done.stderr
    assert "import fuzz" not in path.read_text() and "from fuzz" not in path.read_text()


def test_a_graph_runs_alone(tmp_path: Path):
    text = graph_fuzzer.make("reference", (), "1:5")
    path = tmp_path / "found.py"
    path.write_text(graph_fuzzer.write(Finding("wrong result", "an example", text), "a test"))
    done = run_patiently([sys.executable, str(path)])
    assert "Traceback" not in done.stderr, done.stderr
    assert "import fuzz" not in path.read_text() and "from fuzz" not in path.read_text()


def test_observations_tell_apart():
    def look(value):
        return observe.Observer().look(value)

    shared = [1]
    assert look([shared, shared]) != look([[1], [1]])
    assert look(True) != look(1)
    assert look(1.0) == look(1.0 + 1e-9)
    one = torch.zeros(4)
    assert look([one, one[1:]]) != look([one, torch.zeros(3)])


def dies(text):
    import os
    import signal

    if "dies" in text:
        os.kill(os.getpid(), signal.SIGSEGV)
    return text


def test_a_death_is_found_unless_pytorch_dies_too():
    def fuzzer(make, judge, plainly):
        return run.Fuzzer("programs", make, judge, plainly, lambda finding, origin: "")

    def says(text):
        return lambda seed: text

    found = run.death(fuzzer(says("dies\n"), dies, says(None)), "1:1", "died of SIGSEGV")
    assert found == Finding("died of SIGSEGV", "died of SIGSEGV", "dies\n")
    assert run.death(fuzzer(says("dies\n"), dies, dies), "1:1", "died") is None
    assert run.death(fuzzer(lambda seed: dies("dies"), dies, dies), "1:1", "died") is None


def test_workers_that_die_cost_their_task_alone():
    workers = pool.Pool(dies, 2)
    told = {task: (said, ended) for task, said, ended in workers.run(["a", "it dies", "b", "c"])}
    workers.close()
    assert told["it dies"] == (None, "died of SIGSEGV")
    assert all(told[task] == (task, "") for task in "abc")
