"""Who compiles and runs a captured graph."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import torch
from torch.fx.experimental.proxy_tensor import make_fx

from torch_backplane import torch_device
from torch_backplane.errors import BackplaneError
from torch_backplane.plugin_search import check_device, describe_choice, find_plugin, plugins

# What ATen runs itself: a recording has its gradients already, so both names mean one stage.
RUNGS = ("eager", "aot_eager")

BY_PYTORCH = "forward and backward graphs, run by PyTorch"

Backend = str | Callable[..., Any]


@dataclasses.dataclass(frozen=True)
class Compiler:
    """What stands behind the name of a back end."""

    name: str
    plugin: str = ""
    absent: str = ""  # why this process cannot use the plugin now
    foreign: Callable[..., Any] | None = None  # a TorchDynamo back end

    def describe(self) -> str:
        if self.plugin:
            return f"plugin {self.plugin}"
        if self.foreign is not None:
            return f"TorchDynamo's back end {self.name}, with a program for each size"
        return BY_PYTORCH


def find_compiler(backend: Backend, isolation: str = "", device: int = 0) -> Compiler:
    """Raises BP-0102 for what is no name or function, BP-0103 for a name that nobody has, BP-0104 for a
    device that the plugin does not have."""
    if callable(backend):
        name = getattr(backend, "__name__", type(backend).__name__)
        return Compiler(name, foreign=_graph_compiler(backend))
    if not isinstance(backend, str):
        raise BackplaneError("BP-0102", f"backend takes a name or a function, got {backend!r}")
    if backend in RUNGS:
        return Compiler(backend)
    plugin = backend.removeprefix("plugin:")
    if plugin == backend and all(entry["name"] != plugin for entry in plugins()):
        known = torch._dynamo.list_backends(exclude_tags=())
        if backend in known:
            return Compiler(backend, foreign=_graph_compiler(torch._dynamo.lookup_backend(backend)))
        raise BackplaneError(
            "BP-0103",
            f"{backend!r} is no plugin ({', '.join(sorted(e['name'] for e in plugins() if not e['error']))}), "
            f"no rung ({', '.join(RUNGS)}) and no back end of TorchDynamo ({', '.join(known)})"
            f"{describe_choice()}",
        )
    info = find_plugin(plugin, isolation, may_be_absent=True)
    if not info["absent"]:
        check_device(info, plugin, device)
    return Compiler(backend, plugin=plugin, absent=info["absent"])


def _graph_compiler(function: Callable[..., Any]) -> Callable[..., Any]:
    """``(name, run, examples)`` to a callable of tensors: the graph as FX, given to ``function``."""

    from torch_backplane import _C

    def compile_graph(name: str, run: Callable[..., Any], examples: list[torch.Tensor]) -> Any:
        # It runs once on the call's tensors, which it does not write; its draws must not count.
        before = torch_device.RandomStates()
        try:
            with torch.no_grad():
                module = make_fx(lambda *inputs: run(list(inputs)))(*examples)
        finally:
            before.restore()
        module._name = name
        compiled = _C.frontend.call_back_end(function, module, examples)
        if not callable(compiled):
            raise TypeError(f"the back end gave a {type(compiled).__name__}, which is not callable")
        return torch._dynamo.disable(compiled)

    return compile_graph
