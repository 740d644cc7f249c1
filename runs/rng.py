"""Counter-based randomness: every draw is a pure function of (seed, purpose, counters).

No generator keeps state between iterations, so worker count, batch composition and
resumption cannot change a number (design, rule 11).
"""

import hashlib

import numpy as np


def key(seed: int, purpose: str, *counters: int | str) -> int:
    """64-bit key of a draw, e.g. `key(seed, "sample", iteration, task_id, member, turn)`."""
    text = "\x1f".join([str(seed), purpose, *map(str, counters)])
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")


def generator(seed: int, purpose: str, *counters: int | str) -> np.random.Generator:
    """A fresh numpy generator for one purpose; never store it across iterations."""
    return np.random.Generator(np.random.Philox(key=key(seed, purpose, *counters)))
