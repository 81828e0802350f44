"""What every Python test shares: no network, few threads, fixed seeds, no state between tests."""

import os
import random
import shutil
import sys
import tempfile

# Before any test imports transformers: models come from config classes or installed packages.
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
# Threads that spin while they wait make a busy machine many times slower.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

# Tests compile anew: what an earlier build left in the user's cache must not hide a fault.
os.environ["BACKPLANE_CACHE_DIR"] = tempfile.mkdtemp(prefix="backplane-test-")
# Nor does a crash that one test wants leave a plugin out of the next.
os.environ["BACKPLANE_STATE_DIR"] = tempfile.mkdtemp(prefix="backplane-test-")
os.environ["BACKPLANE_QUARANTINE"] = "off"
# Nor does a machine that is busy make a test print what another does not.
os.environ["BACKPLANE_PATIENCE"] = "0"

# plugin:cuda runs on an emulated driver, which forgives less; BACKPLANE_TEST_GPU=1: on the machine's.
if not os.environ.get("BACKPLANE_TEST_GPU"):
    _EMULATED = "testing_layers/libbackplane_emulated_cuda.so"
    _EMULATED = os.path.abspath(
        os.path.join(os.environ.get("BACKPLANE_BUILD", "build/dev"), _EMULATED)
    )
    for _LIBRARY in ("DRIVER", "NVRTC", "BLAS"):
        os.environ.setdefault(f"BACKPLANE_CUDA_{_LIBRARY}", _EMULATED)

import pytest

THREADS = min(2, os.cpu_count() or 1)


@pytest.fixture(autouse=True, scope="session")
def remove_folders():
    yield
    for folder in ("BACKPLANE_CACHE_DIR", "BACKPLANE_STATE_DIR"):
        shutil.rmtree(os.environ[folder], ignore_errors=True)


@pytest.fixture(autouse=True)
def fresh_state():
    """Seeds before each test; torch is touched only where a test module has imported it."""
    random.seed(0)
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed(0)
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.manual_seed(0)
        if torch.get_num_threads() != THREADS:
            torch.set_num_threads(THREADS)
    yield
    dynamo = sys.modules.get("torch._dynamo")
    if dynamo is not None:
        dynamo.reset()


def _without_front_end(outcome):
    """A test of the front end of our own, where this Python has none (3.13 and later): skipped, and
    counted as such. An error of another code stays one."""
    error = outcome.excinfo[1] if outcome.excinfo else None
    if sys.version_info >= (3, 13) and getattr(error, "code", "") == "BP-0114":
        outcome.force_exception(pytest.skip.Exception("this Python has no front end of its own"))


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_setup():
    _without_front_end((yield))


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_call():
    _without_front_end((yield))


def pytest_addoption(parser):
    parser.addoption("--long", action="store_true", help="the tests marked long, and no others")


def pytest_collection_modifyitems(config, items):
    """The front end's tests first: TorchDynamo may leave its frame hook installed, and ours then
    leaves frames to plain Python. Files with slow tests come before others: the last processes of a
    run end at about the same time."""
    slow = {item.path for item in items if item.get_closest_marker("slow") is not None}
    items.sort(key=lambda item: ("frontend" not in item.path.parts, item.path not in slow))
    is_long = config.getoption("long")
    kept, left_out = [], []
    for item in items:
        (kept if (item.get_closest_marker("long") is not None) == is_long else left_out).append(
            item
        )
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = kept
