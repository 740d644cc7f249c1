"""REINFORCE++: returns with KL in the reward, normalised over the whole batch."""

from __future__ import annotations

from typing import ClassVar

from algorithms.reinforce import Reinforce


class ReinforcePlusPlus(Reinforce):
    """Hu et al. 2025 (arXiv 2501.03262): the baseline is the mean of the batch, not of a group.

    The return from each action on, with k1 against the reference taken off the reward (eq. 6 and
    7), then `algo.whiten` over the batch (eq. 8) and PPO's clipped surrogate. All of it is in
    recipes/algo/reinforce_pp.yaml.
    """

    name: ClassVar[str] = "reinforce_pp"


ALGORITHM = ReinforcePlusPlus
