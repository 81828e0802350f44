"""Other processes, waited for as long as they work: on a busy machine that may be long."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import prepared

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


class Watch:
    """Ends a session that does nothing for STALLED_SECONDS, or uses more than so much processor
    time, in seconds."""

    def __init__(self, cpu_seconds: float) -> None:
        self.most = cpu_seconds
        self.last, self.since = -1.0, time.monotonic()
        self.why = ""

    def __call__(self, session: int) -> None:
        used = cpu_seconds_of(session)
        if used != self.last:
            self.last, self.since = used, time.monotonic()
        stalled = time.monotonic() - self.since
        if used > self.most or stalled > STALLED_SECONDS:
            self.why = (
                f"was ended: it had used {used:.0f} s of processor time, and none for "
                f"{stalled:.0f} s"
            )
            os.killpg(session, signal.SIGKILL)


def run(
    command: Sequence[str],
    *,
    cpu_seconds: float = 1800.0,
    env: Mapping[str, str] | None = None,
    cwd: str | os.PathLike[str] | None = None,
    fresh: bool = False,
) -> subprocess.CompletedProcess[str]:
    """subprocess.run with the output as text, under a Watch. A program (`-c`, `-m`, a file) of this
    Python comes from a process that has imported torch and torch._dynamo, unless it is ``fresh``."""
    watch = Watch(cpu_seconds)
    environment = os.environ if env is None else env
    if not fresh and prepared.takes(command, environment):
        done = prepared.run(command, environment, str(cwd or Path.cwd()), watch)
    else:
        process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            env=environment,
            cwd=cwd,
        )
        while True:
            try:
                out, err = process.communicate(timeout=2)
                break
            except subprocess.TimeoutExpired:
                watch(process.pid)
        done = subprocess.CompletedProcess(command, process.returncode, out, err)
    if watch.why:
        raise TimeoutError(f"{command} {watch.why}\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}")
    return done
