"""What an algorithm is: credit from episodes, a loss from action tokens, nothing else.

`EpisodeCredit` goes into an estimator, `Credit` comes out, `ActionTokens` goes into a loss.
None of them holds padding or observation tokens: entries are the sampled tokens of an episode
in order, so nothing off action can reach a number.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from algorithms.credit import AlgorithmError
from algorithms.losses import Surrogate

GRANULARITIES = ("trajectory", "turn", "token")
TRUNCATIONS = ("terminal", "bootstrap")


@dataclass(frozen=True)
class EpisodeCredit:
    """What an estimator may know of an episode of K turns and A sampled tokens.

    rewards[K]; tokens_per_turn, K whole numbers of at least 1 that sum to A; values[A], the
    critic's value read before each sampled token, or None without a critic; final_value, the
    critic's value of the last observation where the episode was cut short and
    `algo.truncation=bootstrap`, else None; kl[A], k1 of each sampled token against the
    reference where KL is paid out of the reward; states, a name for what was observed before each
    turn, equal for equal states (GiGPO); potentials[K + 1] of those states and the one after, for
    shaping.

    Raises AlgorithmError when the sizes disagree, a turn has no token or a number is not finite.
    """

    rewards: Tensor
    tokens_per_turn: list[int]
    values: Tensor | None = None
    final_value: float | None = None
    kl: Tensor | None = None
    states: Sequence[Hashable] | None = None
    potentials: Tensor | None = None

    def __post_init__(self) -> None:
        turns, tokens = len(self.tokens_per_turn), sum(self.tokens_per_turn)
        if any(count < 1 for count in self.tokens_per_turn):
            raise AlgorithmError(f"every turn needs a sampled token, got {self.tokens_per_turn}")
        for field, size, unit in (
            ("rewards", turns, "turns"),
            ("values", tokens, "sampled tokens"),
            ("kl", tokens, "sampled tokens"),
            ("potentials", turns + 1, "turns and one state after them"),
        ):
            numbers = getattr(self, field)
            if numbers is None:
                continue
            if numbers.shape != (size,):
                raise AlgorithmError(
                    f"{field} have shape {tuple(numbers.shape)}, but the episode has "
                    f"{turns} turns and {tokens} sampled tokens: {size} expected ({unit})"
                )
            if not torch.isfinite(numbers).all():
                raise AlgorithmError(f"{field} of an episode are not finite")
        if self.final_value is not None and not math.isfinite(self.final_value):
            raise AlgorithmError("the final value of an episode is not finite")
        if self.states is not None and len(self.states) != turns:
            raise AlgorithmError(f"{len(self.states)} states for the {turns} turns of an episode")


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

    logp[A] under the policy that is trained and old_logp[A] under the one that sampled, both the
    trainer's numbers at the sampling temperature; advantages[A]; weights[A] and value_weights[A]
    from `minibatch_weights` over the whole minibatch. entropy[A] is needed when
    `algo.entropy_coef` > 0, reference_logp[A] when KL is in the loss, segment[A] (which tokens
    share a ratio) when `algo.ratio` is not token, behaviour_logp[A] (the generator's numbers) with
    `algo.behaviour_cap`, values[A], returns[A] and value_weights[A] with a critic, old_values[A]
    with `algo.value_clip`.
    """

    logp: Tensor
    old_logp: Tensor
    advantages: Tensor
    weights: Tensor
    entropy: Tensor | None = None
    reference_logp: Tensor | None = None
    segment: Tensor | None = None
    behaviour_logp: Tensor | None = None
    values: Tensor | None = None
    returns: Tensor | None = None
    value_weights: Tensor | None = None
    old_values: Tensor | None = None


class Algorithm:
    """An algorithm that plays no episodes; `PolicyGradient` is one that does.

    `plays` says whether the loop plays and updates; `granularities` the values that
    `algo.advantage_granularity` may take; `keys` the keys of `algo` that it reads; `min_group`
    the members that a group must have left for `credit` to take it.
    """

    name: ClassVar[str]
    granularities: ClassVar[tuple[str, ...]] = GRANULARITIES
    keys: ClassVar[frozenset[str]] = frozenset({"name", "advantage_granularity", "truncation"})
    plays: ClassVar[bool] = False
    needs_critic: ClassVar[bool] = False
    needs_group: ClassVar[bool] = False
    needs_states: ClassVar[bool] = False
    needs_reference: bool = False
    needs_entropy: bool = False
    bootstraps: bool = False
    kl_in_reward: bool = False
    surrogate = Surrogate()
    normalise: str = "token"
    constant: float = 1.0

    def __init__(self, config: Mapping[str, Any], faults: Collection[str] = ()) -> None:
        self.faults = frozenset(faults)
        for key in config:
            if key not in self.keys and config[key] is not None:
                raise AlgorithmError(f"algo.{key} has no meaning with algo={self.name}; remove it")
        truncation = config.get("truncation", "terminal")
        if truncation not in TRUNCATIONS:
            raise AlgorithmError(
                f"algo.truncation={truncation} is not known; choose {' or '.join(TRUNCATIONS)}"
            )
        self.bootstraps = truncation == "bootstrap"
        if self.bootstraps and not self.needs_critic:
            raise AlgorithmError(
                f"algo.truncation=bootstrap needs a critic's value of the last observation, which "
                f"algo={self.name} does not have; choose terminal"
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
        return 2 if self.needs_group and "group_of_one" not in self.faults else 1

    def credit(self, groups: Sequence[Sequence[EpisodeCredit]]) -> list[list[Credit]]:
        raise AlgorithmError(f"algo={self.name} plays no episodes, so it has no credit to give")

    def loss(self, batch: ActionTokens) -> tuple[Tensor, dict[str, float]]:
        raise AlgorithmError(f"algo={self.name} has no loss")
