"""Imitation learns the expert's commands and the end of a turn, and nothing else."""

import pytest
import torch

from algorithms import make_algorithm
from envs.experts import Demonstration, Mistake
from envs.suites import Suite
from rollouts.player import Player
from runs.errors import ConfigError, PolicyError
from tests.fakes import FakePool, three_turns, toy_policy, toy_task
from tests.training.toy import config_for, policy_for
from training.sft import Teacher, as_episode, end_of_turn, imitate
from training.step import Learner

COMMANDS = ["go n", "ab", "win"]


def shown(name="t0", actions=COMMANDS):
    task = toy_task(name)
    steps = [three_turns(task, 0, "")]
    steps += [three_turns(task, k, action) for k, action in enumerate(actions[:-1], start=1)]
    return Demonstration(
        task,
        steps[0].objective,
        [s.observation for s in steps],
        list(actions),
        [s.admissible for s in steps],
    )


@pytest.fixture
def sft():
    config = config_for("sft", sft__lr=1e-2, sft__epochs=30)
    config.env.show_admissible = False
    return config, policy_for(config)


def test_the_loss_mask_is_the_commands_and_their_end_of_turn(sft):
    config, policy = sft
    episode = as_episode(policy, shown(), config.env)
    (row,) = episode.rows
    for turn, command in enumerate(COMMANDS):
        learned = row.ids[row.action & (row.turn == turn)].tolist()
        assert policy.tokenizer.decode(learned) == command + "<|end|>"
        assert learned[-1] == policy.stop_ids[0]
    assert policy.tokenizer.decode(row.ids[~row.action]).count("<|user|>") == 3
    text = policy.tokenizer.decode(row.ids)
    assert "go n<|end|>" in text and "<|end|><|end|>" not in text


def test_a_history_window_cuts_rows_and_keeps_every_token(sft):
    config, policy = sft
    config.env.history_window = 1
    episode = as_episode(policy, shown(), config.env)
    assert len(episode.rows) > 1
    learned = [i for row in episode.rows for i in row.ids[row.action].tolist()]
    assert policy.tokenizer.decode(learned) == "".join(c + "<|end|>" for c in COMMANDS)


def test_imitation_makes_the_policy_play_the_demonstration(sft):
    config, policy = sft
    learner = Learner(policy, make_algorithm(config.algo), config)
    episodes = [as_episode(policy, shown(name), config.env) for name in ("t0", "t1", "t2")]
    first = imitate(learner, episodes, [0])
    last = imitate(learner, episodes, range(1, 30))
    assert last["sft_loss"] < 0.3 * first["sft_loss"]
    assert first["gradient_steps"] == 2
    assert first["tokens_trained"] == sum(len(t.ids) for e in episodes for t in e.turns)
    pool = FakePool()

    suite = Suite("test", [toy_task(name) for name in ("t0", "t1", "t2")])
    with Player(config, policy, pool=pool) as player:
        played = player.evaluate(suite, 1, greedy=True)
    assert [[turn.action for turn in e.turns] for e in played] == [COMMANDS] * 3


def test_a_mistake_is_read_and_not_learned(sft):
    config, policy = sft
    right = as_episode(policy, shown(), config.env)
    actions = [Mistake(COMMANDS[0]), *COMMANDS[1:]]
    wrong = as_episode(policy, shown(actions=actions), config.env)
    # The same tokens are read; those of the mistake are no action of any turn.
    assert [row.ids.tolist() for row in wrong.rows] == [row.ids.tolist() for row in right.rows]
    learned = [token for turn in right.turns[1:] for token in turn.ids]
    assert [t for row in wrong.rows for t in row.ids[row.action].tolist()] == learned
    assert wrong.turns[0].ids == [] and wrong.turns[0].action == COMMANDS[0]
    assert {int(k) for row in wrong.rows for k in row.turn[row.action]} == {1, 2}


def test_before_rl_imitation_leaves_the_optimiser_alone_and_moves_the_reference(monkeypatch):
    config = config_for("rloo", algo__kl_coef=0.1, sft__epochs=2, sft__demos=2)
    config.env.show_admissible = False
    policy = policy_for(config)
    learner = Learner(policy, make_algorithm(config.algo), config)
    teacher = Teacher(config, policy, None, None)
    teacher.episodes = [as_episode(policy, shown(name), config.env) for name in ("t0", "t1")]
    before = policy.model.get_input_embeddings().weight.clone()
    sections = teacher.teach(learner, 0)
    assert sections["update"]["demonstrations"] == 2
    assert sections["update"]["gradient_steps"] == 2
    assert not learner.optimizer.state
    after = policy.model.get_input_embeddings().weight
    assert not torch.equal(before, after)
    assert torch.equal(policy.reference.get_input_embeddings().weight, after)


def test_what_cannot_be_learned_is_refused_with_the_key_to_change(sft):
    config, policy = sft
    with pytest.raises(ConfigError, match="policy.max_tokens=6 is too small.*at least 9"):
        as_episode(policy, shown(actions=["go there"]), config.env)
    with pytest.raises(PolicyError, match="no token to learn"):
        as_episode(policy, shown(actions=[]), config.env)
    policy.context = 20
    with pytest.raises(ConfigError, match="policy.context=20"):
        as_episode(policy, shown(), config.env)


def test_a_template_without_an_end_of_turn_is_refused():
    open_ended = (
        "{% for m in messages %}<|{{ m['role'] }}|>{{ m['content'] }}\n{% endfor %}"
        "{% if add_generation_prompt %}<|assistant|>{% endif %}"
    )
    policy = toy_policy(template=open_ended)
    with pytest.raises(PolicyError, match="end-of-turn"):
        end_of_turn(policy.chat, policy.stop_ids)
    good = toy_policy()
    assert end_of_turn(good.chat, good.stop_ids) == good.stop_ids[0]
