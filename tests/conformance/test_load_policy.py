"""Load policies, through a program that loads a plugin."""

import datetime
import json
import os
import pathlib
import shutil
import subprocess
import sys

import pytest
import torch_backplane
from backplane_conformance import certificate, files
from patience import run as run_patiently

PACKAGE = pathlib.Path(torch_backplane.__file__).parent
GRAPH = """graph @g(%0: f32[4]) -> (f32[4]) {
  %1 = aten.neg(%0) : f32[4]
  return %1
}
"""


@pytest.fixture
def home(tmp_path):
    """A user's configuration, a plugin with its certificate, and who signed it."""
    config = tmp_path / "backplane"
    (config / "trusted_keys").mkdir(parents=True)
    plugins = tmp_path / "plugins"
    plugins.mkdir()
    library = plugins / "libbackplane_reference.so"
    shutil.copy(PACKAGE / "plugins/libbackplane_reference.so", library)
    (tmp_path / "g.bpir").write_text(GRAPH)
    assert certificate.keygen([str(tmp_path / "acme.pem")]) == 0
    return tmp_path


def library(home):
    return home / "plugins/libbackplane_reference.so"


def certify(home, today):
    result = {
        "plugin": str(library(home)), "sha256": files.sha256(library(home)), "reached": 1,
        "badges": [], "cases": [], "kit": "0", "abi": "0.2",
        "host": {"cpu": "a", "system": "b", "libc": "c"},
    }  # fmt: skip
    path = certificate.write(result, home / "acme.pem", home / "plugins", today)
    assert path.name == "libbackplane_reference.so.certificate"
    return path


def trust(home):
    shutil.copy(home / "acme.pub", home / "backplane/trusted_keys/acme.pub")


def run(home, **environment):
    done = subprocess.run(
        [PACKAGE / "bin/backplane-run", str(home / "g.bpir")],
        env={
            **os.environ, "BACKPLANE_PLUGIN_PATH": str(home / "plugins"),
            "XDG_CONFIG_HOME": str(home), **environment,
        },
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    return "" if done.returncode == 0 else done.stderr


def test_no_policy_asks_for_nothing(home):
    assert run(home) == ""


def test_signed_loads_what_is_certified(home):
    assert "certificate is not there" in run(home, BACKPLANE_LOAD_POLICY="signed")
    certify(home, datetime.date.today())
    assert "key that is not trusted" in run(home, BACKPLANE_LOAD_POLICY="signed")
    trust(home)
    assert run(home, BACKPLANE_LOAD_POLICY="signed") == ""


def test_a_changed_certificate_loads_nothing(home):
    trust(home)
    path = certify(home, datetime.date.today())
    text = path.read_bytes()
    for at in range(0, len(text), 5):
        changed = bytearray(text)
        changed[at] ^= 1
        path.write_bytes(changed)
        assert "certificate" in run(home, BACKPLANE_LOAD_POLICY="signed"), at


def test_a_changed_library_is_not_loaded(home):
    trust(home)
    certify(home, datetime.date.today())
    with library(home).open("r+b") as file:
        file.seek(-1, os.SEEK_END)
        last = file.read(1)
        file.seek(-1, os.SEEK_END)
        file.write(bytes([last[0] ^ 1]))
    assert "is for another library" in run(home, BACKPLANE_LOAD_POLICY="signed")


def test_an_ended_certificate_loads_nothing(home):
    trust(home)
    certify(home, datetime.date.today() - datetime.timedelta(days=400))
    assert "ended on" in run(home, BACKPLANE_LOAD_POLICY="signed")


def test_lists(home):
    sha256 = files.sha256(library(home))
    (home / "backplane/policy").write_text("allow-list\n")
    assert "allow list" in run(home)
    (home / "backplane/allowed").write_text(f"{sha256}\n")
    assert run(home) == ""
    (home / "backplane/denied").write_text(f"{sha256} CVE-2026-1\n")
    assert "deny list: CVE-2026-1" in run(home)


@pytest.mark.parametrize("name", ["cpu_onednn", "opencl"])
def test_an_allowed_library_finds_what_lies_beside_it(home, name):
    """It is loaded from memory; oneDNN and the builder of kernels stay where they are."""
    sources = [PACKAGE / f"plugins/libbackplane_{name}.so"]
    sources += (PACKAGE / "plugins").glob("libdnnl_backplane.so*") if name == "cpu_onednn" else []
    for source in sources:
        shutil.copy(source, home / "plugins" / source.name)
    allowed = [files.sha256(home / "plugins" / sources[0].name)]
    (home / "backplane/allowed").write_text("\n".join(allowed) + "\n")
    done = subprocess.run(
        [PACKAGE / "bin/backplane-run", str(home / "g.bpir"), "--plugin", name],
        env={
            **os.environ, "BACKPLANE_PLUGIN_PATH": str(home / "plugins"),
            "XDG_CONFIG_HOME": str(home), "BACKPLANE_LOAD_POLICY": "allow-list",
        },
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


def test_safe_mode(home):
    assert "safe mode loads no plugin" in run(home, BACKPLANE_SAFE_MODE="1")


def test_tools_say_which_policy_holds(home):
    done = run_patiently(
        [sys.executable, "-m", "torch_backplane.cli", "doctor", "--json"],
        env={**os.environ, "XDG_CONFIG_HOME": str(home), "BACKPLANE_LOAD_POLICY": "allow-list"},
    )
    findings = json.loads(done.stdout)["findings"]
    assert any(f["topic"] == "policy" and "allow-list" in f["text"] for f in findings)
