"""Advantages worked by hand. The comments are the working."""

import pytest
import torch

from algorithms import Credit, EpisodeCredit, make_algorithm
from algorithms.credit import group_advantages, returns_to_go, token_gae, turn_gae
from algorithms.grpo import grpo_advantages
from algorithms.rloo import rloo_advantages

# [2 sampled][observation][2 sampled], reward at the end. Observations are no entries at all.
REWARDS, TOKENS = torch.tensor([0.0, 1.0]), [2, 2]
NO_VALUES = torch.zeros(4)
VALUES = torch.tensor([0.5, 0.3, 0.2, 0.4])


def close(actual: torch.Tensor, expected: list[float], atol: float = 1e-6) -> None:
    torch.testing.assert_close(
        actual, torch.tensor(expected, dtype=torch.float32), atol=atol, rtol=0
    )


def shared(**changes):
    base = {"name": "ppo", "advantage_granularity": "turn", "group_size": 4, "clip": 0.2}
    base |= {"entropy_coef": 0.0, "kl_coef": 0.0, "whiten": False}
    return base | changes


def ppo(**changes):
    return make_algorithm(shared(gamma=1.0, lam=1.0, value_coef=0.5) | changes)


@pytest.mark.parametrize("estimator", [turn_gae, token_gae])
def test_every_action_token_is_credited_across_the_observation(estimator):
    advantages, returns, _ = estimator(REWARDS, NO_VALUES, TOKENS, gamma=1.0, lam=1.0)
    close(advantages, [1, 1, 1, 1])
    close(returns, [1, 1, 1, 1])


def test_turn_level_discounts_once_a_turn():
    # A_1 = 1;  A_0 = 0.9 * 0.8 * 1
    advantages, _, _ = turn_gae(REWARDS, NO_VALUES, TOKENS, gamma=0.9, lam=0.8)
    close(advantages, [0.72, 0.72, 1, 1])


def test_token_level_discounts_once_a_token():
    # 0.72^3, 0.72^2, 0.72, 1
    advantages, _, _ = token_gae(REWARDS, NO_VALUES, TOKENS, gamma=0.9, lam=0.8)
    close(advantages, [0.373248, 0.5184, 0.72, 1])


def test_turn_level_reads_the_critic_at_first_tokens():
    # V = 0.5, 0.2.  d_1 = 1 - 0.2 = 0.8;  d_0 = 0.9 * 0.2 - 0.5 = -0.32
    # A_1 = 0.8;  A_0 = -0.32 + 0.72 * 0.8 = 0.256;  targets A + V = 0.756, 1
    advantages, returns, value_at = turn_gae(REWARDS, VALUES, TOKENS, gamma=0.9, lam=0.8)
    close(advantages, [0.256, 0.256, 0.8, 0.8])
    close(returns, [0.756, 0.756, 1, 1])
    assert value_at.tolist() == [True, False, True, False]


def test_token_level_reads_the_critic_at_every_token():
    # d = 0.27 - 0.5, 0.18 - 0.3, 0.36 - 0.2, 1 - 0.4 = -0.23, -0.12, 0.16, 0.6
    # A_3 = 0.6; A_2 = 0.16 + 0.432; A_1 = -0.12 + 0.42624; A_0 = -0.23 + 0.2204928
    advantages, returns, value_at = token_gae(REWARDS, VALUES, TOKENS, gamma=0.9, lam=0.8)
    close(advantages, [-0.0095072, 0.30624, 0.592, 0.6])
    close(returns, [0.4904928, 0.60624, 0.792, 1])
    assert value_at.all()


def test_with_gamma_and_lambda_one_the_critic_is_only_a_baseline():
    close(turn_gae(REWARDS, VALUES, TOKENS, 1.0, 1.0)[0], [0.5, 0.5, 0.8, 0.8])
    close(token_gae(REWARDS, VALUES, TOKENS, 1.0, 1.0)[0], [0.5, 0.7, 0.8, 0.6])


def test_a_turn_reward_is_paid_once_and_on_its_last_token():
    # one token then three; reward 2 on turn 0, 1 on turn 1; no discount, V = 0
    rewards, tokens = torch.tensor([2.0, 1.0]), [1, 3]
    close(token_gae(rewards, torch.zeros(4), tokens, 1.0, 1.0)[0], [3, 1, 1, 1])
    # gamma 0: only the token that carries the reward is credited
    close(token_gae(rewards, torch.zeros(4), tokens, 0.0, 1.0)[0], [2, 0, 0, 1])


def test_the_end_is_terminal():
    # r = 0, V = 10 everywhere: nothing is bootstrapped after the last entry
    close(turn_gae(torch.zeros(2), torch.full((2,), 10.0), [1, 1], 1.0, 1.0)[1], [0, 0])


def test_returns_to_go():
    close(returns_to_go(torch.tensor([1.0, 2.0, 4.0]), 0.5), [3, 4, 4])  # 1 + 0.5 * 4, 2 + 2, 4


# A wins at its second of three turns, B at its only one, C takes two turns and loses.
GROUP = [torch.tensor([0.0, 1.0, 0.0]), torch.tensor([1.0]), torch.tensor([0.0, 0.0])]


def test_rloo_by_trajectory():
    # returns 1, 1, 0 against the others' means 0.5, 0.5, 1
    a, b, c = group_advantages(GROUP, rloo_advantages, "trajectory")
    close(a, [0.5, 0.5, 0.5])
    close(b, [0.5])
    close(c, [-1, -1])


def test_rloo_by_turn():
    # turn 0: as above. turn 1: A 1 against C 0, B is absent. turn 2: A alone, so its trajectory's.
    a, b, c = group_advantages(GROUP, rloo_advantages, "turn")
    close(a, [0.5, 1, 0.5])
    close(b, [0.5])
    close(c, [-1, -1])


def test_grpo_by_turn():
    # turn 0: deviations 1/3, 1/3, -2/3 over the sample std sqrt(1/3)
    # turn 1: deviations 1/2, -1/2 over sqrt(1/2). turn 2: A alone.
    a, b, c = group_advantages(GROUP, grpo_advantages, "turn")
    close(a, [0.57735, 0.70711, 0.57735], atol=1e-5)
    close(b, [0.57735], atol=1e-5)
    close(c, [-1.15470, -0.70711], atol=1e-5)


def test_grpo_without_deviation():
    close(grpo_advantages(torch.tensor([3.0, 0.0]), std_normalise=False), [1.5, -1.5])


def test_whitening_gives_a_long_turn_one_vote():
    # turn advantages 0 (three tokens) and 2 (one): mean 1, sample std sqrt(2)
    # by tokens it would be mean 0.5
    episode = EpisodeCredit(torch.tensor([0.0, 2.0]), [3, 1], torch.tensor([2.0, 0.0, 0.0, 0.0]))
    [[credit]] = ppo(whiten=True).credit([[episode]])
    close(credit.advantages, [-0.70711, -0.70711, -0.70711, 0.70711], atol=1e-5)
    close(credit.returns, [2, 2, 2, 2])  # the critic's target is not whitened


def test_whitening_gives_a_trajectory_one_vote():
    # RLOO of returns 1, 0 is 1, -1: mean 0, sample std sqrt(2), whatever the lengths
    rloo = make_algorithm(shared(name="rloo", advantage_granularity="trajectory", whiten=True))
    group = [
        EpisodeCredit(torch.tensor([1.0]), [1]),
        EpisodeCredit(torch.tensor([0.0, 0.0]), [2, 3]),
    ]
    [[won, lost]] = rloo.credit([group])
    close(won.advantages, [0.70711], atol=1e-5)
    close(lost.advantages, [-0.70711] * 5, atol=1e-5)


def test_credit_of_a_ppo_episode():
    [[credit]] = ppo(gamma=0.9, lam=0.8).credit([[EpisodeCredit(REWARDS, TOKENS, VALUES)]])
    assert isinstance(credit, Credit)
    close(credit.advantages, [0.256, 0.256, 0.8, 0.8])
    close(credit.weight, [1, 1, 1, 1])


def test_credit_of_a_group_has_no_critic():
    rloo = make_algorithm(shared(name="rloo"))
    episodes = [
        EpisodeCredit(rewards, [2] * len(rewards), torch.full((2 * len(rewards),), 1e6))
        for rewards in GROUP
    ]
    [[a, b, c]] = rloo.credit([episodes])
    close(a.advantages, [0.5, 0.5, 1, 1, 0.5, 0.5])
    close(b.advantages, [0.5, 0.5])
    close(c.advantages, [-1, -1, -1, -1])
    assert a.returns is None and not a.value_at.any()
