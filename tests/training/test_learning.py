"""Each algorithm makes a small random policy clearly better at a toy; no learning rate, no gain."""

import pytest

from algorithms import make_algorithm
from rollouts.player import Player
from tests.fakes import FakePool, toy_task
from tests.training.toy import config_for, likes_letters, policy_for
from training.credit import assign
from training.step import Learner

ITERATIONS = 8


def mean_returns(config):
    """Mean return of the episodes of each iteration."""
    algorithm = make_algorithm(config.algo)
    policy = policy_for(config)
    learner = Learner(policy, algorithm, config)
    means = []
    with Player(config, policy, algorithm.min_group, pool=FakePool(likes_letters)) as player:
        for iteration in range(ITERATIONS):
            groups = player.play([toy_task(f"t{number}") for number in range(4)], iteration)
            paid = [episode.paid for group in groups for episode in group.alive]
            means.append(sum(paid) / len(paid))
            batch, _ = assign(algorithm, policy, groups, config)
            learner.update(batch, iteration)
    return means


@pytest.mark.parametrize("algo", ["ppo", "grpo", "rloo"])
def test_the_policy_improves(algo):
    means = mean_returns(config_for(algo, algo__epochs=2, algo__minibatches=2))
    assert sum(means[-3:]) / 3 > means[0] + 0.4


def test_nothing_is_learned_without_a_learning_rate():
    means = mean_returns(config_for("rloo", optim__lr=1e-12))
    assert abs(sum(means[-3:]) / 3 - means[0]) < 0.2
