"""What a vendor does first, with nothing but the installed package: `backplane new`, build, test, wheel;
and the plugins of examples/, built outside of the tree."""

from __future__ import annotations

import os
import pathlib
import re
import shutil
import subprocess
import sys
import zipfile

import pytest
from torch_backplane import cli, new_plugin

pytestmark = pytest.mark.slow
ROOT = pathlib.Path(__file__).parents[2]
EXAMPLES, GUIDE = ROOT / "examples", ROOT / "docs/guide_vendors.md"
MULTILINE = re.MULTILINE | re.DOTALL
SCRIPTS = pathlib.Path(sys.executable).parent
# Of both: a model whose every part has a kernel, and one that runs partly with PyTorch; gradients too.
PROGRAM = """
import torch
torch.manual_seed(0)
N, F = torch.nn, torch.nn.functional

def trained(model, run, x):
    model.zero_grad()
    result = run(x)
    result.square().mean().backward()
    return [result.detach(), *(p.grad.clone() for p in model.parameters())]

mlp = N.Sequential(N.Linear(8, 16), N.ReLU(), N.Linear(16, 4))
mixed = N.Sequential(N.Linear(8, 8), N.Softplus(), N.Linear(8, 4), N.ReLU())
encoder = N.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
for model, shape in ((mlp, (3, 8)), (mixed, (5, 8)), (encoder, (2, 5, 8))):
    compiled = torch.compile(model, backend="plugin:{name}", options={{"report": False}})
    for rows in (shape[0], 7):
        x = torch.randn(rows, *shape[1:])
        for actual, expected in zip(trained(model, compiled, x), trained(model, model, x), strict=True):
            torch.testing.assert_close(actual, expected, atol=1e-5, rtol=1e-4)
    model.eval()
    with torch.no_grad():
        torch.testing.assert_close(compiled(x), model(x), atol={tolerance}, rtol={tolerance})
import torch_backplane
stats = torch_backplane.stats()
assert stats["plugin_nodes"] > 0, stats
print(stats["plugin_nodes"], stats["fallback_nodes"], stats["eager_calls"])
"""


def environment(**more: str) -> dict[str, str]:
    """As after activating the environment that this runs in, anywhere."""
    found = {k: v for k, v in os.environ.items() if not k.startswith("BACKPLANE_")}
    path = f"{SCRIPTS}{os.pathsep}{found.get('PATH', '')}"
    return {**found, "PATH": path, "VIRTUAL_ENV": sys.prefix, **more}


def run(command: list[str], where: pathlib.Path, **more: str) -> str:
    done = subprocess.run(
        command, cwd=where, env=environment(**more), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def run_program(name: str, where: pathlib.Path, tolerance: float = 1e-4, **more: str) -> str:
    return run(
        [sys.executable, "-c", PROGRAM.format(name=name, tolerance=tolerance)], where, **more
    )


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """What the first chapter of the guide makes, by the blocks that stand in it."""
    where = tmp_path_factory.mktemp("vendor")
    script = ["set -e"]
    for kind, text in re.findall(
        r"^```(sh run|python \S+)\n(.*?)^```$", GUIDE.read_text(), MULTILINE
    ):
        file = kind.removeprefix("python ")
        script.append(text if kind == "sh run" else f"cat > {file} <<'END'\n{text}END")
    (where / "out.txt").write_text(run(["bash", "-c", "\n".join(script)], where))
    return where / "acme"


def test_the_first_chapter_of_the_guide(project: pathlib.Path) -> None:
    out = (project.parent / "out.txt").read_text()
    assert "100% tests passed" in out
    assert "acme" in out
    run_program("acme", project, BACKPLANE_PLUGIN_PATH=str(project / "build"))


def test_what_new_makes_is_a_wheel_without_torch(project: pathlib.Path) -> None:
    (wheel,) = (project / "dist").glob("*.whl")
    assert wheel.name.startswith("backplane_acme-0.1.0-py3-none-linux")
    with zipfile.ZipFile(wheel) as content:
        names = content.namelist()
        (metadata,) = (n for n in names if n.endswith("METADATA"))
        assert "Requires-Dist" not in content.read(metadata).decode()
    assert "backplane_acme/libbackplane_acme.so" in names
    assert not any(n.startswith(("src", "tests", "include")) for n in names)
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    run([*pip, "install", "--no-deps", "--target", "site", str(wheel)], project)
    run_program("acme", project, PYTHONPATH=str(project / "site"))


@pytest.mark.parametrize(
    "kernels",
    [
        pytest.param(k, marks=[pytest.mark.long] * (k != "opencl"))
        for k in new_plugin.KERNELS
        if k != "c"
    ],
)
def test_kernels_of_each_kind(kernels: str, tmp_path: pathlib.Path) -> None:
    """Built and tested by their own workflow, on PoCL and on the emulated driver."""
    name = f"acme_{kernels}"
    found = {"BACKPLANE_PLUGIN_PATH": str(tmp_path / name / "build")}
    if emulated := os.environ.get("BACKPLANE_CUDA_DRIVER"):
        found |= {f"{name}_DRIVER": emulated, f"{name}_COMPILER": emulated}
    if ccache := shutil.which("ccache"):
        found["CMAKE_CXX_COMPILER_LAUNCHER"] = ccache
    run(["backplane", "new", name, "--kernels", kernels], tmp_path)
    said = run(["cmake", "--workflow", "--preset", "dev"], tmp_path / name, **found)
    assert "100% tests passed, 0 tests failed out of 2" in said
    run_program(name, tmp_path, **found)
    library = tmp_path / name / f"build/libbackplane_{name}.so"
    certify = ["backplane", "certify", str(library), "--level", "1"]
    if kernels != "library":  # all of level 1 takes minutes, as each kernel is built anew
        certify += ["--case", "operators:*s*max*"]
    run(certify, tmp_path, **found)


def test_without_a_driver_a_new_plugin_says_so(tmp_path: pathlib.Path) -> None:
    (tmp_path / "driver.cpp").write_text(
        (new_plugin.PACKAGE / "template/kernels/cuda/src/driver.cpp")
        .read_text()
        .replace("@NAME@", "acme")
        + "int main() { try { plugin::driver(); }"
        " catch (const std::runtime_error& e) { return std::puts(e.what()) < 0; } }\n"
    )
    header = new_plugin.PACKAGE / "template/kernels/cuda/src"
    compiler = os.environ.get("CXX", "c++")
    flags = ["-std=c++20", "-include", "cstdio", f"-I{header}"]
    run([compiler, *flags, "driver.cpp", "-o", "driver"], tmp_path)
    said = run(["./driver"], tmp_path, acme_DRIVER="/nowhere/libdriver.so")
    assert "no device: /nowhere/libdriver.so" in said
    assert "acme_DRIVER can name another place" in said


@pytest.mark.long
def test_without_a_driver_the_tests_of_a_new_plugin_are_skipped(tmp_path: pathlib.Path) -> None:
    found = {
        "acme_DRIVER": "/nowhere/libdriver.so",
        "BACKPLANE_PLUGIN_PATH": f"{tmp_path}/acme/build",
    }
    run(["backplane", "new", "acme", "--kernels", "cuda"], tmp_path)
    said = run(["cmake", "--workflow", "--preset", "dev"], tmp_path / "acme", **found)
    assert "acme_session (Skipped)" in said, said
    tests = [sys.executable, "-m", "pytest", "-q", "-rs", "tests"]
    said = run(tests, tmp_path / "acme", **found)
    assert "SKIPPED" in said and "no device: /nowhere/libdriver.so" in said, said


@pytest.mark.parametrize("is_there", [True, False])
def test_a_build_that_finds_no_sdk_says_why(tmp_path: pathlib.Path, is_there: bool) -> None:
    run(["backplane", "new", "acme"], tmp_path)
    tools = tmp_path / "tools"
    tools.mkdir()
    for tool in ("cmake", "c++", "as", "ld", "make", "sh", "uname"):
        (tools / tool).symlink_to(shutil.which(tool) or tool)
    if is_there:
        (tools / "backplane").write_text("#!/bin/sh\necho no module named torch >&2\nexit 1\n")
        (tools / "backplane").chmod(0o755)
    done = subprocess.run(
        ["cmake", "-S", "acme", "-B", "build", "-G", "Unix Makefiles"],
        cwd=tmp_path, env={"PATH": f"{tools}", "HOME": str(tmp_path)},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode != 0
    reason = (
        "no module named torch" if is_there else "`backplane sdk --cmake-dir` failed: No such file"
    )
    assert reason in done.stderr and "Activate the environment" in done.stderr, done.stderr


def test_the_package_has_what_a_vendor_reads(tmp_path: pathlib.Path) -> None:
    docs = pathlib.Path(run(["backplane", "sdk", "--docs"], tmp_path).strip())
    guide = docs / "guide_vendors.md"
    links = re.findall(r"\]\(([\w./]+\.md)\)", guide.read_text())
    assert links
    assert not [link for link in links if not (docs / link).is_file()]
    examples = pathlib.Path(run(["backplane", "sdk", "--examples"], tmp_path).strip())
    assert (examples / "npu" / "CMakeLists.txt").is_file() and (
        examples / "hello" / "hello.cpp"
    ).is_file()
    assert str(guide) in run(["backplane", "new", "acme"], tmp_path)


def test_the_code_of_the_guide_compiles(tmp_path: pathlib.Path) -> None:
    blocks = re.findall(r"^```cpp\n(.*?)^```$", GUIDE.read_text(), MULTILINE)
    assert blocks
    include = re.compile(r"^#include .*\n", re.MULTILINE)
    headers = "".join(line for block in blocks for line in include.findall(block))
    text = f"#include <backplane/sdk.hpp>\n{headers}namespace bp = backplane::sdk;\n"
    for i, block in enumerate(blocks):
        text += f"namespace block_{i} {{\n{include.sub('', block)}}}\n"
    (tmp_path / "guide.cpp").write_text(text)
    folder = run(["backplane", "sdk", "--include-dir"], tmp_path).strip()
    compiler = os.environ.get("CXX", "c++")
    run([compiler, "-std=c++20", "-fsyntax-only", "-Wall", f"-I{folder}", "guide.cpp"], tmp_path)


def build_example(example: str, where: pathlib.Path) -> dict[str, str]:
    """Outside of the tree; the environment that finds it."""
    sdk = run(["backplane", "sdk", "--cmake-dir"], where).strip()
    configure = ["cmake", "-S", str(EXAMPLES / example), "-B", "build", f"-DBackplane_DIR={sdk}"]
    run([*configure, "-DCMAKE_BUILD_TYPE=Release"], where)
    run(["cmake", "--build", "build", "-j", "2"], where)
    return {"BACKPLANE_PLUGIN_PATH": str(where / "build")}


@pytest.mark.parametrize("example", ["hello", pytest.param("npu", marks=pytest.mark.long)])
def test_examples(example: str, tmp_path: pathlib.Path) -> None:
    folder = build_example(example, tmp_path)
    run_program(example, tmp_path, **folder)
    checked = run_program(example, tmp_path, BACKPLANE_CHECK="memory", **folder)
    assert checked.split()[-1] == "0", checked  # no call was given back to PyTorch
    if example == "npu":
        run_program(example, tmp_path, tolerance=0.05, NPU_INT8="1", **folder)
    library = tmp_path / "build" / f"libbackplane_{example}.so"
    said = run(["backplane", "certify", str(library), "--level", "2"], tmp_path)
    assert "level 2 reached" in said, said


@pytest.mark.long
def test_generated_kernels_in_another_language(tmp_path: pathlib.Path) -> None:
    """Whoever brings a C-like language has the operators of sdk/kernels, and none of them is wrong."""
    folder = build_example("ckernels", tmp_path)
    run_program("ckernels", tmp_path, **folder)
    run_program("ckernels", tmp_path, BACKPLANE_CHECK="memory", **folder)
    samples = [
        sys.executable,
        "-m",
        "torch_backplane.cli",
        "opinfo",
        "--plugin",
        "ckernels",
        "--no-backward",
        *["--dtype", "float32"],
    ]
    share = re.search(
        r"ckernels: ([0-9.]+)% of", run(samples, tmp_path, BACKPLANE_QUIET="1", **folder)
    )
    assert share is not None
    assert float(share[1]) >= 60


def test_a_plugin_in_c(tmp_path: pathlib.Path) -> None:
    """By the commands of the guide, with the warnings that a careful vendor turns on."""
    (commands,) = re.findall(r"^```sh plain\n(.*?)^```$", GUIDE.read_text(), MULTILINE)
    strict = commands.replace("cc -std=c11", "cc -std=c11 -Wall -Wextra -Wpedantic -Werror")
    said = run(["bash", "-ec", strict], tmp_path)
    assert "level 1 reached" in said, said
    program = """
import torch, torch_backplane

def f(x, y):
    z = torch.relu(-(x + y) * y)
    return z, z + z

x, y = torch.randn(3, 40), torch.randn(3, 40)
compiled = torch_backplane.compile(f, backend="plugin:plain", options={"strict": True})
assert all(torch.equal(a, b) for a, b in zip(compiled(x, y), f(x, y)))
"""
    for check in ({}, {"BACKPLANE_CHECK": "memory"}):
        run([sys.executable, "-c", program], tmp_path, BACKPLANE_PLUGIN_PATH=str(tmp_path), **check)


def test_the_examples_are_short() -> None:
    lines = {
        e: len((EXAMPLES / e / f"{e}.cpp").read_text().splitlines())
        for e in ("hello", "npu", "ckernels")
    }
    assert lines["hello"] <= 120
    assert lines["npu"] <= 130
    assert lines["ckernels"] <= 250


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["Acme"], "small letters"),
        (["9lives"], "small letters"),
        (["a-b"], "small letters"),
        (["../acme"], "small letters"),
        (["a" * 41], "at most 40"),
        (["opencl"], "the package's own"),
        (["acme", "--kernels", "pascal"], "there is: c, opencl, cuda, library"),
    ],
)
def test_what_cannot_be_made(
    arguments: list[str],
    words: str,
    tmp_path: pathlib.Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli.main(["new", *arguments]) == 2
    error = capsys.readouterr().err
    assert error.startswith("backplane: ")
    assert words in error
    assert not list(tmp_path.iterdir())


def test_nothing_is_overwritten(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "mine.txt").write_text("kept")
    assert cli.main(["new", "acme", "--into", str(tmp_path)]) == 2
    assert "not an empty folder" in capsys.readouterr().err
    assert [p.name for p in tmp_path.iterdir()] == ["mine.txt"]
    file = tmp_path / "mine.txt"
    with pytest.raises(new_plugin.CannotCreate, match="not an empty folder"):
        new_plugin.create("acme", file)
    with pytest.raises(new_plugin.CannotCreate, match="cannot be written"):
        new_plugin.create("acme", file / "below")


def test_an_empty_folder_is_taken(tmp_path: pathlib.Path) -> None:
    files = new_plugin.create("acme", tmp_path)
    assert tmp_path / "src/acme.cpp" in files
    assert not any(re.search("@[A-Z]+@", f.read_text()) for f in files)


def test_without_the_command_the_build_says_what_to_do(project: pathlib.Path) -> None:
    done = subprocess.run(
        ["cmake", "-S", ".", "-B", "elsewhere"],
        cwd=project,
        env={**environment(), "PATH": "/usr/local/bin:/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode != 0
    assert "pip install torch-backplane" in done.stderr


def test_a_graph_in_text_form_runs_on_a_plugin(
    tmp_path: pathlib.Path, capfd: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "graph.bpir"
    file.write_text(
        "graph @g(%x: f32[2]) -> (f32[2]) {\n  %0 = aten.neg(%x) : f32[2]\n  return %0\n}\n"
    )
    assert cli.main(["run", str(file), "--plugin", "cpu_onednn", "--compare", "reference"]) == 0
    assert cli.main(["opt", str(file), "--plugin", "reference"]) == 0
    assert "aten.neg" in capfd.readouterr().out
    assert cli.main(["opt", "-h"]) == 0
    assert cli.main(["run", str(file), "--plugin", "acne"]) != 0
    assert "no plugin named 'acne'" in capfd.readouterr().err
