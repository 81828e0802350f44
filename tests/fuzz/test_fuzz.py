"""The fuzzers themselves, with a fixed seed: a number of programs and graphs, not a time."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from patience import run as run_patiently

ROOT = Path(__file__).resolve().parents[2]
PROGRAMS = 400
TENSORS = {"own": 1000, "torch": 30}
GRAPHS = {"reference": 150, "cpu_onednn": 150, "opencl": 25}
SIZES = {"cpu_onednn": 150}
SEED = 15

pytestmark = pytest.mark.slow


def run_alone(*command: str) -> None:
    """In a process of its own: it forks, which hangs where threads of other tests are."""
    done = run_patiently([sys.executable, *command])
    assert done.returncode == 0, done.stdout + done.stderr


def fuzz(*arguments: str) -> None:
    """What it finds is made smaller and shown."""
    limits = ["--seed", str(SEED), "--per-kind", "1", "--tries", "300"]
    run_alone(str(ROOT / "scripts" / "fuzz.py"), *arguments, *limits)


def test_faults_are_found():
    suite = Path(__file__).parent / "finds_suite.py"
    run_alone("-m", "pytest", "-q", "-p", "no:cacheprovider", str(suite))


@pytest.mark.parametrize("plugin", GRAPHS)
def test_graphs(plugin):
    fuzz("graphs", "--plugin", plugin, "--count", str(GRAPHS[plugin]))


@pytest.mark.parametrize("plugin", SIZES)
def test_sizes(plugin):
    fuzz("sizes", "--plugin", plugin, "--count", str(SIZES[plugin]))


def test_programs():
    fuzz("programs", "--count", str(PROGRAMS))


@pytest.mark.parametrize("door", TENSORS)
def test_tensors(door):
    fuzz("tensors", "--door", door, "--count", str(TENSORS[door]))
