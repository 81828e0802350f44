"""The worker of level 3: cases by their ids on its input, a line of JSON for each on its output.

``python -m backplane_conformance.torch_worker LIBRARY [--device N] [--list]``
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import sys
import time
from typing import Any


def _plugin_name(library: pathlib.Path) -> str:
    """As its note says; the library is found before all others."""
    import torch_backplane

    for entry in torch_backplane.plugins():
        if pathlib.Path(entry["path"]).samefile(library):
            if entry["error"]:
                raise SystemExit(entry["error"])
            return str(entry["name"])
    raise SystemExit(f"{library} is not found by the host")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("library", type=pathlib.Path)
    parser.add_argument("--device", type=int, default=0)
    parser.add_argument("--list", action="store_true")
    options = parser.parse_args()
    os.environ["BACKPLANE_PLUGIN_PATH"] = str(options.library.absolute())
    os.environ["BACKPLANE_QUIET"] = "1"
    from backplane_conformance import torch_cases

    if options.list:
        for case in torch_cases.identities():
            print(json.dumps({"id": case, "level": torch_cases.LEVEL, "door": "torch"}))
        return
    import torch

    torch.set_num_threads(min(2, torch.get_num_threads()))
    plugin = torch_cases.Plugin(_plugin_name(options.library), options.device)
    for line in sys.stdin:
        case, begun = line.rstrip("\n"), time.monotonic()
        outcome = torch_cases.run(case, plugin)
        answer: dict[str, Any] = {
            "end": case, "verdict": outcome.verdict, "seconds": time.monotonic() - begun,
            "share": outcome.share,
        }  # fmt: skip
        if outcome.text:
            answer["text"] = outcome.text
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
