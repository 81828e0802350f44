"""Any plugin that is found is a back end of torch.compile by its name, without a line of Python."""

from __future__ import annotations

import os
import pathlib
import shutil
import subprocess
import sys

import pytest
from patience import run as run_patiently

BUILD = pathlib.Path(os.environ.get("BACKPLANE_BUILD", "build/dev")).absolute()
GOOD = BUILD / "testing_plugins" / "libbackplane_good.so"  # claims nothing

PROGRAM = """
import torch
model = torch.nn.Linear(4, 4).requires_grad_(False)
x = torch.ones(2, 4)
compiled = torch.compile(model, backend="plugin:good")
assert torch.equal(compiled(x), model(x))
import torch_backplane
print(torch_backplane.stats()["plugin_nodes"], torch_backplane.stats()["fallback_nodes"])
print([(p["name"], p["origin"]) for p in torch_backplane.plugins() if p["name"] == "good"])
"""


def run(program: str, folder: pathlib.Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return run_patiently(
        [sys.executable, "-c", program],
        env={**os.environ, "HOME": str(folder), **environment},
        cwd=folder,
    )


def bring(folder: pathlib.Path, name: str = "good") -> pathlib.Path:
    folder.mkdir(parents=True, exist_ok=True)
    return pathlib.Path(shutil.copy(GOOD, folder / f"libbackplane_{name}.so"))


def install(site: pathlib.Path, point: str) -> None:
    """What an installed wheel says of itself."""
    info = site / "acme_plugin-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: acme-plugin\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[torch_backplane.plugins]\ngood = {point}\n")


def test_on_the_path(tmp_path: pathlib.Path) -> None:
    bring(tmp_path / "acme")
    done = run(PROGRAM, tmp_path, BACKPLANE_PLUGIN_PATH=str(tmp_path / "acme"))
    assert done.returncode == 0, done.stderr
    assert "('good', 'BACKPLANE_PLUGIN_PATH')" in done.stdout


def test_in_the_users_folder(tmp_path: pathlib.Path) -> None:
    bring(tmp_path / ".local/share/backplane/plugins")
    done = run(PROGRAM, tmp_path)
    assert done.returncode == 0, done.stderr
    assert "('good', 'user directory')" in done.stdout


@pytest.mark.parametrize("below", ["", ":lib"])
def test_of_an_installed_wheel(tmp_path: pathlib.Path, below: str) -> None:
    site = tmp_path / "site"
    bring(site / "acme_plugin" / below.strip(":"))
    (site / "acme_plugin" / "__init__.py").write_text("raise ImportError('nobody imports it')\n")
    install(site, f"acme_plugin{below}")
    done = run(PROGRAM, tmp_path, PYTHONPATH=str(site))
    assert done.returncode == 0, done.stderr
    assert "('good', 'wheel acme-plugin')" in done.stdout


@pytest.mark.parametrize("is_there", [True, False])
def test_a_wheel_without_its_library_is_told(tmp_path: pathlib.Path, is_there: bool) -> None:
    site, build = tmp_path / "site", tmp_path / "build"
    install(site, "acme_plugin")
    build.mkdir()
    (build / "libgood.so").write_text("")  # not the name of a plugin
    if is_there:
        (site / "acme_plugin").mkdir()
        (site / "acme_plugin" / "__init__.py").write_text("")
    why = f"{site / 'acme_plugin'} holds no" if is_there else "there is no such package"
    sentences = [
        f"BACKPLANE_PLUGIN_PATH names {build}, which holds no file libbackplane_<name>.so",
        f"the wheel acme-plugin brings no plugin: its entry point names acme_plugin, and {why}",
    ]
    ask = "from torch_backplane.cli import main; main(['plugins']); main(['doctor'])"
    for program in (PROGRAM, ask):
        done = run(program, tmp_path, PYTHONPATH=str(site), BACKPLANE_PLUGIN_PATH=str(build))
        told = done.stdout + done.stderr
        assert all(sentence in told for sentence in sentences), told


DOORS = {
    "torch.compile": 'torch.compile(lambda x: x, backend="plugin:nobody")(torch.ones(1))',
    "compile": 'torch_backplane.compile(lambda x: x, backend="nobody")',
    "compile, with prefix": 'torch_backplane.compile(lambda x: x, backend="plugin:nobody")',
    "device": 'torch_backplane.device("nobody")',
}


@pytest.mark.parametrize("door", DOORS)
def test_an_unknown_name_is_told_what_there_is(tmp_path: pathlib.Path, door: str) -> None:
    bring(tmp_path / "acme")
    shutil.copy(BUILD / "testing_plugins" / "libbackplane_broken_no_entry.so", tmp_path / "acme")
    imports = "import torch" if door == "torch.compile" else "import torch, torch_backplane"
    program = f"""
{imports}
try:
    {DOORS[door]}
except Exception as error:
    print(type(error).__name__, error)
"""
    told = run(program, tmp_path, BACKPLANE_PLUGIN_PATH=str(tmp_path / "acme")).stdout
    assert told.startswith("BackplaneError BP-0103"), told
    assert "nobody" in told and '"plugin:good"' in told and '"plugin:reference"' in told
    refused = next(line for line in told.splitlines() if "refused: broken_no_entry" in line)
    assert str(tmp_path / "acme" / "libbackplane_broken_no_entry.so") in refused
    assert '"plugin:broken_no_entry"' not in told


def test_other_unknown_back_ends_are_pytorchs_matter(tmp_path: pathlib.Path) -> None:
    program = """
import torch
try:
    torch.compile(lambda x: x, backend="nobody")(torch.ones(1))
except Exception as error:
    print(type(error).__name__)
print("plugin:nobody" in torch._dynamo.list_backends())
"""
    assert run(program, tmp_path).stdout.split() == ["InvalidBackend", "False"]


def test_a_plugin_that_comes_later_is_found(tmp_path: pathlib.Path) -> None:
    library = bring(tmp_path / "acme")
    program = f"""
import torch
torch._dynamo.list_backends()
from torch_backplane import _C
_C.add_plugin_path({str(library)!r}, "test")
print(torch.compile(lambda x: x + 1, backend="plugin:good")(torch.ones(1)).item())
"""
    done = run(program, tmp_path)
    assert done.stdout.split() == ["2.0"], done.stderr


def test_a_name_of_the_package_is_not_taken_unnoticed(tmp_path: pathlib.Path) -> None:
    package = subprocess.run(
        [sys.executable, "-c", "import torch_backplane as t; print(t.__path__[0])"],
        capture_output=True, text=True, check=True,
    ).stdout.strip()  # fmt: skip
    folder = tmp_path / "acme"
    folder.mkdir()
    shutil.copy(pathlib.Path(package) / "plugins" / "libbackplane_reference.so", folder)
    program = "import torch_backplane; torch_backplane.plugins()"
    done = run(program, tmp_path, BACKPLANE_PLUGIN_PATH=str(folder))
    assert "that name is taken by" in done.stderr and str(folder) in done.stderr
