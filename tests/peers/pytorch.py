"""PyTorch's own unit tests, each test method captured by one of the doors, or on the device.

As a program: ``python -m peers.pytorch --checkout FOLDER [FILE…] [--door own|torch|device] [--plugin
NAME] [--jobs N] [--json FILE]``, with a checkout of https://github.com/pytorch/pytorch at the release that is
installed; FILE is a path below its folder ``test`` without ``.py``, or a pattern. The plain run of
``torch.compile``'s door is that of its back end ``eager``; by ``device`` the tests that are written
for any device run on the ``backplane`` device, beside the CPU. What may differ stands in
``pytorch_exceptions.toml``, each with its reason.
"""

from __future__ import annotations

import argparse
import fnmatch
import sys
from pathlib import Path

from peers import compared, exceptions, processes

HERE = Path(__file__).parent


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    compared.add_arguments(parser)
    parser.add_argument("--checkout", type=Path)
    parser.add_argument("--door", choices=["own", "torch", "device"], default="own")
    parser.add_argument("--plugin", default="cpu_onednn")
    given = parser.parse_args()
    folder = given.checkout / "test" if given.checkout else Path()
    files = {str(p.relative_to(folder).with_suffix("")): p for p in folder.rglob("test_*.py")}
    wanted = given.modules or compared.read_modules("pytorch")
    names = [name for name in sorted(files) if any(fnmatch.fnmatchcase(name, w) for w in wanted)]
    if given.checkout is None or not names:
        print(
            "--checkout FOLDER is to be a checkout of https://github.com/pytorch/pytorch, which has "
            f"files test/test_*.py; found none that is asked for in {given.checkout}",
            file=sys.stderr,
        )
        return 2

    def run(module: str, how: str) -> processes.Outcomes:
        worker = str(HERE / "pytorch_worker.py")
        return processes.run([sys.executable, worker, str(files[module]), how])

    plain = "torch:eager" if given.door == "torch" else "plain"
    hows = (plain, f"{given.door}:plugin:{given.plugin}")
    suite = "pytorch_device" if given.door == "device" else "pytorch"
    allowed = exceptions.read(suite)
    # Tests that are written for other devices alone are left out on this one.
    return compared.report_on(given, run, names, allowed, hows, given.door == "device")


if __name__ == "__main__":
    sys.exit(main())
