"""The page of errors is generated: it must be what the generator writes now."""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_page_is_current():
    command = [sys.executable, ROOT / "scripts/make_error_docs.py", "--check"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_raised_code_is_registered():
    """And every registered code is raised somewhere."""
    package = ROOT / "python" / "torch_backplane"
    registered = set(
        re.findall(r'^    "(BP-\d{4})"', (package / "error_codes.py").read_text(), re.M)
    )
    used = {
        code
        for path in [*package.glob("*.py"), *(ROOT / "core" / "torch").rglob("*.cpp")]
        if path.name != "error_codes.py"
        for code in re.findall(r'"(BP-\d{4})"', path.read_text())
    }
    assert used == registered
