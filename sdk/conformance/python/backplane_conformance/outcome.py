"""What an outcome says of itself: a case's id, its verdict, and how to see it again."""

from __future__ import annotations

import pathlib
import shlex
from typing import Any

GOOD = ("pass", "unsupported")


def is_bad(outcome: dict[str, Any]) -> bool:
    """Whether it stands between a plugin and a level."""
    return outcome["verdict"] not in GOOD and "waived" not in outcome


def verdict_of(outcome: dict[str, Any]) -> str:
    """As it is counted."""
    return "waived" if "waived" in outcome else outcome["verdict"]


def family(case: str) -> str:
    return case.split(":", 1)[0]


def dtype(case: str) -> str:
    """The element type in a case's id, empty where it has none."""
    parts = case.split("/")
    return parts[-2].removesuffix(".gradient") if len(parts) >= 3 else ""


def escaped(case: str) -> str:
    """An id as a pattern that fits it alone."""
    return "".join(f"[{c}]" if c in "*?[" else c for c in case)


def repeat_line(result: dict[str, Any], case: str) -> str:
    """The command that runs one case again."""
    device = f" --device {result['device']}" if result["device"] else ""
    plugin = shlex.quote(result["plugin"])
    return (
        f"backplane certify {plugin} --level {result['level']}{device} "
        f"--case {shlex.quote(escaped(case))} --out again"
    )


def device_label(result: dict[str, Any]) -> str:
    """As the host calls the device: "acme:0"."""
    name = pathlib.Path(result["plugin"]).stem.removeprefix("libbackplane_")
    return f"{name}:{result['device']}"


def replay_line(result: dict[str, Any], path: pathlib.Path) -> str:
    """The command that runs a graph without the kit."""
    folder = shlex.quote(str(pathlib.Path(result["plugin"]).parent))
    return f"BACKPLANE_PLUGIN_PATH={folder} backplane replay {shlex.quote(str(path))}"
