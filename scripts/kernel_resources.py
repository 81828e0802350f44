#!/usr/bin/env python3
"""What NVIDIA's assembler says of generated kernels: registers, shared memory, spills. Fails where a kernel
spills or keeps arrays in local memory, or where there are none.

The log is what the emulated driver writes to BACKPLANE_EMULATED_NVRTC_LOG (plugins/cuda/README.md).
"""

from __future__ import annotations

import argparse
import pathlib
import re
import sys

ENTRY = re.compile(
    r"Compiling entry function '(?P<name>\w+)' for '(?P<architecture>\w+)'.*?"
    r"(?P<stack>\d+) bytes stack frame, (?P<stores>\d+) bytes spill stores, (?P<loads>\d+) bytes spill loads"
    r".*?Used (?P<registers>\d+) registers(?:[^\n]*?(?P<shared>\d+) bytes smem)?[^\n]*",
    re.DOTALL,
)
# Kernels that keep tiles in shared memory keep sums in registers: few of their blocks run side by side anyway.
TILES_BYTES, TILES_REGISTERS = 8192, 255
# CUDA's sine, cosine and tangent of float keep an array of seven words for huge numbers.
STACK_LIMIT = 32


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("log", type=pathlib.Path)
    parser.add_argument("--registers", type=int, default=128, help="the most a kernel may use")
    options = parser.parse_args()
    kernels: dict[tuple[str, str], dict[str, int]] = {}
    for found in ENTRY.finditer(options.log.read_text(errors="replace")):
        numbers = ("stack", "stores", "loads", "registers", "shared")
        kernels[found["architecture"], found["name"]] = {k: int(found[k] or 0) for k in numbers}
    if not kernels:
        print(f"{options.log} names no kernel")
        return 1
    print("| architecture | kernels | registers: median, most | shared memory, most | spill |")
    print("|---|---|---|---|---|")
    bad: list[str] = []
    for architecture in sorted({a for a, _ in kernels}):
        own = {n: k for (a, n), k in kernels.items() if a == architecture}
        registers = sorted(k["registers"] for k in own.values())
        spilling = [
            n for n, k in own.items() if k["stores"] or k["loads"] or k["stack"] > STACK_LIMIT
        ]
        large = [
            n
            for n, k in own.items()
            if k["registers"]
            > (TILES_REGISTERS if k["shared"] >= TILES_BYTES else options.registers)
        ]
        print(
            f"| {architecture} | {len(own)} | {registers[len(registers) // 2]}, {registers[-1]} "
            f"| {max(k['shared'] for k in own.values())} | {len(spilling)} |"
        )
        bad += [f"{architecture}: {n} spills: {own[n]}" for n in spilling]
        bad += [f"{architecture}: {n} takes too many registers: {own[n]}" for n in large]
    print("\n".join(bad))
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
