"""Which plugins there are. Loads the extension module when it is first asked."""

from __future__ import annotations

from typing import Any


def plugins() -> list[dict[str, Any]]:
    """All plugins that were found: name, path, origin, error (empty when fine), loaded."""
    from torch_backplane import _C, account

    account.STATE.search_plugins()
    return _C.plugin_entries()


def find_plugin(plugin: str, isolation: str = "") -> dict[str, Any]:
    """Loads a plugin, with isolation ``"process"`` in a process of its own. Raises BP-0103 with what was
    found and the nearest names."""
    from torch_backplane import _C, account

    account.STATE.search_plugins()
    try:
        if isolation:
            _C.isolate_plugin(plugin)
        return _C.plugin_info(plugin)
    except _C.StatusError as error:
        account.raise_error("BP-0103", error)
