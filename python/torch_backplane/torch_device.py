"""The torch device ``backplane``: taken on request, one index per plugin and device. Where a plugin's
device is one that torch has itself (``cuda:0``), that is its torch device.

>>> import torch, torch_backplane
>>> npu = torch_backplane.device("reference", 0)    # torch.device("backplane:0")
>>> torch.ones(2, device=npu) + 1
tensor([2., 2.], device='backplane:0')
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import types
from collections.abc import Callable, Sequence
from typing import Any

import torch

from torch_backplane.errors import BackplaneError, public

NAME = "backplane"
_MEMORY_FIGURES = (
    "memory_allocated",
    "max_memory_allocated",
    "memory_reserved",
    "max_memory_reserved",
    "memory_stats",
    "reset_peak_memory_stats",
    "reset_accumulated_memory_stats",
)
_lock = threading.RLock()
_initialized = False


@public("BP-0109")
def init_device() -> None:
    """Takes torch's name for a further device, once; ``device()`` does it as well.

    From then on ``torch.accelerator`` means this device. Raises BackplaneError BP-0109 where another
    package has the name, or where torch has another accelerator already.
    """
    global _initialized
    with _lock:
        if _initialized:
            return
        from torch_backplane import _C

        _check_accelerator()
        _start_autograd()
        if (failure := _C.register_device()) is not None:
            raise BackplaneError("BP-0109", failure[1])
        if torch._C._get_privateuse1_backend_name() != NAME:
            torch.utils.rename_privateuse1_backend(NAME)
        if not hasattr(torch, NAME):
            torch._register_device_module(NAME, _make_module())
            torch.utils.generate_methods_for_privateuse1_backend(for_storage=True)
        _print_from_one_copy()
        # float16 is torch's default, which few devices have.
        torch.set_autocast_dtype(NAME, torch.bfloat16)
        _initialized = True


@public("BP-0104")
def device(plugin: str, index: int = 0) -> torch.device:
    """The torch device of a plugin's device: torch's own where torch has that device and the plugin
    takes its tensors, else one of ``backplane``, whose index is new at the first request. With
    ``BACKPLANE_DEVICE=1`` it is one of ``backplane`` always.

    Raises BackplaneError BP-0103 for an unknown plugin, BP-0104 for an index it does not have, and
    what ``init_device`` raises.
    """
    from torch_backplane import _C, plugin_search

    _C.check_process()
    info = plugin_search.find_plugin(plugin)
    plugin_search.check_device(info, plugin, index)
    own = info["devices"][index]["torch_device"]
    if own and _torch_has(torch.device(own)) and not _initialized and not _asked_for():
        return torch.device(own)
    init_device()
    added = _C.add_device(plugin, index)
    if not isinstance(added, int):
        raise BackplaneError("BP-0104", added[1])
    return torch.device(NAME, added)


def find_plugin_device(where: torch.device) -> tuple[str, int] | None:
    """The plugin and its index behind a torch device; None for devices that are not ours."""
    from torch_backplane import _C

    if where.type != NAME or not _C.is_device_registered():
        return None
    known = _C.devices()
    at = _C.current_device() if where.index is None else where.index
    return known[at] if at < len(known) else None


def init_from_environment() -> None:
    """``BACKPLANE_DEVICE``: "1" takes the name; "opencl" or "opencl:0,reference" adds devices too."""
    wish = os.environ.get("BACKPLANE_DEVICE", "").strip()
    if wish in ("", "0"):
        return
    init_device()
    if wish == "1":
        return
    for item in wish.split(","):
        plugin, _, index = item.strip().partition(":")
        if index and not index.isdigit():
            raise BackplaneError("BP-0104", f"BACKPLANE_DEVICE has {item!r}, expected plugin:index")
        device(plugin, int(index or 0))


def _asked_for() -> bool:
    return os.environ.get("BACKPLANE_DEVICE", "").strip() not in ("", "0")


def _torch_has(where: torch.device) -> bool:
    current = torch.accelerator.current_accelerator()
    if current is None or current.type != where.type:
        return False
    return (where.index or 0) < torch.accelerator.device_count()


def _check_accelerator() -> None:
    if torch._C._get_privateuse1_backend_name() not in ("privateuseone", NAME):
        return  # said with the reason when registering
    current = torch.accelerator.current_accelerator()
    if current is not None and current.type != NAME and not _asked_for():
        raise BackplaneError(
            "BP-0109",
            f"torch has the accelerator {current.type!r}, and would take backplane for it instead; "
            "set BACKPLANE_DEVICE=1 to have it so",
        )


def _start_autograd() -> None:
    """The first backward of a process starts a thread for each device that there is by then; with
    any, backward fails in forked children. There is none yet, and ours needs none."""
    with torch.inference_mode(False), torch.enable_grad():
        torch.ones(1, device="cpu", requires_grad=True).sum().backward()


def _index_of(where: Any = None) -> int:
    from torch_backplane import _C

    if where is None:
        return _C.current_device()
    if isinstance(where, int):
        return _C.current_device() if where < 0 else where
    parsed = torch.device(where)
    if parsed.type != NAME:
        raise ValueError(f"expected a {NAME} device, got {parsed}")
    return _C.current_device() if parsed.index is None else parsed.index


def _constant(function: Callable[..., Any]) -> Callable[..., Any]:
    """TorchDynamo calls it while tracing and keeps the answer."""
    function._dynamo_marked_constant = True  # type: ignore[attr-defined]
    return function


def _make_module() -> types.ModuleType:
    """``torch.backplane``: what torch and programs expect of a device's module."""
    from torch_backplane import _C

    module = types.ModuleType(f"torch.{NAME}")
    module.__doc__ = "The backplane device; see torch_backplane.device()."

    def is_available() -> bool:
        return _C.device_count() > 0

    def device_count() -> int:
        return _C.device_count()

    def current_device() -> int:
        return _C.current_device()

    def set_device(where: Any) -> None:
        _C.exchange_device(_index_of(where))

    def synchronize(where: Any = None) -> None:
        torch.accelerator.synchronize(_index_of(where))

    def manual_seed(seed: int) -> None:
        _C.default_generator(-1).manual_seed(seed)

    def manual_seed_all(seed: int) -> None:
        # At least the first, which may get its device later.
        for index in range(max(_C.device_count(), 1)):
            _C.default_generator(index).manual_seed(seed)

    def seed() -> None:
        _C.default_generator(-1).seed()

    def initial_seed() -> int:
        return _C.default_generator(-1).initial_seed()

    def seed_all() -> None:
        seed()
        manual_seed_all(initial_seed())

    def get_rng_state(where: Any = None) -> torch.Tensor:
        return _C.default_generator(_index_of(where)).get_state()

    def set_rng_state(state: torch.Tensor, where: Any = None) -> None:
        _C.default_generator(_index_of(where)).set_state(state)

    def get_rng_state_all() -> list[torch.Tensor]:
        return [get_rng_state(index) for index in range(_C.device_count())]

    def set_rng_state_all(states: Sequence[torch.Tensor]) -> None:
        for index, state in enumerate(states):
            set_rng_state(state, index)

    def default_stream(where: Any = None) -> torch.Stream:
        index = _index_of(where)
        kind = torch.accelerator.current_stream(index).device_type
        return torch.Stream(stream_id=0, device_index=index, device_type=kind)

    def stream(chosen: torch.Stream | None) -> Any:
        return contextlib.nullcontext() if chosen is None else chosen

    def get_device_name(where: Any = None) -> str:
        return device_properties(where)["name"]

    def device_properties(where: Any = None) -> dict[str, Any]:
        plugin, index = _C.device_at(_index_of(where))
        return _C.plugin_info(plugin)["devices"][index]

    def device_context(where: Any) -> Any:
        return torch.accelerator.device_index(_index_of(where))

    memory = torch.accelerator.memory
    attributes: dict[str, Any] = {
        "is_available": _constant(is_available),
        "device_count": _constant(device_count),
        "is_initialized": lambda: True,
        "_initialized": True,  # what checkpoint asks, to keep the device's random numbers
        "init": lambda: None,
        "_lazy_init": _C.check_process,
        "_is_in_bad_fork": _C.in_bad_fork,
        "current_device": current_device,
        "set_device": set_device,
        "_exchange_device": _C.exchange_device,
        "_maybe_exchange_device": _C.exchange_device,
        "synchronize": synchronize,
        "manual_seed": manual_seed,
        "manual_seed_all": manual_seed_all,
        "seed": seed,
        "seed_all": seed_all,
        "initial_seed": initial_seed,
        "get_rng_state": get_rng_state,
        "set_rng_state": set_rng_state,
        "get_rng_state_all": get_rng_state_all,
        "set_rng_state_all": set_rng_state_all,
        "get_amp_supported_dtype": lambda: [torch.bfloat16, torch.float16],
        "get_device_name": get_device_name,
        "get_device_properties": device_properties,
        "is_bf16_supported": lambda: True,
        "empty_cache": memory.empty_cache,
        "mem_get_info": memory.get_memory_info,
        **{name: getattr(memory, name) for name in _MEMORY_FIGURES},
        "current_stream": lambda where=None: torch.accelerator.current_stream(
            torch.device(NAME, _index_of(where))
        ),
        "default_stream": default_stream,
        "set_stream": torch.accelerator.set_stream,
        "stream": stream,
        "device": device_context,
        "Stream": torch.Stream,
        "Event": torch.Event,
    }
    for name, value in attributes.items():
        setattr(module, name, value)
    return module


def _print_from_one_copy() -> None:
    """torch formats a tensor element by element; from the device that is a read for each."""
    strings = sys.modules["torch._tensor_str"]
    original = strings._tensor_str
    if getattr(original, "_is_backplane", False):
        return

    def tensor_str(self: torch.Tensor, indent: int) -> str:
        on_device = (
            self.device.type == NAME and not torch._C._functorch.is_functorch_wrapped_tensor(self)
        )
        return original(self.detach().cpu() if on_device else self, indent)

    tensor_str._is_backplane = True  # type: ignore[attr-defined]
    strings._tensor_str = tensor_str


class RandomStates:
    """Where the generators of the host and of the devices stand: what ``restore`` goes back to."""

    def __init__(self) -> None:
        modules = (getattr(torch, name, None) for name in ("cuda", NAME))
        # One that nothing has used yet has nothing to lose, and asking would start it.
        self._devices = [module for module in modules if module and module.is_initialized()]
        self.states = [
            [torch.get_rng_state()],
            *[module.get_rng_state_all() for module in self._devices],
        ]

    def restore(self) -> None:
        (host,), *of_devices = self.states
        torch.set_rng_state(host)
        for module, own in zip(self._devices, of_devices, strict=True):
            module.set_rng_state_all(own)
