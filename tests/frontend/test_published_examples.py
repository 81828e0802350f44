"""The published examples, and what BACKPLANE_LOG prints of them, line for line.

``BACKPLANE_WRITE_GOLDEN=1`` writes the texts anew.
"""

from __future__ import annotations

import os
import pathlib
import re
import sys

import pytest
from patience import run as run_patiently

FOLDER = pathlib.Path(__file__).parent / "published"
PYTHON = "{}.{}".format(*sys.version_info)  # bytecode differs
EXAMPLES = ("toy_example", "two_modules", "two_shapes", "scatter")


def log_of(example: str) -> str:
    done = run_patiently(
        [sys.executable, f"{example}.py"],
        cwd=FOLDER,
        env={**os.environ, "BACKPLANE_LOG": "bytecode,guards,graph,breaks,recompiles"},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    text = re.sub(r"0x[0-9a-f]+", "ADDRESS", done.stderr)
    text = re.sub(r"from '[^']*/(torch/[^']*)'", r"from '\1'", text)
    text = re.sub(r"(?<=\()/[^ ()]*/(?=\w+\.py:\d+\))", "", text)
    return "\n".join(line.rstrip() for line in text.splitlines()) + "\n"


@pytest.mark.parametrize("example", EXAMPLES)
def test_log(example: str) -> None:
    text = log_of(example)
    golden = FOLDER / PYTHON / f"{example}.txt"
    if os.environ.get("BACKPLANE_WRITE_GOLDEN"):
        golden.write_text(text)
    assert text == golden.read_text()
