"""Mistakes get an error that says what to do; a broken plugin hurts nobody else."""

from __future__ import annotations

import pathlib

import pytest
import torch
import torch_backplane
from compiling import PLUGINS, backplane_error, close, compile_for, mlp, run_python
from torch_backplane import errors


def failure(target, *args, plugin: str = "reference", **options) -> torch_backplane.BackplaneError:
    with pytest.raises(Exception) as caught:
        compile_for(plugin, target, options=options)(*args)
    error = backplane_error(caught.value)
    assert errors.CODES[error.code][1] in str(error), "the remedy is missing"
    assert error.code in str(caught.value), "what the user sees does not name the code"
    return error


def test_unknown_option() -> None:
    error = failure(mlp(), torch.randn(2, 16), stict=True)
    assert error.code == "BP-0101"
    assert "'stict'" in str(error) and "did you mean 'strict'?" in str(error)


def test_unknown_option_without_a_near_name() -> None:
    error = failure(mlp(), torch.randn(2, 16), zzz=True)
    assert error.code == "BP-0101" and "did you mean" not in str(error)
    assert "pack_weights" in str(error)


def test_an_option_that_is_no_name() -> None:
    with pytest.raises(torch_backplane.BackplaneError, match=r"BP-0101.*unknown option 1"):
        torch_backplane.Options.parse({1: 2})


def test_mode_is_no_option() -> None:
    with pytest.raises(Exception) as caught:
        torch.compile(mlp(), backend="plugin:reference", mode="max-autotune")(torch.randn(2, 16))
    error = backplane_error(caught.value)
    assert error.code == "BP-0101" and "'mode'" in str(error)


@pytest.mark.parametrize(
    "option", [{"strict": "yes"}, {"device": True}, {"device": "0"}, {"pack_weights": 1}], ids=str
)
def test_option_of_a_wrong_type(option: dict) -> None:
    error = failure(mlp(), torch.randn(2, 16), **option)
    assert error.code == "BP-0102"
    ((name, value),) = option.items()
    assert repr(name) in str(error) and repr(value) in str(error)


def test_unknown_device() -> None:
    for index in (7, -1):
        error = failure(mlp(), torch.randn(2, 16), device=index)
        assert error.code == "BP-0104" and str(index) in str(error)


def test_unknown_plugin() -> None:
    from torch_backplane._backends import PluginBackend

    with pytest.raises(Exception) as caught:
        torch.compile(mlp(), backend=PluginBackend("referense"))(torch.randn(2, 16))
    error = backplane_error(caught.value)
    assert error.code == "BP-0103"
    assert "'referense'" in str(error) and "did you mean 'reference'?" in str(error)


def test_strict_names_what_cannot_run() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return torch.bernoulli(x.sigmoid()) + 1

    error = failure(function, torch.randn(3), strict=True)
    assert error.code == "BP-0107"
    text = str(error)
    assert "aten.bernoulli" in text and "1 of 3 nodes" in text
    assert f"{pathlib.Path(__file__).name}:" in text, "the Python line is missing"
    line = next(row for row in text.splitlines() if "aten.bernoulli" in row)
    assert line.rstrip().rpartition(":")[2].strip(), "the reason is missing"


@pytest.mark.parametrize("plugin", PLUGINS)
def test_strict_is_silent_when_all_runs(plugin: str) -> None:
    model, x = mlp(), torch.randn(2, 16)
    compiled = compile_for(plugin, model, options={"strict": True}, fullgraph=True)
    close(compiled(x), model(x))
    compiled(x).sum().backward()


def test_eager_still_works_after_an_error() -> None:
    model, x = mlp(), torch.randn(2, 16)
    failure(model, x, strict=1)
    torch._dynamo.reset()
    close(compile_for("reference", model)(x), model(x))


# --- plugins by explicit path; in processes of their own -----------------------------------------

USE = """
import torch
model = torch.nn.Linear(4, 3).requires_grad_(False)
x = torch.randn(2, 4)
print((torch.compile(model, backend="plugin:{name}")(x) - model(x)).abs().max().item() < 1e-5)
"""


def test_missing_plugin_directory(tmp_path: pathlib.Path) -> None:
    done = run_python(
        USE.format(name="reference"), {"BACKPLANE_PLUGIN_PATH": str(tmp_path / "nowhere")}
    )
    assert done.returncode == 0 and done.stdout.strip() == "True", done.stderr


@pytest.mark.parametrize(
    "content",
    [b"", b"this is no library\n" * 100, b"\x7fELF" + bytes(200)],
    ids=["empty", "text", "header only"],
)
def test_broken_plugin_hurts_nobody(tmp_path: pathlib.Path, content: bytes) -> None:
    broken = tmp_path / "libbackplane_acme.so"
    broken.write_bytes(content)
    environment = {"BACKPLANE_PLUGIN_PATH": str(tmp_path)}
    done = run_python(USE.format(name="reference"), environment)
    assert done.returncode == 0 and done.stdout.strip() == "True", done.stderr
    code = """
import torch_backplane
from torch_backplane import plugin_search
entry = next(e for e in torch_backplane.plugins() if e["name"] == "acme")
print(entry["path"], bool(entry["error"]), entry["loaded"])
try:
    plugin_search.find_plugin("acme")
except torch_backplane.BackplaneError as error:
    print(error)
"""
    done = run_python(code, environment)
    assert f"{broken} True False" in done.stdout, done.stdout + done.stderr
    assert "BP-0103" in done.stdout and str(broken) in done.stdout


def test_plugin_directory_of_the_user(tmp_path: pathlib.Path) -> None:
    """A name that is taken already is refused, with both paths."""
    entry = next(e for e in torch_backplane.plugins() if e["name"] == "reference")
    code = "import torch_backplane, json; print(json.dumps(torch_backplane.plugins()))"
    copy = tmp_path / "libbackplane_reference.so"
    copy.write_bytes(pathlib.Path(entry["path"]).read_bytes())
    copy.chmod(0o755)
    done = run_python(code, {"BACKPLANE_PLUGIN_PATH": str(tmp_path)})
    import json

    found = [e for e in json.loads(done.stdout) if e["name"] == "reference"]
    assert len(found) == 2 and found[0]["path"] == str(copy) and not found[0]["error"]
    assert str(copy) in found[1]["error"] and entry["path"] in found[1]["error"]


# --- what an import costs ------------------------------------------------------------------------


def test_torch_alone_does_not_import_the_package() -> None:
    done = run_python(
        "import sys, torch; print([m for m in sys.modules if m.startswith('torch_backplane')])"
    )
    assert done.stdout.strip() == "['torch_backplane_names']", done.stdout + done.stderr


def test_listing_back_ends_does_not_load_the_extension() -> None:
    code = """
import sys, torch
names = torch._dynamo.list_backends(exclude_tags=())
print({"plugin:reference", "plugin:cpu_onednn"} <= set(names), "torch_backplane._C" in sys.modules)
"""
    done = run_python(code)
    assert done.stdout.strip() == "True False", done.stdout + done.stderr


def test_one_openmp_runtime() -> None:
    code = USE.format(name="cpu_onednn") + (
        "from torch_backplane.probe import openmp_runtimes\nprint(openmp_runtimes())\n"
    )
    done = run_python(code)
    lines = done.stdout.splitlines()
    assert lines[0] == "True", done.stderr
    assert lines[1].count(".so") == 1 and "libgomp" in lines[1]


def test_documented_modules_are_attributes_of_the_package() -> None:
    code = "import torch_backplane; print(torch_backplane.memory.__name__, torch_backplane.frontend.__name__)"
    assert run_python(code).stdout == "torch_backplane.memory torch_backplane.frontend\n"
