"""A page that names what is not there fails the check, and so does a variable that no page names."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
_spec = importlib.util.spec_from_file_location("check_docs", ROOT / "scripts/check_docs.py")
check_docs = importlib.util.module_from_spec(_spec)
sys.modules["check_docs"] = check_docs
_spec.loader.exec_module(check_docs)


def test_this_repository_holds():
    assert check_docs.check(ROOT, check_docs.VARIABLES) == []


@pytest.fixture
def tree(tmp_path):
    """What the check says of a small tree with one page."""
    subprocess.run(["git", "init", "--quiet"], cwd=tmp_path, check=True)
    for name, text in {
        "core/ir/graph.h": "",
        "core/base/log.cpp": 'std::getenv("BACKPLANE_LOG");\n',
        "README.md": "# Two words\n\n`BACKPLANE_LOG`\n",
    }.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def check(page: str, variables: dict[str, str] | None = None) -> list[str]:
        (tmp_path / "docs").mkdir(exist_ok=True)
        (tmp_path / "docs/page.md").write_text(page)
        return check_docs.check(tmp_path, variables or {})

    return check


@pytest.mark.parametrize(
    ("page", "said"),
    [
        ("`core/*/graph.h` `core/{ir,base}/*.h`", "docs/page.md:1: there is no file core/base/*.h"),
        ("`core/ir/graph.h`, `ir/graph.h`, `page.md`, `<name>.h`, `Python.h`", ""),
        ("text\n\n`core/ir/node.h`", "docs/page.md:3: there is no file core/ir/node.h"),
        ("```\n`node.h`\n```\n`node.cpp`", "docs/page.md:4: there is no file node.cpp"),
        ("[a](../README.md) [b](../README.md#two-words) [c](https://example.org/x)", ""),
        ("[a](README.md)", "docs/page.md:1: the link README.md leads nowhere"),
        ("[a](../README.md#three)", "docs/page.md:1: ../README.md has no heading #three"),
        ("`BACKPLANE_LOG=all`", ""),
        ("`BACKPLANE_LOGS`", "docs/page.md:1: nothing reads BACKPLANE_LOGS"),
    ],
)
def test_what_is_found(tree, page, said):
    assert tree(page) == ([said] if said else [])


def test_a_readme_names_its_own_files(tree, tmp_path):
    (tmp_path / "core/ir/README.md").write_text("`graph.h` `base/log.cpp` `log.cpp`")
    assert tree("`graph.h`") == ["core/ir/README.md:1: there is no file log.cpp"]


def test_a_variable_that_no_page_names(tree, tmp_path):
    (tmp_path / "core/base/log.cpp").write_text('std::getenv("BACKPLANE_NEW");  // BACKPLANE_LOG\n')
    assert tree("") == ["core/base/log.cpp: no document names BACKPLANE_NEW"]
    assert tree("", {"BACKPLANE_NEW": "a reason"}) == []
    assert tree("`BACKPLANE_NEW`", {"BACKPLANE_OLD": "a reason"}) == [
        "BACKPLANE_OLD: nothing reads it"
    ]
