"""Names of plugins as TorchDynamo's back ends, for plugins that no wheel has registered.

``import torch`` loads this by the entry point of group ``torch.backends``, so it imports nothing but
the standard library, and nothing here raises but the ``load`` of an unknown name. TorchDynamo asks
the installed distributions for back ends (group ``torch_dynamo_backends``) when it first meets a name
that it does not know; a distribution of ours answers with the libraries that lie in the folders of
plugins then.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import pathlib
import re
import sys
from collections.abc import Iterable, Iterator

GROUP = "torch_backplane.plugins"
# As core/runtime/plugin/registry.cpp, which cannot be asked before the extension module is loaded.
_LIBRARY = re.compile(r"libbackplane_(\w+)\.so")
_USER = ".local/share/backplane/plugins"
_SYSTEM = "/usr/lib/backplane/plugins"


def _wheel_places() -> Iterator[tuple[str, str, list[str]]]:
    """Distribution, entry point and folders of each installed wheel that is to bring plugins; no folder
    where the package that it names is not there."""
    others = (d for d in importlib.metadata.distributions() if not isinstance(d, _Plugins))
    points = [
        (dist.name, point) for dist in others for point in dist.entry_points.select(group=GROUP)
    ]
    for wheel, point in points:
        package, _, below = point.value.partition(":")
        try:
            spec = importlib.util.find_spec(package.strip())
        except (ImportError, ValueError):
            spec = None
        roots = (spec.submodule_search_locations or []) if spec else []
        yield wheel, point.value, [os.path.join(root, below.strip()) for root in roots]


def wheel_folders() -> Iterator[tuple[str, str]]:
    """Distribution and folder of each installed wheel that brings plugins. Its entry point of group
    ``torch_backplane.plugins`` names a package, or ``package:folder`` below it; it is not imported."""
    for wheel, _, folders in _wheel_places():
        for folder in folders:
            yield wheel, folder


def _has_library(path: str) -> bool:
    try:
        return any(_LIBRARY.fullmatch(file) for file in os.listdir(path))
    except OSError:
        return False


def empty_places() -> list[str]:
    """What somebody has named as the place of a plugin, and where none is; a sentence for each."""
    lacks = "holds no file libbackplane_<name>.so"
    said = []
    for path in os.environ.get("BACKPLANE_PLUGIN_PATH", "").split(":"):
        if os.path.isabs(path) and os.path.isdir(path) and not _has_library(path):
            said.append(f"BACKPLANE_PLUGIN_PATH names {path}, which {lacks}")
    for wheel, point, folders in _wheel_places():
        if any(_has_library(folder) for folder in folders):
            continue
        why = f"{os.path.normpath(folders[0])} {lacks}" if folders else "there is no such package"
        said.append(f"the wheel {wheel} brings no plugin: its entry point names {point}, and {why}")
    return said


def _paths() -> Iterator[str]:
    yield from os.environ.get("BACKPLANE_PLUGIN_PATH", "").split(":")
    for _, folder in wheel_folders():
        yield folder
    yield os.path.join(os.path.expanduser("~"), _USER)
    yield _SYSTEM


def names() -> list[str]:
    """Of all plugins in those folders, by the names of their files: no library is opened."""
    found: dict[str, None] = {}
    for path in _paths():
        if not os.path.isabs(path):
            continue
        try:
            files: Iterable[str] = os.listdir(path) if os.path.isdir(path) else [path]
        except OSError:
            continue
        for file in sorted(files):
            if match := _LIBRARY.fullmatch(os.path.basename(file)):
                found.setdefault(match[1])
    return list(found)


class _Plugins(importlib.metadata.Distribution):
    def read_text(self, filename: str) -> str | None:
        if filename == "METADATA":
            return "Metadata-Version: 2.1\nName: torch-backplane-names\nVersion: 0\n"
        if filename == "entry_points.txt":
            _answer_unknown_names()
            points = (f"plugin:{name} = torch_backplane._backends:{name}" for name in names())
            return "\n".join(["[torch_dynamo_backends]", *points, ""])
        return None

    def locate_file(self, path: str | os.PathLike[str]) -> pathlib.Path:
        return pathlib.Path(__file__).parent / path


class _Unknown:
    """Stands for the entry point of a plugin that was not there when TorchDynamo asked."""

    def __init__(self, plugin: str) -> None:
        self.plugin = plugin

    def load(self) -> object:
        """Raises BackplaneError BP-0103 with what was found, unless the plugin has come since."""
        from torch_backplane import _backends, plugin_search

        plugin_search.check_plugin(self.plugin)
        return getattr(_backends, self.plugin)


class _Backends(dict[str, object]):
    """TorchDynamo's table, in which every name of the form ``plugin:NAME`` has an entry point."""

    def __contains__(self, key: object) -> bool:
        return super().__contains__(key) or (isinstance(key, str) and key.startswith("plugin:"))

    def __missing__(self, key: str) -> object:
        if not key.startswith("plugin:"):
            raise KeyError(key)
        return _Unknown(key.removeprefix("plugin:"))


def _answer_unknown_names() -> None:
    """A ``plugin:NAME`` that nobody has is told what there is, instead of TorchDynamo's bare error.

    TorchDynamo has no hook for this. Where its table is no dict of that name, its own error stays."""
    registry = sys.modules.get("torch._dynamo.backends.registry")
    table = getattr(registry, "_BACKENDS", None)
    if type(table) is dict:
        registry._BACKENDS = _Backends(table)  # type: ignore[union-attr]


class _Finder:
    """Finds no modules; a distribution."""

    @staticmethod
    def find_spec(name: str, path: object = None, target: object = None) -> None:
        return None

    @staticmethod
    def find_distributions(
        context: importlib.metadata.DistributionFinder.Context | None = None,
    ) -> Iterator[importlib.metadata.Distribution]:
        if context is None or context.name is None:
            yield _Plugins()


def register() -> None:
    """Once for the process, however often it is called."""
    if not any(finder is _Finder for finder in sys.meta_path):
        sys.meta_path.append(_Finder)  # type: ignore[arg-type]
