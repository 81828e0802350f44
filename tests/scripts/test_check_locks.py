"""A lock that nobody decided about fails the check, whatever it is declared as."""

import importlib.util
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
_spec = importlib.util.spec_from_file_location("check_locks", ROOT / "scripts/check_locks.py")
check_locks = importlib.util.module_from_spec(_spec)
sys.modules["check_locks"] = check_locks
_spec.loader.exec_module(check_locks)


def test_this_tree_holds():
    assert check_locks.check(ROOT, check_locks.REASONS) == []


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("std::mutex mutex_;  // guards what follows", ["mutex_"]),
        ("static std::shared_mutex lock;", ["lock"]),
        ("mutable std::recursive_mutex a, b;", ["a", "b"]),
        ("std::condition_variable begun_, ended_;", ["begun_", "ended_"]),
        ("static std::once_flag once;", ["once"]),
        ("pthread_mutex_t one = PTHREAD_MUTEX_INITIALIZER;", ["one"]),
        ("static auto* const mutex = new std::mutex;", ["mutex"]),
        ("static auto& mutex(*new std::mutex);", ["mutex"]),
        ("std::unique_ptr<std::mutex> one_call_;", ["one_call_"]),
        ("std::array<std::mutex, 4> stripes_;", ["stripes_"]),
        ("std::mutex& mutex = fork_mutex();", []),
        ("std::mutex mutex;\nhold_over_fork(made->mutex, ForkRank::kLeaf);", []),
        ("LongMutex adding_;", []),
        ("// std::mutex mutex_;", []),
        ("std::unique_lock<std::mutex> lock(mutex_);", []),
        ("std::mutex& mutex() { return table().mutex; }", []),
    ],
)
def test_what_is_found(text, names):
    assert check_locks.locks_of(text) == names


def test_a_new_lock_and_a_forgotten_row(tmp_path):
    source = tmp_path / "core/base/new.h"
    source.parent.mkdir(parents=True)
    source.write_text("std::mutex mutex_;\n")
    violations = check_locks.check(tmp_path, {"core/base/old.h: mutex_": "a reason"})
    assert violations == [
        "core/base/new.h: mutex_: what becomes of it in a child of fork()?",
        "core/base/old.h: mutex_: there is no such lock",
    ]
