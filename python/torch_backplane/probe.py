"""Loads plugins in a process of its own, which may crash or hang in their place.

``python -m torch_backplane.probe NAME...`` prints a line of JSON before and after each.
"""

from __future__ import annotations

import json
import os
import queue
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from typing import Any

SILENT_SECONDS = 60.0  # of one plugin
OPENMP_LIBRARY = re.compile(r"/(lib(?:gomp|iomp5|omp)\b[^/]*?)(?:-[0-9a-f]{8,})?\.so[^/]*$")
LAST_WORDS = "backplane: SIG"


def openmp_runtimes() -> list[str]:
    """The OpenMP runtime libraries that this process has loaded. Two of them share no threads."""
    paths = set()
    with open("/proc/self/maps", encoding="utf-8", errors="replace") as maps:
        for line in maps:
            path = line.split(maxsplit=5)[-1].strip()
            if OPENMP_LIBRARY.search(path):
                paths.add(os.path.realpath(path))
    return sorted(paths)


def _lines(names: Sequence[str]) -> Iterator[dict[str, Any]]:
    from torch_backplane import _C, plugin_search

    plugin_search.plugins()
    for name in names:
        yield {"begins": name}
        try:
            answer = {"info": _C.plugin_info(name)}
        except _C.StatusError as error:
            answer = {"error": error.args[1]}
        yield {"name": name, "openmp": openmp_runtimes(), **answer}


def _ended(process: subprocess.Popen[str], said: str) -> str:
    """How the process ended, in the plugin's own last words where it had some."""
    words = [line for line in said.splitlines() if line.startswith(LAST_WORDS)]
    if words:
        return words[-1].removeprefix("backplane: ")
    code = process.returncode
    how = signal.Signals(-code).name if code < 0 else f"exit status {code}"
    return f"the process that loaded it ended: {how}"


def _some(names: Sequence[str]) -> Iterator[tuple[str, dict[str, Any]]]:
    """What a process says of them, up to the first that ends it."""
    process = subprocess.Popen(
        [sys.executable, "-m", "torch_backplane.probe", *names],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "BACKPLANE_QUIET": "1"},
    )
    assert process.stdout is not None and process.stderr is not None
    said: list[str] = []
    lines: queue.Queue[str] = queue.Queue()

    def read() -> None:
        for line in process.stdout or ():
            lines.put(line)
        lines.put("")

    readers = [
        threading.Thread(target=read, daemon=True),
        threading.Thread(target=lambda: said.extend(process.stderr or ()), daemon=True),
    ]
    for reader in readers:
        reader.start()
    current = names[0]
    try:
        while line := lines.get(timeout=SILENT_SECONDS):
            one = json.loads(line)
            if "begins" in one:
                current = one["begins"]
                continue
            yield one.pop("name"), one
            current = ""
    except queue.Empty:
        process.kill()
        process.wait()
        yield current, _failed(f"it did not answer within {SILENT_SECONDS:.0f} s; still loading")
        return
    process.wait()
    readers[1].join(timeout=5)
    if process.returncode != 0 and current:
        yield current, _failed(_ended(process, "".join(said)))


def _failed(why: str) -> dict[str, Any]:
    return {"error": why, "openmp": []}


def probe(names: Sequence[str]) -> dict[str, dict[str, Any]]:
    """By name: ``info`` as ``_C.plugin_info`` gives it, or the ``error`` why not; and the runtime
    libraries of OpenMP (``openmp``) that its process had loaded then."""
    found: dict[str, dict[str, Any]] = {}
    while left := [name for name in names if name not in found]:
        before = len(found)
        found.update(_some(left))
        if len(found) == before:  # the process itself does not start
            found.update(dict.fromkeys(left, _failed("the process that loads it does not start")))
    return found


if __name__ == "__main__":
    for answer in _lines(sys.argv[1:]):
        print(json.dumps(answer), flush=True)
