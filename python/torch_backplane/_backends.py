"""What the entry points of group ``torch_dynamo_backends`` load: one light object per plugin.

Nothing heavy is imported before the first compile, and nothing here can raise at import.
"""

from __future__ import annotations

from typing import Any


class PluginBackend:
    """A TorchDynamo back end for one plugin. One object per name: TorchDynamo compares identity."""

    def __init__(self, plugin: str) -> None:
        self.plugin = plugin
        self.__name__ = f"plugin:{plugin}"

    def __call__(self, graph_module: Any, example_inputs: list[Any], **kwargs: Any) -> Any:
        from torch_backplane import backend

        return backend.compile_frame(self.plugin, graph_module, example_inputs, **kwargs)

    def reset(self) -> None:
        """Called by ``torch._dynamo.reset()``: forget packed weights, keep the counters."""
        from torch_backplane import backend

        backend.forget()

    def __repr__(self) -> str:
        return f"<backend plugin:{self.plugin}>"


_made: dict[str, PluginBackend] = {}


def __getattr__(name: str) -> PluginBackend:
    """The back end of any plugin: entry points of vendors' wheels name ``torch_backplane._backends:acme``."""
    if name.startswith("_"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return _made.setdefault(name, PluginBackend(name))
