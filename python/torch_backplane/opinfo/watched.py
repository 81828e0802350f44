"""Kernels of plugin:opencl under oclgrind, which sees accesses outside of buffers and data races."""

from __future__ import annotations

import os
import pathlib

DRIVER = "liboclgrind-rt-icd.so"
PLACES = ("/usr/lib/oclgrind", "/usr/lib/*/oclgrind", "/usr/local/lib/oclgrind")
_FOLDER = "BACKPLANE_OPINFO_WATCHED"


class WatcherMissing(Exception):
    pass


def begin(folder: pathlib.Path) -> None:
    """From now on the one OpenCL driver of this process and its children is oclgrind's."""
    found = [file for place in PLACES for file in pathlib.Path("/").glob(f"{place[1:]}/{DRIVER}")]
    if not found:
        raise WatcherMissing(f"{DRIVER} is not in {', '.join(PLACES)}; Debian: oclgrind")
    (folder / "oclgrind.icd").write_text(f"{found[0]}\n")
    os.environ.update(
        {
            _FOLDER: str(folder),
            "OCL_ICD_VENDORS": f"{folder}/",
            "BACKPLANE_OPENCL_DEVICE": "Oclgrind",
            "BACKPLANE_CACHE": "0",
            "OCLGRIND_DATA_RACES": "1",
            # It cannot run what its compiler's optimiser makes of min, max and abs.
            "OCLGRIND_BUILD_OPTIONS": "-cl-opt-disable",
        }
    )


def begin_process() -> None:
    """In each worker, before it loads the driver: a log of its own."""
    if _FOLDER in os.environ:
        os.environ["OCLGRIND_LOG"] = f"{os.environ[_FOLDER]}/{os.getpid()}.log"


def findings(folder: pathlib.Path) -> str:
    return "".join(file.read_text(errors="replace") for file in sorted(folder.glob("*.log")))
