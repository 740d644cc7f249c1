"""Playing: tokens stay what was sampled, episodes end as they ended, errors cost one episode."""

from itertools import pairwise
from types import SimpleNamespace

import pytest
import torch

from envs.base import Step
from envs.workers import EnvFailure
from rollouts.player import Player
from rollouts.rows import check_groups, rows
from runs.errors import ConfigError, EnvError
from tests.fakes import (
    STRIPPING,
    FakeEngine,
    FakePool,
    three_turns,
    toy_config,
    toy_policy,
    toy_task,
)

TASKS = [toy_task("red"), toy_task("blue"), toy_task("red")]


def play(config, policy=None, tasks=TASKS, script=three_turns, engine=None, **options):
    policy = policy or toy_policy(config=config)
    with Player(config, policy, engine=engine, pool=FakePool(script), **options) as player:
        return player.play(tasks, 0), player.health.summary()


def evaluate(config, policy, tasks, script=three_turns, **options):
    with Player(config, policy, pool=FakePool(script)) as player:
        return player.evaluate(SimpleNamespace(tasks=tasks), 0, **options)


def sampled(episodes):
    return [[turn.ids for turn in episode.turns] for episode in episodes]


def scripted(policy, text="a b"):
    """An engine whose ids do not survive decoding and encoding: `[a][b]` encodes to `[ab]`."""
    one_by_one = [policy.tokenizer.convert_tokens_to_ids(c) for c in "ab"]
    ids = [*one_by_one, policy.tokenizer.eos_token_id]
    assert policy.tokenizer(policy.chat.text(ids))["input_ids"] != one_by_one
    return FakeEngine(lambda request: ids, policy.stop_ids), ids


@pytest.mark.parametrize("kind", ["llama", "gpt2"])
def test_recomputed_logp_and_values_equal_the_behaviour_ones(kind):
    """Rule 4, over whole episodes of ragged turns."""
    config = toy_config(env__max_turns=5)
    policy = toy_policy(kind, config)
    policy.add_critic(shared=True)
    torch.nn.init.normal_(policy.critic.head.out.weight)
    groups, health = play(config, policy)
    assert health["prefix_breaks"] == 0
    for group in groups:
        for episode in group.episodes:
            (row,) = episode.rows
            at = row.action.nonzero()[:, 0]
            with torch.no_grad():
                hidden = policy.hidden(
                    row.ids[None],
                    torch.arange(len(row.ids))[None],
                    torch.ones(1, len(row.ids)).bool(),
                )[0, at - 1]
                logp = torch.log_softmax(policy.logits(hidden) / 0.7, -1)
                values = [value for turn in episode.turns for value in turn.values]
                assert policy.values(hidden) == pytest.approx(torch.tensor(values), abs=1e-4)
            assert logp[torch.arange(len(at)), row.ids[at]] == pytest.approx(row.logp[at], abs=1e-4)


def test_sampled_ids_are_trained_bit_for_bit():
    config = toy_config()
    policy = toy_policy(config=config)
    engine, ids = scripted(policy)
    groups, health = play(config, policy, engine=engine)
    assert health["truncated"] == 0
    for row in rows(groups):
        assert row.ids[row.action].tolist() == ids * 3
        assert row.logp[row.action].tolist() == [-0.125, -0.25, -0.375] * 3
        assert row.turn[row.action].tolist() == [0] * 3 + [1] * 3 + [2] * 3
        assert row.logp[~row.action].abs().sum() == 0
        starts = [turn.observation for turn in groups[0].episodes[0].turns]
        assert len(starts) == 3 and all("room" in text for text in starts)
    prompts = [request.prompt for request in engine.requests if request.slot == 0]
    assert all(late[: len(early)] == early for early, late in pairwise(prompts))
    assert sorted(engine.released) == [0, 1, 2, 3, 4, 5]


def test_the_stop_token_is_an_action_and_a_missing_one_is_not():
    config = toy_config()
    policy = toy_policy(config=config)
    end = policy.tokenizer.eos_token_id
    a = policy.tokenizer.convert_tokens_to_ids("a")
    engine = FakeEngine(lambda r: [a, end] if r.key[-1] == 0 else [a] * 6, policy.stop_ids)
    groups, health = play(config, policy, tasks=TASKS[:1], engine=engine)
    row = groups[0].episodes[0].rows[0]
    assert row.ids[row.action].tolist() == [a, end] + [a] * 12
    assert [turn.stopped for turn in groups[0].episodes[0].turns] == [True, False, False]
    assert health["truncated_share"] == pytest.approx(2 / 3)
    after_second_turn = (row.turn == 1).nonzero()[-1, 0] + 1
    assert row.ids[after_second_turn] == end and not row.action[after_second_turn]
    assert not ((row.ids[1:] == end) & (row.ids[:-1] == end)).any()


def test_same_seed_same_ids_and_every_draw_its_own():
    config = toy_config()
    policy = toy_policy(config=config)
    first, again = (play(config, policy)[0] for _ in range(2))
    ids = [sampled(group.episodes) for group in first]
    assert ids == [sampled(group.episodes) for group in again]
    # Two members, and the same task drawn twice: four different episodes.
    episodes = [tuple(map(tuple, e)) for e in ids[0] + ids[2]]
    assert len(set(episodes)) == 4
    with Player(config, policy, pool=FakePool()) as player:
        other_iteration = player.play(TASKS, 1)
    assert sampled(other_iteration[0].episodes) != ids[0]
    assert sampled(play(toy_config(seed=1), policy)[0][0].episodes) != ids[0]


def test_evaluation_does_not_depend_on_the_batch():
    tasks = [toy_task(f"t{n}") for n in range(7)]
    policy = toy_policy()
    results = [evaluate(toy_config(engine__max_batch=size), policy, tasks) for size in (1, 4, 7)]
    for episodes in results:
        assert [episode.task.id for episode in episodes] == [task.id for task in tasks]
        assert sampled(episodes) == sampled(results[0])
    greedy = [evaluate(toy_config(), policy, tasks, greedy=True, sample=n) for n in (0, 1)]
    assert sampled(greedy[0]) == sampled(greedy[1]) != sampled(results[0])
    assert sampled(evaluate(toy_config(), policy, tasks, sample=1)) != sampled(results[0])
    training = play(toy_config(algo__group_size=1), policy, tasks)[0]
    assert sampled([group.episodes[0] for group in training]) != sampled(results[0])


def ending(**flags):
    def script(task, turn, action):
        step = three_turns(task, turn, action)
        step.won = step.terminated = step.lost = False
        if turn == 2:
            for name, value in flags.items():
                setattr(step, name, value)
        return step

    return script


@pytest.mark.parametrize(
    ("flags", "ended", "turns"),
    [
        ({"won": True, "terminated": True}, "won", 2),
        ({"lost": True, "terminated": True}, "lost", 2),
        ({"terminated": True}, "lost", 2),
        ({}, "turn_limit", 3),
    ],
)
def test_how_an_episode_ends(flags, ended, turns):
    groups, health = play(toy_config(), script=ending(**flags))
    for group in groups:
        for episode in group.episodes:
            assert (episode.ended, len(episode.turns)) == (ended, turns)
            assert episode.paid == pytest.approx(float(episode.rewards.sum()))
    assert health[f"ended/{ended}"] == 6


def test_context_ends_before_generating_and_never_replaces_a_true_end():
    policy = toy_policy()

    def script(task, turn, action):
        step = Step("y" * (100 if turn else 5), "win", reward=0.5 * bool(turn))
        step.won = step.terminated = task.id == "red" and turn == 1
        return step

    config = toy_config(policy__context=60)
    red, blue, _ = play(config, policy, script=script)[0]
    assert [e.ended for e in red.episodes] == ["won", "won"]
    assert [e.ended for e in blue.episodes] == ["context", "context"]
    for episode in blue.episodes:
        assert len(episode.turns) == 1 and episode.paid == 0.5
        assert episode.final_observation == "y" * 100
        assert all(len(row.ids) <= 60 for row in episode.rows)


def test_a_context_too_small_for_the_first_turn_is_refused_at_start():
    policy, script = toy_policy(), ending()
    first = [policy.chat.user(f"win the game\n{script(t, 0, '').observation}") for t in TASKS]
    need = max(len(policy.chat.prompt([message])) for message in first) + 6
    for context, fits in ((need, True), (need - 1, False)):
        config = toy_config(policy__context=context)
        with Player(config, policy, pool=FakePool(script)) as player:
            if fits:
                player.check_context(TASKS)
            else:
                with pytest.raises(ConfigError, match=f"set policy.context to at least {need}"):
                    player.check_context(TASKS)


def failing(*names):
    """Fails in the second turn of the named tasks' episodes, first slot only."""
    seen = set()

    def script(task, turn, action):
        if turn == 2 and task.id in names and task.id not in seen:
            seen.add(task.id)
            return EnvFailure("died", "the worker died")
        return three_turns(task, turn, action)

    return script


def test_an_errored_episode_shrinks_its_group_and_is_no_zero():
    tasks = [toy_task("red"), toy_task("blue")]
    config = toy_config(algo__group_size=3)
    groups, health = play(config, tasks=tasks, script=failing("red"), smallest_group=2)
    assert [len(group.alive) for group in groups] == [2, 3]
    (error,) = [e for e in groups[0].episodes if e.ended == "error"]
    assert error.error == "died: the worker died" and not error.rows
    assert len(rows(groups)) == 5
    assert (health["errors"], health["groups_shrunk"], health["groups_dropped"]) == (1, 1, 0)


def test_a_group_of_one_survivor_is_dropped_where_a_group_is_needed():
    tasks = [toy_task("red"), toy_task("blue")]
    config = toy_config()
    groups, health = play(config, tasks=tasks, script=failing("red"), smallest_group=2)
    assert [group.task.id for group in groups] == ["blue"]
    assert health["groups_dropped"] == 1
    alone, _ = play(config, tasks=tasks, script=failing("red"), smallest_group=1)
    assert [len(group.alive) for group in alone] == [1, 2]


def test_a_failing_reset_costs_its_episodes_only():
    def script(task, turn, action):
        missing = EnvFailure("raised", "no such file")
        return missing if task.id == "blue" else three_turns(task, turn, action)

    groups, health = play(toy_config(), script=script)
    assert [group.index for group in groups] == [0, 2]
    assert health["errors"] == 2


def test_more_errors_than_half_stop_the_run():
    def script(task, turn, action):
        return EnvFailure("raised", "out of memory")

    with pytest.raises(EnvError, match="6 of 6 .* task red: raised: out of memory"):
        play(toy_config(), script=script)


def test_two_tasks_with_one_prompt_are_two_groups():
    def script(task, turn, action):
        return three_turns(toy_task("same"), turn, action)

    tasks = [toy_task("one"), toy_task("two")]
    groups, _ = play(toy_config(), tasks=tasks, script=script)
    assert [(group.task.id, group.index) for group in groups] == [("one", 0), ("two", 1)]
    check_groups(groups, size=2, smallest=2)
    assert sampled(groups[0].episodes) != sampled(groups[1].episodes)


def test_invalid_and_cut_actions_cost_a_turn_and_are_counted():
    def script(task, turn, action):
        step = three_turns(task, turn, action)
        step.invalid = "unknown verb" if turn == 1 else None
        step.events["cut"] = turn == 2
        return step

    groups, health = play(toy_config(), script=script)
    assert all(len(e.turns) == 3 for group in groups for e in group.episodes)
    assert groups[0].episodes[0].turns[0].invalid == "unknown verb"
    assert groups[0].episodes[0].turns[1].cut
    assert health["invalid/unknown verb"] == 6 and health["cut"] == 6
    assert health["invalid_share"] == health["cut_share"] == pytest.approx(1 / 3)


def test_a_template_that_strips_earlier_answers_starts_a_new_row():
    config = toy_config()
    policy = toy_policy(config=config, template=STRIPPING)
    engine, ids = scripted(policy)
    groups, health = play(config, policy, engine=engine)
    for group in groups:
        for episode in group.episodes:
            assert [row.ids[row.action].tolist() for row in episode.rows] == [ids] * 3
            assert [int(row.turn.max()) for row in episode.rows] == [0, 1, 2]
    assert health["prefix_breaks"] == 12


@pytest.mark.parametrize(("window", "count"), [(None, 1), (0, 4), (1, 3), (2, 2), (3, 1)])
def test_history_window_shows_the_objective_and_the_last_turns(window, count):
    config = toy_config(env__max_turns=4, env__history_window=window)
    policy = toy_policy(config=config)
    engine, ids = scripted(policy)
    tasks = [toy_task("red")]
    groups, health = play(config, policy, tasks=tasks, script=ending(), engine=engine)
    episode = groups[0].episodes[0]
    assert len(episode.rows) == count
    assert sum(int(row.action.sum()) for row in episode.rows) == 4 * len(ids)
    last = policy.tokenizer.decode(engine.requests[-1].prompt)
    shown = [n for n in range(4) if f"room {n}" in last]
    assert shown == list(range(4))[-1 - (3 if window is None else window) :]
    assert last.count("win the game") == 1
    assert health["prefix_breaks"] == 0


def test_constrained_play_only_says_admissible_commands():
    config = toy_config(env__constrain=True, policy__max_tokens=8)
    groups, _ = play(config)
    commands = {"go a", "go abc", "look"}
    for group in groups:
        for episode in group.episodes:
            assert {turn.action for turn in episode.turns} <= commands
            (row,) = episode.rows
            assert len(row.allowed) == int(row.action.sum())
            assert all(
                token in allowed
                for token, allowed in zip(row.ids[row.action].tolist(), row.allowed, strict=True)
            )


def test_constrained_play_without_admissible_commands_is_refused():
    def script(task, turn, action):
        return Step("a room", "win")

    with pytest.raises(ConfigError, match="env.constrain"):
        play(toy_config(env__constrain=True), script=script)


def test_the_player_closes_what_it_opened():
    pool = FakePool()
    with pytest.raises(RuntimeError), Player(toy_config(), toy_policy(), pool=pool):
        raise RuntimeError
    assert pool.closed


def test_an_unknown_engine_is_refused():
    with pytest.raises(ConfigError, match="engine=vllm"):
        Player(toy_config(engine__name="vllm"), toy_policy(), pool=FakePool())


def test_listed_commands_are_shown_and_oracle_ones_are_not():
    for listed, config in (
        (True, toy_config(env__show_admissible=True)),
        (False, toy_config(env__constrain=True, policy__max_tokens=8)),
    ):
        policy = toy_policy(config=config)
        groups, _ = play(config, policy, tasks=TASKS[:1])
        (row,) = groups[0].episodes[0].rows
        assert policy.tokenizer.decode(row.ids).count("Available commands") == 3 * listed


def test_a_failure_told_to_the_other_half_reaches_its_episode():
    """A replaced worker replays its episodes; one that diverges is reported in whatever call."""

    class Losing(FakePool):
        def step(self, actions):
            answers = super().step(actions)
            if 0 in actions and self._live[0][1] == 1:
                assert 2 not in actions
                answers[2] = EnvFailure("diverged", "another episode")
                del self._live[2]
            return answers

    with Player(toy_config(), toy_policy(), pool=Losing()) as player:
        groups = player.play([toy_task("red"), toy_task("blue")], 0)
    assert [len(group.alive) for group in groups] == [2, 1]
    assert groups[1].episodes[0].error == "diverged: another episode"
