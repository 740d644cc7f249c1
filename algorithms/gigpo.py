"""GiGPO: an episode against its group, and a turn against every turn in the same state."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Hashable, Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

from algorithms.base import Credit, EpisodeCredit
from algorithms.credit import AlgorithmError, returns_to_go, spread
from algorithms.gradient import PolicyGradient
from algorithms.group import without_critic
from algorithms.grpo import grpo_advantages
from algorithms.reading import TIMES, read_bool, read_choice, read_float


def anchor_advantages(
    returns: Sequence[Tensor], states: Sequence[Sequence[Hashable]], std_normalise: bool
) -> list[Tensor]:
    """Returns of turns against those of turns in the same state: n times [K_i] -> n times [K_i].

    All the turns of the group in which the same state was seen, of any member and several times
    in one, are compared as one group (GiGPO, arXiv 2505.10978, eq. 6 to 8). A state that was
    seen once has nothing to compare with: 0, where the paper is silent.

    >>> returns = [torch.tensor([1.0, 1.0]), torch.tensor([0.0, 5.0])]
    >>> states = [["start", "key"], ["start", "door"]]
    >>> [a.tolist() for a in anchor_advantages(returns, states, std_normalise=False)]
    [[0.5, 0.0], [-0.5, 0.0]]
    """
    seen: dict[Hashable, list[tuple[int, int]]] = defaultdict(list)
    for member, names in enumerate(states):
        for turn, name in enumerate(names):
            seen[name].append((member, turn))
    advantages = [torch.zeros_like(member) for member in returns]
    for places in seen.values():
        if len(places) < 2:
            continue
        here = torch.stack([returns[member][turn] for member, turn in places])
        for (member, turn), advantage in zip(
            places, grpo_advantages(here, std_normalise), strict=True
        ):
            advantages[member][turn] = advantage
    return advantages


class GiGPO(PolicyGradient):
    """Feng et al. 2025 (arXiv 2505.10978, eq. 9): A = A_episode + step_weight · A_state.

    A_episode compares undiscounted returns of episodes, A_state returns from the turn on,
    discounted by `algo.gamma`. A state is what was observed: the text before the turn, after the
    same objective, as in the paper.
    """

    name: ClassVar[str] = "gigpo"
    granularities: ClassVar[tuple[str, ...]] = ("turn",)
    keys: ClassVar[frozenset[str]] = PolicyGradient.keys | {
        *("std_normalise", "gamma", "discount", "step_weight")
    }
    needs_group: ClassVar[bool] = True
    needs_states: ClassVar[bool] = True

    def __init__(self, config: Mapping[str, Any], faults: Collection[str] = ()) -> None:
        super().__init__(config, faults)
        self.std_normalise = read_bool(config, "std_normalise")
        self.gamma = read_float(config, "gamma", least=0.0, most=1.0)
        self.discount = read_choice(config, "discount", TIMES, "action")
        self.step_weight = read_float(config, "step_weight", least=0.0)

    def credit_group(self, group: Sequence[EpisodeCredit]) -> list[Credit]:
        """Raises AlgorithmError for a group of one or an episode without states."""
        states = [episode.states for episode in group]
        rewards = [self.rewards(episode) for episode in group]
        totals = torch.stack([self.rewards(episode, time=1.0).sum() for episode in group])
        whole = grpo_advantages(totals, self.std_normalise)
        to_go = [
            returns_to_go(member, self.time(episode))
            for member, episode in zip(rewards, group, strict=True)
        ]
        known = [names for names in states if names is not None]
        if len(known) < len(states):
            raise AlgorithmError("algo=gigpo needs to know what was observed before every turn")
        by_state = anchor_advantages(to_go, known, self.std_normalise)
        return [
            without_critic(
                spread(of_episode + self.step_weight * of_turns, episode.tokens_per_turn)
            )
            for of_episode, of_turns, episode in zip(whole, by_state, group, strict=True)
        ]


ALGORITHM = GiGPO
