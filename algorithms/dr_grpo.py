"""Dr. GRPO: GRPO without division by the deviation or by the length."""

from __future__ import annotations

from typing import ClassVar

from algorithms.grpo import GRPO


class DrGRPO(GRPO):
    """Liu et al. 2025 (arXiv 2503.20783): only the mean comes off, every token weighs the same.

    What sets it apart from GRPO is in recipes/algo/dr_grpo.yaml.
    """

    name: ClassVar[str] = "dr_grpo"


ALGORITHM = DrGRPO
