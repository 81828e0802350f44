"""The command ``backplane``: what is installed, whether it works, and where a model runs."""

from __future__ import annotations

import argparse
import ast
import contextlib
import json
import os
import pathlib
import runpy
import subprocess
import sys
from collections.abc import Iterator, Mapping
from typing import Any

import torch_backplane_names


class UsageError(Exception):
    """What the user typed cannot be done; the message says why."""


def _plugins(arguments: argparse.Namespace) -> int:
    from torch_backplane import plugin_search, probe

    found = plugin_search.plugins()
    probed = probe.probe([entry["name"] for entry in found if not entry["error"]])
    for entry in found:
        answer = {} if entry["error"] else probed[entry["name"]]
        entry["error"] = entry["error"] or answer.get("error", "")
        entry["certificate"] = answer.get("info", {}).get("certificate", "")
        entry["isolated"] = answer.get("info", {}).get("isolated", entry["isolated"])
    if arguments.json:
        print(json.dumps(found, indent=2))
        return 0
    for entry in found:
        state = f"refused: {entry['error']}" if entry["error"] else "ok"
        state += f" (certificate: {entry['certificate']})" if entry["certificate"] else ""
        state += ", in a process of its own" if entry["isolated"] else ""
        print(f"{entry['name']:<20} {entry['origin']:<16} {state}\n    {entry['path']}")
    for place in torch_backplane_names.empty_places():
        print(f"{place} (`backplane doctor` says what to do)")
    if not found:
        print("no plugin found; `backplane doctor` says where was searched and what to do")
    return 0


def _doctor(arguments: argparse.Namespace) -> int:
    from torch_backplane import doctor

    if arguments.release:
        return _release(arguments.release)
    findings = doctor.examine()
    if arguments.json:
        print(json.dumps(doctor.as_dict(findings), indent=2))
    else:
        print("\n".join(str(finding) for finding in findings))
    return 1 if any(finding.state == "error" for finding in findings) else 0


def _release(name: str) -> int:
    from torch_backplane import _C

    known = [crash["name"] for crash in _C.quarantined()]  # reads what is new, too
    count = _C.release_quarantined(name)
    if not count:
        there = ", ".join(sorted(set(known))) or "none"
        print(f"backplane: no plugin {name!r} is left out; there are: {there}", file=sys.stderr)
        return 2
    print(f"{name} is let in again")
    return 0


def load_model(path: pathlib.Path) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    """Runs a Python file and finds the model with its inputs, as main() or as two names."""
    if not path.is_file():
        raise UsageError(f"{path}: no such file")
    sys.path.insert(0, str(path.resolve().parent))
    names = runpy.run_path(str(path), run_name="__backplane__")
    if "model" in names and "example_inputs" in names:
        model, inputs = names["model"], names["example_inputs"]
    elif callable(names.get("main")):
        result = names["main"]()
        if not isinstance(result, tuple) or len(result) != 2:
            raise UsageError(f"{path}: main() must return the pair (model, example_inputs)")
        model, inputs = result
    else:
        raise UsageError(
            f"{path} must define `model` and `example_inputs`, or a main() that returns both"
        )
    if not callable(model):
        raise UsageError(f"{path}: the model is a {type(model).__name__}, which cannot be called")
    if isinstance(inputs, Mapping):
        return model, (), dict(inputs)
    return model, tuple(inputs) if isinstance(inputs, (tuple, list)) else (inputs,), {}


def _ops(arguments: argparse.Namespace) -> int:
    from torch_backplane import operators, plugin_search
    from torch_backplane.errors import BackplaneError

    if arguments.what.endswith(".py"):
        try:
            plugin_search.find_plugin(arguments.plugin)
            model, args, kwargs = load_model(pathlib.Path(arguments.what))
            uses = operators.uses(model, arguments.plugin, arguments.train)(*args, **kwargs)
        except (BackplaneError, UsageError) as error:
            print(f"backplane: {error}", file=sys.stderr)
            return 2
        print(json.dumps(uses.as_dict(), indent=2) if arguments.json else uses)
        return 0
    rows = operators.table(arguments.what)
    if not rows:
        print(
            f"backplane: no operator is named {arguments.what!r}; try '*{arguments.what}*'",
            file=sys.stderr,
        )
        return 2
    if arguments.json:
        print(json.dumps(rows, indent=2))
    else:
        print("\n".join(map(operators.table_line, rows)))
    return 0


def _explain(arguments: argparse.Namespace) -> int:
    from torch_backplane import plugin_search, reports
    from torch_backplane.errors import BackplaneError
    from torch_backplane.options import Options

    try:
        plugin_search.find_plugin(
            arguments.plugin
        )  # before the model is built, which may take long
        model, args, kwargs = load_model(arguments.file)
        options = _options(arguments.option)
        Options.parse(options)
        with _mode(model, arguments.inference):
            explanation = reports.explain(model, arguments.plugin, **options)(*args, **kwargs)
        training = _explain_training(model, args, kwargs, arguments) if arguments.train else None
    except (BackplaneError, UsageError) as error:
        print(f"backplane: {error}", file=sys.stderr)
        return 2
    if arguments.node is not None:
        return _explain_node(explanation, arguments)
    if arguments.json:
        found = explanation.as_dict()
        if training is not None:
            found["training"] = training.as_dict()
        print(json.dumps(found, indent=2, default=str))
    else:
        print(explanation)
        if training is not None:
            print(f"{training}\nas a picture: {arguments.svg}")
    return 0


def _options(given: list[str]) -> dict[str, Any]:
    """NAME=VALUE of the command line, as options of a plugin's back end."""
    options = {}
    for one in given:
        name, equals, text = one.partition("=")
        if not equals:
            raise UsageError(f"--option {one}: expected NAME=VALUE")
        try:
            options[name] = ast.literal_eval(text)
        except (SyntaxError, ValueError):
            options[name] = text
    return options


@contextlib.contextmanager
def _mode(model: Any, is_inference: bool) -> Iterator[None]:
    """As a program that only infers runs it: in eval mode, without gradients."""
    import torch

    if not is_inference:
        yield
        return
    if isinstance(model, torch.nn.Module):
        model.eval()
    with torch.no_grad():
        yield


def _explain_node(explanation: Any, arguments: argparse.Namespace) -> int:
    from torch_backplane import operators

    by_name = {r["name"]: r["function"] for r in explanation.reports if r.get("function")}
    graph, _, number = arguments.node.rpartition(":")
    wanted = graph or next(iter(by_name), "")
    count = len(by_name[wanted].nodes()) if wanted in by_name else 0
    if not number.isdigit() or int(number) >= count:
        there = ", ".join(f"{name} (0 to {len(f.nodes()) - 1})" for name, f in by_name.items())
        print(f"backplane: no node {arguments.node}; there are: {there}", file=sys.stderr)
        return 2
    print("\n".join(operators.describe_node(by_name[wanted], int(number))))
    return 0


def _explain_training(model: Any, args: Any, kwargs: Any, arguments: argparse.Namespace) -> Any:
    from torch_backplane import memory

    try:
        training = memory.compare(model, arguments.plugin)(*args, **kwargs)
    except ValueError as error:
        raise UsageError(f"{arguments.file}: {error}") from None
    arguments.svg.write_text(training.svg())
    return training


def _new(arguments: argparse.Namespace) -> int:
    from torch_backplane import new_plugin

    try:
        files = new_plugin.create(arguments.name, arguments.into, arguments.kernels)
    except new_plugin.CannotCreate as error:
        print(f"backplane: {error}", file=sys.stderr)
        return 2
    print("\n".join(map(str, files)))
    folder = arguments.into or arguments.name
    print(f"\nnext: cd {folder} && cmake --workflow --preset dev")
    print(f"guide: {new_plugin.PACKAGE / 'docs' / 'guide_vendors.md'}")
    return 0


def _sdk(arguments: argparse.Namespace) -> int:
    from torch_backplane import new_plugin

    print(new_plugin.PACKAGE / arguments.part)
    return 0


TOOLS = {
    "run": "run a graph in text form on a plugin; -h says more",
    "opt": "print a graph in text form after passes, or as a plugin would cut it; -h says more",
}


def _run_tool(name: str, arguments: list[str]) -> int:
    import torch_backplane_names

    from torch_backplane import new_plugin

    tool = new_plugin.PACKAGE / "bin" / f"backplane-{name}"
    folders = [os.environ.get("BACKPLANE_PLUGIN_PATH", ""), str(new_plugin.PACKAGE / "plugins")]
    folders += [folder for _, folder in torch_backplane_names.wheel_folders()]
    environment = {**os.environ, "BACKPLANE_PLUGIN_PATH": ":".join(filter(None, folders))}
    return subprocess.run([tool, *arguments], env=environment, check=False).returncode


def _replay(arguments: argparse.Namespace) -> int:
    """A file that BACKPLANE_REPLAY kept begins with the device and what it said."""
    if not arguments.file.is_file():
        print(f"backplane: {arguments.file}: no such file", file=sys.stderr)
        return 2
    with arguments.file.open() as file:
        head = file.readline().strip()
    device, _, said = head.removeprefix("//").strip().partition(": ")
    plugin = arguments.plugin or (device if head.startswith("//") and said else "")
    if not plugin:
        print(f"backplane: {arguments.file} names no device; give --plugin", file=sys.stderr)
        return 2
    print(f"it failed on {device} with: {said}" if said else "", flush=True)
    return _run_tool(
        "run", [str(arguments.file), "--plugin", plugin, "--compare", arguments.compare]
    )


def _opinfo(given: list[str]) -> int:
    try:
        from torch_backplane.opinfo import command
    except ImportError as error:  # PyTorch's testing package wants more than PyTorch does
        print(f"backplane: opinfo needs a package that is missing: {error}", file=sys.stderr)
        return 2
    return command.main(given)


CONFORMANCE = {
    "certify": "test a plugin against the conformance kit; -h says more",
    "verify": "check that a certificate is good for a library; -h says more",
}


def main(argv: list[str] | None = None) -> int:
    given = sys.argv[1:] if argv is None else argv
    if given and given[0] in CONFORMANCE:
        from backplane_conformance import command

        return command.certify(given[1:]) if given[0] == "certify" else command.verify(given[1:])
    if given and given[0] in TOOLS:  # whose options are their own
        return _run_tool(given[0], given[1:])
    if given and given[0] == "opinfo":
        return _opinfo(given[1:])
    parser = argparse.ArgumentParser(prog="backplane", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)

    one = commands.add_parser("plugins", help="list the plugins that were found")
    one.set_defaults(run=_plugins)
    two = commands.add_parser("doctor", help="check the installation; what to do if it is broken")
    two.add_argument(
        "--release", metavar="PLUGIN", help="let a plugin in again that ended a process"
    )
    two.set_defaults(run=_doctor)
    three = commands.add_parser("explain", help="compile a model and say where its nodes run")
    three.add_argument(
        "file",
        type=pathlib.Path,
        help="Python file with `model` and `example_inputs`, or a main() that returns both; inputs "
        "are one tensor, a tuple, or a dictionary of keyword arguments",
    )
    three.add_argument("--plugin", default="cpu_onednn", help="the name after 'plugin:'")
    modes = three.add_mutually_exclusive_group()
    modes.add_argument(
        "--inference",
        action="store_true",
        help="without gradients and in eval mode; else as the file left it, with the forward of a "
        "training step where parameters want gradients",
    )
    three.add_argument(
        "--option",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="of torch_backplane.Options, such as strict=True; may be given several times",
    )
    modes.add_argument(
        "--train",
        action="store_true",
        help="also run training steps and compare their memory with eager's and PyTorch's own cut",
    )
    three.add_argument(
        "--svg",
        type=pathlib.Path,
        default=pathlib.Path("memory.svg"),
        help="where --train writes memory over time as a picture",
    )
    three.add_argument(
        "--node", metavar="[GRAPH:]N", help="say of one node where it runs, why, and what crosses"
    )
    three.set_defaults(run=_explain)
    ops = commands.add_parser(
        "ops", help="operators that reach plugins: of the table, or of a model"
    )
    ops.add_argument(
        "what",
        nargs="?",
        default="*",
        help="a pattern of names ('*softmax*'), or a Python file as for explain",
    )
    ops.add_argument("--plugin", default="reference", help="that is asked to run the model")
    ops.add_argument("--train", action="store_true", help="the model's gradients as well")
    ops.set_defaults(run=_ops)
    four = commands.add_parser("new", help="make a project for a plugin of your own")
    four.add_argument("name", help="of the plugin, as in torch.compile(backend='plugin:NAME')")
    four.add_argument("--into", type=pathlib.Path, help="the folder to make; default: ./NAME")
    four.add_argument(
        "--kernels",
        default="c",
        help="how the device computes: c (plain C++, the default), opencl or cuda (kernels that are "
        "generated in these languages), library (calls of a library of kernels)",
    )
    four.set_defaults(run=_new)
    five = commands.add_parser("sdk", help="print where the SDK for plugins lies")
    which = five.add_mutually_exclusive_group(required=True)
    for option, part, words in (
        ("--cmake-dir", "cmake", "for -DBackplane_DIR="),
        ("--include-dir", "include", "of the headers"),
        ("--docs", "docs", "the folder of guide_vendors.md"),
        ("--examples", "examples", "the folder of plugins to read: hello, npu, ckernels, plain"),
    ):
        which.add_argument(option, dest="part", action="store_const", const=part, help=words)
    five.set_defaults(run=_sdk)
    replay = commands.add_parser(
        "replay", help="run a partition that failed, kept by BACKPLANE_REPLAY=<folder>, by itself"
    )
    replay.add_argument("file", type=pathlib.Path)
    replay.add_argument("--plugin", help="another than the one it failed on")
    replay.add_argument("--compare", default="reference", help="what its results are compared with")
    replay.set_defaults(run=_replay)
    commands.add_parser("opinfo", help="PyTorch's operator samples on a plugin, beside eager mode")
    for name, what in (TOOLS | CONFORMANCE).items():
        commands.add_parser(name, help=what)  # see above
    for command in (one, two, three, ops):
        command.add_argument("--json", action="store_true", help="print JSON instead of text")

    arguments = parser.parse_args(given)
    return arguments.run(arguments)


if __name__ == "__main__":
    sys.exit(main())
