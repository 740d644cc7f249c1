"""PPO: a critic's generalised advantages, the clipped surrogate and the critic's regression."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

from algorithms.base import ActionTokens, Credit, EpisodeCredit
from algorithms.credit import AlgorithmError, token_gae, turn_gae
from algorithms.gradient import PolicyGradient
from algorithms.losses import value_loss
from algorithms.reading import TIMES, read_choice, read_float


class PPO(PolicyGradient):
    """Schulman et al. 2017 (arXiv 1707.06347) with one action a turn or a token.

    `algo.lam` acts once an action; `algo.discount` says what `algo.gamma` acts once of.
    """

    name: ClassVar[str] = "ppo"
    granularities: ClassVar[tuple[str, ...]] = ("turn", "token")
    keys: ClassVar[frozenset[str]] = PolicyGradient.keys | {
        *("gamma", "lam", "discount", "value_coef", "value_clip")
    }
    needs_critic: ClassVar[bool] = True

    def __init__(self, config: Mapping[str, Any], faults: Collection[str] = ()) -> None:
        super().__init__(config, faults)
        self.gamma = read_float(config, "gamma", least=0.0, most=1.0)
        self.discount = read_choice(config, "discount", TIMES, "action")
        self.lam = read_float(config, "lam", least=0.0, most=1.0)
        self.value_coef = read_float(config, "value_coef", above=0.0)
        clip = config.get("value_clip")
        self.value_clip = None if clip is None else read_float(config, "value_clip", above=0.0)

    def credit_group(self, group: Sequence[EpisodeCredit]) -> list[Credit]:
        """GAE of each episode on its own; raises AlgorithmError when one has no values."""
        estimator = turn_gae if self.granularity == "turn" else token_gae
        credits = []
        for episode in group:
            if episode.values is None:
                raise AlgorithmError("algo=ppo needs the critic's values of every episode")
            advantages, returns, value_at = estimator(
                self.rewards(episode),
                episode.values,
                episode.tokens_per_turn,
                self.time(episode),
                self.lam,
                episode.final_value or 0.0,
            )
            credits.append(Credit(advantages, returns, value_at, torch.ones_like(advantages)))
        return credits

    def loss(self, batch: ActionTokens) -> tuple[Tensor, dict[str, float]]:
        """The surrogate's loss + value_coef · value loss (arXiv 1707.06347, eq. 9)."""
        total, stats = super().loss(batch)
        if batch.values is None or batch.returns is None or batch.value_weights is None:
            raise AlgorithmError("algo=ppo needs values, returns and value weights in its loss")
        critic = value_loss(
            batch.values, batch.returns, batch.value_weights, batch.old_values, self.value_clip
        )
        stats["value_loss"] = critic.item()
        return total + self.value_coef * critic, stats


ALGORITHM = PPO
