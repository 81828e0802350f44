"""The layer check must fail on what it forbids; a check that never fails guards nothing."""

import importlib.util
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
_spec = importlib.util.spec_from_file_location("check_layers", ROOT / "scripts/check_layers.py")
check_layers = importlib.util.module_from_spec(_spec)
sys.modules["check_layers"] = check_layers
_spec.loader.exec_module(check_layers)


@pytest.fixture
def tree(tmp_path):
    """Writes files into an otherwise valid tree and returns what the check says about it."""

    def check(files: dict[str, str]) -> list[str]:
        base = {
            "plugin_api/include/backplane/plugin.h": "#include <stdint.h>\n",
            "sdk/include/backplane/sdk.hpp": "#include <backplane/plugin.h>\n",
            "core/base/status.h": "#include <string>\n",
            "core/ir/graph.h": '#include "core/base/status.h"\n',
            "core/runtime/plugin/loader.h": '#include "core/ir/graph.h"\n#include <backplane/plugin.h>\n',
        }
        for name, text in {**base, **files}.items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return [str(violation) for violation in check_layers.check(tmp_path)]

    return check


def test_the_tables_are_sound():
    assert check_layers.check_data() == []


def test_this_repository_follows_the_rule():
    assert [str(violation) for violation in check_layers.check(ROOT)] == []


def test_this_package_has_no_import_cycle():
    assert [str(violation) for violation in check_layers.check_python(ROOT)] == []


def test_a_cycle_that_a_function_hides_is_found(tmp_path):
    package = tmp_path / "python" / "torch_backplane"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("from torch_backplane.a import f\n")
    (package / "a.py").write_text("from torch_backplane import b\n")
    (package / "b.py").write_text("def f():\n    from torch_backplane.c import g\n")
    (package / "c.py").write_text("")
    assert check_layers.check_python(tmp_path) == []
    (package / "c.py").write_text("def g():\n    import torch_backplane.a\n")
    (found,) = check_layers.check_python(tmp_path)
    assert "import cycle" in str(found) and "a -> b -> c -> a" in str(found)


def test_a_valid_tree_passes(tree):
    assert tree({}) == []


@pytest.mark.parametrize(
    ("file", "include"),
    [
        ("core/base/a.h", '"core/ir/graph.h"'),
        ("core/ir/a.cpp", "<backplane/plugin.h>"),
        ("core/ir/a_test.cpp", "<backplane/sdk.hpp>"),
        ("core/passes/a.cpp", '"core/runtime/plugin/loader.h"'),
        ("core/runtime/plugin/a.cpp", "<backplane/sdk.hpp>"),
        ("core/cpython/frame/a.cpp", '"core/torch/bridge/b.h"'),
        ("core/torch/bridge/a.cpp", '"core/torch/fx/b.h"'),
        ("plugins/reference/a.cpp", '"core/base/status.h"'),
        ("plugins/reference/a.cpp", '"plugins/cpu_onednn/b.h"'),
        ("plugin_api/include/backplane/a.h", "<backplane/sdk.hpp>"),
        ("sdk/include/backplane/a.hpp", '"core/base/status.h"'),
        ("sdk/include/backplane/a.hpp", '"../../../core/base/status.h"'),
    ],
)
def test_a_wrong_direction_fails(tree, file, include):
    targets = {
        "core/torch/bridge/b.h": "",
        "core/torch/fx/b.h": "",
        "plugins/cpu_onednn/b.h": "",
    }
    (violation,) = tree({**targets, file: f"// first line\n  #  include {include}\n"})
    assert violation.startswith(f"{file}:2: ")
    assert "may not include" in violation


@pytest.mark.parametrize(
    ("file", "include"),
    [
        ("core/ir/a.h", "<Python.h>"),
        ("core/runtime/plugin/a.cpp", "<ATen/ATen.h>"),
        ("core/cpython/frame/a.cpp", "<torch/torch.h>"),
        ("core/partition/a.cpp", "<boost/dll.hpp>"),
        ("core/torch/bridge/a.cpp", "<dlfcn.h>"),
        ("plugins/reference/a.cpp", "<oneapi/dnnl/dnnl.hpp>"),
        ("plugins/cpu_onednn/a.cpp", '"Python.h"'),
    ],
)
def test_a_foreign_header_in_the_wrong_room_fails(tree, file, include):
    (violation,) = tree({file: f"#include {include}\n"})
    assert "may only be included in" in violation


@pytest.mark.parametrize(
    ("file", "include"),
    [
        ("core/torch/pch.h", "<ATen/ATen.h>"),
        ("core/cpython/frame/a.cpp", "<Python.h>"),
        ("core/runtime/plugin/a.cpp", "<boost/dll/shared_library.hpp>"),
        ("core/runtime/plugin/a_test.cpp", "<backplane/sdk.hpp>"),
        ("core/torch/python/a.cpp", '"core/runtime/plugin/loader.h"'),
        ("plugins/cpu_onednn/a.cpp", "<oneapi/dnnl/dnnl.hpp>"),
        ("plugins/reference/a.cpp", "<backplane/sdk.hpp>"),
        ("sdk/conformance/a.cpp", '"core/runtime/plugin/loader.h"'),
    ],
)
def test_a_right_direction_passes(tree, file, include):
    assert tree({file: f"#include {include}\n"}) == []


def test_a_cycle_fails(tree):
    violations = tree(
        {
            "core/ir/a.h": '#include "core/ir/b.h"\n',
            "core/ir/b.h": '#include "core/ir/c.h"\n',
            "core/ir/c.h": '#include "core/ir/a.h"\n',
        }
    )
    assert violations == [
        "core/ir/a.h:1: include cycle: core/ir/a.h -> core/ir/b.h -> core/ir/c.h -> core/ir/a.h"
    ]


def test_a_folder_outside_the_list_fails(tree):
    (violation,) = tree({"core/misc/a.h": "\n"})
    assert "in no layer" in violation


def test_a_missing_file_and_a_macro_fail(tree):
    missing, macro = tree({"core/ir/a.cpp": '#include "graph.h"\n#include HEADER\n'})
    assert "no such file from the repository root" in missing
    assert "not a literal path" in macro


def test_comments_are_not_includes(tree):
    text = '// #include "core/runtime/plugin/loader.h"\n/*\n#include "core/runtime/plugin/loader.h"\n*/\n'
    assert tree({"core/base/a.h": text}) == []


def test_the_command_reports_and_fails(tmp_path, capsys):
    (tmp_path / "core/base").mkdir(parents=True)
    (tmp_path / "core/base/a.h").write_text("#include <Python.h>\n")
    assert check_layers.main([str(tmp_path)]) == 1
    assert "core/base/a.h:1: <Python.h>" in capsys.readouterr().out
