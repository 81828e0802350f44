"""What a run says: report.json, junit.xml and report.html."""

from __future__ import annotations

import collections
import json
import pathlib
import xml.etree.ElementTree as ET
from typing import Any

from backplane_conformance import page
from backplane_conformance.outcome import (
    GOOD,
    device_label,
    dtype,
    family,
    repeat_line,
    replay_line,
    verdict_of,
)


def operators(result: dict[str, Any]) -> dict[str, collections.Counter[str]]:
    """By operator that the plugin ran, how many cases it took part in and with which verdict."""
    out: dict[str, collections.Counter[str]] = {}
    for outcome in result["cases"]:
        for name in filter(None, outcome.get("operators", "").split(",")):
            out.setdefault(name, collections.Counter())[outcome["verdict"]] += 1
    return dict(sorted(out.items()))


def families(result: dict[str, Any]) -> dict[str, collections.Counter[str]]:
    """By family, how many cases of which verdict; waived ones are counted as such."""
    out: dict[str, collections.Counter[str]] = {}
    for outcome in result["cases"]:
        out.setdefault(family(outcome["id"]), collections.Counter())[verdict_of(outcome)] += 1
    return out


def badges(result: dict[str, Any]) -> list[str]:
    """What the plugin may call itself on top of a level: a family or an element type of which
    something passed and nothing failed."""
    wanted = {
        "training": lambda c: family(c) == "gradients",
        "dynamic-shapes": lambda c: family(c) == "sizes",
        "async-streams": lambda c: family(c) == "events",
        "deterministic": lambda c: family(c) in ("repeat", "gradient-repeat"),
        "serialisable": lambda c: family(c) == "cache",
        "packed-weights": lambda c: family(c) == "weights",
        **{
            name: lambda c, short=short: dtype(c) == short
            for name, short in (
                ("fp64", "f64"),
                ("fp16", "f16"),
                ("bf16", "bf16"),
                ("int64", "i64"),
            )
        },
    }
    out = []
    if result["reached"] < 1:
        return out
    for name, fits in wanted.items():
        verdicts = {c["verdict"] for c in result["cases"] if fits(c["id"])}
        if "pass" in verdicts and verdicts <= set(GOOD):
            out.append(name)
    return out


def write(result: dict[str, Any], folder: pathlib.Path) -> None:
    """All three reports, and a file per failed graph that ``backplane replay`` runs."""
    replays = folder / "replay"
    for outcome in result["cases"]:
        if outcome.get("graph") and outcome["verdict"] not in GOOD:
            replays.mkdir(exist_ok=True)
            name = "".join(c if c.isalnum() or c in "-_." else "_" for c in outcome["id"])
            path = replays / f"{name}.bpir"
            said = " ".join(outcome.get("text", "").split())
            path.write_text(
                f"// {device_label(result)}: {outcome['id']}: {said}\n{outcome['graph']}"
            )
            outcome["replay"] = replay_line(result, path)
    result["badges"] = badges(result)
    result["families"] = {k: dict(v) for k, v in families(result).items()}
    result["operators"] = {k: dict(v) for k, v in operators(result).items()}
    (folder / "report.json").write_text(json.dumps(result, indent=1) + "\n")
    _junit(result, folder / "junit.xml")
    (folder / "report.html").write_text(page.html(result))


def _junit(result: dict[str, Any], path: pathlib.Path) -> None:
    suites = ET.Element("testsuites", name=pathlib.Path(result["plugin"]).name)
    by_family: dict[str, list[dict[str, Any]]] = {}
    for outcome in result["cases"]:
        by_family.setdefault(family(outcome["id"]), []).append(outcome)
    for name, outcomes in by_family.items():
        suite = ET.SubElement(suites, "testsuite", name=name, tests=str(len(outcomes)))
        counts = collections.Counter()
        for outcome in outcomes:
            case = ET.SubElement(
                suite, "testcase", classname=name, name=outcome["id"].split(":", 1)[1],
                time=f"{outcome['seconds']:.4f}",
            )  # fmt: skip
            text = _printable(outcome.get("text", ""))
            if outcome["verdict"] == "unsupported" or "waived" in outcome:
                counts["skipped"] += 1
                ET.SubElement(case, "skipped", message=text)
            elif outcome["verdict"] in ("crash", "timeout"):
                counts["errors"] += 1
                error = ET.SubElement(case, "error", type=outcome["verdict"], message=text)
                error.text = _printable(outcome.get("said", ""))
            elif outcome["verdict"] != "pass":
                counts["failures"] += 1
                failure = ET.SubElement(case, "failure", type=outcome["verdict"], message=text)
                failure.text = repeat_line(result, outcome["id"])
        for kind in ("failures", "errors", "skipped"):
            suite.set(kind, str(counts[kind]))
    ET.ElementTree(suites).write(path, encoding="utf-8", xml_declaration=True)


def _printable(text: str) -> str:
    """Without the characters that XML does not know."""
    return "".join(c if c >= " " or c in "\n\t" else "?" for c in text)
