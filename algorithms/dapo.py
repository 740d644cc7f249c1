"""DAPO: GRPO with more room upwards and a mean over tokens."""

from __future__ import annotations

from typing import ClassVar

from algorithms.grpo import GRPO


class DAPO(GRPO):
    """Yu et al. 2025 (arXiv 2503.14476) without its dynamic sampling and overlong penalty.

    What sets it apart from GRPO is in recipes/algo/dapo.yaml.
    """

    name: ClassVar[str] = "dapo"


ALGORITHM = DAPO
