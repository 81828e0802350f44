"""CPython's own tests, each test method called through ``torch_backplane.compile``.

As a program: ``python -m peers.cpython [MODULE…] [--jobs N] [--json FILE]``. What may differ from the
plain run stands in ``cpython_exceptions.toml``, each with its reason.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from peers import compared, exceptions, processes

HERE = Path(__file__).parent


def run(module: str, how: str) -> processes.Outcomes:
    return processes.run([sys.executable, str(HERE / "cpython_worker.py"), module, how])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    compared.add_arguments(parser)
    given = parser.parse_args()
    allowed = exceptions.read("cpython")
    names = given.modules or compared.read_modules("cpython")
    return compared.report_on(given, run, names, allowed, ("plain", "captured"))


if __name__ == "__main__":
    sys.exit(main())
