"""The command ``backplane``: what is installed, whether it works, and where a model runs."""

from __future__ import annotations

import argparse
import json
import pathlib
import runpy
import sys
from collections.abc import Mapping
from typing import Any


class UsageError(Exception):
    """What the user typed cannot be done; the message says why."""


def _plugins(arguments: argparse.Namespace) -> int:
    from torch_backplane import plugin_search

    found = plugin_search.plugins()
    if arguments.json:
        print(json.dumps(found, indent=2))
        return 0
    for entry in found:
        state = f"refused: {entry['error']}" if entry["error"] else "ok"
        print(f"{entry['name']:<20} {entry['origin']:<16} {state}\n    {entry['path']}")
    if not found:
        print("no plugin found; `backplane doctor` says where was searched and what to do")
    return 0


def _doctor(arguments: argparse.Namespace) -> int:
    from torch_backplane import doctor

    findings = doctor.examine()
    if arguments.json:
        print(json.dumps(doctor.as_dict(findings), indent=2))
    else:
        print("\n".join(str(finding) for finding in findings))
    return 1 if any(finding.state == "error" for finding in findings) else 0


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


def _explain(arguments: argparse.Namespace) -> int:
    from torch_backplane import plugin_search, reports
    from torch_backplane.errors import BackplaneError

    try:
        plugin_search.find_plugin(
            arguments.plugin
        )  # before the model is built, which may take long
        model, args, kwargs = load_model(arguments.file)
        explanation = reports.explain(model, arguments.plugin)(*args, **kwargs)
        training = _explain_training(model, args, kwargs, arguments) if arguments.train else None
    except (BackplaneError, UsageError) as error:
        print(f"backplane: {error}", file=sys.stderr)
        return 2
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


def _explain_training(model: Any, args: Any, kwargs: Any, arguments: argparse.Namespace) -> Any:
    from torch_backplane import memory

    try:
        training = memory.compare(model, arguments.plugin)(*args, **kwargs)
    except ValueError as error:
        raise UsageError(f"{arguments.file}: {error}") from None
    arguments.svg.write_text(training.svg())
    return training


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="backplane", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)

    one = commands.add_parser("plugins", help="list the plugins that were found")
    one.set_defaults(run=_plugins)
    two = commands.add_parser("doctor", help="check the installation; what to do if it is broken")
    two.set_defaults(run=_doctor)
    three = commands.add_parser("explain", help="compile a model and say where its nodes run")
    three.add_argument(
        "file",
        type=pathlib.Path,
        help="Python file with `model` and `example_inputs`, or a main() that returns both; inputs "
        "are one tensor, a tuple, or a dictionary of keyword arguments",
    )
    three.add_argument("--plugin", default="cpu_onednn", help="the name after 'plugin:'")
    three.add_argument(
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
    three.set_defaults(run=_explain)
    for command in (one, two, three):
        command.add_argument("--json", action="store_true", help="print JSON instead of text")

    arguments = parser.parse_args(argv)
    return arguments.run(arguments)


if __name__ == "__main__":
    sys.exit(main())
