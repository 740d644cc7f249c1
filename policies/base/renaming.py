"""Renaming the entities of a demonstration, consistently, wherever they stand."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence

from policies.base.demonstrations import Demonstration

SHARE_RENAMED = 0.8


class Renamer:
    """Gives entities other names: half of the time another game's, else words put together."""

    def __init__(self, demonstrations: Sequence[Demonstration]) -> None:
        self.names = sorted({name for demo in demonstrations for name in demo.names})
        self.words = sorted({word for name in self.names for word in name.split()})

    def rename(self, demo: Demonstration, rng: random.Random) -> Demonstration:
        """The demonstration with new names, or itself (a share of 1 - `SHARE_RENAMED`)."""
        if rng.random() >= SHARE_RENAMED:
            return demo
        table = {name.lower(): self._another(name, rng) for name in demo.names}
        if not table or len(set(table.values())) < len(table):
            return demo
        longest_first = sorted(table, key=len, reverse=True)
        pattern = re.compile(r"\b(" + "|".join(map(re.escape, longest_first)) + r")\b", re.I)

        def swap(text: str) -> str:
            return pattern.sub(lambda match: table[match[0].lower()], text)

        return Demonstration(
            seed=demo.seed,
            names=list(table.values()),
            objective=swap(demo.objective),
            first=swap(demo.first),
            turns=[(swap(done), swap(best), swap(seen)) for done, best, seen in demo.turns],
        )

    def _another(self, name: str, rng: random.Random) -> str:
        if rng.random() < 0.5:
            return rng.choice(self.names)
        count = rng.choice([1, 1, 2, 2, 3])
        return " ".join(rng.choice(self.words) for _ in range(count))
