"""Which plugins there are. Loads the extension module when it is first asked."""

from __future__ import annotations

from typing import Any, SupportsIndex

import torch_backplane_names

from torch_backplane.errors import BackplaneError, public, raise_error


@public("BP-0103")
def plugins() -> list[dict[str, Any]]:
    """All plugins that were found: name, path, origin, error (empty when fine), loaded."""
    from torch_backplane import _C, account

    account.STATE.search_plugins()
    return _C.plugin_entries()


def find_plugin(plugin: str, isolation: str = "", *, may_be_absent: bool = False) -> dict[str, Any]:
    """Loads a plugin, with isolation ``"process"`` in a process of its own. ``absent`` says why this process
    cannot use it now, though it is there; else it is empty. Raises BP-0103 with what was found, what was
    refused and the nearest name, also of one that was shut down unless it ``may_be_absent``."""
    from torch_backplane import _C, account

    if not isinstance(plugin, str):
        raise BackplaneError("BP-0103", f"a plugin's name is a str, got {plugin!r}")
    account.STATE.search_plugins()
    try:
        if isolation:
            _C.isolate_plugin(plugin)
        info = _C.plugin_info(plugin)
        of_parent = f"{plugin} was loaded before fork(), and its devices are its parent's"
        return {**info, "absent": of_parent if info["is_of_parent"] else ""}
    except _C.StatusError as error:
        is_there = any(e["name"] == plugin and not e["error"] for e in plugins())
        if may_be_absent and is_there and _C.are_plugins_shut_down():
            return {"absent": f"the process ends, and {plugin} was shut down"}
        if all(entry["name"] != plugin for entry in plugins()):
            raise BackplaneError("BP-0103", f"{error.args[1]}{describe_choice()}") from None
        raise_error("BP-0103", error)


def check_device(info: dict[str, Any], plugin: str, index: int) -> None:
    """``info`` is what ``find_plugin`` gave."""
    if not isinstance(index, SupportsIndex):
        raise BackplaneError("BP-0104", f"a device's index is an int, got {index!r}")
    count = len(info["devices"])
    if not 0 <= index < count:
        devices = "1 device" if count == 1 else f"{count} devices"
        raise BackplaneError("BP-0104", f"plugin {plugin!r} has {devices}, index {index} asked for")


def check_plugin(plugin: str) -> None:
    """Raises BP-0103 as ``find_plugin`` does, but loads none that is there: options that come later may
    ask for a process of its own."""
    if not any(entry["name"] == plugin and not entry["error"] for entry in plugins()):
        find_plugin(plugin)


def describe_choice() -> str:
    """Lines of an error about an unknown name: libraries that were refused, places that hold none, and
    what to type."""
    found = plugins()
    lines = [f"refused: {e['name']} ({e['path']}): {e['error']}" for e in found if e["error"]]
    lines += torch_backplane_names.empty_places()
    names = sorted(entry["name"] for entry in found if not entry["error"])
    if names:
        choice = ", ".join(f'"plugin:{name}"' for name in names)
        lines.append(f"names for backend=: {choice}; for torch_backplane.device(): without plugin:")
    return "".join(f"\n  {line}" for line in lines)
