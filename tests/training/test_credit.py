"""What reaches an estimator: conserved rewards, living members, a policy that has not collapsed."""

import pytest
import torch

from algorithms import make_algorithm
from runs.errors import InvariantError, TrainingError
from tests.training.toy import config_for, played, policy_for
from training.batch import lay_out
from training.credit import assign, refuse_degenerate


@pytest.fixture(scope="module")
def toy():
    config = config_for("rloo")
    policy = policy_for(config)
    return config, policy


def test_flat_credit_is_each_episodes_own(toy):
    config, policy = toy
    groups = played(config, policy)
    batch, advantages = assign(make_algorithm(config.algo), policy, groups, config)
    flat = torch.cat([member for group in advantages for member in group])
    assert torch.equal(flat, batch.advantages)
    assert flat.abs().max() > 0
    ids = [i for e in batch.episodes for turn in e.turns for i in turn.ids]
    for of_episode in batch.rows:
        for placed in of_episode:
            sampled = placed.row.ids[placed.row.action].tolist()
            assert sampled == [ids[place] for place in placed.index.tolist()]
            assert torch.equal(batch.logp[placed.index], placed.row.logp[placed.row.action])
    assert batch.health["reward_conservation_error"] < 1e-6


def test_rewards_that_were_not_paid_stop_the_run(toy):
    config, policy = toy
    groups = played(config, policy)
    groups[0].episodes[1].turns[0].reward += 0.01
    with pytest.raises(InvariantError, match="member 1: turn rewards sum to"):
        assign(make_algorithm(config.algo), policy, groups, config)


def test_an_errored_member_is_left_out_and_changes_its_groups_baseline_only(toy):
    config, policy = toy
    groups = played(config, policy)
    whole, _ = assign(make_algorithm(config.algo), policy, groups, config)
    kept = len(whole.episodes) - 1
    groups[0].episodes[2].ended = "error"
    batch, advantages = assign(make_algorithm(config.algo), policy, groups, config)
    assert len(batch.episodes) == kept
    assert [len(group) for group in advantages] == [7, 8]
    first = sum(len(member) for member in advantages[0])
    other = len(batch.advantages) - first
    assert torch.equal(batch.advantages[-other:], whole.advantages[-other:])
    assert not torch.equal(advantages[0][0], whole.advantages[: len(advantages[0][0])])


@pytest.mark.parametrize("fault", ["lost", "twice"])
def test_a_token_in_no_row_or_in_two_stops_the_run(toy, fault):
    config, policy = toy
    episode = played(config, policy)[0].episodes[0]
    if fault == "lost":
        row = episode.rows[0]
        row.action[int(row.action.nonzero()[0])] = False
    else:
        episode.rows = episode.rows * 2
    with pytest.raises(InvariantError, match="exactly one row"):
        lay_out([episode])


def test_a_policy_that_says_one_token_only_stops_the_run(toy):
    config, policy = toy
    episodes = [e for group in played(config, policy) for e in group.episodes]
    refuse_degenerate(episodes, set(policy.stop_ids))
    stop = policy.stop_ids[0]
    for episode in episodes:
        for turn in episode.turns:
            turn.ids = [40, 40, stop]
    with pytest.raises(TrainingError, match="100% of .* are id 40"):
        refuse_degenerate(episodes, set(policy.stop_ids))
    for episode in episodes:
        for turn in episode.turns:
            turn.ids = [40, 41, stop, stop, stop, stop]
    refuse_degenerate(episodes, set(policy.stop_ids))
