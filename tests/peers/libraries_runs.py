"""Packages that others wrote, through the front end of its own and through ``torch.compile``.

As a program: ``python -m peers.libraries_runs [GROUP…] [--door own|torch] [--plugin NAME]
[--only PATTERN] [--jobs N] [--json FILE]``. They are those of ``requirements/peers.txt``, in the
folder ``peers`` of the environment. A case that differs from eager, kills its process or does not end
is a finding, unless ``libraries_exceptions.toml`` lists it with a reason.
"""

from __future__ import annotations

import sys

from peers import case_runs
from peers.libraries import GROUPS

WAYS = [("own", "eager"), ("own", "cpu_onednn"), ("torch", "cpu_onednn")]


def main() -> int:
    return case_runs.main(
        __doc__.split("\n")[0],
        case_runs.in_worker("libraries_worker.py"),
        list(GROUPS),
        WAYS,
        "libraries",
    )


if __name__ == "__main__":
    sys.exit(main())
