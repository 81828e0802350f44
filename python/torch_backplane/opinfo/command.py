"""Runs PyTorch's operator samples on plugins and compares every result with eager PyTorch.

    backplane opinfo --plugin reference                    one sample of each entry
    backplane opinfo --plugin cpu_onednn --op cumsum --all --show

Exits with 1 when a result is wrong or a check fails. docs/op_support.md says how it works.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch

from torch_backplane.opinfo import check, entries, pool, report, watched


def arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="backplane opinfo", description=__doc__.splitlines()[0])
    parser.add_argument(
        "--plugin",
        default="reference",
        help="names, separated by commas; "
        "'none' leaves every operator to the CPU, which checks the core alone",
    )
    parser.add_argument("--op", action="append", help="this entry, or all that start with PREFIX*")
    many = parser.add_mutually_exclusive_group()
    many.add_argument("--samples", type=int, default=1, help="of each entry and dtype (1)")
    many.add_argument("--all", action="store_true", help="every sample")
    parser.add_argument("--dtype", help="this dtype alone, such as bfloat16")
    parser.add_argument("--no-backward", action="store_true")
    parser.add_argument(
        "--oclgrind",
        action="store_true",
        help="plugin opencl's kernels under oclgrind; what it finds is shown and is a failure",
    )
    parser.add_argument("--jobs", type=int, default=pool.default_jobs(), help="worker processes")
    parser.add_argument(
        "--step-seconds",
        type=float,
        default=pool.STEP_SECONDS,
        help="limit for one trace, or one compilation and run",
    )
    parser.add_argument("--json", type=Path, help="file for every single result")
    parser.add_argument("--markdown", type=Path, help="page to write; of several plugins, a folder")
    parser.add_argument("--verbose", action="store_true", help="a line for each check")
    parser.add_argument(
        "--show", action="store_true", help="print graphs and every result, in this process"
    )
    options = parser.parse_args(argv)
    if options.oclgrind and (options.plugin != "opencl" or options.show):
        parser.error("--oclgrind wants --plugin opencl, and no --show")
    return options


def chosen(patterns: list[str] | None) -> list[str]:
    names = list(entries.database())
    if not patterns:
        return names
    out = []
    for pattern in patterns:
        prefix = pattern.removesuffix("*")
        some = [n for n in names if (n.startswith(prefix) if prefix != pattern else n == pattern)]
        if not some:
            raise SystemExit(f"opinfo: no entry is called {pattern!r}")
        out += some
    return list(dict.fromkeys(out))


def show(names: list[str], request: check.Request) -> list[check.Result]:
    """Without worker processes, so that a debugger can be attached."""
    results: list[check.Result] = []

    def emit(kind: str, value: object) -> None:
        if isinstance(value, check.Result):
            results.append(value)
            print(
                f"{value.entry} {value.column} {value.dtype} sample {value.sample} on "
                f"{value.plugin}: {value.status}: {value.reason or value.note}"
            )
            for op, why in value.fallback.items():
                print(f"    on the CPU: {op}: {why}")

    pool.load(request.plugins)
    for name in names:
        check.EntryCheck(name, request, frozenset(), emit, print).run()
    return results


def progress(verbose: bool) -> Callable[[check.Result], None] | None:
    if not verbose:
        return None
    return lambda r: print(
        f"{r.entry} {r.column} {r.dtype} {r.sample} {r.plugin}: {r.status} {r.reason}"[:200],
        file=sys.stderr,
    )


def main(argv: list[str] | None = None) -> int:
    options = arguments(argv)
    if not options.oclgrind:
        return run(options)
    with tempfile.TemporaryDirectory(prefix="opinfo-oclgrind-") as name:
        folder = Path(name)
        try:
            watched.begin(folder)
        except watched.WatcherMissing as error:
            print(f"opinfo: {error}", file=sys.stderr)
            return 2
        status = run(options)
        found = watched.findings(folder)
    print(found or "oclgrind found nothing")
    return 1 if found else status


def run(options: argparse.Namespace) -> int:
    request = check.Request(
        plugins=tuple(options.plugin.split(",")),
        samples=None if options.all else options.samples,
        dtype=getattr(torch, options.dtype) if options.dtype else None,
        backward=not options.no_backward,
    )
    started = time.monotonic()
    pool.prepare()
    names = chosen(options.op)
    try:
        if options.show:
            results = show(names, request)
        else:
            runner = pool.Pool(
                request, options.jobs, options.step_seconds, progress(options.verbose)
            )
            results = runner.run(names)
    except pool.PluginMissing as error:
        print(f"opinfo: {error}", file=sys.stderr)
        return 2

    if options.json:
        text = json.dumps(report.as_json(results, request.plugins), indent=1)
        options.json.write_text(text + "\n")
    if options.markdown:
        how = f"backplane opinfo --plugin {{}}{' --all' if options.all else ''} --markdown {{}}"
        for plugin in request.plugins:
            page = options.markdown
            if page.suffix != ".md":
                page.mkdir(parents=True, exist_ok=True)
                page = page / f"{plugin}.md"
            page.write_text(report.markdown(results, plugin, how.format(plugin, options.markdown)))
    found = report.bugs(results)
    print("\n".join(found))
    for plugin in request.plugins:
        print(f"{plugin}: {report.summary(report.by_entry(results, plugin))}")
    print(f"{time.monotonic() - started:.0f} seconds")
    return 1 if found else 0
