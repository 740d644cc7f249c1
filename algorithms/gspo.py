"""GSPO: the probability ratio belongs to the whole sequence."""

from __future__ import annotations

from typing import ClassVar

from algorithms.grpo import GRPO


class GSPO(GRPO):
    """Zheng et al. 2025 (arXiv 2507.18071), with the token form of its gradient (eq. 14).

    What sets it apart from GRPO is in recipes/algo/gspo.yaml.
    """

    name: ClassVar[str] = "gspo"


ALGORITHM = GSPO
