"""Runs one suite of ``torch_suites`` through one door, in a process of its own.

As a program: ``python torch_worker.py SUITE DOOR PLUGIN RESULTS SKIP``, as ``processes`` starts it.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))
from peers import case_worker
from peers.torch_suites import SUITES

if __name__ == "__main__":
    case_worker.main(SUITES)
