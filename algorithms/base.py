"""What an algorithm is: credit from episodes, a loss from action tokens, nothing else.

`EpisodeCredit` goes into an estimator, `Credit` comes out, `ActionTokens` goes into a loss.
None of them holds padding or observation tokens: entries are the sampled tokens of an episode
in order, so nothing off action can reach a number.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from algorithms.credit import AlgorithmError, unit_weights, whiten
from algorithms.losses import kl_k3, policy_loss

GRANULARITIES = ("trajectory", "turn", "token")
TRUNCATIONS = ("terminal",)


@dataclass(frozen=True)
class EpisodeCredit:
    """What an estimator may know of an episode of K turns and A sampled tokens.

    rewards[K]; tokens_per_turn, K whole numbers of at least 1 that sum to A; values[A], the
    critic's value read before each sampled token, or None without a critic.

    Raises AlgorithmError when the sizes disagree, a turn has no token or a number is not finite.
    """

    rewards: Tensor
    tokens_per_turn: list[int]
    values: Tensor | None = None

    def __post_init__(self) -> None:
        counts = self.tokens_per_turn
        if self.rewards.shape != (len(counts),):
            raise AlgorithmError(
                f"rewards have shape {tuple(self.rewards.shape)}, but the episode has "
                f"{len(counts)} turns"
            )
        if any(count < 1 for count in counts):
            raise AlgorithmError(f"every turn needs a sampled token, got {counts}")
        if self.values is not None and self.values.shape != (sum(counts),):
            raise AlgorithmError(
                f"values have shape {tuple(self.values.shape)}, but the episode has "
                f"{sum(counts)} sampled tokens"
            )
        for field, numbers in (("rewards", self.rewards), ("values", self.values)):
            if numbers is not None and not torch.isfinite(numbers).all():
                raise AlgorithmError(f"{field} of an episode are not finite")


@dataclass(frozen=True)
class Credit:
    """What the loss needs to know of an episode of A sampled tokens.

    advantages[A]; returns[A], the critic's target, or None without a critic; value_at[A] bool,
    True exactly where the estimator read the critic, all False without one; weight[A], the
    token's weight in the policy loss before normalisation over the minibatch.
    """

    advantages: Tensor
    returns: Tensor | None
    value_at: Tensor
    weight: Tensor


@dataclass
class ActionTokens:
    """A flat micro-batch of A sampled tokens, of any rows in any order.

    logp[A] under the policy that is trained and old_logp[A] under the one that sampled, both at
    the sampling temperature; advantages[A]; weights[A] and value_weights[A] from
    `minibatch_weights` over the whole minibatch. entropy[A] is needed when
    `algo.entropy_coef` > 0, reference_logp[A] when `algo.kl_coef` > 0, and values[A],
    returns[A], value_weights[A] with a critic.
    """

    logp: Tensor
    old_logp: Tensor
    advantages: Tensor
    weights: Tensor
    entropy: Tensor | None = None
    reference_logp: Tensor | None = None
    values: Tensor | None = None
    returns: Tensor | None = None
    value_weights: Tensor | None = None


class Algorithm:
    """An algorithm that plays no episodes; `PolicyGradient` is one that does.

    `plays` says whether the loop plays and updates; `granularities` the values that
    `algo.advantage_granularity` may take; `min_group` the members that a group must have left
    for `credit` to take it.
    """

    name: ClassVar[str]
    granularities: ClassVar[tuple[str, ...]] = GRANULARITIES
    plays: ClassVar[bool] = False
    needs_critic: ClassVar[bool] = False
    needs_group: ClassVar[bool] = False
    needs_reference: bool = False
    needs_entropy: bool = False

    def __init__(self, config: Mapping[str, Any]) -> None:
        truncation = config.get("truncation", "terminal")
        if truncation not in TRUNCATIONS:
            raise AlgorithmError(
                f"algo.truncation={truncation} is not available; choose {' or '.join(TRUNCATIONS)}"
            )
        granularity = config.get("advantage_granularity", None if self.plays else "turn")
        if granularity not in self.granularities:
            raise AlgorithmError(
                f"algo.advantage_granularity={granularity} does not fit algo={self.name}; "
                f"choose {' or '.join(self.granularities)}"
            )
        self.granularity: str = granularity

    @property
    def min_group(self) -> int:
        return 2 if self.needs_group else 1

    def credit(self, groups: Sequence[Sequence[EpisodeCredit]]) -> list[list[Credit]]:
        raise AlgorithmError(f"algo={self.name} plays no episodes, so it has no credit to give")

    def loss(self, batch: ActionTokens) -> tuple[Tensor, dict[str, float]]:
        raise AlgorithmError(f"algo={self.name} has no loss")


class PolicyGradient(Algorithm):
    """Clipped surrogate plus entropy and KL terms; a subclass says how a group is credited.

    The loss that is minimised, every term a weighted sum over tokens whose weights sum to 1
    over the minibatch:  policy − entropy_coef · entropy + kl_coef · k3(policy ‖ reference).
    """

    plays: ClassVar[bool] = True
    foreign_keys: ClassVar[tuple[str, ...]] = ()

    def __init__(self, config: Mapping[str, Any]) -> None:
        super().__init__(config)
        for key in self.foreign_keys:
            if config.get(key) is not None:
                raise AlgorithmError(f"algo.{key} has no meaning with algo={self.name}; remove it")
        self.group_size = read_int(config, "group_size", least=1)
        if self.group_size < self.min_group:
            raise AlgorithmError(
                f"algo.group_size={self.group_size} leaves algo={self.name} nothing to compare "
                f"an episode with; set it to {self.min_group} or more"
            )
        self.clip = read_float(config, "clip", above=0.0)
        self.entropy_coef = read_float(config, "entropy_coef", least=0.0)
        self.kl_coef = read_float(config, "kl_coef", least=0.0)
        self.whiten = read_bool(config, "whiten")
        self.needs_reference = self.kl_coef > 0
        self.needs_entropy = self.entropy_coef > 0

    def credit_group(self, group: Sequence[EpisodeCredit]) -> list[Credit]:
        """Credit of the episodes of one group, before whitening."""
        raise NotImplementedError

    def credit(self, groups: Sequence[Sequence[EpisodeCredit]]) -> list[list[Credit]]:
        """Credit of every episode, in the order given; whitened over all of them if asked.

        Raises AlgorithmError for a group too small to be compared within (rule 3: a caller leaves
        such groups out and says so).
        """
        credits = [self.credit_group(group) for group in groups]
        if not self.whiten:
            return credits
        flat = [credit for group in credits for credit in group]
        if not flat:
            return credits
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
            batch.logp, batch.old_logp, batch.advantages, batch.weights, self.clip
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
            mean_kl = (batch.weights * kl_k3(batch.logp, batch.reference_logp)).sum()
            stats["kl"] = mean_kl.item()
            if self.needs_reference:
                total = total + self.kl_coef * mean_kl
        elif self.needs_reference:
            raise AlgorithmError("algo.kl_coef > 0 needs the reference's log-probabilities")
        return total, stats


def read_float(
    config: Mapping[str, Any],
    key: str,
    least: float = -math.inf,
    most: float = math.inf,
    above: float = -math.inf,
) -> float:
    """The number at `algo.<key>`; AlgorithmError names the key when it is absent or out of range.

    >>> read_float({"gamma": 0.9}, "gamma", least=0.0, most=1.0)
    0.9
    """
    number = config.get(key)
    if isinstance(number, bool) or not isinstance(number, int | float) or not math.isfinite(number):
        raise AlgorithmError(f"algo.{key}={number} must be a number")
    if not (least <= number <= most and number > above):
        low = f"above {above:g}" if above > -math.inf else f"at least {least:g}"
        high = f" and at most {most:g}" if most < math.inf else ""
        raise AlgorithmError(f"algo.{key}={number} must be {low}{high}")
    return float(number)


def read_int(config: Mapping[str, Any], key: str, least: int) -> int:
    """The whole number at `algo.<key>`, at least `least`; AlgorithmError otherwise."""
    number = config.get(key)
    if isinstance(number, bool) or not isinstance(number, int) or number < least:
        raise AlgorithmError(f"algo.{key}={number} must be a whole number of at least {least}")
    return number


def read_bool(config: Mapping[str, Any], key: str) -> bool:
    """The switch at `algo.<key>`; AlgorithmError when it is neither true nor false."""
    switch = config.get(key)
    if not isinstance(switch, bool):
        raise AlgorithmError(f"algo.{key}={switch} must be true or false")
    return switch
