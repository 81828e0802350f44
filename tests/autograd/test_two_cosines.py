"""The documented example prints what the page says."""

from __future__ import annotations

import pathlib
import re

from compiling import run_python

PAGE = pathlib.Path(__file__).parents[2] / "docs" / "two_cosines.md"


def without_seconds(text: str) -> str:
    """The predicted time is the device's."""
    return re.sub(r"twice, .* s predicted", "twice", text)


def test_page_shows_what_is_printed(tmp_path: pathlib.Path) -> None:
    page = PAGE.read_text()
    blocks = re.findall(r"```(\w*)\n(.*?)```", page, re.DOTALL)
    (source,) = (text for language, text in blocks if language == "python")
    graphs = [text for language, text in blocks if not language]
    assert len(graphs) == 4
    (tmp_path / "cos.py").write_text(source)
    done = run_python(
        f"import runpy; runpy.run_path({str(tmp_path / 'cos.py')!r})",
        {"BACKPLANE_LOG": "joint,autograd", "BACKPLANE_QUIET": "1"},
    )
    assert done.returncode == 0, done.stderr
    for graph in graphs:
        assert without_seconds(graph) in without_seconds(done.stderr)
