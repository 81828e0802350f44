"""What may differ from the plain run: patterns of test names, each with its reason."""

from __future__ import annotations

import fnmatch
import tomllib
from pathlib import Path


def read(name: str) -> dict[str, str]:
    """Reasons by pattern, of ``<name>_exceptions.toml``."""
    with (Path(__file__).parent / f"{name}_exceptions.toml").open("rb") as file:
        groups = tomllib.load(file).get("exception", [])
    return {pattern: group["reason"] for group in groups for pattern in group["tests"]}


def is_listed(test: str, allowed: dict[str, str]) -> bool:
    return any(fnmatch.fnmatchcase(test, pattern) for pattern in allowed)
