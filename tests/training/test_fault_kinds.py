"""Kinds of faults that only a whole rollout or a forward pass can show; the table of all rows is
in tests/algorithms/test_faults.py."""

from itertools import pairwise

import pytest
import torch

from algorithms import make_algorithm
from rollouts.player import Player
from tests.fakes import TEMPLATE, FakeEngine, FakePool, toy_policy, toy_task
from tests.training.toy import config_for, pays_unequally, played, policy_for
from training.batch import lay_out, score
from training.credit import assign
from training.step import Learner


def scripted(config, policy, ids):
    """Groups of one task whose every turn says `ids`."""
    engine = FakeEngine(lambda request: list(ids), policy.stop_ids)
    with Player(config, policy, engine=engine, pool=FakePool(pays_unequally)) as player:
        return player.play([toy_task("t0")], 0)


def placed(groups):
    return [
        row for of_episode in lay_out([e for g in groups for e in g.alive]) for row in of_episode
    ]


def test_what_a_template_puts_first_is_there_once():
    """Row 5: a start of text or a default system prompt is not repeated with every message."""
    config = config_for("rloo", algo__group_size=2)
    policy = toy_policy("llama", config, template="%" + TEMPLATE)
    tokens = policy.tokenizer.convert_tokens_to_ids(["%", "a", "<|end|>"])
    for placed_row in placed(scripted(config, policy, tokens[1:])):
        row = placed_row.row
        assert row.ids.tolist().count(tokens[0]) == 1 and row.ids[0] == tokens[0]
        assert len(row.turn.unique()) == 4


def test_an_observation_is_read_and_never_learned():
    """Row 8: an observation token moves the log-probabilities after it, none before it, and the
    loss has no gradient at the states that predict observation tokens."""
    config = config_for("rloo")
    policy = policy_for(config)
    row = placed(played(config, policy, tasks=1))[0]
    before = score(policy, [row], 0.7).logp.detach()
    later = row.row.turn[row.row.action] >= 1
    first_act, second_act = ((row.row.turn == turn).nonzero()[0, 0] for turn in (0, 1))
    inside = [
        place for place in range(int(first_act), int(second_act)) if not row.row.action[place]
    ]
    kept = row.row.ids[inside[3]].item()
    row.row.ids[inside[3]] = (kept + 7) % 90
    after = score(policy, [row], 0.7).logp.detach()
    assert torch.equal(after[~later], before[~later])
    assert (after[later] - before[later]).abs().max() > 1e-4
    row.row.ids[inside[3]] = kept

    states, hidden = [], policy.packed_hidden
    policy.packed_hidden = lambda *a: states.append(hidden(*a)) or states[-1]
    scores = score(policy, [row], 0.7)
    states[0].retain_grad()
    scores.logp.sum().backward()
    learned = states[0].grad.abs().sum(-1) > 0
    assert learned.tolist() == row.row.action[1 : len(learned) + 1].tolist()


def test_kl_of_observations_is_paid_by_nobody():
    """Row 27: a reference that differs on observation tokens only costs nothing."""
    config = config_for("reinforce_pp")
    policy = policy_for(config)
    groups = played(config, policy)
    algorithm = make_algorithm(config.algo)
    plain, _ = assign(algorithm, policy, groups, config)
    acts = {tuple(r.row.ids.tolist()): r.row.action for r in placed(groups)}
    hidden = policy.packed_hidden
    seen = 0

    def counted(ids, positions, attend, model):
        nonlocal seen
        states = hidden(ids, positions, attend, model)
        if model is not policy.reference:
            return states
        row = ids.tolist()
        [whole] = [k for k in acts if list(k[: len(row)]) == row]
        states[~acts[whole][1 : len(row) + 1]] += 5.0
        seen += 1
        return states

    policy.packed_hidden = counted
    config.optim.micro_tokens = 1
    noisy, _ = assign(algorithm, policy, groups, config)
    assert seen == len(acts)
    assert abs(noisy.health["kl_in_reward"]) < 1e-5
    torch.testing.assert_close(noisy.advantages, plain.advantages, atol=1e-4, rtol=0)


def test_tokens_of_a_turn_and_of_an_episode_are_two_bounds():
    """Row 45: policy.max_tokens bounds each of three turns, policy.context the whole."""
    config = config_for("rloo", policy__max_tokens=2, algo__group_size=2)
    policy = toy_policy("llama", config, stops="")
    [group] = played(config, policy, tasks=1)
    for episode in group.episodes:
        assert [len(turn.ids) for turn in episode.turns] == [2, 2, 2]
        assert sum(len(row.ids) for row in episode.rows) > 2 * 3
        assert episode.ended != "context"


def test_an_end_of_turn_that_is_also_padding_is_learned():
    """Row 49: with pad == eos the end of a turn keeps its place in the loss."""
    config = config_for("rloo", algo__group_size=2)
    policy = toy_policy("llama", config)
    policy.tokenizer.pad_token = policy.tokenizer.eos_token
    policy.pad_id = end = policy.tokenizer.eos_token_id
    groups = played(config, policy, tasks=2)
    for episode in (e for g in groups for e in g.episodes):
        sampled = [token for turn in episode.turns for token in turn.ids]
        assert [t for r in episode.rows for t in r.ids[r.action].tolist()] == sampled
    [group] = scripted(config, policy, [policy.tokenizer.convert_tokens_to_ids("a"), end])
    [one, two] = placed([group])
    for row in (one.row, two.row):
        assert row.ids[row.action].tolist().count(end) == 3
        assert not any(a == b == end for a, b in pairwise(row.ids.tolist()))


def test_the_ratio_of_fresh_weights_is_logged_and_is_one():
    """Row 55: mean, maximum and effective sample share of the ratio are measured."""
    config = config_for("rloo")
    policy = policy_for(config)
    batch, _ = assign(make_algorithm(config.algo), policy, played(config, policy), config)
    health = Learner(policy, make_algorithm(config.algo), config).update(batch, 0)["health"]
    for name in ("ratio_mean", "ratio_max", "effective_sample_share"):
        assert health[name] == pytest.approx(1.0, abs=1e-3)
