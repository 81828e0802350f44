"""Other processes, waited for as long as they work: on a busy machine that may be long."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

TICKS = os.sysconf("SC_CLK_TCK")
STALLED_SECONDS = 180.0


def cpu_seconds_of(session: int) -> float:
    """What the processes of a session have used so far, ended children included."""
    ticks = 0
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            # After the name, which may hold anything: state, parent, group, session ...
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
        except OSError:  # it has ended
            continue
        if int(fields[3]) == session:
            ticks += sum(int(field) for field in fields[11:15])
    return ticks / TICKS


def run(
    command: Sequence[str], *, cpu_seconds: float = 1800.0, **settings: Any
) -> subprocess.CompletedProcess[str]:
    """subprocess.run with the output as text, which gives up on a process that does nothing for
    STALLED_SECONDS, or uses more than `cpu_seconds` of processor time."""
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        **settings,
    )
    last, since = -1.0, time.monotonic()
    while True:
        try:
            out, err = process.communicate(timeout=2)
            return subprocess.CompletedProcess(command, process.returncode, out, err)
        except subprocess.TimeoutExpired:
            used = cpu_seconds_of(process.pid)
        if used != last:
            last, since = used, time.monotonic()
        stalled = time.monotonic() - since
        if used > cpu_seconds or stalled > STALLED_SECONDS:
            os.killpg(process.pid, signal.SIGKILL)
            out, err = process.communicate()
            raise TimeoutError(
                f"{command} was ended: it had used {used:.0f} s of processor time, and none for "
                f"{stalled:.0f} s\n{out[-4000:]}\n{err[-4000:]}"
            )
