"""Results in sum: by entry, as JSON, as the generated pages of docs/op_support."""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any

from torch_backplane.opinfo.check import BUGS, STATUSES, Result

COLUMNS = ("float", "int", "backward")
# Fallback operators that a page lists.
MISSING_LISTED = 40


@dataclasses.dataclass
class Entry:
    """All checks of one entry on one plugin."""

    name: str
    results: list[Result]

    @property
    def status(self) -> str:
        """The worst; checks that are excluded count only where there is nothing else."""
        return worst(self.results)

    @property
    def data_dependent(self) -> bool:
        return self.status == "excluded" and any(r.data_dependent for r in self.results)

    def cell(self, column: str) -> str:
        chosen = [r for r in self.results if r.column == column]
        if not chosen:
            return ""
        dtypes = {r.dtype for r in chosen}
        usual = {"float": "float32", "int": "int64", "backward": "float32"}[column]
        tail = "" if dtypes == {usual} else f" ({', '.join(sorted(dtypes))})"
        return worst(chosen) + tail

    def reason(self) -> str:
        """Why it is no pass: operators on the CPU, or the first reason of the worst check."""
        status = self.status
        if status == "fallback":
            operators = sorted({op for r in self.results for op in r.fallback})
            return "on the CPU: " + ", ".join(op.removeprefix("aten.") for op in operators)
        if status == "pass":
            return next((r.note for r in self.results if r.note.startswith("uninit")), "")
        found = next((r for r in self.results if r.status == status), None)
        return found.reason if found is not None else ""


def worst(results: Iterable[Result]) -> str:
    found = {r.status for r in results}
    return next(status for status in STATUSES if status in found)


def by_entry(results: Iterable[Result], plugin: str) -> list[Entry]:
    grouped: dict[str, list[Result]] = {}
    for result in results:
        if result.plugin == plugin:
            grouped.setdefault(result.entry, []).append(result)
    return [Entry(name, found) for name, found in grouped.items()]


@dataclasses.dataclass
class Summary:
    """Counts of entries by status, and shares of those that pass."""

    counts: dict[str, int]
    total: int
    data_dependent: int

    @property
    def share(self) -> float:
        """Of entries that any compiler could take: without the excluded ones."""
        return self.counts["pass"] / max(1, self.total - self.counts["excluded"])

    @property
    def share_of_all(self) -> float:
        return self.counts["pass"] / max(1, self.total)

    def __str__(self) -> str:
        counts = ", ".join(f"{number} {status}" for status, number in self.counts.items() if number)
        return (
            f"{self.share:.1%} of {self.total - self.counts['excluded']} entries pass "
            f"({self.share_of_all:.1%} of all {self.total}): {counts}"
        )


def summary(found: Sequence[Entry]) -> Summary:
    counts = collections.Counter(entry.status for entry in found)
    ordered = {status: counts[status] for status in reversed(STATUSES)}
    return Summary(ordered, len(found), sum(entry.data_dependent for entry in found))


@dataclasses.dataclass
class Missing:
    """An operator that a plugin left to the CPU."""

    operator: str
    entries: set[str]
    alone: set[str]  # entries where nothing else is missing
    reason: str


def missing(found: Iterable[Entry]) -> list[Missing]:
    """Those that would make most entries pass first."""
    out: dict[str, Missing] = {}
    for entry in found:
        if entry.status != "fallback":
            continue
        reasons = {op: why for r in entry.results for op, why in r.fallback.items()}
        for operator, reason in reasons.items():
            one = out.setdefault(operator, Missing(operator, set(), set(), reason))
            one.entries.add(entry.name)
            if len(reasons) == 1:
                one.alone.add(entry.name)
    return sorted(out.values(), key=lambda m: (-len(m.alone), -len(m.entries), m.operator))


def as_json(results: Sequence[Result], plugins: Sequence[str]) -> dict[str, Any]:
    sums = {}
    for plugin in plugins:
        found = by_entry(results, plugin)
        one = summary(found)
        sums[plugin] = {
            "counts": one.counts,
            "entries": one.total,
            "data_dependent": one.data_dependent,
            "pass_share": one.share,
            "pass_share_of_all": one.share_of_all,
            "status": {entry.name: entry.status for entry in found},
        }
    return {"plugins": sums, "results": [dataclasses.asdict(r) for r in results]}


def escape(text: str, limit: int = 160) -> str:
    text = text if len(text) <= limit else text[: limit - 1] + "…"
    return text.replace("|", "\\|").replace("<", "&lt;")


def markdown(results: Sequence[Result], plugin: str, how: str) -> str:
    found = by_entry(results, plugin)
    lines = [
        f"# Operators on `{plugin}`",
        "",
        f"Generated by `{how}`; [what the words mean](../op_support.md).",
        "",
        f"**{summary(found)}.**",
        "",
    ]
    for column in COLUMNS:
        cells = [[r for r in entry.results if r.column == column] for entry in found]
        states = collections.Counter(worst(c) for c in cells if c)
        total = sum(states.values()) - states["excluded"]
        if total:
            share = states["pass"] / total
            lines.append(f"- {column}: {share:.1%} of {total} pass")
    gaps = missing(found)
    if gaps:
        lines += [
            "",
            "## Operators left to the CPU",
            "",
            "| operator | entries | alone in | reason |",
            "|---|---|---|---|",
        ]
        for gap in gaps[:MISSING_LISTED]:
            lines.append(
                f"| {gap.operator} | {len(gap.entries)} | {len(gap.alone)} | {escape(gap.reason)} |"
            )
        if len(gaps) > MISSING_LISTED:
            lines.append(f"\nand {len(gaps) - MISSING_LISTED} more.")
    lines += [
        "",
        "## Entries",
        "",
        "| entry | fp32 forward | int forward | backward | reason |",
        "|---|---|---|---|---|",
    ]
    for entry in sorted(found, key=lambda e: e.name):
        cells = " | ".join(entry.cell(column) for column in COLUMNS)
        lines.append(f"| {entry.name} | {cells} | {escape(entry.reason())} |")
    return "\n".join(lines) + "\n"


def bugs(results: Iterable[Result]) -> list[str]:
    """One line for each wrong result and each error, with the command that shows it again."""
    return [
        f"{r.status}: {r.plugin}: {r.entry} {r.column} {r.dtype} sample {r.sample}: {r.reason}"
        + (f"\n    inputs: {r.inputs}" if r.inputs else "")
        + f"\n    again: backplane opinfo --plugin {r.plugin} --op {r.entry} --show"
        for r in results
        if r.status in BUGS
    ]
