"""The codes of errors, what they mean and what to do: the registry of docs/errors.md."""

from __future__ import annotations

CODES: dict[str, tuple[str, str]] = {
    "BP-0101": ("unknown option", "Use one of the listed names; see torch_backplane.Options."),
    "BP-0102": ("option of a wrong type", "Give the option a value of the type it takes."),
    "BP-0103": (
        "plugin not found or refused",
        "Run `backplane plugins` to see what was found and why a library was refused.",
    ),
    "BP-0104": ("device not available", "Run `backplane doctor`; choose another device index."),
    "BP-0105": (
        "graph not importable",
        "The graph ran with PyTorch itself. The message names the node and what it needs.",
    ),
    "BP-0106": (
        "compile failed",
        "The message carries the plugin's own text. `backplane doctor` tries the device; "
        "BACKPLANE_REPLAY=<folder> keeps what failed as a file for the vendor; without strict the "
        "program runs meanwhile.",
    ),
    "BP-0107": (
        "strict: nodes cannot run on the plugin",
        "Run without strict to see them run on the CPU, or use another plugin for these ops.",
    ),
    "BP-0108": (
        "a call of a compiled graph failed",
        "The message says which plugin, device and call failed; inputs are unchanged. `backplane "
        "doctor` tries the device; BACKPLANE_REPLAY=<folder> keeps what failed as a file for the "
        "vendor; another plugin, or none, runs the program meanwhile.",
    ),
    "BP-0109": (
        "the torch device is not available",
        "Use plugins on CPU tensors with torch.compile, or start without the other package.",
    ),
    "BP-0110": (
        "tensors are on another device than the graph is compiled for",
        "Move the tensors with .to(torch_backplane.device(plugin)), or name their plugin's back end.",
    ),
    "BP-0111": (
        "a size that is marked as dynamic cannot change",
        "Remove the mark, use maybe_mark_dynamic, or let the program take other sizes.",
    ),
    "BP-0112": (
        "a compiled call and plain Python differ",
        "Find the stage with torch_backplane.ladder, and report it with the program.",
    ),
    "BP-0113": (
        "work on the torch device failed",
        "The message says which plugin, device and call failed; work runs after the program goes on, "
        "so the operator may be an earlier one.",
    ),
    "BP-0114": (
        "this Python has no front end of its own",
        'Use torch.compile(model, backend="plugin:<name>"), or Python 3.11 or 3.12.',
    ),
    "BP-0115": (
        "out of memory",
        "Free tensors and compiled graphs that are not needed, make the batch smaller, or lower the "
        "option memory_budget; what was kept for later was given up already.",
    ),
}
