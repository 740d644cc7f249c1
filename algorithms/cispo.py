"""CISPO: the ratio is clipped, the gradient is not."""

from __future__ import annotations

from typing import ClassVar

from algorithms.grpo import GRPO


class CISPO(GRPO):
    """MiniMax-M1 (arXiv 2506.13585, eq. 4 and 5), with GRPO's advantages.

    What sets it apart from GRPO is in recipes/algo/cispo.yaml.
    """

    name: ClassVar[str] = "cispo"


ALGORITHM = CISPO
