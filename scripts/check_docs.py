#!/usr/bin/env python3
"""Check that what the documents name exists: files in backticks, links with their headings, and variables
`BACKPLANE_…`; and that each variable which the product reads stands in a document, or in VARIABLES with
the reason why not.

Exit status 0: all is well; 1: violations, one a line.
"""

from __future__ import annotations

import argparse
import fnmatch
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

# Files of others, and of programs that a page shows.
FOREIGN = {"Python.h", "cuda_fp16.h", "model.py"}

# Variables that no document has to name.
VARIABLES = {
    "BACKPLANE_EMULATED_CUDA_DEVICES": "of the emulated driver's own tests",
    "BACKPLANE_EMULATED_CUDA_VERSION": "of the emulated driver's own tests",
    "BACKPLANE_EMULATED_NVRTC_VERSION": "of the emulated driver's own tests",
    "BACKPLANE_FAULTY_CL": "of the fault layer's own tests",
    "BACKPLANE_OPINFO_WATCHED": "from a run of samples to its workers",
    "BACKPLANE_RECORDING": "no variable: the name of a slot in PyTorch's thread state",
    "BACKPLANE_SABOTAGE": "of the sabotage plugin's own tests",
    "BACKPLANE_SABOTAGE_HOST_MEMORY": "of the sabotage plugin's own tests",
    "BACKPLANE_SCRIPTED": "of a test's own plugin",
}

READERS = ("core", "plugins", "python", "sdk", "tools")
# Release notes name what was there then.
HISTORY = "CHANGELOG.md"

_FILE = re.compile(r"[\w/.<>*{},@-]+\.(?:h|hpp|c|cc|cpp|inc|py|cmake|toml|sh|md)")
_VARIABLE = re.compile(r"BACKPLANE_[A-Z0-9_]*[A-Z0-9]")


def tracked(root: Path) -> list[str]:
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=True)
    return [file for file in done.stdout.splitlines() if (root / file).is_file()]


def expand(pattern: str) -> list[str]:
    """`a_{b,c}.h` as `a_b.h` and `a_c.h`."""
    found = re.search(r"\{([^}]*)\}", pattern)
    if found is None:
        return [pattern]
    before, after = pattern[: found.start()], pattern[found.end() :]
    return [name for part in found[1].split(",") for name in expand(before + part + after)]


def anchors(text: str) -> set[str]:
    """Headings as links name them."""
    heads = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}


def is_file(name: str, files: list[str]) -> bool:
    """Whether it names a file, from the root or by its last parts."""
    if "*" in name:
        return any(fnmatch.fnmatchcase("/" + file, "*/" + name) for file in files)
    return any(("/" + file).endswith("/" + name) for file in files)


def check_page(root: Path, page: str, files: list[str], read: set[str]) -> Iterator[str]:
    """What is wrong with one page; `read` are the variables of all that is no document."""
    text = (root / page).read_text()
    spans = re.sub(r"^```.*?^```", lambda m: "\n" * m[0].count("\n"), text, flags=re.M | re.S)

    # The README of a room or a plugin names the files of its own folder by their bare names.
    folder, name = page.rpartition("/")[::2]
    room = folder if name == "README.md" and folder.startswith(READERS) else ""

    def where(position: int, of: str = text) -> str:
        return f"{page}:{of.count(chr(10), 0, position) + 1}"

    for span in re.finditer(r"`([^`\n]+)`", spans):
        name = span[1]
        if page == HISTORY or "<" in name or "@" in name or "v3xx" in name or name in FOREIGN:
            continue
        if _FILE.fullmatch(name):
            for one in expand(name):
                below = "" if "/" in one else room
                if not is_file(one, [file for file in files if file.startswith(below)]):
                    yield f"{where(span.start(), spans)}: there is no file {one}"
    for link in re.finditer(r"\]\(([^)\s]+)\)", text):
        target, _, anchor = link[1].partition("#")
        if "://" in target:
            continue
        path = (root / page).parent / target if target else root / page
        if not path.exists():
            yield f"{where(link.start())}: the link {link[1]} leads nowhere"
        elif anchor and anchor not in anchors(path.read_text()):
            yield f"{where(link.start())}: {target or page} has no heading #{anchor}"
    for variable in _VARIABLE.finditer(text):
        if page != HISTORY and variable[0] not in read:
            yield f"{where(variable.start())}: nothing reads {variable[0]}"


def check(root: Path, variables: dict[str, str]) -> list[str]:
    files = tracked(root)
    pages = [file for file in files if file.endswith(".md")]
    sources = {
        file: (root / file).read_text(errors="replace")
        for file in files
        if file.endswith((".h", ".hpp", ".c", ".cc", ".cpp", ".inc", ".py", ".sh", ".cmake", ".in"))
        or Path(file).name in ("CMakeLists.txt", "dev")
        if file != "scripts/check_docs.py"
    }
    read = {name for text in sources.values() for name in _VARIABLE.findall(text)}
    violations = [said for page in pages for said in check_page(root, page, files, read)]
    told = {
        name
        for page in pages
        if page != HISTORY
        for name in _VARIABLE.findall((root / page).read_text())
    }
    asked = {}
    for file, text in sources.items():
        if file.startswith(READERS) and not Path(file).stem.endswith("_test"):
            for name in re.findall(r'"(BACKPLANE_[A-Z0-9_]+)"', text):
                asked.setdefault(name, file)
    for name, file in sorted(asked.items()):
        if name not in variables and name not in told:
            violations.append(f"{file}: no document names {name}")
    violations += [f"{name}: nothing reads it" for name in variables if name not in asked]
    return violations


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--root", type=Path, default=Path(__file__).resolve().parents[1])
    violations = check(parser.parse_args().root, VARIABLES)
    for violation in violations:
        print(violation)
    return 1 if violations else 0


if __name__ == "__main__":
    sys.exit(main())
