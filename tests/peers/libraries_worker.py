"""Runs one group of ``libraries`` through one door, in a process of its own.

As a program: ``python libraries_worker.py GROUP DOOR PLUGIN RESULTS SKIP``, as ``processes`` starts
it.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))
# Last, so that nothing there takes the place of what the package under test brings.
sys.path.append(str(Path(sys.prefix) / "peers"))
os.environ.update(HF_HUB_OFFLINE="1", MPLBACKEND="agg", WANDB_MODE="disabled")
from peers import case_worker
from peers.libraries import GROUPS

if __name__ == "__main__":
    case_worker.main(GROUPS)
