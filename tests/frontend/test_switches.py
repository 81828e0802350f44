"""Switches of the process that a program asks for: each is toggled between calls."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from frontend.helpers import assert_same
from torch_backplane import _C, frontend

X = torch.linspace(-1, 1, 6)


def other_number(get: Callable[[], int], set_: Callable[[Any], None]) -> Callable[[], None]:
    return lambda: set_(get() + 1)


def flip(name: str, setter: str | None = None) -> Callable[[], None]:
    get = getattr(torch._C, name)
    set_ = getattr(torch._C, setter or name.replace("_get_", "_set_"))
    return lambda: set_(not get())


def next_precision() -> None:
    names = ["highest", "high", "medium"]
    now = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(names[(names.index(now) + 1) % 3])


def flip_anomaly() -> None:
    torch.set_anomaly_enabled(not torch.is_anomaly_enabled(), torch.is_anomaly_check_nan_enabled())


def flip_nan_check() -> None:
    torch.set_anomaly_enabled(torch.is_anomaly_enabled(), not torch.is_anomaly_check_nan_enabled())


def flip_warn_only() -> None:
    torch._C._set_deterministic_algorithms(
        torch._C._get_deterministic_algorithms(),
        warn_only=not torch._C._get_deterministic_algorithms_warn_only(),
    )


def flip_vmap_warnings() -> None:
    now = torch._C._debug_only_are_vmap_fallback_warnings_enabled()
    torch._C._debug_only_display_vmap_fallback_warnings(not now)


TOGGLES: dict[str, Callable[[], None] | None] = {
    "sys.getrecursionlimit": other_number(sys.getrecursionlimit, sys.setrecursionlimit),
    "sys.getswitchinterval": other_number(sys.getswitchinterval, sys.setswitchinterval),
    "sys.get_int_max_str_digits": other_number(
        sys.get_int_max_str_digits, sys.set_int_max_str_digits
    ),
    "torch._C.is_anomaly_enabled": flip_anomaly,
    "torch._C.is_anomaly_check_nan_enabled": flip_nan_check,
    "torch._C._get_mkldnn_enabled": flip("_get_mkldnn_enabled"),
    "torch._C._get_mkldnn_deterministic": flip("_get_mkldnn_deterministic"),
    "torch._C._get_nnpack_enabled": flip("_get_nnpack_enabled"),
    "torch._C._get_cudnn_enabled": flip("_get_cudnn_enabled"),
    "torch._C._get_cudnn_benchmark": flip("_get_cudnn_benchmark"),
    "torch._C._get_cudnn_deterministic": flip("_get_cudnn_deterministic"),
    "torch._C._get_math_sdp_enabled": flip("_get_math_sdp_enabled", "_set_sdp_use_math"),
    "torch._C._get_flash_sdp_enabled": flip("_get_flash_sdp_enabled", "_set_sdp_use_flash"),
    "torch._C._get_mem_efficient_sdp_enabled": flip(
        "_get_mem_efficient_sdp_enabled", "_set_sdp_use_mem_efficient"
    ),
    "torch._C._get_cudnn_sdp_enabled": flip("_get_cudnn_sdp_enabled", "_set_sdp_use_cudnn"),
    "torch._C._get_overrideable_sdp_enabled": flip(
        "_get_overrideable_sdp_enabled", "_set_sdp_use_overrideable"
    ),
    "torch._C._get_cublas_allow_tf32": flip("_get_cublas_allow_tf32"),
    "torch._C._get_cudnn_allow_tf32": flip("_get_cudnn_allow_tf32"),
    "torch._C._get_warnAlways": flip("_get_warnAlways"),
    "torch._C._get_float32_matmul_precision": next_precision,
    "torch._C._get_deterministic_algorithms_warn_only": flip_warn_only,
    "torch._C._get_deterministic_fill_uninitialized_memory": flip(
        "_get_deterministic_fill_uninitialized_memory"
    ),
    # Set once per process.
    "torch._C._get_privateuse1_backend_name": None,
    "torch._C.get_num_threads": other_number(torch.get_num_threads, torch.set_num_threads),
    "torch._C.get_num_interop_threads": None,
    "torch._C._debug_only_are_vmap_fallback_warnings_enabled": flip_vmap_warnings,
}


@pytest.fixture
def restored() -> Iterator[None]:
    """All switches as they were before."""
    names = [name.rpartition(".")[::2] for name in _C.frontend.switches()]
    before = {name: getattr(sys.modules[module], name)() for module, name in names}
    anomaly = torch.is_anomaly_enabled(), torch.is_anomaly_check_nan_enabled()
    yield
    sys.setrecursionlimit(before["getrecursionlimit"])
    sys.setswitchinterval(before["getswitchinterval"])
    sys.set_int_max_str_digits(before["get_int_max_str_digits"])
    torch.set_anomaly_enabled(*anomaly)
    torch.set_num_threads(before["get_num_threads"])
    for name, toggle in TOGGLES.items():
        short = name.rpartition(".")[2]
        for _ in range(2):
            if toggle and getattr(sys.modules[name.rpartition(".")[0]], short)() != before[short]:
                toggle()


def test_every_row_is_toggled() -> None:
    assert set(TOGGLES) == set(_C.frontend.switches())


@pytest.mark.parametrize("name", sorted(name for name, toggle in TOGGLES.items() if toggle))
def test_switch(name: str, restored: None) -> None:
    module, _, function = name.rpartition(".")
    get, toggle = getattr(sys.modules[module], function), TOGGLES[name]
    assert toggle

    def program(x):
        answer = get()
        return x * 2 if answer is True else x * 3, answer

    compiled = frontend.compile(program, backend="eager")
    for _ in range(3):
        for _ in range(2):
            assert_same(compiled(X), program(X))
        toggle()
    counters = frontend.counters(compiled)
    if function == "is_anomaly_enabled":
        return  # a recording runs without it, so that calls with it run as plain Python
    assert counters["plain_calls"] == 0 and not counters["breaks"], counters


STATES: dict[str, Callable[[], Any]] = {
    "default_dtype": torch.get_default_dtype,
    "grad": torch.is_grad_enabled,
    "inference": torch.is_inference_mode_enabled,
    "deterministic": torch.are_deterministic_algorithms_enabled,
    "autocast": lambda: torch.is_autocast_enabled("cpu"),
    "autocast_dtype": lambda: torch.get_autocast_dtype("cpu"),
    "autocast_cache": torch.is_autocast_cache_enabled,
    "mkldnn": lambda: torch.backends.mkldnn.enabled,
    "flash": torch.backends.cuda.flash_sdp_enabled,
    "anomaly": torch.is_anomaly_enabled,
}


@pytest.mark.parametrize("name", sorted(STATES))
def test_state(name: str) -> None:
    contexts: dict[str, Callable[[], Any]] = {
        "grad": torch.no_grad,
        "inference": torch.inference_mode,
        "autocast": lambda: torch.autocast("cpu"),
        "autocast_dtype": lambda: torch.autocast("cpu", dtype=torch.float16, enabled=False),
        "autocast_cache": lambda: torch.autocast("cpu", cache_enabled=False),
        "mkldnn": lambda: torch.backends.mkldnn.flags(enabled=False),
        "flash": lambda: torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH),
        "anomaly": torch.autograd.detect_anomaly,
    }
    get = STATES[name]

    def program(x):
        return x * 2, get()

    compiled = frontend.compile(program, backend="eager")
    assert_same(compiled(X), program(X))
    if name == "default_dtype":
        torch.set_default_dtype(torch.float64)
        try:
            assert_same(compiled(X), program(X))
        finally:
            torch.set_default_dtype(torch.float32)
    elif name == "deterministic":
        torch.use_deterministic_algorithms(True)
        try:
            assert_same(compiled(X), program(X))
        finally:
            torch.use_deterministic_algorithms(False)
    else:
        with contexts[name]():
            assert_same(compiled(X), program(X))
    assert_same(compiled(X), program(X))


@pytest.fixture
def repeatable() -> Iterator[None]:
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)
    torch.utils.deterministic.fill_uninitialized_memory = True


@pytest.mark.parametrize("door", ["own", "torch"])
def test_new_memory_is_filled_where_results_repeat(door: str, repeatable: None) -> None:
    def program(x):
        made = [torch.empty(2, 3), torch.empty_strided((2, 3), (1, 2))]
        made += [torch.empty_like(x), x.new_empty(4, dtype=torch.int64)]
        made += [torch.empty(3, dtype=torch.bool), torch.empty_permuted((2, 3), (1, 0))]
        return x * 2, made

    def check(found: Any) -> None:
        flat, expected = [found[0], *found[1]], [X * 2, *program(X)[1]]
        for one, other in zip(flat, expected, strict=True):
            assert one.stride() == other.stride()
            torch.testing.assert_close(one, other, equal_nan=True, rtol=0, atol=0)

    if door == "own":
        compiled = frontend.compile(program, backend="plugin:reference")
    else:
        compiled = torch.compile(program, backend="plugin:reference")
    for _ in range(2):
        check(compiled(X))
    if door == "torch":
        return
    torch.utils.deterministic.fill_uninitialized_memory = False
    compiled(X)
    torch.utils.deterministic.fill_uninitialized_memory = True
    check(compiled(X))
    assert frontend.counters(compiled)["programs"] == 2
