"""New names and chances, for what writes a program."""

from __future__ import annotations

import random


class Names:
    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.count = 0

    def name(self, stem: str) -> str:
        self.count += 1
        return f"{stem}{self.count}"

    def chance(self, share: float) -> bool:
        return self.rng.random() < share
