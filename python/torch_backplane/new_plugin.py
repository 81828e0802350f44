"""``backplane new``: a project for a plugin, made from the template that the package brings."""

from __future__ import annotations

import pathlib
import re

PACKAGE = pathlib.Path(__file__).parent
PLACEHOLDER = "@NAME@"
KERNELS = ("c",)
_LONGEST = 40
_OWN = ("cpu_onednn", "cuda", "opencl", "reference", "reference_minimal")


class CannotCreate(Exception):
    """Nothing was written; the message says why and what to do."""


def check_name(name: str) -> None:
    """Raises CannotCreate unless a plugin can have that name."""
    if not re.fullmatch(r"[a-z][a-z0-9_]*", name):
        raise CannotCreate(
            f"a plugin cannot be named {name!r}: use small letters, digits and underscores, a letter "
            "first"
        )
    if len(name) > _LONGEST:
        raise CannotCreate(f"the name {name!r} has {len(name)} letters; at most {_LONGEST} fit")
    if name in _OWN:
        raise CannotCreate(
            f"{name!r} is the name of one of the package's own plugins; take another"
        )


def create(name: str, folder: pathlib.Path | None = None, kernels: str = "c") -> list[pathlib.Path]:
    """Writes the project into ``folder``, by default ``./NAME``, and returns its files. A folder that
    holds anything is left alone."""
    check_name(name)
    if kernels not in KERNELS:
        raise CannotCreate(
            f"there is no template for kernels in {kernels!r}; there is: {', '.join(KERNELS)}"
        )
    folder = pathlib.Path(name) if folder is None else folder
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise CannotCreate(
            f"{folder} exists and is not an empty folder; name another one with --into"
        )
    template = PACKAGE / "template"
    if not template.is_dir():
        raise CannotCreate(f"{template} is missing; install torch-backplane again")
    written = []
    try:
        for source in sorted(p for p in template.rglob("*") if p.is_file()):
            if source.parent.name == "__pycache__":  # installers compile what is Python
                continue
            target = folder / str(source.relative_to(template)).replace(PLACEHOLDER, name)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(source.read_text().replace(PLACEHOLDER, name))
            written.append(target)
    except OSError as error:
        raise CannotCreate(f"{folder} cannot be written: {error.strerror}") from None
    return written
