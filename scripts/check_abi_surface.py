#!/usr/bin/env python3
"""Fail when a field, entry, flag or constant of plugin_api is not used by the host, or by nobody beside
it.

The host is core/ and tools/, the other side is the SDK and the plugins; tests count for neither. What is
looked for is the name, so a name that several structs share is found when one of them is used. A peer
may have no use for some names, and does not have to: UNANSWERED says which, and why.
"""

from __future__ import annotations

import re
import sys

from make_abi_pins import HEADERS, INCLUDE, ROOT, read_structs

HOST = ("core", "tools")
PLUGIN = ("sdk/include", "sdk/kernels", "plugins")
# Rooms that hand every name on and use none.
FORWARDS = ("core/runtime/isolate", "core/runtime/worker")
# Names that one side has no use for, and why that is right.
_BY_NUMBER = "carried as a number, never looked at by name"
_NO_NEED = "ours have no need for it; the host's tests have plugins that do"
UNANSWERED = {
    "host": {
        **dict.fromkeys(("BP_DATA_CORRUPT", "BP_DEVICE_LOST", "BP_RESOURCE_BUSY"), _BY_NUMBER),
        **dict.fromkeys(("BP_TIMEOUT", "BP_LOG_DEBUG", "BP_LOG_INFO"), _BY_NUMBER),
        **dict.fromkeys(("BP_REFUSED_OP", "BP_REFUSED_DTYPE", "BP_REFUSED_SHAPE"), _BY_NUMBER),
        **dict.fromkeys(
            ("BP_REFUSED_DYNAMIC", "BP_REFUSED_LAYOUT", "BP_REFUSED_ATTRIBUTE"), _BY_NUMBER
        ),
        "BP_REFUSED_MEMORY": _BY_NUMBER,
        "BP_DEVICE_GPU": "only a CPU is treated apart",
        "BP_DEVICE_ACCELERATOR": "only a CPU is treated apart",
        "BP_HEALTH_DEGRADED": "what is neither OK nor LOST",
        "BP_NEGOTIATE_FAILED": "what is neither OK nor VERSION",
        "BP_WORKSPACE_INTERMEDIATE": "what is not SCRATCH",
        "name_size": "of ELF's own header, which is read as ELF",
        "description_size": "of ELF's own header, which is read as ELF",
    },
    "plugin": {
        **dict.fromkeys(("name_size", "description_size"), "set by BP_NOTE"),
        **dict.fromkeys(("plugin_name", "plugin_vendor", "plugin_version"), "set by BP_NOTE"),
        **dict.fromkeys(("hidden_copy_bytes", "hidden_copy_count"), "ours make no copy unasked"),
        **dict.fromkeys(("BP_EXECUTABLE_ONE_CALL", "BP_PLUGIN_ONE_CALL_PER_DEVICE"), _NO_NEED),
        **dict.fromkeys(("BP_RESOURCE_BUSY", "BP_REFUSED_MEMORY", "BP_HEALTH_DEGRADED"), _NO_NEED),
        **dict.fromkeys(("BP_LOG_DEBUG", "BP_LOG_ERROR", "BP_LOG_INFO"), _NO_NEED),
        **dict.fromkeys(("BP_ROLE_FORWARD", "BP_ROLE_BACKWARD"), "what is not SINGLE"),
        "BP_DTYPE_OPAQUE": "refused as every unknown type",
    },
}
_CONSTANT = re.compile(
    r"^\s*(?:#define )?(BP_[A-Z0-9_]+)\b(?:\s*=|\s+\(?(?:UINT64_C|0x))", re.MULTILINE
)


def read_text(folders: tuple[str, ...]) -> str:
    """All sources of the folders but tests, without comments."""
    parts = []
    for folder in folders:
        for path in sorted((ROOT / folder).rglob("*")):
            if (
                path.suffix not in (".h", ".hpp", ".cpp")
                or "test" in path.name
                or "testing" in path.parts
                or path.parent.relative_to(ROOT).as_posix() in FORWARDS
            ):
                continue
            text = re.sub(r"//[^\n]*|/\*.*?\*/", " ", path.read_text(), flags=re.DOTALL)
            # The list of all entries names each of them and uses none.
            parts.append(re.sub(r"BP_TABLE_ENTRY\(\w+, \w+\)", " ", text))
    return "\n".join(parts)


def names() -> list[tuple[str, str]]:
    """(where, name) of everything that the headers declare."""
    found = []
    for struct in read_structs():
        found += [
            (struct.name, field) for field in struct.fields if not field.startswith("reserved")
        ]
    for header in HEADERS:
        text = (INCLUDE / "backplane" / f"{header}.h").read_text()
        for match in _CONSTANT.finditer(re.sub(r"/\*.*?\*/", " ", text, flags=re.DOTALL)):
            found.append((f"{header}.h", match.group(1)))
        for line in re.sub(r"/\*.*?\*/", " ", text, flags=re.DOTALL).splitlines():
            if line.startswith("enum {") and "}" in line:
                found += [(f"{header}.h", name) for name in re.findall(r"BP_[A-Z0-9_]+", line)]
    return sorted(set(found))


def main() -> int:
    sides = {"host": read_text(HOST), "plugin": read_text(PLUGIN)}
    words = {side: set(re.findall(r"\w+", text)) for side, text in sides.items()}
    missing = 0
    for where, name in names():
        for side, known in words.items():
            if name in known or name in UNANSWERED[side]:
                continue
            print(f"{where}: {name} is not used by the {side}")
            missing += 1
    known = {name for _, name in names()}
    for side, listed in UNANSWERED.items():
        for name in listed:
            if name in known and name not in words[side]:
                continue
            print(
                f"{name} is listed as of no use to the {side}: it is used, or gone; take it off the list"
            )
            missing += 1
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main())
