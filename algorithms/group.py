"""What estimators share that score an episode against the other episodes of its task."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor

from algorithms.base import Credit, EpisodeCredit
from algorithms.credit import group_advantages, spread
from algorithms.gradient import PolicyGradient


def without_critic(advantages: Tensor) -> Credit:
    """Credit of tokens that share the weight of every other: advantages[A]."""
    nowhere = torch.zeros_like(advantages, dtype=torch.bool)
    return Credit(advantages, None, nowhere, torch.ones_like(advantages))


class GroupBaseline(PolicyGradient):
    """No critic: the group is the baseline. Returns are undiscounted."""

    granularities: ClassVar[tuple[str, ...]] = ("trajectory", "turn")
    needs_group: ClassVar[bool] = True

    def compare(self, returns: Tensor) -> Tensor:
        """Advantages of n episodes, or of their turns k, from their returns: [n] -> [n]."""
        raise NotImplementedError

    def credit_group(self, group: Sequence[EpisodeCredit]) -> list[Credit]:
        rewards = [self.rewards(episode) for episode in group]
        if len(group) == 1 and "group_of_one" in self.faults:
            per_turn = [rewards[0].sum().expand(len(rewards[0]))]
        else:
            reach = 0.0 if "cut_returns" in self.faults else 1.0
            per_turn = group_advantages(rewards, self.compare, self.granularity, reach)
        return [
            without_critic(spread(advantage, episode.tokens_per_turn))
            for episode, advantage in zip(group, per_turn, strict=True)
        ]
