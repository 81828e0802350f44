"""Programs in processes of their own that need not import PyTorch first: one process has, and forks.
Importing torch and torch._dynamo takes longer than most programs."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

SERVER = Path(__file__).parent / "prepared_server.py"
# Read by the interpreter, the loader and what it loads first, or what torch brings, when they start.
READ_EARLY = (
    "PYTHON", "LD_", "OMP_", "GOMP_", "KMP_", "MKL_", "OPENBLAS_", "MALLOC_", "GLIBC_", "ONEDNN_",
    "DNNL_", "ATEN_", "TORCH", "PYTORCH_", "ASAN_", "UBSAN_", "LSAN_", "TSAN_", "LC_", "LANG",
    "BACKPLANE_MASKED_CPU",
)  # fmt: skip


def read_early(environment: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in environment.items() if name.startswith(READ_EARLY)}


class Server:
    """The process that forks; one program at a time."""

    def __init__(self) -> None:
        requests_here, replies_here = os.pipe(), os.pipe()
        there = (requests_here[0], replies_here[1])
        self.environment = read_early(os.environ)
        self.process = subprocess.Popen(
            [sys.executable, str(SERVER), *map(str, there)],
            pass_fds=there,
            stdin=subprocess.DEVNULL,
        )
        for fd in there:
            os.close(fd)
        self.requests = os.fdopen(requests_here[1], "w")
        self.replies = os.fdopen(replies_here[0], "r")
        self.answer()

    def answer(self) -> int:
        line = self.replies.readline()
        if not line:
            raise RuntimeError(f"{SERVER} ended: {self.process.wait()}")
        return int(line)

    def run(
        self,
        arguments: Sequence[str],
        environment: Mapping[str, str],
        folder: str,
        watch: Callable[[int], None],
    ) -> subprocess.CompletedProcess[str]:
        """``watch`` is told the process, which leads a session of its own, every two seconds."""
        with tempfile.TemporaryDirectory(prefix="backplane-test-") as scratch:
            out, err = Path(scratch) / "out", Path(scratch) / "err"
            request = {
                "arguments": arguments,
                "environment": dict(environment),
                "folder": folder,
                "out": str(out),
                "err": str(err),
            }
            print(json.dumps(request), file=self.requests, flush=True)
            pid = self.answer()
            while not select.select([self.replies], [], [], 2.0)[0]:
                watch(pid)
            code = self.answer()
            return subprocess.CompletedProcess(
                [sys.executable, *arguments], code, out.read_text(), err.read_text()
            )


_server: Server | None = None


def takes(command: Sequence[str], environment: Mapping[str, str]) -> bool:
    """Whether the program would see the same in a fork."""
    return (
        command[0] == sys.executable
        and (command[1] in ("-c", "-m") or command[1].endswith(".py"))
        and read_early(environment) == read_early(os.environ)
    )


def run(
    command: Sequence[str],
    environment: Mapping[str, str],
    folder: str,
    watch: Callable[[int], None],
) -> subprocess.CompletedProcess[str]:
    global _server
    if _server is None or _server.environment != read_early(environment):
        _server = Server()
    return _server.run(command[1:], environment, folder, watch)
