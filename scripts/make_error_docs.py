#!/usr/bin/env python3
"""Writes docs/errors.md from the registry in python/torch_backplane/errors.py.

scripts/make_error_docs.py            write the page
scripts/make_error_docs.py --check    fail if the page is not current
"""

from __future__ import annotations

import argparse
import importlib.util
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "errors.md"

HEAD = """\
# Errors

Every error of the package is a `torch_backplane.BackplaneError` with a code. Under `torch.compile`
PyTorch wraps it in its own `BackendCompilerFailed`, whose text holds it whole. This page is generated
by `scripts/make_error_docs.py`; edit `python/torch_backplane/errors.py` instead.
"""


def load_codes() -> dict[str, tuple[str, str]]:
    """The registry, without importing the package: that would need torch."""
    path = ROOT / "python" / "torch_backplane" / "errors.py"
    spec = importlib.util.spec_from_file_location("backplane_errors", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.CODES


def render() -> str:
    parts = [HEAD]
    for code, (title, remedy) in sorted(load_codes().items()):
        parts.append(f"## {code}: {title}\n\n{remedy}\n")
    return "\n".join(parts)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="write nothing; fail if out of date")
    options = parser.parse_args()
    text = render()
    if options.check:
        if PAGE.is_file() and PAGE.read_text(encoding="utf-8") == text:
            return 0
        print(f"{PAGE.relative_to(ROOT)} is not current: run scripts/make_error_docs.py")
        return 1
    PAGE.parent.mkdir(exist_ok=True)
    PAGE.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
