"""REINFORCE: the return itself, without a baseline."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, ClassVar

from torch import Tensor

from algorithms.base import Credit, EpisodeCredit
from algorithms.credit import AlgorithmError, returns_to_go, spread
from algorithms.gradient import PolicyGradient
from algorithms.group import without_critic
from algorithms.reading import TIMES, read_choice, read_float


def reinforce_advantages(
    rewards: Tensor, tokens_per_turn: Sequence[int], gamma: float | Tensor, granularity: str
) -> Tensor:
    """Return of the episode, or from a turn or token on: rewards[K] or [A] -> [A].

    (Williams 1992, "Simple statistical gradient-following algorithms"; with the return from the
    action on: Sutton & Barto, 2nd ed., eq. 13.8 without its leading discount, as everywhere in
    this field.) "trajectory" and "turn" take the rewards of turns; "trajectory" gives every
    token the episode's discounted return, "turn" the return from its turn on. "token" takes the
    rewards of tokens, and gives each the return from itself on.

    Raises AlgorithmError for another granularity or rewards of the wrong length.

    >>> rewards = torch.tensor([1.0, 4.0])
    >>> reinforce_advantages(rewards, [1, 2], 0.5, "trajectory")
    tensor([3., 3., 3.])
    >>> reinforce_advantages(rewards, [1, 2], 0.5, "turn")
    tensor([3., 4., 4.])
    >>> reinforce_advantages(torch.tensor([1.0, 0.0, 4.0]), [1, 2], 0.5, "token")
    tensor([2., 2., 4.])
    """
    expected = sum(tokens_per_turn) if granularity == "token" else len(tokens_per_turn)
    if len(rewards) != expected:
        raise AlgorithmError(f"{len(rewards)} rewards where {granularity} level has {expected}")
    to_go = returns_to_go(rewards, gamma)
    if granularity == "token":
        return to_go
    if granularity == "turn":
        return spread(to_go, tokens_per_turn)
    if granularity != "trajectory":
        raise AlgorithmError(f"algo.advantage_granularity={granularity} is not known")
    return to_go[:1].expand(sum(tokens_per_turn)).clone()


class Reinforce(PolicyGradient):
    """Williams 1992, with the surrogate's ratio for passes after the first."""

    name: ClassVar[str] = "reinforce"
    granularities: ClassVar[tuple[str, ...]] = ("trajectory", "turn", "token")
    keys: ClassVar[frozenset[str]] = PolicyGradient.keys | {"gamma", "discount"}

    def __init__(self, config: Mapping[str, Any], faults: Collection[str] = ()) -> None:
        super().__init__(config, faults)
        self.gamma = read_float(config, "gamma", least=0.0, most=1.0)
        self.discount = read_choice(config, "discount", TIMES, "action")

    def credit_group(self, group: Sequence[EpisodeCredit]) -> list[Credit]:
        credits = []
        for episode in group:
            advantages = reinforce_advantages(
                self.rewards(episode), episode.tokens_per_turn, self.time(episode), self.granularity
            )
            credits.append(without_critic(advantages))
        return credits


ALGORITHM = Reinforce
