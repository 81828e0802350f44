#!/usr/bin/env python3
"""Check that every #include follows the layer rule of ARCHITECTURE.md, and that no import of the
Python package, not even one inside of a function, closes a cycle.

The rule is data: LAYERS says which folder may include which, EXTERNAL says who may see a library
that is not ours. Exit status 0: all is well; 1: violations, one a line; 2: the data is wrong.
"""

from __future__ import annotations

import argparse
import ast
import re
import sys
from dataclasses import dataclass
from pathlib import Path

_CORE = ["core/base", "core/ir", "core/passes", "core/partition"]
_HOST, _WATCH, _ISOLATE, _PLUGIN, _WORKER, _PLAN = (
    f"core/runtime/{room}" for room in ("host", "watch", "isolate", "plugin", "worker", "plan")
)
_RUNTIME = [*_CORE, "plugin_api", _HOST, _WATCH, _ISOLATE, _PLUGIN, _WORKER, _PLAN]
_CPYTHON = ["core/cpython/bytecode", "core/cpython/frame"]
_TORCH_ROOMS = ("bridge", "record", "device", "autograd", "compiler")
_CALL_ROOMS = (
    "guards",
    "world",
    "interpret",
    "capture",
    "entry",
    "frames",
    "call",
    "python",
)
_TORCH = [f"core/torch/{room}" for room in (*_TORCH_ROOMS, *_CALL_ROOMS)]

# Folder -> folders it may include, besides itself. A file belongs to its longest matching folder.
LAYERS: dict[str, list[str]] = {
    "plugin_api": [],
    "core/base": [],
    "core/ir": ["core/base"],
    "core/passes": ["core/base", "core/ir"],
    "core/partition": ["core/base", "core/ir", "core/passes"],
    _HOST: [*_CORE, "plugin_api"],
    _WATCH: [*_CORE, "plugin_api", _HOST],
    _ISOLATE: [*_CORE, "plugin_api", _HOST, _WATCH],
    _PLUGIN: [*_CORE, "plugin_api", _HOST, _WATCH, _ISOLATE],
    _WORKER: [*_CORE, "plugin_api", _HOST, _WATCH, _ISOLATE, _PLUGIN],
    _PLAN: [*_CORE, "plugin_api", _HOST, _WATCH, _PLUGIN],
    "core/runtime/testing": [*_RUNTIME, "sdk/include"],
    "core/cpython/bytecode": _RUNTIME,
    "core/cpython/frame": [*_RUNTIME, "core/cpython/bytecode"],
    "core/torch": [],  # pch.h: foreign headers only
    **{room: [*_RUNTIME, *_CPYTHON, *_TORCH[:index]] for index, room in enumerate(_TORCH)},
    "core/torch/testing": ["plugins/cuda"],  # torch.cuda over the emulated driver
    "sdk/include": ["plugin_api"],
    "sdk/kernelgen": ["plugin_api"],
    "sdk/kernels": ["plugin_api", "sdk/include", "sdk/kernelgen"],
    "sdk/template": ["plugin_api", "sdk/include", "sdk/kernelgen", "sdk/kernels"],
    "sdk/conformance": [*_RUNTIME, "sdk/include"],
    "sdk/tests": ["plugin_api", "sdk/include", "sdk/kernelgen"],
    "plugins/reference": ["plugin_api", "sdk/include", "sdk/kernelgen"],
    "plugins/cpu_onednn": ["plugin_api", "sdk/include", "sdk/kernelgen"],
    "plugins/opencl": ["plugin_api", "sdk/include", "sdk/kernelgen", "sdk/kernels"],
    "plugins/cuda": ["plugin_api", "sdk/include", "sdk/kernelgen", "sdk/kernels"],
    "tools": [*_RUNTIME, "sdk/conformance"],
    "tests": [*_RUNTIME, "sdk/include"],
    "benchmarks": [*_RUNTIME, "sdk/include"],
}

# What a unit test beside its source may include on top: runtime tests write plugins with the SDK.
TEST_EXTRA = {
    "core/runtime": [*_RUNTIME, "core/runtime/testing", "sdk/include"],
    "core/torch": ["sdk/include"],
    "tools": ["core/runtime/testing"],
}

# Pattern of an included path -> folders whose files may include it.
EXTERNAL: list[tuple[str, list[str]]] = [
    (
        r"Python\.h|frameobject\.h|structmember\.h|internal/pycore_.*",
        ["core/cpython", "core/torch"],
    ),
    (r"(torch|ATen|c10|caffe2|pybind11)/.*", ["core/torch"]),
    (
        r"dlfcn\.h|boost/dll(/.*|\.hpp)",
        [
            "core/runtime",
            "core/torch/device/native_stream.cpp",  # asks a library of PyTorch's that is loaded
            "core/torch/testing",
            "plugins",
            "sdk/conformance",
            "sdk/include/backplane/sdk/testing",
            "sdk/template/kernels/cuda",
            "tests/conformance",
        ],
    ),
    (r"(oneapi/dnnl/.*|dnnl.*)", ["plugins/cpu_onednn"]),
    (r"CL/.*", ["plugins/opencl", "sdk/template/kernels/opencl"]),
    (r"(cuda|cublas|cudnn|nvrtc|nvToolsExt|cooperative_groups).*", ["plugins/cuda"]),
]

# `#include <backplane/...>` is searched here, in this order.
INCLUDE_ROOTS = [
    "plugin_api/include",
    "sdk/include",
    "sdk/kernelgen/include",
    "sdk/kernels/include",
]

PACKAGE = "torch_backplane"

# Folders whose own files may be named relative to the including file: each builds alone.
RELATIVE_ALLOWED = ("plugins/", "sdk/", "plugin_api/", "tools/", "tests/", "benchmarks/")

SCANNED = ("plugin_api", "core", "plugins", "sdk", "tools", "tests", "benchmarks")
SUFFIXES = {".h", ".hpp", ".c", ".cc", ".cpp", ".cu", ".inc"}

_COMMENT = re.compile(r"/\*.*?\*/|//[^\n]*", re.DOTALL)
_INCLUDE = re.compile(
    r'^[ \t]*#[ \t]*include(?:_next)?\b[ \t]*(<[^>\n]+>|"[^"\n]+"|[^\n]*)', re.MULTILINE
)


@dataclass(frozen=True)
class Violation:
    file: str
    line: int
    text: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.text}"


def within(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder + "/")


def layer_of(path: str) -> str | None:
    """The folder of LAYERS that a file belongs to, or None."""
    matches = [folder for folder in LAYERS if within(path, folder)]
    return max(matches, key=len, default=None)


def find_includes(text: str) -> list[tuple[int, str]]:
    """(line, operand with its quotes or brackets) of each #include outside comments."""
    blanked = _COMMENT.sub(lambda match: re.sub(r"[^\n]", " ", match.group()), text)
    return [
        (blanked.count("\n", 0, match.start()) + 1, match.group(1).strip())
        for match in _INCLUDE.finditer(blanked)
    ]


def find_cycle(edges: dict[str, list[str]]) -> list[str] | None:
    """One cycle as a path whose first and last entry are equal, or None."""
    done: set[str] = set()
    for root in edges:
        if root in done:
            continue
        path, on_path, stack = [root], {root}, [iter(edges.get(root, []))]
        while stack:
            following = next(stack[-1], None)
            if following is None:
                stack.pop()
                on_path.discard(path[-1])
                done.add(path.pop())
            elif following in on_path:
                return [*path[path.index(following) :], following]
            elif following not in done:
                path.append(following)
                on_path.add(following)
                stack.append(iter(edges.get(following, [])))
    return None


def find_imports(path: Path) -> set[str]:
    """Modules of the package that a module of it imports, at any depth."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module == PACKAGE:
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module.removeprefix(PACKAGE + "."))
        elif isinstance(node, ast.Import):
            found |= {alias.name.removeprefix(PACKAGE + ".") for alias in node.names}
    return found


def check_python(root: Path) -> list[Violation]:
    modules = {path.stem: path for path in sorted((root / "python" / PACKAGE).glob("*.py"))}
    # What the package itself gives is for others: its modules import each other by name.
    modules.pop("__init__", None)
    edges = {
        name: sorted((find_imports(path) & set(modules)) - {name}) for name, path in modules.items()
    }
    cycle = find_cycle(edges)
    if cycle is None:
        return []
    file = modules[cycle[0]].relative_to(root).as_posix()
    return [Violation(file, 1, "import cycle: " + " -> ".join(cycle))]


def resolve(root: Path, file: str, operand: str) -> str | None:
    """The project file that an operand names, as a path from the root; None if it is not ours."""
    name = operand[1:-1]
    if operand.startswith("<"):
        candidates = [f"{folder}/{name}" for folder in INCLUDE_ROOTS]
    else:
        candidates = [name]
        if file.startswith(RELATIVE_ALLOWED):
            parents = [Path(file).parent, *Path(file).parent.parents]
            candidates += [str(parent / name) for parent in parents if parent != Path(".")]
    for candidate in candidates:
        path = (root / candidate).resolve()
        if path.is_file() and path.is_relative_to(root):
            return str(path.relative_to(root))
    return None


def allowed_folders(file: str, layer: str) -> list[str]:
    allowed = [layer, *LAYERS[layer]]
    if Path(file).stem.endswith("_test"):
        for folder, extra in TEST_EXTRA.items():
            if within(layer, folder):
                allowed += extra
    return allowed


def check_external(file: str, name: str) -> str | None:
    for pattern, folders in EXTERNAL:
        if re.fullmatch(pattern, name):
            if any(within(file, folder) for folder in folders):
                return None
            return f"<{name}> may only be included in {', '.join(folders)}"
    return None


def check(root: Path) -> list[Violation]:
    root = root.resolve()
    violations: list[Violation] = []
    edges: dict[str, list[str]] = {}
    files = sorted(
        path.relative_to(root).as_posix()
        for folder in SCANNED
        for path in (root / folder).rglob("*")
        if path.suffix in SUFFIXES and path.is_file()
    )
    for file in files:
        edges[file] = []
        layer = layer_of(file)
        if layer is None:
            violations.append(Violation(file, 1, "its folder is in no layer; add it to LAYERS"))
            continue
        allowed = allowed_folders(file, layer)
        text = (root / file).read_text(encoding="utf-8", errors="replace")
        for line, operand in find_includes(text):
            if operand[:1] not in '<"' or len(operand) < 3:
                violations.append(Violation(file, line, f"#include {operand}: not a literal path"))
                continue
            target = resolve(root, file, operand)
            name = operand[1:-1]
            if target is None:
                reason = check_external(file, name)
                if reason is None and (operand.startswith('"') or name.startswith("backplane/")):
                    reason = f"#include {operand}: no such file from the repository root"
                if reason is not None:
                    violations.append(Violation(file, line, reason))
                continue
            edges[file].append(target)
            target_layer = layer_of(target)
            if target_layer not in allowed:
                permitted = ", ".join(LAYERS[layer]) or "nothing else"
                violations.append(
                    Violation(
                        file, line, f"{layer} may not include {target} ({layer} sees {permitted})"
                    )
                )
    cycle = find_cycle(edges)
    if cycle is not None:
        violations.append(Violation(cycle[0], 1, "include cycle: " + " -> ".join(cycle)))
    return violations


def check_data() -> list[str]:
    """What is wrong with the tables above."""
    problems = [
        f"{folder}: unknown folder {other}"
        for folder, others in LAYERS.items()
        for other in others
        if other not in LAYERS
    ]
    cycle = find_cycle(LAYERS)
    if cycle is not None:
        problems.append("the rule itself is circular: " + " -> ".join(cycle))
    return problems


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "root", nargs="?", type=Path, default=Path(__file__).resolve().parent.parent
    )
    options = parser.parse_args(arguments)
    problems = check_data()
    if problems:
        print(*problems, sep="\n", file=sys.stderr)
        return 2
    violations = check(options.root) + check_python(options.root.resolve())
    for violation in violations:
        print(violation)
    return 1 if violations else 0


if __name__ == "__main__":
    sys.exit(main())
