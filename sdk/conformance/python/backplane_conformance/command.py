"""backplane certify and backplane verify."""

from __future__ import annotations

import argparse
import collections
import datetime
import os
import pathlib
import sys
from typing import Any

from backplane_conformance import certificate, files, report, run, waivers, worker
from backplane_conformance.outcome import is_bad, repeat_line


def _arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="backplane certify", description="Tests a plugin against the conformance kit."
    )
    parser.add_argument("plugin", help="a library, or the name of one of the package's plugins")
    parser.add_argument("--level", type=int, choices=(0, 1, 2, 3), default=1)
    parser.add_argument("--device", type=int, default=0, help="index of the plugin's device")
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("conformance"))
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--case", action="append", default=[], help="a pattern of case ids")
    parser.add_argument("--waivers", type=pathlib.Path, help="a file of known failures")
    parser.add_argument("--key", type=pathlib.Path, help="private key that signs the certificate")
    parser.add_argument("--timeout", type=float, default=worker.CASE_SECONDS, help="s per case")
    parser.add_argument("--stop", action="store_true", help="at the first case that does not pass")
    parser.add_argument("--again", action="store_true", help="forget what an earlier run found")
    return parser


def certify(arguments: list[str]) -> int:
    """The exit status: 0 when the level was reached, 1 when not, 2 for a wrong command."""
    options = _arguments().parse_args(arguments)
    try:
        known = waivers.read(options.waivers) if options.waivers else []
        if options.key:
            certificate.read_key(options.key)
        plugin = files.plugin(options.plugin)
        if options.again:
            (options.out / "journal.jsonl").unlink(missing_ok=True)
        corpus = (options.out / "corpus").absolute()
        files.unpack(corpus)
        target = worker.Target(plugin, options.device, corpus)
        result = run.run(
            target, options.level, options.out, options.jobs, options.case, options.timeout,
            stops=options.stop,
        )  # fmt: skip
    except (files.KitMissing, waivers.WaiverError, certificate.CertificateError) as error:
        print(f"backplane certify: {error}", file=sys.stderr)
        return 2
    today = datetime.date.today()
    waivers.apply(result["cases"], known, today)
    result["waived"] = sum("waived" in c for c in result["cases"])
    result["reached"] = run.reached(result)
    if result["waived"] > waivers.MOST_SHARE * len(result["cases"]):
        result["reached"] = -1
        print(f"more than {waivers.MOST_SHARE:.0%} of the cases are waived: no level is reached")
    report.write(result, options.out)
    _say(result, options)
    if options.key and result["reached"] >= 0:
        path = certificate.write(result, options.key, options.out, today)
        print(f"certificate: {path}")
    return 0 if result["complete"] and result["reached"] >= options.level else int(_any_bad(result))


def _any_bad(result: dict[str, Any]) -> bool:
    if result["complete"]:
        return True
    return any(map(is_bad, result["cases"]))


def _say(result: dict[str, Any], options: Any) -> None:
    counts = collections.Counter(c["verdict"] for c in result["cases"])
    text = ", ".join(f"{count} {verdict}" for verdict, count in counts.most_common())
    print(f"{pathlib.Path(result['plugin']).name}: {len(result['cases'])} cases: {text}")
    bad = [c for c in result["cases"] if is_bad(c)]
    for outcome in bad[:20]:
        print(f"  {outcome['verdict']}  {outcome['id']}: {outcome.get('text', '')[:160]}")
        print(f"    again: {repeat_line(result, outcome['id'])}")
    if len(bad) > 20:
        print(f"  and {len(bad) - 20} more, in {options.out / 'report.html'}")
    if result["complete"]:
        level = result["reached"]
        print(f"level {level} reached" if level >= 0 else "no level reached")
    print(f"reports: {options.out / 'report.html'}, report.json, junit.xml")


def verify(arguments: list[str]) -> int:
    """0: the certificate is good for this library; 1: it is not, and why."""
    parser = argparse.ArgumentParser(prog="backplane verify")
    parser.add_argument("certificate", type=pathlib.Path)
    parser.add_argument("plugin", help="a library, or the name of one of the package's plugins")
    parser.add_argument(
        "--key", type=pathlib.Path, help="public key of whoever signed; default: the trusted ones"
    )
    options = parser.parse_args(arguments)
    try:
        plugin = files.plugin(options.plugin)
        found = certificate.check(options.certificate, plugin, options.key, datetime.date.today())
    except (files.KitMissing, certificate.CertificateError) as error:
        print(f"backplane verify: {error}", file=sys.stderr)
        return 1
    print(
        f"{plugin.name}: level {found['level']}, signed by {found['signer']}, until {found['end']}"
    )
    return 0


def main() -> int:
    """``python -m backplane_conformance certify|verify|keygen ...``, where there is no torch."""
    words = sys.argv[1:]
    if words[:1] == ["verify"]:
        return verify(words[1:])
    if words[:1] == ["keygen"]:
        return certificate.keygen(words[1:])
    return certify(words[1:] if words[:1] == ["certify"] else words)
