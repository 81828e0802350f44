#!/usr/bin/env python3
"""Check that every lock of core has a decision for fork(): core/base/fork.h says which there are.

A lock that is made by fork_mutex, given to hold_over_fork in its file, or a LongMutex has one. Each
other mutex, condition variable and once_flag stands here with the reason why a child of fork() does
not need it. Exit status 0: all is well; 1: a lock without a decision, or a decision without a lock.
"""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path

DEVICE = "of an object whose calls ask first whether this process opened the device"
WORKER = "of backplane-worker, which does not fork"
TORCH_DEVICE = "of the torch device, which a child is refused before it takes the lock"
HELD_MUTEX = "waits with a lock that is held over fork(), and is made anew in the child"
# Held for a few instructions, never over foreign code. Calls ask first whether this process opened
# the program's devices; a child of a moment like that waits where there are none.
PROGRAM = "of one compiled program, held for moments"

REASONS = {
    "core/runtime/isolate/forwarded.h: mutex": DEVICE,
    "core/runtime/isolate/forwarded.h: opened": DEVICE,
    "core/runtime/isolate/forwarded_executables.cpp: mutex": DEVICE,
    "core/runtime/isolate/isolated_plugin.h: mutex_": DEVICE,
    "core/runtime/isolate/isolated_plugin.h: started_": DEVICE,
    "core/runtime/isolate/shared_memory.h: mutex_": DEVICE,
    "core/runtime/isolate/worker_process.h: mutex_": DEVICE,
    "core/runtime/plan/call_frame.h: mutex_": DEVICE,
    "core/runtime/plan/compiled_graph.h: mutex_": DEVICE,
    "core/runtime/plugin/compile_faults.h: mutex_": DEVICE,
    "core/runtime/plugin/device.h: call_mutex_": DEVICE,
    "core/runtime/plugin/device.h: queue_mutex_": DEVICE,
    "core/runtime/plugin/device.h: trim_mutex_": DEVICE,
    "core/runtime/plugin/device_queue.h: mutex_": DEVICE,
    "core/runtime/plugin/executable.h: one_call_": DEVICE,
    "core/runtime/plugin/live_handles.h: mutex_": DEVICE,
    "core/runtime/plugin/plugin.h: mutex_": DEVICE,
    "core/runtime/plugin/plugin.h: opened_": DEVICE,
    "core/runtime/plugin/registry.cpp: loaded": HELD_MUTEX,
    "core/runtime/plugin/trace.cpp: idle": HELD_MUTEX,
    "core/runtime/worker/server.cpp: mutex": WORKER,
    "core/runtime/worker/server.cpp: mutex_": WORKER,
    "core/runtime/worker/thread_pool.cpp: begun_": WORKER,
    "core/runtime/worker/thread_pool.cpp: busy_": WORKER,
    "core/runtime/worker/thread_pool.cpp: ended_": WORKER,
    "core/runtime/worker/thread_pool.cpp: mutex_": WORKER,
    "core/torch/autograd/joint_node.h: mutex_": "of one backward, held while it notes what it reads",
    "core/torch/bridge/memory_meter.cpp: mutex_": "of one measurement, which ends in its process",
    "core/torch/compiler/compiled_function.h: mutex_": PROGRAM,
    "core/torch/compiler/cut_entry.h: mutex_": PROGRAM,
    "core/torch/compiler/recorded_function.h: mutex_": PROGRAM,
    "core/torch/compiler/substitutes.h: mutex_": PROGRAM,
    "core/torch/compiler/verification.h: mutex_": PROGRAM,
    "core/torch/device/eager.cpp: once_": TORCH_DEVICE,
    "core/torch/device/generator.cpp: mutex": TORCH_DEVICE,
    "core/torch/device/operation.cpp: mutex": TORCH_DEVICE,
    "core/torch/device/pool.h: mutex_": TORCH_DEVICE,
}

_LOCK = r"(?:std::(?:\w+_)?mutex|std::condition_variable(?:_any)?|std::once_flag|pthread_mutex_t)"
_DECLARATION = re.compile(rf"(?<![<\w]){_LOCK}\s+(?P<names>\w+(?:\s*,\s*\w+)*)\s*[;={{]")
_POINTER = re.compile(rf"_ptr<{_LOCK}>\s+(?P<name>\w+)\s*[;=]")
_NEW = re.compile(rf"(?P<name>\w+)\s*[=(]\s*\*?\s*new\s+{_LOCK}")
# Of a container, or of anything else that is neither a guard nor a parameter.
_OTHER = re.compile(
    rf"(?<!_lock)(?<!_guard)(?<!_ptr)(?<!_mutex)<{_LOCK}\b[^;]*?(?P<name>\w+)\s*[;={{]"
)
_HELD = re.compile(r"hold_over_fork\(\s*(?P<argument>[^,]+),")
_SKIPPED = ("core/torch/testing/", "core/runtime/testing/", "core/base/fork.")


def without_comments(text: str) -> str:
    return re.sub(r"//[^\n]*", "", text)


def locks_of(text: str) -> list[str]:
    """The names of locks in a source that have no decision by how they are made."""
    text = without_comments(text)
    held = {re.split(r"[.>*]", one["argument"].strip())[-1] for one in _HELD.finditer(text)}
    found = [one["name"] for kind in (_POINTER, _NEW, _OTHER) for one in kind.finditer(text)]
    for one in _DECLARATION.finditer(text):
        found += [name.strip() for name in one["names"].split(",")]
    return sorted(set(found) - held)


def check(root: Path, reasons: dict[str, str]) -> list[str]:
    found = set()
    for path in sorted([*root.glob("core/**/*.h"), *root.glob("core/**/*.cpp")]):
        name = path.relative_to(root).as_posix()
        if name.startswith(_SKIPPED) or name.endswith("_test.cpp"):
            continue
        found |= {f"{name}: {lock}" for lock in locks_of(path.read_text())}
    new = [
        f"{one}: what becomes of it in a child of fork()?" for one in sorted(found - set(reasons))
    ]
    return new + [f"{one}: there is no such lock" for one in sorted(set(reasons) - found)]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--root", type=Path, default=Path(__file__).resolve().parents[1])
    violations = check(parser.parse_args().root, REASONS)
    print("\n".join(violations), end="\n" if violations else "")
    if violations:
        print("core/base/fork.h has the three answers; scripts/check_locks.py takes the reasons")
    return 1 if violations else 0


if __name__ == "__main__":
    sys.exit(main())
