"""Credit and losses straight from their definitions, in plain Python: slow, and sharing no line
with `algorithms/`.

Sums run in fractions, so they are exact; only roots and exponentials are floats.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import Any

import torch
from omegaconf import OmegaConf

from algorithms import EpisodeCredit

RECIPES = Path(__file__).parents[2] / "recipes" / "algo"
EPS = 1e-6
BOUND = {torch.float32: 1e-6, torch.float64: 1e-9}
ARMS = [
    ("ppo", "turn"),
    ("ppo", "token"),
    *((name, g) for name in ("reinforce", "reinforce_pp") for g in ("trajectory", "turn", "token")),
    *(
        (name, granularity)
        for name in ("grpo", "dr_grpo", "rloo", "gspo", "dapo", "cispo")
        for granularity in ("trajectory", "turn")
    ),
    ("gigpo", "turn"),
]
GROUP_ARMS = [arm for arm in ARMS if arm[0] not in ("ppo", "reinforce", "reinforce_pp")]


def recipe(name: str, granularity: str | None = None, **changes: Any) -> dict[str, Any]:
    """The recipe of an algorithm, without whitening and KL unless `changes` asks for them."""
    shared = OmegaConf.load(RECIPES / "shared" / "gradient.yaml")
    own = OmegaConf.load(RECIPES / f"{name}.yaml")
    config: dict[str, Any] = OmegaConf.to_container(OmegaConf.merge(shared, own))  # type: ignore
    del config["defaults"]
    config |= {"whiten": False, "kl_coef": 0.0} | changes
    return config | ({"advantage_granularity": granularity} if granularity else {})


def close(actual, expected, dtype, scale=1.0):
    """Equal within 1e-6 (float32) or 1e-9 (float64) of the largest number that is expected."""
    assert actual.dtype == dtype
    largest = max([scale, *map(abs, expected)])
    reference = torch.tensor(expected, dtype=torch.float64)
    torch.testing.assert_close(actual.double(), reference, atol=BOUND[dtype] * largest, rtol=0)


@dataclass
class Played:
    """One episode: K rewards, tokens of each turn, A values and KLs, K + 1 potentials."""

    rewards: list[float]
    tokens: list[int]
    values: list[float] = field(default_factory=list)
    kl: list[float] = field(default_factory=list)
    states: list[str] = field(default_factory=list)
    potentials: list[float] | None = None
    final: float | None = None

    def credit(self, dtype: torch.dtype = torch.float64) -> EpisodeCredit:
        def of(numbers: list[float] | None) -> torch.Tensor | None:
            return None if numbers is None else torch.tensor(numbers, dtype=dtype)

        return EpisodeCredit(
            torch.tensor(self.rewards, dtype=dtype),
            self.tokens,
            values=of(self.values or [0.0] * sum(self.tokens)),
            final_value=self.final,
            kl=of(self.kl or [0.0] * sum(self.tokens)),
            states=self.states or ["same"] * len(self.tokens),
            potentials=of(self.potentials),
        )


def clock(tokens: list[int], granularity: str, per: str = "action") -> list[int]:
    """How many discounts lie before each action, and before what follows the last."""
    if granularity == "token" and per == "turn":
        return [turn for turn, count in enumerate(tokens) for _ in range(count)] + [len(tokens)]
    if granularity == "token":
        return list(range(sum(tokens) + 1))
    if per == "token":
        return [sum(tokens[:turn]) for turn in range(len(tokens) + 1)]
    return list(range(len(tokens) + 1))


def paid(
    play: Played, by_token: bool, when: list[int], gamma: float, kl_coef: float
) -> list[Fraction]:
    """Reward of each action: the environment's on the last token of a turn, less KL, plus
    γ Φ(next state) − Φ(state), where Φ is 0 after an end."""
    total = [Fraction(0)] * (len(when) - 1)
    token = 0
    for turn, count in enumerate(play.tokens):
        for place in range(count):
            action = token if by_token else turn
            if play.kl:
                total[action] -= Fraction(kl_coef) * Fraction(play.kl[token])
            if place == count - 1:
                total[action] += Fraction(play.rewards[turn])
            token += 1
    if play.potentials is not None:
        *before, last = map(Fraction, play.potentials)
        if by_token:
            before = [p for p, count in zip(before, play.tokens, strict=True) for _ in range(count)]
        after = [*before[1:], Fraction(0) if play.final is None else last]
        for i in range(len(total)):
            total[i] += Fraction(gamma) ** (when[i + 1] - when[i]) * after[i] - before[i]
    return total


def return_from(rewards: Sequence[Fraction], when: list[int], gamma: float, start: int) -> Fraction:
    """Σ_j γ^(t_j − t_i) r_j over j ≥ i."""
    g = Fraction(gamma)
    later = range(start, len(rewards))
    return sum((g ** (when[j] - when[start]) * rewards[j] for j in later), Fraction(0))


def lambda_returns(
    rewards: Sequence[Fraction],
    values: Sequence[float],
    when: list[int],
    gamma: float,
    lam: float,
    final: float = 0.0,
) -> list[Fraction]:
    """(1 − λ) Σ_n λ^(n−1) G^(n) + λ^(N−1) G^(N): the λ-weighted mean of all n-step returns."""
    g, weight = Fraction(gamma), Fraction(lam)
    value = [*map(Fraction, values), Fraction(final)]

    def steps(i: int, n: int) -> Fraction:
        head = sum((g ** (when[j] - when[i]) * rewards[j] for j in range(i, i + n)), Fraction(0))
        return head + g ** (when[i + n] - when[i]) * value[i + n]

    targets = []
    for i in range(len(rewards)):
        most = len(rewards) - i
        mean = sum(weight ** (n - 1) * (1 - weight) * steps(i, n) for n in range(1, most))
        targets.append(mean + weight ** (most - 1) * steps(i, most))
    return targets


Compare = Callable[[Fraction, list[Fraction]], float]


def leave_one_out(own: Fraction, everyone: list[Fraction]) -> float:
    return float(own - (sum(everyone) - own) / (len(everyone) - 1))


def centred(own: Fraction, everyone: list[Fraction]) -> float:
    return float(own - sum(everyone) / len(everyone))


def standardised(own: Fraction, everyone: list[Fraction]) -> float:
    mean = sum(everyone) / len(everyone)
    variance = sum((other - mean) ** 2 for other in everyone) / (len(everyone) - 1)
    return float(own - mean) / (math.sqrt(variance) + EPS)


def against_group(
    rewards: list[list[Fraction]], compare: Compare, granularity: str
) -> list[list[float]]:
    """Advantage of each turn of each member; who did not reach a turn is not compared there."""
    totals = [sum(member, Fraction(0)) for member in rewards]
    result = []
    for member, total in zip(rewards, totals, strict=True):
        turns = []
        for turn in range(len(member)):
            rivals = [sum(other[turn:], Fraction(0)) for other in rewards if len(other) > turn]
            alone = len(rivals) == 1
            by_episode = granularity == "trajectory" or alone
            own = total if by_episode else sum(member[turn:], Fraction(0))
            turns.append(compare(own, totals if by_episode else rivals))
        result.append(turns)
    return result


def against_state(
    returns: list[list[Fraction]], states: list[list[str]], compare: Compare
) -> list[list[float]]:
    """Advantage of each turn against all turns of the group in the same state; 0 if there is
    no other."""
    every = [
        (name, value)
        for names, member in zip(states, returns, strict=True)
        for name, value in zip(names, member, strict=True)
    ]
    result = []
    for names, member in zip(states, returns, strict=True):
        turns = []
        for name, own in zip(names, member, strict=True):
            same = [value for other, value in every if other == name]
            turns.append(compare(own, same) if len(same) > 1 else 0.0)
        result.append(turns)
    return result


def per_token(turns: Sequence[float], tokens: list[int]) -> list[float]:
    return [
        float(number) for number, count in zip(turns, tokens, strict=True) for _ in range(count)
    ]


def _one_group(config: dict[str, Any], group: list[Played]) -> list[list[float]]:
    name, granularity = config["name"], config["advantage_granularity"]
    gamma, per = config.get("gamma", 1.0), config.get("discount", "action")
    cost = config["kl_coef"] if config["kl_in"] == "reward" else 0.0
    by_token = granularity == "token"
    clocks = [clock(play.tokens, granularity, per) for play in group]
    rewards = [
        paid(play, by_token, when, gamma, cost) for play, when in zip(group, clocks, strict=True)
    ]
    to_go = [
        [return_from(r, when, gamma, i) for i in range(len(r))]
        for r, when in zip(rewards, clocks, strict=True)
    ]
    counts = [play.tokens for play in group]
    if name == "ppo":
        return [a for a, _ in (ppo(config, *x) for x in zip(group, rewards, clocks, strict=True))]
    if name in ("reinforce", "reinforce_pp"):
        if granularity == "trajectory":
            to_go = [[g[0]] * len(g) for g in to_go]
        return [
            list(map(float, g)) if by_token else per_token(g, n)
            for g, n in zip(to_go, counts, strict=True)
        ]
    compare = standardised if config.get("std_normalise") else centred
    if name == "gigpo":
        plain = [paid(play, False, list(range(len(play.tokens) + 1)), 1.0, cost) for play in group]
        whole = against_group(plain, compare, "trajectory")
        state = against_state(to_go, [play.states for play in group], compare)
        turns = [
            [e + config["step_weight"] * s for e, s in zip(es, ss, strict=True)]
            for es, ss in zip(whole, state, strict=True)
        ]
    else:
        compare = leave_one_out if name == "rloo" else compare
        turns = against_group(rewards, compare, granularity)
    return [per_token(t, n) for t, n in zip(turns, counts, strict=True)]


def ppo(
    config: dict[str, Any], play: Played, rewards: list[Fraction], when: list[int]
) -> tuple[list[float], list[float]]:
    """Advantages and targets of every token."""
    by_token = config["advantage_granularity"] == "token"
    first = [sum(play.tokens[:turn]) for turn in range(len(play.tokens))]
    values = play.values if by_token else [play.values[place] for place in first]
    final = play.final or 0.0
    targets = lambda_returns(rewards, values, when, config["gamma"], config["lam"], final)
    advantages = [t - Fraction(v) for t, v in zip(targets, values, strict=True)]
    if by_token:
        return list(map(float, advantages)), list(map(float, targets))
    return per_token(advantages, play.tokens), per_token(targets, play.tokens)


def advantages_of(config: dict[str, Any], groups: list[list[Played]]) -> list[list[list[float]]]:
    """Advantage of every token of every episode, whitened if the config says so."""
    raw = [_one_group(config, group) for group in groups]
    if not config["whiten"]:
        return raw
    level, units = config["advantage_granularity"], []
    for group, members in zip(groups, raw, strict=True):
        for play, numbers in zip(group, members, strict=True):
            first = [sum(play.tokens[:turn]) for turn in range(len(play.tokens))]
            chosen = {"token": range(len(numbers)), "turn": first, "trajectory": first[:1]}[level]
            units += [Fraction(numbers[place]) for place in chosen]
    mean = sum(units) / len(units)
    variance = sum((unit - mean) ** 2 for unit in units) / max(len(units) - 1, 1)
    deviation = math.sqrt(variance) + EPS
    return [
        [[float(Fraction(a) - mean) / deviation for a in numbers] for numbers in members]
        for members in raw
    ]


@dataclass
class Token:
    """What a loss knows of one sampled token."""

    logp: float
    old: float
    advantage: float
    weight: float
    segment: int = 0
    behaviour: float = 0.0
    entropy: float = 0.0
    reference: float = 0.0
    value: float = 0.0
    target: float = 0.0
    value_weight: float = 0.0
    old_value: float = 0.0


def ratio_of(token: Token, everyone: list[Token], level: str) -> float:
    """π / π_old of a token, or the geometric mean of its segment's."""
    mine = [t for t in everyone if t is token or (level != "token" and t.segment == token.segment)]
    return math.exp(sum(t.logp - t.old for t in mine) / len(mine))


def objective(token: Token, ratio: float, config: dict[str, Any]) -> tuple[float, float]:
    """What a token's surrogate is worth, and its slope in the token's log-probability."""
    a, low = token.advantage, 1.0 - config["clip"]
    high = 1.0 + (config["clip_high"] or config["clip"])
    held = min(max(ratio, low), high)
    if config["surrogate"] == "cispo":
        worth, slope = held * a * token.logp, held * a
    elif (a > 0 and ratio > high) or (a < 0 and ratio < low):
        worth, slope = held * a, 0.0
    elif config["dual_clip"] and a < 0 and ratio > config["dual_clip"]:
        worth, slope = config["dual_clip"] * a, 0.0
    else:
        worth, slope = ratio * a, ratio * a
    if config["behaviour_cap"]:
        trust = min(math.exp(token.old - token.behaviour), config["behaviour_cap"])
        worth, slope = worth * trust, slope * trust
    return worth, slope


def kl(token: Token, estimator: str) -> tuple[float, float]:
    """k2 or k3 of a token, and its slope in the token's log-probability."""
    gap = token.logp - token.reference
    if estimator == "k2":
        return gap * gap / 2, gap
    return math.exp(-gap) + gap - 1, 1 - math.exp(-gap)


def critic(token: Token, clip: float | None) -> tuple[float, float]:
    """Half the squared error of a value, or of the value held near the old one if that is
    larger; and its slope in the value."""
    error = (token.value - token.target) ** 2
    if clip is not None:
        held = min(max(token.value, token.old_value - clip), token.old_value + clip)
        if (held - token.target) ** 2 > error:
            return (held - token.target) ** 2 / 2, 0.0
    return error / 2, token.value - token.target


def loss_of(config: dict[str, Any], tokens: list[Token]) -> tuple[float, list[float], list[float]]:
    """The loss, and its slopes in every log-probability and in every value."""
    total, slopes, value_slopes = 0.0, [], []
    for token in tokens:
        worth, slope = objective(token, ratio_of(token, tokens, config["ratio"]), config)
        apart, pull = kl(token, config["kl_estimator"]) if config["kl_in"] == "loss" else (0.0, 0.0)
        spread = config["entropy_coef"] * token.entropy
        total += token.weight * (-worth - spread + config["kl_coef"] * apart)
        slopes.append(token.weight * (-slope + config["kl_coef"] * pull))
        if config["name"] == "ppo":
            error, steep = critic(token, config["value_clip"])
            total += config["value_coef"] * token.value_weight * error
            value_slopes.append(config["value_coef"] * token.value_weight * steep)
    return total, slopes, value_slopes


def weights_of(lengths: list[int], normalise: str, constant: float) -> list[float]:
    """Weight of every token of episodes of these lengths in one minibatch."""
    episodes, tokens = len(lengths), sum(lengths)
    each = {
        "token": lambda n: 1 / tokens,
        "sequence": lambda n: 1 / (episodes * n),
        "constant": lambda n: 1 / (episodes * constant),
    }[normalise]
    return [each(n) for n in lengths for _ in range(n)]
