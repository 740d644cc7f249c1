"""From groups of episodes to flat credit: what `algorithms` sees and what an update is fed.

Estimators get rewards [K turns] and values [N tokens] of whole episodes; rows, padding and
micro-batches do not exist for them (design, "Row").
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from algorithms import Algorithm, EpisodeCredit
from algorithms.divergence import kl_k1
from policies.policy import Policy
from rollouts.types import Episode, Group
from runs.errors import InvariantError, TrainingError
from training.batch import PlacedRow, lay_out, read_final_values, read_logp, read_values

# Rewards are added as float32 over at most a few dozen turns.
CONSERVATION_BOUND = 1e-4
VARIANCE_FLOOR = 1e-6
DEGENERATE_SHARE = 0.9
DEGENERATE_MINIMUM = 64


@dataclass
class Batch:
    """E episodes of one policy version and the credit of their N sampled tokens, in order.

    rows[E] lists the rows of each episode; logp, advantages, weight [N] float32, value_at [N]
    bool; returns and values [N] where the algorithm has a critic. `logp` are the generator's
    numbers, `proximal` [N] the trainer's own where `algo.behaviour_cap` tells them apart, and
    `reference` [N] those of the policy that a KL in the loss pulls towards; both are read when an
    update begins. groups[E] says which episodes are of one group. `health` holds what was
    measured on the way.
    """

    episodes: list[Episode]
    groups: list[int]
    rows: list[list[PlacedRow]]
    logp: Tensor
    advantages: Tensor
    weight: Tensor
    value_at: Tensor
    returns: Tensor | None = None
    values: Tensor | None = None
    proximal: Tensor | None = None
    reference: Tensor | None = None
    health: dict[str, float] = field(default_factory=dict)


def assign(
    algorithm: Algorithm, policy: Policy, groups: Sequence[Group], config: Any
) -> tuple[Batch, list[list[Tensor]]]:
    """The batch to train on, and the advantages of every member of `groups[g].alive`, flat.

    Errored episodes are left out (rule 3; the player has dropped groups that are too small).
    Raises `InvariantError` when rewards are not conserved (rule 2) or a token is not in exactly
    one row, `TrainingError` when the policy has collapsed to one token, `AlgorithmError` for a
    group that is too small.
    """
    episodes = [episode for group in groups for episode in group.alive]
    refuse_degenerate(episodes, set(policy.stop_ids))
    rows = lay_out(episodes)
    sizes = [sum(len(turn.ids) for turn in episode.turns) for episode in episodes]
    logp = torch.tensor([x for e in episodes for turn in e.turns for x in turn.logp])
    read = _read(algorithm, policy, episodes, rows, logp, config)
    seen = iter(_seen(algorithm, episodes, sizes, read))
    credits = algorithm.credit([[next(seen) for _ in group.alive] for group in groups])
    flat = [credit for group in credits for credit in group]
    returns = [credit.returns for credit in flat if credit.returns is not None]
    batch = Batch(
        episodes,
        [place for place, group in enumerate(groups) for _ in group.alive],
        rows,
        logp=logp,
        advantages=torch.cat([credit.advantages for credit in flat]),
        weight=torch.cat([credit.weight for credit in flat]),
        value_at=torch.cat([credit.value_at for credit in flat]),
        returns=torch.cat(returns) if read.values is not None else None,
        values=read.values,
        health=_health(groups),
    )
    if read.kl is not None:
        batch.health["kl_in_reward"] = read.kl.mean().item()
    return batch, [[credit.advantages for credit in group] for group in credits]


@dataclass
class _Read:
    """What the networks said of E episodes and N sampled tokens: values and kl [N], and by
    episode the value of the last observation where that episode is bootstrapped."""

    values: Tensor | None = None
    kl: Tensor | None = None
    final: dict[int, float] = field(default_factory=dict)


def _read(
    algorithm: Algorithm,
    policy: Policy,
    episodes: list[Episode],
    rows: list[list[PlacedRow]],
    logp: Tensor,
    config: Any,
) -> _Read:
    read, budget = _Read(), config.optim.micro_tokens
    flat = [row for of_episode in rows for row in of_episode]
    if algorithm.needs_critic:
        read.values = _values(policy, episodes, flat, budget)
    if algorithm.kl_in_reward:
        temperature = config.policy.temperature
        reference = read_logp(policy, flat, temperature, budget, len(logp), reference=True)
        read.kl = kl_k1(logp, reference)
    if algorithm.bootstraps:
        cut = {i: e.unanswered for i, e in enumerate(episodes) if e.unanswered is not None}
        values = read_final_values(policy, list(cut.values()), budget) if cut else []
        read.final = dict(zip(cut, values, strict=True))
    return read


def _seen(
    algorithm: Algorithm, episodes: list[Episode], sizes: list[int], read: _Read
) -> Iterator[EpisodeCredit]:
    """What an estimator sees of each episode."""
    nothing = [None] * len(episodes)
    values = nothing if read.values is None else read.values.split(sizes)
    kl = nothing if read.kl is None else read.kl.split(sizes)
    for place, episode in enumerate(episodes):
        shown = [turn.observation for turn in episode.turns] if algorithm.needs_states else None
        yield EpisodeCredit(
            conserved(episode),
            [len(turn.ids) for turn in episode.turns],
            values=values[place],
            final_value=read.final.get(place),
            kl=kl[place],
            states=shown,
            potentials=episode.potentials,
        )


def refuse_degenerate(episodes: Sequence[Episode], stop_ids: set[int]) -> None:
    """Raise `TrainingError` when over 90 % of what was sampled, stop tokens apart, is one id."""
    sampled = torch.tensor(
        [i for e in episodes for turn in e.turns for i in turn.ids if i not in stop_ids]
    )
    if len(sampled) < DEGENERATE_MINIMUM:
        return
    ids, counts = sampled.unique(return_counts=True)
    share = counts.max().item() / len(sampled)
    if share > DEGENERATE_SHARE:
        raise TrainingError(
            f"the policy has collapsed: {share:.0%} of {len(sampled)} sampled tokens are id "
            f"{int(ids[counts.argmax()])}; go back to an earlier checkpoint and lower optim.lr "
            "or raise algo.kl_coef"
        )


def _values(
    policy: Policy, episodes: list[Episode], rows: list[PlacedRow], micro_tokens: int
) -> Tensor:
    """Values [N] before every sampled token: the engine's where it read them, else one pass."""
    turns = [turn for episode in episodes for turn in episode.turns]
    if all(turn.values is not None for turn in turns):
        return torch.tensor([value for turn in turns for value in turn.values or ()])
    return read_values(policy, rows, micro_tokens, sum(len(turn.ids) for turn in turns))


def conserved(episode: Episode) -> Tensor:
    """Rewards of the turns [K], once they are known to sum to what was paid (rule 2).

    Raises `InvariantError` when they do not.
    """
    rewards = episode.rewards
    error = abs(float(rewards.double().sum()) - episode.paid)
    if not error <= CONSERVATION_BOUND:
        raise InvariantError(
            f"task {episode.task.id}, member {episode.member}: turn rewards sum to "
            f"{float(rewards.sum()):.6f} but the environment paid {episode.paid:.6f}"
        )
    return rewards


def _health(groups: Sequence[Group]) -> dict[str, float]:
    returns = [[float(e.rewards.double().sum()) for e in group.alive] for group in groups]
    flat = sum(max(group) - min(group) <= VARIANCE_FLOOR for group in returns)
    paid = [episode.paid for group in groups for episode in group.alive]
    used = [total for group in returns for total in group]
    every = [episode for group in groups for episode in group.episodes]
    alive = [episode for group in groups for episode in group.alive]
    health = {
        "groups_without_variance": flat / len(groups),
        "reward_conservation_error": max(abs(a - b) for a, b in zip(used, paid, strict=True)),
        "token_identity_breaks": sum(_identity_breaks(episode) for episode in alive),
        "episodes_truncated": sum(e.ended in ("turn_limit", "context") for e in every) / len(every),
        "episodes_in_error": sum(e.ended == "error" for e in every) / len(every),
    }
    shaped = [e.potentials for e in alive if e.potentials is not None]
    return health | ({"potential": torch.cat(shaped).mean().item()} if shaped else {})


def _identity_breaks(episode: Episode) -> int:
    """Tokens that are trained on and are not the sampled ones (rule 1): a count that must be 0."""
    sampled = [token for turn in episode.turns for token in turn.ids]
    trained = [token for row in episode.rows for token in row.ids[row.action].tolist()]
    differ = sum(one != other for one, other in zip(sampled, trained, strict=False))
    return differ + abs(len(sampled) - len(trained))
