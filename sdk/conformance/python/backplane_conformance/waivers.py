"""Failures that are known: each with an issue, an owner and an end."""

from __future__ import annotations

import dataclasses
import datetime
import fnmatch
import json
import pathlib

from backplane_conformance.outcome import GOOD, family

# Parts of the kit that nobody is excused from.
NEVER = ("package", "negotiation", "misuse", "bounds", "gradient-bounds", "random-bounds")
MOST_SHARE = 0.01  # of the cases of a run


class WaiverError(Exception):
    """A waiver file that cannot be used."""


@dataclasses.dataclass(frozen=True)
class Waiver:
    """``cases`` are patterns as of a shell."""

    cases: tuple[str, ...]
    issue: str
    owner: str
    end: datetime.date
    reason: str

    def covers(self, case: str, today: datetime.date) -> bool:
        return today <= self.end and any(fnmatch.fnmatchcase(case, p) for p in self.cases)


def read(path: pathlib.Path) -> list[Waiver]:
    """A list of objects with cases, issue, owner, end (YYYY-MM-DD) and reason."""
    try:
        entries = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise WaiverError(f"{path}: {error}") from error
    if not isinstance(entries, list):
        raise WaiverError(f"{path}: expected a list of waivers")
    out = []
    for number, entry in enumerate(entries):
        place = f"{path}: waiver {number}"
        wanted = {"cases", "issue", "owner", "end", "reason"}
        if not isinstance(entry, dict) or set(entry) != wanted:
            raise WaiverError(f"{place}: expected {', '.join(sorted(wanted))}")
        for field in ("issue", "owner", "reason"):
            if not str(entry[field]).strip():
                raise WaiverError(f"{place}: {field} is empty")
        try:
            end = datetime.date.fromisoformat(entry["end"])
        except (TypeError, ValueError) as error:
            raise WaiverError(f"{place}: end: {error}") from error
        cases = entry["cases"]
        if not isinstance(cases, list) or not cases or not all(isinstance(c, str) for c in cases):
            raise WaiverError(f"{place}: cases is a list of patterns")
        for pattern in cases:
            room = family(pattern)
            if ":" not in pattern or any(c in room for c in "*?["):
                raise WaiverError(f"{place}: {pattern!r} does not name one family")
            if room in NEVER:
                raise WaiverError(f"{place}: cases of {room} cannot be waived")
        out.append(
            Waiver(tuple(cases), entry["issue"], entry["owner"], end, entry["reason"])
        )  # fmt: skip
    return out


def apply(outcomes: list[dict], waivers: list[Waiver], today: datetime.date) -> None:
    """Marks outcomes that failed and are covered."""
    for outcome in outcomes:
        if outcome["verdict"] in GOOD:
            continue
        for waiver in waivers:
            if waiver.covers(outcome["id"], today):
                outcome["waived"] = {"issue": waiver.issue, "owner": waiver.owner}
                break
