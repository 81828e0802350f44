#!/usr/bin/env python3
"""Write plugin_api/tests/abi_<major>_<minor>_pins.h: sizes and offsets of every struct of the ABI.

Run once per released version, commit the result and never write it again: compiling the pins of an
old version against today's headers is the check that old binaries still fit. A struct that may grow
is pinned to "at least" its size, a frozen one to exactly that.

    scripts/make_abi_pins.py            write the pins of the version in base.h
    scripts/make_abi_pins.py --check    exit 1 when they differ from the committed file
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
INCLUDE = ROOT / "plugin_api/include"
HEADERS = ["base", "graph", "host", "plugin"]
CLASSES = ("grows", "element", "frozen")

_STRUCT = re.compile(r"typedef struct (\w+) \{(.*?)\n\} \1;", re.DOTALL)
_COMMENT = re.compile(r"/\*.*?\*/", re.DOTALL)
_FUNCTION = re.compile(r"[^(]*\(\s*\*+\s*(?:\(\s*\*\s*)?(\w+)\s*\)")
_NAME = re.compile(r"(\w+)\s*(?:\[\w+\])?$")

HEAD = """/* Layout of plugin ABI {version} on 64-bit targets, written by scripts/make_abi_pins.py when that
 * version was current. Compiles as C99, C11 and C++20; compiling it is the check. */
#ifndef BACKPLANE_ABI_{tag}_PINS_H_
#define BACKPLANE_ABI_{tag}_PINS_H_

#include <backplane/plugin.h>

#ifndef BP_PIN
#if defined(__cplusplus)
#define BP_PIN(what) static_assert(what, #what)
#elif defined(__STDC_VERSION__) && __STDC_VERSION__ >= 201112L
#define BP_PIN(what) _Static_assert(what, #what)
#else /* C99: an array of negative size */
#define BP_PIN_JOIN(a, b) a##b
#define BP_PIN_NAME(line) BP_PIN_JOIN(bp_pin_at_line_, line)
#define BP_PIN(what) extern char BP_PIN_NAME(__LINE__)[(what) ? 1 : -1]
#endif
#define BP_PIN_FIELD(type, field, offset, size) \\
  BP_PIN(offsetof(type, field) == (offset) && sizeof(((type*)0)->field) == (size))
#endif

"""


@dataclass
class Struct:
    name: str
    kind: str  # one of CLASSES
    fields: list[str]


def split_fields(body: str) -> list[str]:
    """The declarations of a struct body, without comments; parentheses protect their semicolons."""
    fields, depth, current = [], 0, ""
    for char in _COMMENT.sub(" ", body):
        depth += {"(": 1, ")": -1}.get(char, 0)
        if char == ";" and depth == 0:
            fields.append(" ".join(current.split()))
            current = ""
        else:
            current += char
    return fields


def names_of(declaration: str) -> list[str]:
    """The field names of one declaration: `double a, b` has two."""
    function = _FUNCTION.match(declaration)
    if function:
        return [function.group(1)]
    names = []
    for part in declaration.split(","):
        match = _NAME.search(part.strip())
        if not match:
            raise ValueError(f"cannot read the field {declaration!r}")
        names.append(match.group(1))
    return names


def class_of(text: str, match: re.Match[str], name: str) -> str:
    """The class named in the comment right before the struct; several words: the last one counts."""
    before = text[: match.start()].rstrip()
    # A typedef or an enum may stand between the comment and the struct that it describes.
    comments = _COMMENT.findall(before[before.rfind("\n}") :] if "\n}" in before else before)
    found = re.findall(rf"\(({'|'.join(CLASSES)})\)", " ".join(comments))
    if found:
        return found[-1]
    if name == "bp_negotiation":  # its comment says more: never changes in any major
        return "frozen"
    raise ValueError(f"{name}: its comment names none of {CLASSES}")


def read_structs() -> list[Struct]:
    structs = []
    for header in HEADERS:
        text = (INCLUDE / "backplane" / f"{header}.h").read_text()
        for match in _STRUCT.finditer(text):
            name, body = match.groups()
            fields = [field for item in split_fields(body) for field in names_of(item)]
            structs.append(Struct(name, class_of(text, match, name), fields))
    return structs


def read_version() -> tuple[int, int]:
    text = (INCLUDE / "backplane/base.h").read_text()
    match = re.search(r"#define BP_ABI_VERSION BP_VERSION\((\d+), (\d+)\)", text)
    if not match:
        raise ValueError("base.h defines no BP_ABI_VERSION")
    return int(match.group(1)), int(match.group(2))


def measure(structs: list[Struct], compiler: str) -> dict[str, list[int]]:
    """What the compiler says: for each struct its size, then offset and size of each field."""
    lines = ["#include <stdio.h>", "#include <backplane/plugin.h>", "int main(void) {"]
    for struct in structs:
        lines.append(f'  printf("{struct.name} %zu", sizeof({struct.name}));')
        for field in struct.fields:
            lines.append(
                f'  printf(" %zu %zu", offsetof({struct.name}, {field}), '
                f"sizeof((({struct.name}*)0)->{field}));"
            )
        lines.append('  printf("\\n");')
    lines += ["  return 0;", "}", ""]
    with tempfile.TemporaryDirectory() as folder:
        source, program = Path(folder) / "measure.c", Path(folder) / "measure"
        source.write_text("\n".join(lines))
        subprocess.run(
            [compiler, "-std=c11", f"-I{INCLUDE}", str(source), "-o", str(program)], check=True
        )
        output = subprocess.run([program], check=True, capture_output=True, text=True).stdout
    rows = [line.split() for line in output.splitlines()]
    return {row[0]: [int(word) for word in row[1:]] for row in rows}


def render(structs: list[Struct], sizes: dict[str, list[int]], version: tuple[int, int]) -> str:
    text = HEAD.format(version="{}.{}".format(*version), tag="{}_{}".format(*version))
    for struct in structs:
        size, *places = sizes[struct.name]
        relation = "==" if struct.kind == "frozen" else ">="
        text += f"/* {struct.name} ({struct.kind}) */\n"
        text += f"BP_PIN(sizeof({struct.name}) {relation} {size});\n"
        for index, field in enumerate(struct.fields):
            offset, width = places[2 * index], places[2 * index + 1]
            # A frozen or growing struct inside another one is a field like any other.
            text += f"BP_PIN_FIELD({struct.name}, {field}, {offset}, {width});\n"
        text += "\n"
    return text + "#endif\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="compare, write nothing")
    parser.add_argument("--compiler", default="cc", help="a C11 compiler for a 64-bit target")
    args = parser.parse_args()
    version = read_version()
    structs = read_structs()
    text = render(structs, measure(structs, args.compiler), version)
    path = ROOT / "plugin_api/tests" / "abi_{}_{}_pins.h".format(*version)
    if not args.check:
        path.write_text(text)
        return 0
    if path.exists() and path.read_text() == text:
        return 0
    print(f"{path.relative_to(ROOT)} does not say what the headers say", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
