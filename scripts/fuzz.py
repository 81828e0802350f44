#!/usr/bin/env python3
"""Random programs and graphs, compared with what plain Python and PyTorch make of them.

    scripts/fuzz.py programs --seed 1 --minutes 5 --out build/fuzz
    scripts/fuzz.py tensors --seed 1 --minutes 5
    scripts/fuzz.py graphs --plugin cpu_onednn --seed 1 --count 500
    scripts/fuzz.py sizes --plugin cpu_onednn --seed 1 --count 500

Exits with 1 when something was found. docs/fuzzing.md says how it works.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

LEVELS = {
    "sse41": ("SSE41", "default"),
    "avx2": ("AVX2", "avx2"),
    "avx512": ("AVX512_CORE", "avx512"),
}


CHECKED_MALLOC = "/usr/lib/x86_64-linux-gnu/libc_malloc_debug.so.0"


def arguments(argv: list[str] | None) -> argparse.Namespace:
    from fuzz import run

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    verbs = parser.add_subparsers(dest="what", required=True)
    programs = verbs.add_parser("programs", help="Python programs over objects from outside")
    run.add_arguments(programs)
    programs.add_argument("--backend", help="this one for all, instead of each program's own")
    programs.add_argument("--only", default="", help="kinds of objects, by commas (kinds.py)")
    tensors = verbs.add_parser("tensors", help="Python programs over tensors and gradients")
    run.add_arguments(tensors)
    tensors.add_argument("--backend", help="this one for all, instead of each program's own")
    tensors.add_argument(
        "--door", choices=("own", "torch"), default="own", help="torch: torch.compile"
    )
    backwards = verbs.add_parser("backwards", help="differentiable programs, stride by stride")
    run.add_arguments(backwards)
    backwards.add_argument("--door", choices=("own", "torch"), default="own")
    graphs = verbs.add_parser("graphs", help="graphs of operators on a plugin")
    run.add_arguments(graphs)
    sizes = verbs.add_parser("sizes", help="operators on a plugin at the sizes of real models")
    run.add_arguments(sizes)
    for one in (backwards, graphs, sizes):
        one.add_argument("--plugin", default="reference")
    for one in (graphs, sizes):
        one.add_argument("--isa", choices=LEVELS, help="the most that CPU kernels may use")
        one.add_argument("--check", action="store_true", help="with BACKPLANE_CHECK=memory")
    graphs.add_argument("--without", default="", help="operators to leave out, by commas")
    return parser.parse_args(argv)


def prepare_environment(argv: list[str]) -> None:
    """What has to stand before the interpreter or a library starts: it runs itself again."""
    wanted = {"PYTHONHASHSEED": "0", "BACKPLANE_QUIET": "1", "OMP_NUM_THREADS": "1"}
    wanted |= {"OMP_WAIT_POLICY": "PASSIVE", "BACKPLANE_CACHE": "0"}
    wanted |= {"BACKPLANE_QUARANTINE": "off"}  # it looks for crashes
    if "--isa" in argv and argv.index("--isa") + 1 < len(argv):
        level = argv[argv.index("--isa") + 1]
        if level in LEVELS:
            onednn, aten = LEVELS[level]
            wanted |= {"BACKPLANE_CPU_ISA": level, "ONEDNN_MAX_CPU_ISA": onednn}
            wanted["ATEN_CPU_CAPABILITY"] = aten
    if argv[:1] in (["graphs"], ["sizes"]):
        # New memory is full of 12689, in float32 and bfloat16: who reads it is seen.
        wanted["MALLOC_PERTURB_"] = str(0xFF ^ 0x46)
    if argv[:1] == ["graphs"] and Path(CHECKED_MALLOC).exists():
        # Who writes beyond a block dies at its end, not who takes the next one.
        loaded = [one for one in os.environ.get("LD_PRELOAD", "").split(":") if one]
        if CHECKED_MALLOC not in loaded:
            loaded.append(CHECKED_MALLOC)
        wanted |= {"LD_PRELOAD": ":".join(loaded), "MALLOC_CHECK_": "3"}
    if "--check" in argv:
        wanted["BACKPLANE_CHECK"] = "memory"
    if any(os.environ.get(name) != value for name, value in wanted.items()):
        os.environ |= wanted
        os.execv(sys.executable, [sys.executable, str(Path(__file__).resolve()), *argv])


def names(text: str) -> tuple[str, ...]:
    return tuple(filter(None, text.split(",")))


def main(argv: list[str] | None = None) -> int:
    options = arguments(argv)
    from fuzz import pool, run

    if options.what == "programs":
        from fuzz.program_fuzzer import make_fuzzer

        fuzzer = make_fuzzer(options.backend, names(options.only))
    elif options.what == "tensors":
        from fuzz.tensor_fuzzer import make_fuzzer

        fuzzer = make_fuzzer(options.backend, options.door)
    elif options.what == "backwards":
        from fuzz.backwards import make_fuzzer

        fuzzer = make_fuzzer(options.door, options.plugin)
    elif options.what == "sizes":
        from fuzz.size_fuzzer import make_fuzzer

        fuzzer = make_fuzzer(options.plugin)
    else:
        from fuzz.graph_fuzzer import make_fuzzer

        fuzzer = make_fuzzer(options.plugin, names(options.without))
    pool.prepare()
    if options.show is not None:
        print(fuzzer.make(f"{options.seed}:{options.show}"))
        return 0
    out = run.run(fuzzer, options, lambda line: print(line[:300], file=sys.stderr, flush=True))
    for finding in out.findings:
        print(f"\n--- {finding.kind}: {finding.difference}\n\n{finding.text}")
    print(run.summary(fuzzer, out))
    return 1 if out.kinds else 0


if __name__ == "__main__":
    prepare_environment(sys.argv[1:])
    sys.exit(main())
