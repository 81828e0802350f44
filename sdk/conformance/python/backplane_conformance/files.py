"""Where the parts of the kit are."""

from __future__ import annotations

import gzip
import hashlib
import os
import pathlib
import shutil

SECTIONS = ("operators", "gradients", "random")
ORACLE = "libbackplane_reference.so"
_HERE = pathlib.Path(__file__).resolve().parent


class KitMissing(Exception):
    """A part of the kit is not there."""


def _package() -> pathlib.Path:
    """The folder of torch_backplane, which is not imported."""
    return _HERE.parent / "torch_backplane"


def worker() -> pathlib.Path:
    """The program that runs cases."""
    named = os.environ.get("BACKPLANE_CONFORMANCE")
    places = [pathlib.Path(named)] if named else []
    places.append(_package() / "bin" / "backplane-conformance")
    found = shutil.which("backplane-conformance")
    if found:
        places.append(pathlib.Path(found))
    for place in places:
        if place.is_file():
            return place
    raise KitMissing(
        f"backplane-conformance is not in {', '.join(map(str, places))}; install torch-backplane, or "
        "name the program in BACKPLANE_CONFORMANCE"
    )


def oracle() -> pathlib.Path:
    """The library of the plugin `reference`."""
    named = os.environ.get("BACKPLANE_CONFORMANCE_ORACLE")
    place = pathlib.Path(named) if named else _package() / "plugins" / "libbackplane_reference.so"
    if not place.is_file():
        raise KitMissing(f"the oracle is not at {place}")
    return place.resolve()


def plugin(name: str) -> pathlib.Path:
    """A library by its path, or one of the package's plugins by its name."""
    path = pathlib.Path(name)
    if path.suffix == ".so" or "/" in name:
        if not path.is_file():
            raise KitMissing(f"there is no file {name}")
        return path.absolute()
    inside = _package() / "plugins" / f"libbackplane_{name}.so"
    if not inside.is_file():
        raise KitMissing(f"the package has no plugin {name} ({inside}); give the path of a library")
    return inside.resolve()


def unpack(folder: pathlib.Path) -> None:
    """Writes the graphs as text, and the oracle as a file of its own: a plugin that is under test may
    be the same library, and has one host in a process."""
    source = _HERE / "corpus"
    folder.mkdir(parents=True, exist_ok=True)
    for section in SECTIONS:
        packed = source / f"{section}.gz"
        if not packed.is_file():
            raise KitMissing(f"the graphs are not at {packed}")
        target = folder / f"{section}.txt"
        _put(target, gzip.decompress(packed.read_bytes()))
    _put(folder / ORACLE, oracle().read_bytes())


def _put(path: pathlib.Path, content: bytes) -> None:
    part = path.with_suffix(".part")
    part.write_bytes(content)
    part.replace(path)


def sha256(path: pathlib.Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
