"""Loads plugins in a process of its own, which may crash or hang in their place.

``python -m torch_backplane.probe load NAME...`` prints a line of JSON before and after each; ``touch``
also works with each of their devices.
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
import time
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


def _lines(what: str, names: Sequence[str]) -> Iterator[dict[str, Any]]:
    from torch_backplane import _C, plugin_search

    plugin_search.plugins()
    for name in names:
        yield {"begins": name}
        try:
            answer = {"info": _C.plugin_info(name)}
        except _C.StatusError as error:
            answer = {"error": error.args[1]}
        yield {"name": name, "openmp": openmp_runtimes(), **answer}
        for index, device in enumerate(answer.get("info", {}).get("devices", [])):
            if what != "touch":
                break
            yield {"begins": device["label"]}
            yield {"name": device["label"], "openmp": [], **_touch(name, index)}


def _touch(plugin: str, index: int) -> dict[str, Any]:
    """Allocates on a device, copies there and back, and runs a graph of two nodes."""
    import torch

    from torch_backplane import frames, torch_device
    from torch_backplane.account import FrameAccount
    from torch_backplane.options import Options

    begin = time.perf_counter()
    x = torch.arange(1024.0)
    try:
        there = x.to(torch_device.device(plugin, index))
        if not torch.equal(there.cpu(), x):
            return {"error": "4096 bytes that were copied there came back as others"}
        graph = torch.fx.symbolic_trace(lambda a, b: (a + b) * a)
        account = FrameAccount(plugin, Options.parse({"device": index, "report": False}))
        recorded = frames.RecordedFrame(account, graph, [x, x])
        found = recorded(x, x)
        found = found[0] if isinstance(found, (tuple, list)) else found
        if not torch.equal(found, (x + x) * x):
            return {"error": "a graph of a sum and a product gave a wrong result"}
        nodes = sum(stage.report()["plugin_nodes"] for stage in recorded.stages)
    except Exception as error:  # whatever the plugin makes of it is what is asked for
        return {"error": str(error).splitlines()[0]}
    ms = (time.perf_counter() - begin) * 1e3
    ran = "a graph of two nodes ran there" if nodes == 2 else f"of two nodes it took {nodes}"
    return {"text": f"4096 bytes went there and back, {ran}, {ms:.0f} ms"}


def _ended(process: subprocess.Popen[str], said: str) -> str:
    """How the process ended, in the plugin's own last words where it had some."""
    words = [line for line in said.splitlines() if line.startswith(LAST_WORDS)]
    if words:
        return words[-1].removeprefix("backplane: ")
    code = process.returncode
    how = signal.Signals(-code).name if code < 0 else f"exit status {code}"
    return f"the process that loaded it ended: {how}"


def _some(what: str, names: Sequence[str]) -> Iterator[tuple[str, dict[str, Any]]]:
    """What a process says of them, up to the first that ends it."""
    process = subprocess.Popen(
        [sys.executable, "-m", "torch_backplane.probe", what, *names],
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
        doing = "still loading" if current in names else "still at work"
        yield current, _failed(f"it did not answer within {SILENT_SECONDS:.0f} s; {doing}")
        return
    process.wait()
    readers[1].join(timeout=5)
    if process.returncode != 0 and current:
        yield current, _failed(_ended(process, "".join(said)))


def _failed(why: str) -> dict[str, Any]:
    return {"error": why, "openmp": []}


def probe(names: Sequence[str], what: str = "load") -> dict[str, dict[str, Any]]:
    """By name: ``info`` as ``_C.plugin_info`` gives it, or the ``error`` why not; and the runtime
    libraries of OpenMP (``openmp``) that its process had loaded then. With ``what`` "touch" also by
    device ("acme:0"): ``text``, or the ``error``; devices behind one that ended the process are left
    out."""
    found: dict[str, dict[str, Any]] = {}
    while left := [name for name in names if name not in found]:
        before = len(found)
        found.update(_some(what, left))
        if len(found) == before:  # the process itself does not start
            found.update(dict.fromkeys(left, _failed("the process that loads it does not start")))
    return found


if __name__ == "__main__":
    for answer in _lines(sys.argv[1], sys.argv[2:]):
        print(json.dumps(answer), flush=True)
