#!/usr/bin/env python3
"""Tries an installed wheel: plugins by name, gradients, the own front end, the tools. Exit status 1 when
something is missing or wrong."""

from __future__ import annotations

import functools
import os
import pathlib
import subprocess
import sys
import tempfile

import torch
import torch_backplane


def check(name: str, holds: bool) -> None:
    print(f"{'ok' if holds else 'WRONG':<6} {name}")
    if not holds:
        sys.exit(1)


def trained(compile: object, model: torch.nn.Module, x: torch.Tensor) -> list[torch.Tensor]:
    result = compile(model)(x)  # type: ignore[operator]
    result.square().sum().backward()
    gradients = [parameter.grad for parameter in model.parameters()]
    model.zero_grad(set_to_none=True)
    return [result.detach(), *gradients]


MODEL = """import torch
model, example_inputs = torch.nn.Sequential(torch.nn.Linear(8, 4), torch.nn.ReLU()), (torch.ones(2, 8),)
"""


def check_new_plugin() -> None:
    """A vendor's project, made and built with the wheel alone."""
    scripts = str(pathlib.Path(sys.executable).parent)
    environment = {**os.environ, "PATH": f"{scripts}{os.pathsep}{os.environ['PATH']}"}
    with tempfile.TemporaryDirectory() as folder:
        pathlib.Path(folder, "model.py").write_text(MODEL)
        environment["BACKPLANE_PLUGIN_PATH"] = f"{folder}/acme/build"
        for command in (
            "backplane new acme",
            "cmake --preset dev -S acme",
            "cmake --build acme/build",
            "backplane explain model.py --plugin acme",
        ):
            done = subprocess.run(
                command.split(),
                cwd=folder,
                env=environment,
                capture_output=True,
                text=True,
                check=False,
            )
            print(done.stderr if done.returncode else "", end="")
            check(command, done.returncode == 0)
        check("the new plugin runs a model", "acme:0" in done.stdout)


def main() -> None:
    package = pathlib.Path(torch_backplane.__file__).parent
    check("the package is the environment's", pathlib.Path(sys.prefix) in package.parents)
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.GELU(), torch.nn.Linear(32, 4))
    x = torch.randn(8, 16)
    expected = trained(lambda m: m, model, x)
    names = {p["name"] for p in torch_backplane.plugins() if not p["error"]}
    check("plugins are found", {"reference", "cpu_onednn", "opencl"} <= names)
    for plugin in ("reference", "cpu_onednn"):
        doors = {"torch.compile": torch.compile, "own door": torch_backplane.compile}
        for door, compile in doors.items():
            if door == "own door" and sys.version_info >= (3, 13):
                continue
            actual = trained(functools.partial(compile, backend=f"plugin:{plugin}"), model, x)
            close = all(
                torch.allclose(a, e, atol=1e-5) for a, e in zip(actual, expected, strict=True)
            )
            check(f"plugin:{plugin}, {door}", close)
    check("nodes ran on plugins", torch_backplane.stats()["plugin_nodes"] > 0)
    for tool in ("backplane-opt", "backplane-run", "backplane-worker"):
        done = subprocess.run([package / "bin" / tool, "--help"], capture_output=True, check=False)
        check(tool, done.returncode == 0)
    check_new_plugin()
    doctor = [pathlib.Path(sys.executable).parent / "backplane", "doctor"]
    check(
        "backplane doctor", subprocess.run(doctor, capture_output=True, check=False).returncode == 0
    )


if __name__ == "__main__":
    main()
