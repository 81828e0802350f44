"""Which models of the zoo a test takes each time, and which with ``--long``."""

from __future__ import annotations

from typing import Any

import pytest
from models import zoo

# One of each kind: encoder, decoder, both, convolutions, recurrence.
REPRESENTATIVE = ("bert", "llama", "t5", "resnet", "lstm")


def representative_names() -> list[Any]:
    return [
        pytest.param(name, marks=[pytest.mark.long] * (name not in REPRESENTATIVE))
        for name in zoo.names()
    ]
