"""PyTorch's own databases of modules, optimizers, functions and examples through both doors.

As a program: ``python -m peers.torch_databases [SUITE…] [--door own|torch] [--plugin NAME]
[--only PATTERN] [--jobs N] [--json FILE]``. A case that differs from eager, kills its process or
does not end is a finding, unless ``torch_exceptions.toml`` lists it with a reason.
"""

from __future__ import annotations

import itertools
import sys

from peers import case_runs

SUITES = [
    "modules", "optimizers", "autograd_functions", "custom_operators", "higher_order_operators",
    "export_examples",
]  # fmt: skip
PLUGINS = ["cpu_onednn", "opencl"]


def main() -> int:
    return case_runs.main(
        __doc__.split("\n")[0],
        case_runs.in_worker("torch_worker.py"),
        SUITES,
        list(itertools.product(case_runs.DOORS, PLUGINS)),
        "torch",
    )


if __name__ == "__main__":
    sys.exit(main())
