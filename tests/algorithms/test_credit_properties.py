"""Estimators against O(n²) references written from the definitions, and what must not matter."""

from fractions import Fraction

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from algorithms import AlgorithmError, EpisodeCredit, make_algorithm
from algorithms.credit import (
    gae,
    group_advantages,
    returns_to_go,
    token_gae,
    turn_gae,
    unit_weights,
    whiten,
)
from algorithms.grpo import grpo_advantages
from algorithms.rloo import rloo_advantages

numbers = st.floats(-10, 10, allow_nan=False).map(lambda x: round(x, 4))
shares = st.floats(0, 1).map(lambda x: round(x, 3))
token_counts = st.lists(st.integers(1, 4), min_size=1, max_size=6)
dtypes = st.sampled_from([torch.float32, torch.float64])
QUICK = settings(max_examples=40)
members = st.lists(st.lists(numbers, max_size=5), min_size=2, max_size=6)


@st.composite
def episodes(draw):
    """rewards[K], values[A], tokens_per_turn[K] as lists."""
    tokens = draw(token_counts)
    rewards = draw(st.lists(numbers, min_size=len(tokens), max_size=len(tokens)))
    values = draw(st.lists(numbers, min_size=sum(tokens), max_size=sum(tokens)))
    return rewards, values, tokens


def tensor64(values):
    return torch.tensor(values, dtype=torch.float64)


def same(actual, expected, atol=1e-9):
    torch.testing.assert_close(actual, tensor64(expected), atol=atol, rtol=1e-9)


def reference_gae(rewards, values, gamma, lam):
    """A_t = Σ_l (γλ)^l (r_{t+l} + γ V_{t+l+1} − V_{t+l}), V = 0 after the end."""
    after = [*values[1:], 0.0]
    return [
        sum(
            (gamma * lam) ** (later - now) * (rewards[later] + gamma * after[later] - values[later])
            for later in range(now, len(rewards))
        )
        for now in range(len(rewards))
    ]


@QUICK
@given(episodes(), shares, shares, dtypes)
def test_turn_gae_is_its_definition(episode, gamma, lam, dtype):
    rewards, values, tokens = episode
    first = [sum(tokens[:turn]) for turn in range(len(tokens))]
    at_turns = reference_gae(rewards, [values[place] for place in first], gamma, lam)
    expected = [at_turns[turn] for turn, count in enumerate(tokens) for _ in range(count)]
    advantages, returns, value_at = turn_gae(
        torch.tensor(rewards, dtype=dtype), torch.tensor(values, dtype=dtype), tokens, gamma, lam
    )
    assert advantages.dtype == returns.dtype == dtype
    same(advantages.double(), expected, atol=1e-9 if dtype == torch.float64 else 1e-4)
    assert value_at.nonzero()[:, 0].tolist() == first
    same(
        returns[value_at].double(),
        [at_turns[turn] + values[place] for turn, place in enumerate(first)],
        atol=1e-9 if dtype == torch.float64 else 1e-4,
    )


@QUICK
@given(episodes(), shares, shares)
def test_token_gae_is_its_definition(episode, gamma, lam):
    rewards, values, tokens = episode
    at_tokens = []
    for reward, count in zip(rewards, tokens, strict=True):
        at_tokens += [0.0] * (count - 1) + [reward]
    expected = reference_gae(at_tokens, values, gamma, lam)
    advantages, returns, value_at = token_gae(
        tensor64(rewards), tensor64(values), tokens, gamma, lam
    )
    same(advantages, expected)
    same(returns, [a + v for a, v in zip(expected, values, strict=True)])
    assert value_at.all()


@QUICK
@given(st.lists(numbers, max_size=12), shares)
def test_returns_to_go_is_its_definition(rewards, gamma):
    expected = [
        sum(gamma ** (later - now) * rewards[later] for later in range(now, len(rewards)))
        for now in range(len(rewards))
    ]
    same(returns_to_go(tensor64(rewards), gamma), expected)


@QUICK
@given(episodes())
def test_without_discount_the_first_return_is_what_was_paid(episode):
    rewards, values, tokens = episode
    for estimator in (turn_gae, token_gae):
        _, returns, _ = estimator(tensor64(rewards), tensor64(values), tokens, 1.0, 1.0)
        assert returns[0].item() == pytest.approx(sum(rewards), abs=1e-9)


@QUICK
@given(episodes(), shares, shares)
def test_turn_level_ignores_values_inside_a_turn_and_its_length(episode, gamma, lam):
    rewards, values, tokens = episode
    plain, _, value_at = turn_gae(tensor64(rewards), tensor64(values), tokens, gamma, lam)
    noisy = torch.where(value_at, tensor64(values), tensor64(1e6))
    assert torch.equal(turn_gae(tensor64(rewards), noisy, tokens, gamma, lam)[0], plain)
    alone = turn_gae(tensor64(rewards), tensor64(values)[value_at], [1] * len(tokens), gamma, lam)[
        0
    ]
    assert torch.equal(plain[value_at], alone)


def reference_group(rewards, compare, granularity):
    """Exact, in fractions: compare(own return, returns of all who are compared) at each turn."""
    rewards = [[Fraction(reward) for reward in member] for member in rewards]
    totals = [sum(member, Fraction(0)) for member in rewards]
    result = []
    for member, total in zip(rewards, totals, strict=True):
        turns = []
        for turn in range(len(member)):
            rivals = [sum(other[turn:]) for other in rewards if len(other) > turn]
            if granularity == "trajectory" or len(rivals) == 1:
                turns.append(compare(total, totals))
            else:
                turns.append(compare(sum(member[turn:]), rivals))
        result.append(turns)
    return result


def leave_one_out(own, everyone):
    others = (sum(everyone) - own) / (len(everyone) - 1)
    return float(own - others)


def standardised(own, everyone):
    mean = sum(everyone) / len(everyone)
    variance = sum((other - mean) ** 2 for other in everyone) / (len(everyone) - 1)
    return float(own - mean) / (float(variance) ** 0.5 + 1e-6)


@pytest.mark.parametrize("granularity", ["trajectory", "turn"])
@pytest.mark.parametrize(
    ("estimator", "compare"),
    [(rloo_advantages, leave_one_out), (grpo_advantages, standardised)],
)
@QUICK
@given(rewards=members)
def test_group_advantages_are_their_definition(estimator, compare, granularity, rewards):
    actual = group_advantages([tensor64(member) for member in rewards], estimator, granularity)
    expected = reference_group(rewards, compare, granularity)
    for mine, reference in zip(actual, expected, strict=True):
        same(mine, reference, atol=1e-7)


@pytest.mark.parametrize("granularity", ["trajectory", "turn"])
@pytest.mark.parametrize("estimator", [rloo_advantages, grpo_advantages])
@QUICK
@given(rewards=members, seed=st.randoms(use_true_random=False))
def test_order_of_members_does_not_matter(estimator, granularity, rewards, seed):
    order = list(range(len(rewards)))
    seed.shuffle(order)
    plain = group_advantages([tensor64(member) for member in rewards], estimator, granularity)
    mixed = group_advantages([tensor64(rewards[i]) for i in order], estimator, granularity)
    for place, index in enumerate(order):
        torch.testing.assert_close(mixed[place], plain[index], atol=1e-7, rtol=1e-7)


@pytest.mark.parametrize("granularity", ["trajectory", "turn"])
@pytest.mark.parametrize("estimator", [rloo_advantages, grpo_advantages])
@QUICK
@given(rewards=st.lists(st.lists(numbers, min_size=3, max_size=3), min_size=2, max_size=6))
def test_an_offset_of_a_million_cancels(estimator, granularity, rewards):
    plain = [tensor64(member) for member in rewards]
    moved = [torch.cat([member[:-1], member[-1:] + 1e6]) for member in plain]
    for near, far in zip(
        group_advantages(plain, estimator, granularity),
        group_advantages(moved, estimator, granularity),
        strict=True,
    ):
        # 1e-10 is the spacing of float64 at 1e6, and GRPO divides by at least 1e-6
        torch.testing.assert_close(near, far, atol=2e-3, rtol=1e-5)


def test_an_offset_of_a_million_in_float32():
    returns = [torch.tensor([1e6 + quarter / 4]) for quarter in range(4)]
    advantages = torch.cat(group_advantages(returns, rloo_advantages, "trajectory"))
    # deviations -3/8, -1/8, 1/8, 3/8 times 4/3
    torch.testing.assert_close(advantages, torch.tensor([-0.5, -1 / 6, 1 / 6, 0.5]))


@pytest.mark.parametrize("granularity", ["trajectory", "turn"])
@pytest.mark.parametrize("estimator", [rloo_advantages, grpo_advantages])
@QUICK
@given(
    rewards=st.lists(numbers, min_size=1, max_size=4),
    n=st.integers(2, 7),
    offset=st.just(1e6) | numbers,
)
def test_a_group_without_variance_gets_exactly_nothing(estimator, granularity, rewards, n, offset):
    group = [tensor64(rewards) + offset] * n
    for advantages in group_advantages(group, estimator, granularity):
        assert torch.equal(advantages, torch.zeros_like(advantages))


def test_a_difference_of_1e_9_is_seen_and_stays_small():
    returns = tensor64([0.0, 1e-9])
    same(rloo_advantages(returns), [-1e-9, 1e-9], atol=1e-15)
    # deviation 0.5e-9 over a sample std of 0.7e-9 + 1e-6: near 0 as for equal returns, not ±0.7
    same(grpo_advantages(returns), [-4.99647e-4, 4.99647e-4], atol=1e-8)
    same(gae(returns, torch.zeros(2), 1.0, 1.0)[0], [1e-9, 1e-9], atol=1e-15)
    assert whiten(returns, torch.ones(2)).abs().max() < 1e-3


def config(name, granularity, **changes):
    base = {"name": name, "advantage_granularity": granularity, "group_size": 4, "clip": 0.2}
    base |= {"entropy_coef": 0.0, "kl_coef": 0.0, "whiten": False}
    extra = {"ppo": {"gamma": 1.0, "lam": 0.95, "value_coef": 0.5}, "grpo": {"std_normalise": True}}
    return base | extra.get(name, {}) | changes


ARMS = [
    ("ppo", "turn"),
    ("ppo", "token"),
    ("grpo", "turn"),
    ("grpo", "trajectory"),
    ("rloo", "turn"),
    ("rloo", "trajectory"),
]


def play(returns, turns=2):
    """Episodes of two-token turns that end with these returns; the critic says 0."""
    return [
        EpisodeCredit(torch.tensor([0.0] * (turns - 1) + [r]), [2] * turns, torch.zeros(2 * turns))
        for r in returns
    ]


@pytest.mark.parametrize("whitened", [False, True])
@pytest.mark.parametrize(("name", "granularity"), ARMS)
def test_all_zero_episodes_give_exactly_nothing(name, granularity, whitened):
    algorithm = make_algorithm(config(name, granularity, whiten=whitened))
    for group in algorithm.credit([play([0.0] * 4), play([0.0] * 3, turns=1)]):
        for credit in group:
            assert torch.equal(credit.advantages, torch.zeros_like(credit.advantages))


@pytest.mark.parametrize(("name", "granularity"), ARMS)
def test_groups_do_not_touch_each_other(name, granularity):
    algorithm = make_algorithm(config(name, granularity))
    small, large = play([1.0, 0.0, 0.0]), play([0.0, 7.0])
    scaled = play([0.0, 70.0])
    for one, other in zip(
        algorithm.credit([small, large])[0], algorithm.credit([small, scaled])[0], strict=True
    ):
        assert torch.equal(one.advantages, other.advantages)


@pytest.mark.parametrize(("name", "granularity"), ARMS)
def test_a_shrunken_group_is_scored_as_what_is_left(name, granularity):
    algorithm = make_algorithm(config(name, granularity))
    [left] = algorithm.credit([play([1.0, 1.0, 0.0])])
    assert len(left) == 3
    [faked] = algorithm.credit([play([1.0, 1.0, 0.0, 0.0])])
    if algorithm.needs_group:
        assert not torch.equal(left[0].advantages, faked[0].advantages)
    if name == "rloo":
        torch.testing.assert_close(left[0].advantages, torch.full((4,), 0.5))


@pytest.mark.parametrize("size", [0, 1])
@pytest.mark.parametrize(("name", "granularity"), [arm for arm in ARMS if arm[0] != "ppo"])
def test_a_group_of_one_is_refused(name, granularity, size):
    algorithm = make_algorithm(config(name, granularity))
    with pytest.raises(AlgorithmError, match=r"algo\.group_size"):
        algorithm.credit([play([1.0, 0.0]), play([1.0] * size)])


@pytest.mark.parametrize("estimator", [rloo_advantages, grpo_advantages])
def test_an_estimator_never_returns_the_raw_reward_of_a_singleton(estimator):
    with pytest.raises(AlgorithmError, match=r"algo\.group_size"):
        estimator(torch.tensor([1.0]))


def test_group_estimators_have_no_token_level():
    with pytest.raises(AlgorithmError, match=r"algo\.advantage_granularity=token"):
        group_advantages([torch.zeros(1)] * 2, rloo_advantages, "token")


def test_an_episode_that_never_acted_counts_in_its_group():
    rloo = make_algorithm(config("rloo", "turn"))
    empty = EpisodeCredit(torch.zeros(0), [])
    [[acted, nothing]] = rloo.credit([[EpisodeCredit(torch.tensor([1.0]), [2]), empty]])
    assert len(nothing.advantages) == 0
    # alone at turn 0, so the trajectory's: 1 against 0
    torch.testing.assert_close(acted.advantages, torch.ones(2))


@QUICK
@given(st.lists(st.tuples(numbers, st.integers(1, 5)), min_size=2, max_size=12))
def test_whitening_counts_turns_and_not_tokens(turns):
    advantages = torch.cat([tensor64([advantage] * count) for advantage, count in turns])
    counts = [count for _, count in turns]
    white = whiten(advantages, unit_weights(counts, "turn"))
    one_each = [advantage for advantage, _ in turns]
    mean = sum(one_each) / len(one_each)
    deviation = (sum((a - mean) ** 2 for a in one_each) / (len(one_each) - 1)) ** 0.5
    expected = [(a - mean) / (deviation + 1e-6) for a, count in turns for _ in range(count)]
    same(white, expected, atol=1e-6)


@pytest.mark.parametrize(
    ("granularity", "total"), [("token", 6.0), ("turn", 3.0), ("trajectory", 1.0)]
)
def test_unit_weights_sum_to_the_number_of_advantages(granularity, total):
    assert unit_weights([1, 2, 3], granularity).sum().item() == pytest.approx(total)


def test_whitening_beside_a_large_offset():
    near, far = tensor64([0.0, 1.0, 5.0]), tensor64([0.0, 1.0, 5.0]) + 1e6
    torch.testing.assert_close(
        whiten(far, torch.ones(3)), whiten(near, torch.ones(3)), atol=1e-8, rtol=0
    )
    assert torch.equal(whiten(torch.full((3,), 0.1), torch.ones(3)), torch.zeros(3))


@pytest.mark.parametrize(
    ("rewards", "tokens", "values", "message"),
    [
        ([1.0], [1, 1], None, "2 turns"),
        ([1.0, 0.0], [1, 0], None, "needs a sampled token"),
        ([1.0, 0.0], [1, 2], [0.0, 0.0], "3 sampled tokens"),
        ([float("nan")], [1], None, "rewards of an episode are not finite"),
        ([1.0], [1], [float("inf")], "values of an episode are not finite"),
    ],
)
def test_an_episode_that_does_not_fit_is_refused(rewards, tokens, values, message):
    with pytest.raises(AlgorithmError, match=message):
        EpisodeCredit(
            torch.tensor(rewards), tokens, None if values is None else torch.tensor(values)
        )


def test_ppo_without_values_is_refused():
    with pytest.raises(AlgorithmError, match="critic's values"):
        make_algorithm(config("ppo", "turn")).credit([[EpisodeCredit(torch.ones(1), [1])]])
