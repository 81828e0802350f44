"""``backplane new``: a project for a plugin, made from the template that the package brings."""

from __future__ import annotations

import pathlib
import re
from collections.abc import Iterator

PACKAGE = pathlib.Path(__file__).parent
# What kernels are written in, and what a machine that builds them needs beside the package, as lines
# of the project's CI.
KERNELS = {
    "c": "",
    "opencl": "sudo apt-get install -y opencl-headers ocl-icd-opencl-dev pocl-opencl-icd",
    "cuda": "",
    "library": "",
}
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
    """Writes the project into ``folder``, by default ``./NAME``, and returns its files. ``kernels``: one
    of KERNELS. A folder that holds anything is left alone."""
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
    written = []
    for source, path in _sources(kernels):
        target = folder / path.replace("@NAME@", name)
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(_filled(source.read_text(), name, kernels))
        except OSError as error:
            raise CannotCreate(f"{folder} cannot be written: {error.strerror}") from None
        written.append(target)
    return written


def _part(kernels: str, name: str) -> pathlib.Path:
    return PACKAGE / "template" / "kernels" / kernels / name


def _sources(kernels: str) -> Iterator[tuple[pathlib.Path, str]]:
    """Files of the template with their places in the project."""
    project = PACKAGE / "template" / "project"
    if not project.is_dir():
        raise CannotCreate(f"{project} is missing; install torch-backplane again")
    for root, below in ((project, project), (_part(kernels, ""), _part(kernels, "src"))):
        for file in sorted(p for p in below.rglob("*") if p.is_file()):
            if file.parent.name != "__pycache__":  # installers compile what is Python
                yield file, str(file.relative_to(root))


def _filled(text: str, name: str, kernels: str) -> str:
    packages = f"      - run: {KERNELS[kernels]}\n" if KERNELS[kernels] else ""
    parts = {
        "@BUILD@": _part(kernels, "build.cmake").read_text().rstrip("\n"),
        "@ABOUT@": _part(kernels, "about.md").read_text().rstrip("\n"),
        "@PACKAGES@": packages,
        "@NAME@": name,
    }
    for placeholder, part in parts.items():
        text = text.replace(placeholder, part)
    return text
