#!/usr/bin/env python3
"""Builds a plugin as a vendor did at an earlier commit, for tests/abi: ``make_abi_binary.py COMMIT
SOURCE FILE``, where SOURCE is a path in that commit (one file of C or C++) and FILE what to write.

The same compiler makes the same bytes: no build id, no paths, no dates.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

FLAGS = [
    "-Os",
    "-fPIC",
    "-shared",
    "-fvisibility=hidden",
    "-DNDEBUG",
    "-s",
    "-Wl,--build-id=none",
    "-Wl,-z,nodelete",
    "-Wl,-z,defs",
]
CXX_FLAGS = ["-std=c++20", "-fvisibility-inlines-hidden", "-fno-gnu-unique", "-fwrapv"]


def main() -> None:
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    commit, source, target = sys.argv[1:]
    root = Path(__file__).resolve().parent.parent
    with tempfile.TemporaryDirectory() as folder:
        tree = subprocess.run(
            ["git", "archive", commit, "plugin_api", "sdk", "cmake", source],
            cwd=root,
            check=True,
            stdout=subprocess.PIPE,
        ).stdout
        subprocess.run(["tar", "x", "-C", folder], input=tree, check=True)
        is_c = source.endswith(".c")
        subprocess.run(
            [
                os.environ.get("CC", "gcc") if is_c else os.environ.get("CXX", "g++"),
                *(["-std=c11"] if is_c else CXX_FLAGS),
                *FLAGS,
                f"-ffile-prefix-map={folder}=.",
                f"-I{folder}/plugin_api/include",
                f"-I{folder}/sdk/include",
                f"-Wl,--version-script={folder}/cmake/backplane_plugin.map",
                f"{folder}/{source}",
                "-o",
                target,
            ],
            check=True,
        )


if __name__ == "__main__":
    main()
