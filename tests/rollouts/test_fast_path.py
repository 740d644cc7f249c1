"""The fast path plays the same episodes as the slow one, whatever the schedule and its timing."""

from __future__ import annotations

import time
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from rollouts.player import Player
from tests.fakes import FakePool, three_turns, toy_config, toy_policy, toy_task
from tests.rollouts.slow_path import SlowEngine

TASKS = [toy_task(name) for name in ("red", "blue", "green", "red", "grey")]
TIE = 1e-5


def policy_of(kind, config):
    policy = toy_policy(kind, config)
    policy.add_critic(shared=True)
    torch.nn.init.normal_(policy.critic.head.out.weight)
    return policy


def played(config, policy, engine=None, pool=None):
    with Player(config, policy, engine=engine, pool=pool or FakePool()) as player:
        groups = player.play(TASKS, 0)
        health = player.health.summary()
    return [episode for group in groups for episode in group.episodes], health


def same_episodes(fast, slow, margins) -> int:
    """Episodes are equal, to 1e-4 in log-probability and value; returns how many parted at a tie.

    From a tie on, where two tokens were equally good to 1e-5, two episodes may differ.
    """
    ties = 0
    for one, other in zip(fast, slow, strict=True):
        for number, (a, b) in enumerate(zip(one.turns, other.turns, strict=False)):
            if a.ids != b.ids:
                pairs = enumerate(zip(a.ids, b.ids, strict=False))
                place = next(i for i, (x, y) in pairs if x != y)
                (key,) = [k for k in margins if k[-3:] == (one.task.id, one.member, number)]
                assert margins[key][place] < TIE, f"{a.ids} is not {b.ids}"
                ties += 1
                break
            assert (a.observation, a.action, a.reward) == (b.observation, b.action, b.reward)
            assert a.logp == pytest.approx(b.logp, abs=1e-4)
            assert a.values == pytest.approx(b.values, abs=1e-4)
        else:
            assert (one.ended, len(one.turns)) == (other.ended, len(other.turns))
    return ties


@pytest.mark.parametrize("kind", ["llama", "gpt2"])
@pytest.mark.parametrize("temperature", [0.7, 0.0])
@pytest.mark.parametrize("window", [None, 1])
def test_the_same_episodes_as_without_any_cache(kind, temperature, window):
    config = toy_config(env__max_turns=5, policy__temperature=temperature, engine__max_batch=7)
    config.env.history_window = window
    config.algo.group_size = 3
    policy = policy_of(kind, config)
    slow_engine = SlowEngine(policy, config.policy.max_tokens)
    slow, slow_health = played(config, policy, slow_engine)
    fast, health = played(config, policy)
    assert same_episodes(fast, slow, slow_engine.margins) <= 1
    assert health["tokens_prefilled"] < slow_health["tokens_prefilled"] / 4


def test_a_wrong_engine_is_caught():
    """The comparison can fail: a policy that is a little different does not pass."""
    config = toy_config(env__max_turns=3)
    policy, other = policy_of("llama", config), policy_of("llama", config)
    with torch.no_grad():
        other.model.get_output_embeddings().weight.mul_(1.05)
    slow_engine = SlowEngine(policy, config.policy.max_tokens)
    slow, _ = played(config, policy, slow_engine)
    fast, _ = played(config, other)
    with pytest.raises(AssertionError):
        same_episodes(fast, slow, slow_engine.margins)


class Slow(FakePool):
    """Answers after a while of its own."""

    def __init__(self, seed):
        super().__init__(three_turns)
        self._random = np.random.default_rng(seed)

    def step(self, actions):
        time.sleep(self._random.random() / 50)
        return super().step(actions)


class Watched:
    """An engine that remembers which slots took part in each pass."""

    def __init__(self, engine):
        self._engine, self.passes = engine, []

    def __getattr__(self, name):
        return getattr(self._engine, name)

    def advance(self, temperature):
        self.passes.append(sorted(self._engine._answers))
        return self._engine.advance(temperature)


def test_who_answers_first_changes_no_batch():
    """Rule 11: the composition of every pass is that of an environment that answers at once."""
    config = toy_config(engine__max_batch=4)
    policy = policy_of("llama", config)
    passes, episodes = [], []
    for pool in (FakePool(), Slow(0), Slow(1)):
        with Player(config, policy, pool=pool) as player:
            player._engine = watched = Watched(player._engine)
            groups = player.play(TASKS, 0)
        passes.append(watched.passes)
        episodes.append([[t.ids for t in e.turns] for g in groups for e in g.episodes])
    assert passes[0] == passes[1] == passes[2]
    assert episodes[0] == episodes[1] == episodes[2]
    # Slots are handed on: ten episodes in four of them, nearly always full.
    assert np.mean([len(live) for live in passes[0]]) > 2


def test_an_episode_that_ends_makes_room_at_once():
    def uneven(task, turn, action):
        step = three_turns(task, turn, action)
        long = task.id == "t0"
        step.won = step.terminated = turn == (8 if long else 1)
        return step

    tasks = [toy_task(f"t{n}") for n in range(9)]
    config = toy_config(engine__max_batch=2, env__max_turns=8)
    policy = policy_of("llama", config)
    with Player(config, policy, pool=FakePool(uneven)) as player:
        player._engine = watched = Watched(player._engine)
        episodes = player.evaluate(SimpleNamespace(tasks=tasks), 0)
    assert [e.task.id for e in episodes] == [task.id for task in tasks]
    assert [len(e.turns) for e in episodes] == [8] + [1] * 8
    # One slot plays the long game while the other plays the eight short ones.
    alone = sum(len(e.turns[n].ids) for e in episodes[:1] for n in range(8))
    assert len(watched.passes) < alone + 20
