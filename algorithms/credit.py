"""Estimators of credit: pure functions from the rewards and values of episodes to advantages.

K turns, A sampled tokens of an episode, n members of a group, N entries of either kind.
After an episode's last entry comes `final_value`, 0 unless the episode was cut short and
`algo.truncation=bootstrap` asks for the critic's value of what would have come (design, rule 8).
`gamma` is one number, or [N]: the discount between an entry and the next.
Sums run in float64 whatever comes in, so an offset of 1e6 on every reward cancels; results
have the dtype and device of the rewards.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

EPS = 1e-6


class AlgorithmError(ValueError):
    """An algorithm asked for something it cannot do; the message names the key or the input."""


def returns_to_go(rewards: Tensor, gamma: float | Tensor = 1.0) -> Tensor:
    """Discounted sum of the rewards from each entry on: rewards[N] -> [N].

    G_t = r_t + gamma_t G_{t+1}, with nothing after the last entry
    (Sutton & Barto, Reinforcement Learning, 2nd ed., eq. 3.9). The first is the Monte-Carlo
    return of the episode.

    >>> returns_to_go(torch.tensor([1.0, 0.0, 4.0]), gamma=0.5)
    tensor([2., 2., 4.])
    """
    total, backwards = 0.0, []
    discounts = _discounts(gamma, len(rewards))
    for reward, discount in zip(reversed(rewards.tolist()), reversed(discounts), strict=True):
        total = reward + discount * total
        backwards.append(total)
    return torch.tensor(backwards[::-1], dtype=rewards.dtype, device=rewards.device)


def gae(
    rewards: Tensor,
    values: Tensor,
    gamma: float | Tensor,
    lam: float,
    final_value: float = 0.0,
) -> tuple[Tensor, Tensor]:
    """Generalised advantages and the critic's targets: rewards[N], values[N] -> [N], [N].

    delta_t = r_t + gamma_t V_{t+1} - V_t with V = `final_value` after the last entry, and
    A_t = delta_t + gamma_t lam A_{t+1} (Schulman et al. 2016, arXiv 1506.02438, eq. 16).
    The target is the lambda-return A_t + V_t. `values[t]` is read before action t. lam = 1 is
    the Monte-Carlo advantage, return minus value; lam = 0 trusts the critic after one action.

    >>> gae(torch.tensor([0.0, 1.0]), torch.tensor([0.5, 0.25]), gamma=1.0, lam=0.5)
    (tensor([0.1250, 0.7500]), tensor([0.6250, 1.0000]))
    >>> gae(torch.zeros(1), torch.zeros(1), gamma=0.9, lam=1.0, final_value=2.0)[1]  # cut short
    tensor([1.8000])
    """
    advantage, next_value, backwards = 0.0, final_value, []
    discounts = _discounts(gamma, len(rewards))
    entries = zip(rewards.tolist(), values.tolist(), discounts, strict=True)
    for reward, value, discount in reversed(list(entries)):
        advantage = reward + discount * next_value - value + discount * lam * advantage
        next_value = value
        backwards.append(advantage)
    advantages = torch.tensor(backwards[::-1], dtype=torch.float64, device=rewards.device)
    returns = advantages + values.detach().to(advantages)
    return advantages.to(rewards.dtype), returns.to(rewards.dtype)


def turn_gae(
    rewards: Tensor,
    values: Tensor,
    tokens_per_turn: Sequence[int],
    gamma: float | Tensor,
    lam: float,
    final_value: float = 0.0,
) -> tuple[Tensor, Tensor, Tensor]:
    """GAE with one turn as one action: rewards[K], values[A] -> advantages, returns, value_at, [A].

    V(s_k) is the value at the turn's first token, gamma and lam act once a turn, and the tokens
    of a turn share its advantage and return. value_at is True on first tokens: only there was
    the critic read, so only there does it regress (design, rule 6).

    >>> turn_gae(torch.tensor([0.0, 1.0]), torch.zeros(4), [2, 2], gamma=0.9, lam=0.8)[0]
    tensor([0.7200, 0.7200, 1.0000, 1.0000])
    """
    counts = torch.tensor(tokens_per_turn, dtype=torch.int64)
    first = counts.cumsum(0) - counts
    advantages, returns = gae(rewards, values[first.to(values.device)], gamma, lam, final_value)
    value_at = torch.zeros(sum(tokens_per_turn), dtype=torch.bool, device=rewards.device)
    value_at[first.to(rewards.device)] = True
    return spread(advantages, tokens_per_turn), spread(returns, tokens_per_turn), value_at


def token_gae(
    rewards: Tensor,
    values: Tensor,
    tokens_per_turn: Sequence[int],
    gamma: float | Tensor,
    lam: float,
    final_value: float = 0.0,
) -> tuple[Tensor, Tensor, Tensor]:
    """GAE with one token as one action; in and out as `turn_gae`, value_at True everywhere.

    `rewards` are of turns [K], and sit on the last token of theirs, or of tokens [A] already
    (`token_rewards`). gamma and lam act once a sampled token, and the token before an observation
    bootstraps from the first sampled token after it (design, rule 6).

    >>> token_gae(torch.tensor([0.0, 1.0]), torch.zeros(3), [1, 2], gamma=1.0, lam=0.5)[0]
    tensor([0.2500, 0.5000, 1.0000])
    """
    if len(rewards) == len(tokens_per_turn):
        rewards = token_rewards(rewards, tokens_per_turn)
    advantages, returns = gae(rewards, values, gamma, lam, final_value)
    return advantages, returns, torch.ones_like(advantages, dtype=torch.bool)


def token_rewards(rewards: Tensor, tokens_per_turn: Sequence[int]) -> Tensor:
    """A turn's reward on its last sampled token, paid once: rewards[K] -> [A].

    >>> token_rewards(torch.tensor([5.0, 7.0]), [1, 3])
    tensor([5., 0., 0., 7.])
    """
    last = torch.tensor(tokens_per_turn, dtype=torch.int64).cumsum(0) - 1
    placed = torch.zeros(sum(tokens_per_turn), dtype=rewards.dtype, device=rewards.device)
    placed[last.to(rewards.device)] = rewards
    return placed


def discounts(
    gamma: float, tokens_per_turn: Sequence[int], granularity: str, per: str = "action"
) -> Tensor:
    """Discount between each action and the next: -> [K] at turn level, [A] at token level.

    `per` states what one step of time is. "action": an action, whatever it is. "turn": a turn, so
    at token level the tokens of one turn are not discounted against each other. "token": a token,
    so at turn level a long command costs more time than a short one.

    >>> discounts(0.5, [1, 2], "turn", "token").tolist()
    [0.5, 0.25]
    >>> discounts(0.5, [1, 2], "token", "turn").tolist()
    [0.5, 1.0, 0.5]
    """
    counts = torch.tensor(tokens_per_turn, dtype=torch.float64)
    if granularity == "token":
        if per != "turn":
            return torch.full((sum(tokens_per_turn),), gamma, dtype=torch.float64)
        inside = torch.ones(sum(tokens_per_turn), dtype=torch.float64)
        inside[counts.cumsum(0).long() - 1] = gamma
        return inside
    if per == "token":
        return torch.full_like(counts, gamma).pow(counts)
    return torch.full_like(counts, gamma)


def shaping(potentials: Tensor, gamma: float | Tensor, bootstrapped: bool = False) -> Tensor:
    """Rewards that leave the best policy as it is: potentials[K + 1] -> [K].

    F_k = gamma_k Phi(s_{k+1}) - Phi(s_k) (Ng, Harada & Russell 1999, "Policy invariance under
    reward transformations", theorem 1). They telescope: the discounted sum of an episode is
    -Phi(s_0), the same for whatever was done, which needs Phi = 0 after an end. So the last
    potential counts only where the episode was cut short and its end is `bootstrapped`.

    >>> shaping(torch.tensor([-1.0, -0.5, 9.0]), gamma=1.0)  # sums to 1 = -Phi(s_0)
    tensor([0.5000, 0.5000])
    """
    after = potentials[1:].double().clone()
    if not bootstrapped:
        after[-1] = 0.0
    factor = torch.as_tensor(gamma, dtype=torch.float64, device=after.device)
    return (factor * after - potentials[:-1].double()).to(potentials.dtype)


def _discounts(gamma: float | Tensor, count: int) -> list[float]:
    return gamma.tolist() if isinstance(gamma, Tensor) else [gamma] * count


def spread(per_turn: Tensor, tokens_per_turn: Sequence[int]) -> Tensor:
    """Give every token its turn's number: per_turn[K] -> [A].

    >>> spread(torch.tensor([5.0, 7.0]), [1, 3])
    tensor([5., 7., 7., 7.])
    """
    counts = torch.tensor(tokens_per_turn, dtype=torch.int64, device=per_turn.device)
    return per_turn.repeat_interleave(counts)


def centre(numbers: Tensor) -> Tensor:
    """Differences from the mean, in float64: numbers[n] -> [n], exactly 0 when all are equal.

    Taking the first number off beforehand keeps small differences beside a large offset.

    >>> centre(torch.tensor([1e6, 1e6 + 2.0])).tolist()
    [-1.0, 1.0]
    """
    shifted = numbers.double() - numbers[0].double()
    return shifted - shifted.mean()


def group_advantages(
    rewards: Sequence[Tensor],
    estimator: Callable[[Tensor], Tensor],
    granularity: str,
    gamma: float = 1.0,
) -> list[Tensor]:
    """Advantage of each turn of each member against its group: n times [K_i] -> n times [K_i].

    `estimator` maps the returns [n] of comparable episodes to their advantages [n].
    "trajectory" compares undiscounted episode returns and gives every turn its episode's
    advantage. "turn" compares the returns-to-go, discounted by `gamma`, of the members that
    reached turn k; where one member alone did, there is nothing to compare with and its
    trajectory advantage stands (design, rule 7). Statistics run over episodes, never over tokens
    or rows.

    Raises AlgorithmError for a group of fewer than two, or another granularity.

    >>> mean_only = lambda returns: returns - returns.mean()
    >>> rewards = [torch.tensor([1.0, 1.0]), torch.tensor([0.0])]
    >>> group_advantages(rewards, mean_only, "turn")
    [tensor([1., 1.]), tensor([-1.])]
    """
    if len(rewards) < 2:
        raise AlgorithmError(
            f"a group of {len(rewards)} has no baseline; set algo.group_size to 2 or more and "
            "leave out groups that shrank to one member"
        )
    if granularity not in ("trajectory", "turn"):
        raise AlgorithmError(
            f"algo.advantage_granularity={granularity} has no group baseline; "
            "choose trajectory or turn"
        )
    to_go = [returns_to_go(member.double(), gamma) for member in rewards]
    totals = torch.stack([member.double().sum() for member in rewards])
    trajectory = estimator(totals)
    advantages = [
        whole.expand(len(member)).clone() for whole, member in zip(trajectory, to_go, strict=True)
    ]
    if granularity == "turn":
        for turn in range(max(len(member) for member in to_go)):
            present = [index for index, member in enumerate(to_go) if len(member) > turn]
            if len(present) < 2:
                break
            here = estimator(torch.stack([to_go[index][turn] for index in present]))
            for index, advantage in zip(present, here, strict=True):
                advantages[index][turn] = advantage
    return [
        advantage.to(member.dtype) for advantage, member in zip(advantages, rewards, strict=True)
    ]


def unit_weights(tokens_per_turn: Sequence[int], granularity: str) -> Tensor:
    """Weights that sum to 1 over what one advantage covers: -> [A] float64.

    A turn's tokens share weight 1 at turn level, an episode's at trajectory level; at token
    level each has 1. So a long command counts once in a mean over turns.

    >>> unit_weights([1, 2], "turn").tolist()
    [1.0, 0.5, 0.5]
    """
    counts = torch.tensor(tokens_per_turn, dtype=torch.float64)
    if granularity == "turn":
        return spread(1.0 / counts, tokens_per_turn)
    tokens = sum(tokens_per_turn)
    each = 1.0 if granularity == "token" else 1.0 / max(tokens, 1)
    return torch.full((tokens,), each, dtype=torch.float64)


def whiten(advantages: Tensor, weights: Tensor) -> Tensor:
    """Weighted mean 0 and standard deviation 1: advantages[N], weights[N] -> [N].

    The variance divides by (sum of weights − 1), the sample variance of as many units, and EPS
    joins the standard deviation, so advantages that are all equal become 0 and ones that differ
    by 1e-9 stay small. PPO's paper has no whitening; Andrychowicz et al. 2021 (arXiv 2006.05990)
    study it as advantage normalisation.

    >>> whiten(torch.tensor([0.0, 2.0, 2.0]), torch.tensor([1.0, 0.5, 0.5]))
    tensor([-0.7071,  0.7071,  0.7071])
    """
    if not len(advantages):
        return advantages
    weights = weights.double()
    units = weights.sum()
    shifted = advantages.double() - advantages[0].double()
    centred = shifted - (weights * shifted).sum() / units
    variance = (weights * centred.square()).sum() / (units - 1.0).clamp(min=1.0)
    return (centred / (variance.sqrt() + EPS)).to(advantages.dtype)
