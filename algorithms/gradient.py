"""Algorithms that follow a policy gradient: what they share, whatever their credit.

A subclass says how a group of episodes is credited; the surrogate, entropy and KL are here.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

from algorithms.base import ActionTokens, Algorithm, Credit, EpisodeCredit
from algorithms.credit import (
    AlgorithmError,
    discounts,
    shaping,
    spread,
    token_rewards,
    unit_weights,
    whiten,
)
from algorithms.divergence import KL_ESTIMATES, KL_GRADIENT
from algorithms.losses import FORMS, NORMALISATIONS, RATIOS, Surrogate, policy_loss
from algorithms.reading import read_bool, read_choice, read_float, read_int


class PolicyGradient(Algorithm):
    """A surrogate plus entropy and KL terms; a subclass says how a group is credited.

    The loss that is minimised, every term a weighted sum over tokens with the weights of the
    minibatch:  policy − entropy_coef · entropy + kl_coef · KL(policy, reference).
    With `algo.kl_in=reward` the KL term is not in the loss: each sampled token's k1 is taken off
    what the estimator sees of its reward.
    """

    plays: ClassVar[bool] = True
    keys: ClassVar[frozenset[str]] = Algorithm.keys | {
        *("group_size", "epochs", "minibatches", "surrogate", "ratio", "clip", "clip_high"),
        *("dual_clip", "normalise", "constant", "entropy_coef", "kl_coef", "kl_in"),
        *("kl_estimator", "behaviour_cap", "whiten"),
    }
    gamma: float = 1.0
    discount: str = "action"

    def __init__(self, config: Mapping[str, Any], faults: Collection[str] = ()) -> None:
        super().__init__(config, faults)
        self.group_size = read_int(config, "group_size", least=1)
        if self.group_size < self.min_group:
            raise AlgorithmError(
                f"algo.group_size={self.group_size} leaves algo={self.name} nothing to compare "
                f"an episode with; set it to {self.min_group} or more"
            )
        self.surrogate = read_surrogate(config)
        self.normalise = read_choice(config, "normalise", NORMALISATIONS, "token")
        if self.normalise == "constant":
            self.constant = read_float(config, "constant", above=0.0)
        self.entropy_coef = read_float(config, "entropy_coef", least=0.0)
        self.kl_coef = read_float(config, "kl_coef", least=0.0)
        self.whiten = read_bool(config, "whiten")
        kl_in = read_choice(config, "kl_in", ("loss", "reward"), "loss")
        estimator = read_choice(config, "kl_estimator", tuple(KL_ESTIMATES), "k3")
        if (kl_in, estimator) not in KL_GRADIENT:
            fitting = [name for where, name in KL_GRADIENT if where == kl_in]
            raise AlgorithmError(
                f"algo.kl_estimator={estimator} in the {kl_in} has the gradient of no divergence "
                f"(algorithms/divergence.py); choose {' or '.join(fitting)}"
            )
        self.kl_estimate = KL_ESTIMATES[estimator]
        self.kl_in_reward = kl_in == "reward" and self.kl_coef > 0
        self.needs_reference = kl_in == "loss" and self.kl_coef > 0
        self.needs_entropy = self.entropy_coef > 0

    def credit_group(self, group: Sequence[EpisodeCredit]) -> list[Credit]:
        """Credit of the episodes of one group, before whitening, in float64."""
        raise NotImplementedError

    def time(self, episode: EpisodeCredit) -> Tensor:
        """Discount between each action of the estimator and the next, [K] or [A]."""
        unit = "token" if self.granularity == "token" else "turn"
        factors = discounts(self.gamma, episode.tokens_per_turn, unit, self.discount)
        if "cut_returns" in self.faults:
            ends = torch.tensor(episode.tokens_per_turn).cumsum(0) - 1
            factors[ends if unit == "token" else slice(None)] = 0.0
        return factors

    def rewards(self, episode: EpisodeCredit, time: float | Tensor | None = None) -> Tensor:
        """What an estimator adds up, float64: the environment's rewards, shaping and KL taken in.

        [K], or [A] at token level with a turn's reward on its last token and the potential of a
        state kept until then. `time` is the discount that the estimator adds up with, without
        which shaping would not telescope; that of `algo.gamma` if not given.
        """
        counts, rewards = episode.tokens_per_turn, episode.rewards.double()
        by_token = self.granularity == "token"
        if by_token:
            rewards = token_rewards(rewards, counts)
        if episode.potentials is not None:
            potentials = episode.potentials.double()
            if by_token:
                potentials = torch.cat([spread(potentials[:-1], counts), potentials[-1:]])
            unit = "token" if by_token else "turn"
            between = discounts(self.gamma, counts, unit, self.discount) if time is None else time
            rewards = rewards + shaping(potentials, between, episode.final_value is not None)
        if not self.kl_in_reward:
            return rewards
        if episode.kl is None:
            raise AlgorithmError("algo.kl_in=reward needs the reference's log-probabilities")
        cost = self.kl_coef * episode.kl.double()
        if by_token:
            return rewards - cost
        return rewards - torch.stack([part.sum() for part in cost.split(counts)])

    def credit(self, groups: Sequence[Sequence[EpisodeCredit]]) -> list[list[Credit]]:
        """Credit of every episode, in the order given; whitened over all of them if asked.

        Numbers have the dtype of the rewards, and are rounded to it last. Raises AlgorithmError
        for a group too small to be compared within (rule 3: a caller leaves such groups out and
        says so).
        """
        credits = [self.credit_group(group) for group in groups]
        if self.whiten and any(credits):
            credits = self._whitened(groups, credits)
        return [
            [rounded(c, episode.rewards.dtype) for c, episode in zip(given, group, strict=True)]
            for given, group in zip(credits, groups, strict=True)
        ]

    def _whitened(
        self, groups: Sequence[Sequence[EpisodeCredit]], credits: list[list[Credit]]
    ) -> list[list[Credit]]:
        flat = [credit for group in credits for credit in group]
        units = [
            unit_weights(episode.tokens_per_turn, self.granularity)
            for group in groups
            for episode in group
        ]
        sizes = [len(credit.advantages) for credit in flat]
        advantages = torch.cat([credit.advantages for credit in flat])
        white = iter(whiten(advantages, torch.cat(units).to(advantages.device)).split(sizes))
        return [
            [Credit(next(white), c.returns, c.value_at, c.weight) for c in group]
            for group in credits
        ]

    def loss(self, batch: ActionTokens) -> tuple[Tensor, dict[str, float]]:
        """Scalar to minimise and its parts; both add up over the micro-batches of a minibatch.

        Of the parts only `ratio_max` does not add up: its minibatch value is the maximum.
        Raises AlgorithmError when a tensor that a coefficient needs is missing.
        """
        total, stats = policy_loss(
            batch.logp,
            batch.old_logp,
            batch.advantages,
            batch.weights,
            self.surrogate,
            batch.segment,
            batch.behaviour_logp,
        )
        stats["policy_loss"] = total.item()
        if batch.entropy is not None:
            mean_entropy = (batch.weights * batch.entropy).sum()
            stats["entropy"] = mean_entropy.item()
            if self.needs_entropy:
                total = total - self.entropy_coef * mean_entropy
        elif self.needs_entropy:
            raise AlgorithmError("algo.entropy_coef > 0 needs the entropy of each action token")
        if batch.reference_logp is not None:
            mean_kl = (batch.weights * self.kl_estimate(batch.logp, batch.reference_logp)).sum()
            stats["kl"] = mean_kl.item()
            if self.needs_reference:
                total = total + self.kl_coef * mean_kl
        elif self.needs_reference:
            raise AlgorithmError("algo.kl_coef > 0 needs the reference's log-probabilities")
        return total, stats


def rounded(credit: Credit, dtype: torch.dtype) -> Credit:
    """The same credit with numbers of another dtype."""
    returns = None if credit.returns is None else credit.returns.to(dtype)
    return Credit(credit.advantages.to(dtype), returns, credit.value_at, credit.weight.to(dtype))


def read_surrogate(config: Mapping[str, Any]) -> Surrogate:
    """The trust region that `algo.clip` and its kin describe; AlgorithmError names a wrong key."""
    optional = {
        key: None if config.get(key) is None else read_float(config, key, above=above)
        for key, above in (("clip_high", 0.0), ("dual_clip", 1.0), ("behaviour_cap", 0.0))
    }
    low = read_float(config, "clip", above=0.0)
    high = optional["clip_high"]
    form = read_choice(config, "surrogate", FORMS, "clipped")
    if form == "cispo" and optional["dual_clip"] is not None:
        raise AlgorithmError(
            "algo.dual_clip bounds the clipped surrogate; remove it or set algo.surrogate=clipped"
        )
    return Surrogate(
        low=low,
        high=low if high is None else high,
        form=form,
        ratio=read_choice(config, "ratio", RATIOS, "token"),
        dual=optional["dual_clip"],
        behaviour_cap=optional["behaviour_cap"],
    )
