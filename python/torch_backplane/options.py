"""The options of ``torch.compile(..., options={...})``."""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Mapping
from typing import Any

from torch_backplane.errors import BackplaneError

# Those that are no bool: what is taken, and its name.
_TYPES: dict[str, tuple[Any, str]] = {
    "device": (int, "int"),
    "memory_budget": ((int, float), "float"),
    "verify": ((int, float), "float"),
    "isolation": (str, "str"),
}
_ISOLATIONS = ("", "process")
_SHARES = ("memory_budget", "verify")  # 0 to 1


@dataclasses.dataclass(frozen=True)
class Options:
    """What a user may ask of a plugin back end. Unknown keys are errors.

    Attributes:
        strict: a node that cannot run on the plugin is an error instead of a counted fallback.
        device: index of the plugin's device.
        pack_weights: inference may keep weights in the plugin's own layouts. ``None``: yes, but
            not in training, where every step changes them.
        report: print the coverage line when a graph is compiled.
        timing: measure every partition; shown by ``explain`` and ``stats``.
        memory_budget: 0 to 1, the share of the bytes saved for backward that the default cut would
            save; what is left out is computed again.
        verify: 0 to 1, the share of calls whose results are held against PyTorch's own, which are
            computed as well; and the first call of each set of sizes. What differs by more than
            rounding is told, and PyTorch computes from then on (an error under ``strict``).
        isolation: ``"process"``: the plugin's library runs in a process of its own, whose crash costs
            a call. Of the plugin's first use in the program; ``""``: as ``BACKPLANE_ISOLATION`` says.
        recorder: our recorder traces and differentiates. ``False``: PyTorch's AOTAutograd does.
    """

    strict: bool = False
    device: int = 0
    pack_weights: bool | None = None
    report: bool = True
    timing: bool = False
    memory_budget: float = 1.0
    verify: float = 0.0
    isolation: str = ""
    recorder: bool = True

    @classmethod
    def parse(cls, options: Mapping[str, Any] | None) -> Options:
        """Checks names and types. Raises BackplaneError BP-0101 or BP-0102."""
        fields = {field.name: field for field in dataclasses.fields(cls)}
        for key, value in (options or {}).items():
            if key not in fields:
                near = difflib.get_close_matches(str(key), fields, n=1)
                hint = f"; did you mean {near[0]!r}?" if near else ""
                raise BackplaneError(
                    "BP-0101",
                    f"unknown option {key!r}; there are {', '.join(sorted(fields))}{hint}",
                )
            if value is None and key == "pack_weights":
                continue
            wanted, name = _TYPES.get(key, (bool, "bool"))
            is_bool = isinstance(value, bool)
            if not isinstance(value, wanted) or (wanted is not bool and is_bool):
                raise BackplaneError("BP-0102", f"option {key!r} takes {name}, got {value!r}")
            if key in _SHARES and not 0 <= value <= 1:
                raise BackplaneError("BP-0102", f"option {key!r} takes 0 to 1, got {value!r}")
            if key == "isolation" and value not in _ISOLATIONS:
                raise BackplaneError("BP-0102", f"option {key!r} takes 'process', got {value!r}")
        return cls(**dict(options or {}))
