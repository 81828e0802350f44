"""Looks at the installation and says what is wrong with it, and what to do."""

from __future__ import annotations

import dataclasses
import functools
import os
import pathlib
import platform
import sys
from collections.abc import Iterator
from typing import Any

import torch_backplane_names

# Versions of torch that this package is built and tested with: from the first, before the end.
TORCH_FIRST, TORCH_END = (2, 11), (2, 14)


@dataclasses.dataclass(frozen=True)
class Finding:
    """One line of the report: ``state`` is "ok", "warning" or "error"."""

    topic: str
    text: str
    state: str = "ok"
    remedy: str = ""

    def __str__(self) -> str:
        mark = "ok" if self.state == "ok" else self.state.upper()
        line = f"{self.topic:<10}{self.text}  [{mark}]"
        return line + (f"\n{'':<10}-> {self.remedy}" if self.remedy else "")


def _versions() -> Iterator[Finding]:
    import torch

    from torch_backplane import __version__

    kind = f"CUDA {torch.version.cuda}" if torch.version.cuda else "CPU"
    text = (
        f"backplane {__version__}, torch {torch.__version__} ({kind}), "
        f"Python {platform.python_version()}, {platform.machine()}"
    )
    wanted = f"torch>={'.'.join(map(str, TORCH_FIRST))},<{'.'.join(map(str, TORCH_END))}"
    found = tuple(int(part) for part in torch.__version__.split(".")[:2])
    if TORCH_FIRST <= found < TORCH_END:
        yield Finding("versions", text)
    else:
        yield Finding("versions", text, "error", f"install another torch: pip install '{wanted}'")


def _extension() -> Iterator[Finding]:
    try:
        from torch_backplane import _C
    except ImportError as error:
        remedy = (
            "reinstall for this torch and Python: pip install --force-reinstall torch-backplane"
        )
        yield Finding("extension", f"does not load: {error}", "error", remedy)
        return
    import torch

    text = f"loaded, ABI {_C.abi_version}, {len(_C.op_table())} operators known"
    built, found = _C.torch_version, torch.__version__
    if built.split(".")[:2] == found.split(".")[:2]:
        yield Finding("extension", text)
    else:
        remedy = f"install torch {built}, or build torch-backplane again with torch {found}"
        yield Finding("extension", f"{text}; built for torch {built}", "error", remedy)


def _policy() -> Iterator[Finding]:
    from torch_backplane import _C

    try:
        policy = _C.load_policy()
    except _C.StatusError as error:
        yield Finding("policy", error.args[1], "error", "mend the file, or remove it")
        return
    text = f"{policy['text']}: {policy['allowed']} libraries allowed, {policy['denied']} denied, "
    text += f"{policy['keys']} keys trusted"
    if policy["text"].startswith("signed") and not policy["keys"]:
        remedy = "put the public key of your vendor into ~/.config/backplane/trusted_keys"
        yield Finding("policy", text, "warning", remedy)
    else:
        yield Finding("policy", text)


@functools.cache
def _probed() -> dict[str, dict[str, Any]]:
    from torch_backplane import plugin_search, probe

    return probe.probe([e["name"] for e in plugin_search.plugins() if not e["error"]], "touch")


def _plugins() -> Iterator[Finding]:
    from torch_backplane import plugin_search

    entries = plugin_search.plugins()
    if not entries:
        yield Finding(
            "plugins",
            "none found",
            "error",
            "reinstall torch-backplane, or name a directory in BACKPLANE_PLUGIN_PATH",
        )
    for entry in entries:
        error = entry["error"] or _probed()[entry["name"]].get("error")
        # What comes with the package is for machines that this one may not be.
        _, no_device, why = (error or "").partition("no device: ")
        if no_device and entry["origin"] == "package":
            yield Finding("plugin", f"{entry['name']}: nothing for it here: {why.rstrip('.')}")
            continue
        if error:
            remedy = "do what it says, install another build, or remove the file: " + entry["path"]
            yield Finding("plugin", f"{entry['name']}: refused: {error}", "error", remedy)
            continue
        info = _probed()[entry["name"]]["info"]
        devices = ", ".join(device["name"] or device["label"] for device in info["devices"])
        text = f"{info['name']} {info['version']} ({info['vendor']}), ABI {info['abi']}, "
        text += f"sha256 {info['sha256'][:8]}…: {devices or 'no device'}"
        text += f"; certificate: {info['certificate']}" if info["certificate"] else ""
        text += "; in a process of its own (BACKPLANE_ISOLATION)" if info["isolated"] else ""
        if devices:
            yield Finding("plugin", text)
        else:
            yield Finding("plugin", text, "warning", "check the vendor's driver")
        yield from _devices(info["devices"])
    for place in torch_backplane_names.empty_places():
        remedy = "build it, install its wheel again, or take the name of the place away"
        yield Finding("plugin", place, "warning", remedy)


def _devices(devices: list[dict[str, Any]]) -> Iterator[Finding]:
    """What came of work with each of them."""
    for device in devices:
        touched = _probed().get(device["label"])
        if touched is None:
            remedy = "it was not tried, since the one before ended the process"
            yield Finding("device", device["label"], "warning", remedy)
        elif "error" in touched:
            remedy = "try the vendor's own tools; with another build of the plugin or its driver run this again"
            yield Finding("device", f"{device['label']}: {touched['error']}", "error", remedy)
        else:
            yield Finding("device", f"{device['label']}: {touched['text']}")


def _quarantine() -> Iterator[Finding]:
    from torch_backplane import _C

    for crash in _C.quarantined():
        remedy = (
            "ask its vendor for another build, which is let in at once; "
            f"for the same one: backplane doctor --release {crash['name']}"
        )
        yield Finding("left out", crash["text"], "warning", remedy)


def _backends() -> Iterator[Finding]:
    import torch

    names = [n for n in torch._dynamo.list_backends(exclude_tags=()) if n.startswith("plugin:")]
    if names:
        yield Finding("back ends", ", ".join(sorted(names)))
    else:
        remedy = "reinstall torch-backplane: its entry points are missing"
        yield Finding("back ends", "torch.compile knows none", "error", remedy)


def _openmp() -> Iterator[Finding]:
    import torch

    from torch_backplane import probe

    found = sorted(
        {*probe.openmp_runtimes(), *(p for a in _probed().values() for p in a["openmp"])}
    )
    names = ", ".join(pathlib.Path(path).name for path in found) or "none"
    if len(found) > 1:
        remedy = "build the plugin against the runtime that torch brings"
        yield Finding("OpenMP", f"{len(found)} runtimes: {names}", "warning", remedy)
    else:
        yield Finding("OpenMP", f"{len(found)} runtime: {names}")
    policy = os.environ.get("OMP_WAIT_POLICY", "").upper()
    spins = os.environ.get("GOMP_SPINCOUNT")
    text = f"{torch.get_num_threads()} threads on {len(os.sched_getaffinity(0))} cores, waiting "
    text += f"policy {policy or 'default'}" + (f", GOMP_SPINCOUNT {spins}" if spins else "")
    if torch.get_num_threads() > len(os.sched_getaffinity(0)):
        yield Finding("threads", text, "warning", "set OMP_NUM_THREADS to the number of cores")
    elif policy == "PASSIVE":
        remedy = (
            "for programs that run on an OpenCL driver on the CPU; what PyTorch runs itself with "
            "several threads takes up to three times as long, so unset it for others"
        )
        yield Finding("threads", text, "ok", remedy)
    else:
        yield Finding("threads", text)


def _opencl() -> Iterator[Finding]:
    """A driver's workers and libgomp's busy waiting fight where both run in turn on few cores."""
    devices = _probed().get("opencl", {}).get("info", {}).get("devices", [])
    if (
        any(device["is_cpu"] for device in devices)
        and os.environ.get("OMP_WAIT_POLICY", "").upper() != "PASSIVE"
    ):
        remedy = (
            "for programs that run on plugin:opencl set OMP_WAIT_POLICY=PASSIVE before Python "
            "starts; what PyTorch runs itself is slower for it"
        )
        yield Finding("OpenCL", "a driver on the CPU's cores shares them with OpenMP", "ok", remedy)


def cache_directory() -> pathlib.Path | None:
    """Where executables are kept between processes; None when that is switched off."""
    if os.environ.get("BACKPLANE_CACHE") == "0":
        return None
    given = os.environ.get("BACKPLANE_CACHE_DIR")
    return pathlib.Path(given) if given else pathlib.Path.home() / ".cache" / "backplane"


def _cache() -> Iterator[Finding]:
    path = cache_directory()
    if path is None:
        yield Finding("cache", "switched off with BACKPLANE_CACHE=0")
        return
    if not path.exists():
        yield Finding("cache", f"{path} (does not exist yet)")
        return
    info = path.stat()
    files = [file.stat().st_size for file in path.iterdir() if file.is_file()]
    text = f"{path}: {len(files)} files, {sum(files) / 1e6:.1f} MB"
    if info.st_uid != os.geteuid() or info.st_mode & 0o077:
        remedy = f"it must be yours alone: chmod 700 {path}"
        yield Finding("cache", text, "warning", remedy)
    else:
        yield Finding("cache", text)


def examine() -> list[Finding]:
    """All findings. A check that fails unexpectedly is an error of its own."""
    findings: list[Finding] = []
    _probed.cache_clear()
    for check in (
        *(_versions, _extension, _policy, _backends, _plugins, _quarantine, _openmp, _opencl),
        _cache,
    ):
        try:
            findings += check()
        except Exception as error:
            text = f"{type(error).__name__}: {error}"
            findings.append(Finding(check.__name__.strip("_"), text, "error"))
    return findings


def as_dict(findings: list[Finding]) -> dict[str, Any]:
    return {"python": sys.executable, "findings": [dataclasses.asdict(f) for f in findings]}
