"""Every estimator against plain Python written from its definition."""

import random
from fractions import Fraction
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from algorithms import make_algorithm
from algorithms.credit import (
    discounts,
    gae,
    group_advantages,
    returns_to_go,
    shaping,
    token_gae,
    token_rewards,
    turn_gae,
)
from algorithms.gigpo import anchor_advantages
from algorithms.grpo import grpo_advantages
from algorithms.reinforce import reinforce_advantages
from algorithms.rloo import rloo_advantages
from tests.algorithms.references import (
    ARMS,
    BOUND,
    Played,
    advantages_of,
    against_group,
    against_state,
    centred,
    clock,
    close,
    lambda_returns,
    leave_one_out,
    paid,
    per_token,
    ppo,
    recipe,
    return_from,
    standardised,
)

QUICK = settings(max_examples=3)
# Rewards are eighths, exact in float32 also beside a million; discounts too have few digits, so
# that a reference in fractions stays quick.
seeds = st.integers(0, 2**32)
shares = st.sampled_from([0, 1]) | st.integers(0, 128)
shares = shares.map(lambda n: n / 128 if n != 1 else 1.0)
pairs = [
    (granularity, per) for granularity in ("turn", "token") for per in ("action", "turn", "token")
]


def rounded(number, dtype):
    return torch.tensor(number, dtype=dtype).item()


def some_play(chance, dtype, shaped=None):
    """An episode of up to four turns of one to three tokens: ordinary, empty, huge or tiny."""
    tokens = [chance.randint(1, 3) for _ in range(chance.randint(1, 4))]
    kind = chance.choice(["ordinary", "empty", "huge", "tiny"])

    def some(count, kind="ordinary"):
        numbers = [chance.randint(-40, 40) / 8 for _ in range(count)]
        if kind == "huge":
            numbers = [1e6 + number for number in numbers]
        elif kind != "ordinary":
            numbers = [chance.choice([0.0, 1e-9, 2e-9]) * (kind == "tiny") for _ in numbers]
        return [rounded(number, dtype) for number in numbers]

    shaped = chance.random() < 0.5 if shaped is None else shaped
    return Played(
        rewards=some(len(tokens), kind),
        tokens=tokens,
        values=some(sum(tokens)),
        kl=some(sum(tokens)),
        states=[chance.choice("abc") for _ in tokens],
        potentials=some(len(tokens) + 1) if shaped else None,
        final=chance.choice([None, chance.randint(-40, 40) / 8]),
    )


@st.composite
def plays(draw, dtype=torch.float64, shaped=None):
    return some_play(random.Random(draw(seeds)), dtype, shaped)


@st.composite
def grouped(draw, dtype=torch.float64):
    """Two to six episodes."""
    chance = random.Random(draw(seeds))
    return [some_play(chance, dtype) for _ in range(chance.randint(2, 6))]


@pytest.mark.parametrize(("granularity", "per"), pairs)
@QUICK
@given(tokens=st.lists(st.integers(1, 4), max_size=5), gamma=shares)
def test_discounts_are_the_steps_of_a_clock(granularity, per, tokens, gamma):
    when = clock(tokens, granularity, per)
    steps = [gamma ** (b - a) for a, b in pairwise(when)]
    close(discounts(gamma, tokens, granularity, per), steps, torch.float64)


@pytest.mark.parametrize("dtype", BOUND)
@pytest.mark.parametrize(("granularity", "per"), pairs)
@QUICK
@given(data=st.data(), gamma=shares, lam=shares)
def test_gae_is_the_weighted_mean_of_all_n_step_returns(granularity, per, dtype, data, gamma, lam):
    play = data.draw(plays(dtype, shaped=False))
    play.kl = []
    when = clock(play.tokens, granularity, per)
    rewards = paid(play, granularity == "token", when, gamma, 0.0)
    config = {"advantage_granularity": granularity, "gamma": gamma, "lam": lam}
    advantages, targets = ppo(config, play, rewards, when)
    estimator = turn_gae if granularity == "turn" else token_gae
    seen = play.credit(dtype)
    factor = discounts(gamma, play.tokens, granularity, per)
    final = play.final or 0.0
    mine = estimator(seen.rewards, seen.values, play.tokens, factor, lam, final)
    close(mine[0], advantages, dtype, max(map(abs, targets)))
    close(mine[1], targets, dtype)


@pytest.mark.parametrize("dtype", BOUND)
@QUICK
@given(data=st.data(), gamma=shares, lam=shares)
def test_plain_gae_and_returns_take_one_discount(dtype, data, gamma, lam):
    play = data.draw(plays(dtype))
    when = list(range(len(play.rewards) + 1))
    rewards = list(map(Fraction, play.rewards))
    values = play.values[: len(rewards)]
    targets = lambda_returns(rewards, values, when, gamma, lam)
    seen = torch.tensor(play.rewards, dtype=dtype)
    close(
        gae(seen, torch.tensor(values, dtype=dtype), gamma, lam)[1], [*map(float, targets)], dtype
    )
    to_go = [float(return_from(rewards, when, gamma, i)) for i in range(len(rewards))]
    close(returns_to_go(seen, gamma), to_go, dtype)


@pytest.mark.parametrize("dtype", BOUND)
@pytest.mark.parametrize("granularity", ["trajectory", "turn", "token"])
@pytest.mark.parametrize("per", ["action", "turn", "token"])
@QUICK
@given(data=st.data(), gamma=shares)
def test_reinforce_is_its_definition(granularity, per, dtype, data, gamma):
    play = data.draw(plays(dtype, shaped=False))
    play.kl = []
    unit = "token" if granularity == "token" else "turn"
    when = clock(play.tokens, unit, per)
    rewards = paid(play, unit == "token", when, gamma, 0.0)
    start = [0 if granularity == "trajectory" else i for i in range(len(rewards))]
    expected = [float(return_from(rewards, when, gamma, i)) for i in start]
    expected = expected if unit == "token" else per_token(expected, play.tokens)
    seen = torch.tensor(play.rewards, dtype=dtype)
    seen = token_rewards(seen, play.tokens) if unit == "token" else seen
    factor = discounts(gamma, play.tokens, unit, per)
    close(reinforce_advantages(seen, play.tokens, factor, granularity), expected, dtype)


@pytest.mark.parametrize("dtype", BOUND)
@QUICK
@given(data=st.data())
def test_a_turn_is_paid_once_on_its_last_token(dtype, data):
    play = data.draw(plays(dtype, shaped=False))
    play.kl = []
    expected = paid(play, True, clock(play.tokens, "token"), 1.0, 0.0)
    seen = torch.tensor(play.rewards, dtype=dtype)
    close(token_rewards(seen, play.tokens), [*map(float, expected)], dtype)


@pytest.mark.parametrize("dtype", BOUND)
@QUICK
@given(data=st.data(), gamma=shares)
def test_shaping_is_its_definition(dtype, data, gamma):
    play = data.draw(plays(dtype, shaped=True))
    play.kl, play.rewards = [], [0.0] * len(play.rewards)
    when = clock(play.tokens, "turn", "token")
    expected = paid(play, False, when, gamma, 0.0)
    seen = torch.tensor(play.potentials, dtype=dtype)
    factor = discounts(gamma, play.tokens, "turn", "token")
    close(shaping(seen, factor, play.final is not None), [*map(float, expected)], dtype)


COMPARISONS = {
    "rloo": (rloo_advantages, leave_one_out),
    "grpo": (grpo_advantages, standardised),
    "mean": (lambda returns: grpo_advantages(returns, std_normalise=False), centred),
}


@pytest.mark.parametrize("dtype", BOUND)
@pytest.mark.parametrize("granularity", ["trajectory", "turn"])
@pytest.mark.parametrize("name", COMPARISONS)
@QUICK
@given(data=st.data())
def test_group_baselines_are_their_definition(name, granularity, dtype, data):
    estimator, compare = COMPARISONS[name]
    group = data.draw(grouped(dtype))
    exact = [[Fraction(reward) for reward in play.rewards] for play in group]
    seen = [torch.tensor(play.rewards, dtype=dtype) for play in group]
    actual = group_advantages(seen, estimator, granularity)
    for mine, expected in zip(actual, against_group(exact, compare, granularity), strict=True):
        close(mine, expected, dtype)


@pytest.mark.parametrize("dtype", BOUND)
@pytest.mark.parametrize("std_normalise", [True, False])
@QUICK
@given(data=st.data())
def test_anchor_states_are_their_definition(std_normalise, dtype, data):
    group = data.draw(grouped(dtype))
    exact = [[Fraction(reward) for reward in play.rewards] for play in group]
    states = [play.states for play in group]
    seen = [torch.tensor(play.rewards, dtype=dtype) for play in group]
    compare = standardised if std_normalise else centred
    actual = anchor_advantages(seen, states, std_normalise)
    for mine, expected in zip(actual, against_state(exact, states, compare), strict=True):
        close(mine, expected, dtype)


@st.composite
def set_up(draw, name, granularity):
    """A config of an algorithm with random discounts, KL in the reward and whitening."""
    chance = random.Random(draw(seeds))
    changes = {"group_size": 6, "whiten": chance.random() < 0.5}
    if chance.random() < 0.5:
        changes |= {"kl_in": "reward", "kl_estimator": "k1", "kl_coef": 0.25}
    if name in ("ppo", "gigpo", "reinforce", "reinforce_pp"):
        changes["discount"] = chance.choice(["action", "turn", "token"])
        changes["gamma"] = chance.choice([1.0, chance.randint(64, 128) / 128])
    if name == "ppo":
        changes["lam"] = chance.choice([0.0, 1.0, chance.randint(0, 128) / 128])
    return recipe(name, granularity, **changes)


def scale_of(config, groups):
    """What 1e-6 or 1e-9 is of: rounding of sums that a deviation near 0 may then magnify."""
    largest = max(sum(map(abs, play.rewards)) + 40 for group in groups for play in group)
    if not (config["whiten"] or config.get("std_normalise")):
        return largest if "gamma" in config else 1.0
    # 1e-15 is float64's rounding, 1e-6 the least deviation that is divided by, 1e-9 the bound
    return max(1.0, largest * 1e-15 / 1e-6 / 1e-9) if "gamma" in config else 1.0


@pytest.mark.parametrize("dtype", BOUND)
@pytest.mark.parametrize(("name", "granularity"), ARMS)
@settings(max_examples=5)
@given(data=st.data())
def test_credit_of_every_algorithm_is_its_definition(name, granularity, dtype, data):
    config = data.draw(set_up(name, granularity))
    groups = data.draw(st.lists(grouped(dtype), min_size=1, max_size=2))
    expected = advantages_of(config, groups)
    credits = make_algorithm(config).credit([[p.credit(dtype) for p in group] for group in groups])
    scale = scale_of(config, groups)
    for members, references in zip(credits, expected, strict=True):
        for credit, reference in zip(members, references, strict=True):
            close(credit.advantages, reference, dtype, scale)
            assert torch.equal(credit.weight, torch.ones_like(credit.advantages))
            assert (credit.returns is None) == (name != "ppo")


@pytest.mark.parametrize("dtype", BOUND)
@pytest.mark.parametrize("granularity", ["turn", "token"])
@QUICK
@given(data=st.data())
def test_the_critics_targets_are_their_definition(granularity, dtype, data):
    config = data.draw(set_up("ppo", granularity))
    play = data.draw(plays(dtype))
    when = clock(play.tokens, granularity, config["discount"])
    cost = config["kl_coef"]
    rewards = paid(play, granularity == "token", when, config["gamma"], cost)
    _, targets = ppo(config, play, rewards, when)
    [[credit]] = make_algorithm(config).credit([[play.credit(dtype)]])
    close(credit.returns, targets, dtype, scale=max(map(abs, play.rewards)) + 40)
    first = [sum(play.tokens[:turn]) for turn in range(len(play.tokens))]
    read = first if granularity == "turn" else list(range(sum(play.tokens)))
    assert credit.value_at.nonzero()[:, 0].tolist() == read
