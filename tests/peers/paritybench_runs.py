"""Modules of public projects, collected in ``pytorch-jit-paritybench``, through both doors.

As a program: ``python -m peers.paritybench_runs --checkout FOLDER [FILE…] [--door own|torch]
[--plugin NAME] [--only PATTERN] [--jobs N] [--json FILE]``, with a checkout of
https://github.com/jansel/pytorch-jit-paritybench; FILE is the name of a file in its folder
``generated`` without ``test_`` and ``.py``, or a pattern. A case that differs from eager, kills its
process or does not end is a finding, unless ``paritybench_exceptions.toml`` lists it with a reason.
"""

from __future__ import annotations

import argparse
import faulthandler
import multiprocessing
import os
import sys
import tempfile
import warnings
from collections.abc import Collection
from pathlib import Path

from peers import case_runs, processes

WAYS = [("own", "cpu_onednn"), ("torch", "cpu_onednn"), ("own", "opencl"), ("torch", "opencl")]
MOST_DEATHS = 5  # of one file's processes
FILE_SECONDS = 900.0


def work(
    path: Path, door: str, plugin: str, only: str, folder: Path, skipped: Collection[str]
) -> None:
    """In a process of its own, which has imported PyTorch already."""
    from peers import case_worker, paritybench
    from peers.results import ResultFile
    from peers.torch_suites import Door

    said = os.open(folder / "said", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(said, 1)
    os.dup2(said, 2)
    os.chdir(folder)
    faulthandler.enable(sys.__stderr__)
    warnings.simplefilter("ignore")
    paritybench.torch.set_num_threads(1)
    with (folder / "results.jsonl").open("w") as file:
        results = ResultFile(file)
        try:
            cases = [*paritybench.cases(path)]
        except Exception as error:
            results.skip_all(f"{type(error).__name__}: {error}")
            return
        case_worker.run_cases(cases, Door(door, plugin), results, only, skipped)
        results.finish()


def run(path: Path, door: str, plugin: str, only: str) -> processes.Outcomes:
    out = processes.Outcomes()
    for _ in range(MOST_DEATHS):
        with tempfile.TemporaryDirectory(prefix="backplane-peers-") as name:
            folder = Path(name)
            process = multiprocessing.get_context("forkserver").Process(
                target=work, args=(path, door, plugin, only, folder, [*out.of])
            )
            process.start()
            process.join(FILE_SECONDS)
            code = process.exitcode
            process.kill()
            process.join()
            said = folder / "said"
            tail = said.read_text(errors="replace")[-3000:] if said.exists() else ""
            if processes.read(folder / "results.jsonl", code, tail, out):
                return out
    out.trouble = f"{MOST_DEATHS} processes died"
    return out


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0], add_help=False)
    parser.add_argument("--checkout", type=Path)
    given, rest = parser.parse_known_args()
    files: dict[str, Path] = {}
    if given.checkout is not None:
        files = {p.stem[5:]: p for p in sorted(given.checkout.glob("generated/test_*.py"))}
    if not files and not {"-h", "--help"} & {*rest}:
        print(
            "--checkout FOLDER is to be a checkout of "
            "https://github.com/jansel/pytorch-jit-paritybench, which has files generated/test_*.py; "
            f"found none in {given.checkout}",
            file=sys.stderr,
        )
        return 2
    os.environ.update(processes.environment())
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["peers.paritybench", "torch._dynamo", "torch_backplane"])
    return case_runs.main(
        __doc__.split("\n")[0],
        lambda file, *how: run(files[file], *how),
        [*files],
        WAYS,
        "paritybench",
        rest,
    )


if __name__ == "__main__":
    sys.exit(main())
