"""How a worker process tells what each of its tests did: one JSON object a line, written at once.

``{"begin": id}`` before a test and ``{"end": id, "outcome": …, "detail": …}`` behind it, so that a
process that dies leaves the name of the test that killed it; ``{"finished": true}`` at the end, or
``{"skipped": reason}`` where nothing runs here.
"""

from __future__ import annotations

import ctypes
import faulthandler
import json
import signal
from typing import TextIO

TEST_SECONDS = 600.0  # of one test: far more than any takes on a busy machine

PASSED, SKIPPED, FAILED, ERROR = "passed", "skipped", "failed", "error"


PR_SET_PDEATHSIG = 1  # <linux/prctl.h>


class ResultFile:
    def __init__(self, file: TextIO) -> None:
        """The process ends with the one that started it, which nobody reads its results for then."""
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        self._file = file

    def _write(self, **what: object) -> None:
        self._file.write(json.dumps(what) + "\n")
        self._file.flush()

    def begin(self, test: str) -> None:
        """A test that does not end is shown with its stack, and ends the process."""
        self._write(begin=test)
        faulthandler.dump_traceback_later(TEST_SECONDS, exit=True)

    def end(self, test: str, outcome: str, detail: str = "") -> None:
        faulthandler.cancel_dump_traceback_later()
        self._write(end=test, outcome=outcome, detail=detail[-3000:])

    def skip_all(self, reason: str) -> None:
        self._write(skipped=reason)

    def finish(self) -> None:
        self._write(finished=True)
