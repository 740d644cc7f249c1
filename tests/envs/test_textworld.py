"""Real TextWorld games through the workers: rewards, ends, and commands that would break them."""

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from envs.base import Step
from envs.experts import demonstrations
from envs.rewards import RewardedEnv, valid_rewards
from envs.suites import env_spec
from envs.textworld.env import TextWorldEnv, TextWorldOptions
from envs.textworld.expert import walkthrough
from envs.textworld.splits import find_tasks
from envs.validate import faults, totals, validate
from envs.workers import EnvPool
from runs.errors import EnvError
from tests.envs.conftest import CACHE
from tests.envs.test_text import INVALID, META

TIMEOUT = 60.0


@pytest.fixture(scope="module")
def pool():
    with EnvPool(env_spec("dense"), 1, TIMEOUT) as opened:
        yield opened


def play(pool, task, *actions) -> Step:
    answer = pool.reset({0: task})[0]
    for action in actions:
        answer = pool.step({0: action})[0]
    assert isinstance(answer, Step), answer
    return answer


def commands(task) -> list[str]:
    return walkthrough(Path(task.file))


@pytest.mark.parametrize("reward", ["sparse", "dense"])
def test_no_prefix_of_a_walkthrough_pays_like_winning(reward, custom, two_quests, food):
    with EnvPool(env_spec(reward), 1, TIMEOUT) as pool:
        for task in [*custom, two_quests, food]:
            assert faults(pool, task, commands(task)) == [], task.id


@pytest.mark.parametrize("kind", ["tw-simple", "cooking"])
def test_no_prefix_pays_like_winning_in_scored_games(kind):
    game = "tw-simple-detailed" if kind == "tw-simple" else kind
    for reward in valid_rewards("textworld", kind):
        tasks = find_tasks(game, 1, 1, reward, CACHE)
        assert list(validate(tasks, reward, TIMEOUT).values()) == [[]], reward


@pytest.mark.parametrize("reward", ["sparse", "balanced", "dense"])
def test_published_games(shared, tmp_path, reward):
    results = validate(find_tasks(str(shared), 1, 1, reward, tmp_path), reward, TIMEOUT)
    assert len(results) == 5
    assert all(wrong == [] for wrong in results.values()), results


def test_validation_notices_a_policy_that_does_not_win(pool, custom):
    actions = commands(custom[0])
    assert faults(pool, custom[0], actions[:-1]) == ["the expert does not win"]
    assert faults(pool, custom[0], [*actions, "look"]) == ["ended before its last command"]


def test_dense_totals_by_hand(pool, custom):
    paid, won, trouble = totals(pool, custom[0], commands(custom[0]))
    assert (won, trouble) == (True, "")
    assert paid == pytest.approx([0, 0.25, 0.5, 0.75, 1.0])


def test_undoing_pays_back(pool, custom):
    take, put = "take type J keycard from case", "put type J keycard into case"
    paid, won, trouble = totals(pool, custom[0], [take, put, take, "look", put])
    assert (won, trouble) == (False, "")
    assert paid == pytest.approx([0, 0.25, 0, 0.25, 0.25, 0])


def test_walking_away_and_back_pays_nothing(pool, custom):
    paid, _, trouble = totals(pool, custom[0], ["go north", "go south"])
    assert trouble == ""
    assert paid[1] < 0
    assert paid[2] == pytest.approx(0.0)


def test_eating_the_food_of_the_quest_is_no_win_and_pays_nothing(pool, food):
    eaten = play(pool, food, "take apple", "go east", "eat apple")
    assert not eaten.won
    assert eaten.events["policy_length"] is None
    paid, won, _ = totals(pool, food, ["take apple", "go east", "eat apple", "look", "go west"])
    assert not won
    assert paid[2] > 0.5
    assert paid[3:] == pytest.approx([0.0, 0.0, 0.0])


def test_lost_is_not_won():
    (task,) = find_tasks("tw-simple-brief", 1, 1, "dense", CACHE)
    *before, put = commands(task)
    eat = "eat " + put.removeprefix("put ").removesuffix(" on stove")
    env = RewardedEnv(TextWorldEnv(TextWorldOptions()), "dense")
    step = env.reset(task)
    total = 0.0
    for action in [*before, eat]:
        assert not step.terminated
        step = env.step(action)
        total += step.reward
    assert (step.lost, step.won, step.terminated) == (True, False, True)
    assert total < 1.0
    assert "lost" not in step.observation
    with pytest.raises(EnvError, match="has ended"):
        env.step("look")
    env.close()
    with pytest.raises(EnvError, match="reset"):
        env.step("look")


def test_harmless_mistakes_end_nothing(pool, custom):
    step = play(pool, custom[0], "eat type J keycard", "go west", "dance", "take moon", "wait")
    assert (step.terminated, step.won, step.lost, step.invalid) == (False, False, False, None)


def test_only_what_is_used_is_requested(custom):
    bare = TextWorldEnv(TextWorldOptions())
    step = bare.reset(custom[0])
    assert step.admissible == () and "policy_length" not in step.events
    requested = bare._game._interpreter.request_infos
    assert (requested.admissible_commands, requested.policy_commands) == (False, False)
    bare.close()
    full = TextWorldEnv(TextWorldOptions(admissible=True, policy_length=True))
    step = full.reset(custom[0])
    assert "take type J keycard from case" in step.admissible
    assert step.events["policy_length"] == 4
    full.close()


def test_score_notices_only_when_asked_for(two_quests):
    for shown in (False, True):
        env = TextWorldEnv(TextWorldOptions(show_score=shown))
        seen = [env.reset(two_quests).observation]
        seen += [env.step(action).observation for action in commands(two_quests)]
        env.close()
        assert ("score" in " ".join(seen).lower()) is shown
        assert "$$" not in seen[0] and "The End" not in seen[-1]


def test_objective_is_apart_from_the_observation(pool, custom):
    step = play(pool, custom[0])
    assert step.objective.startswith("I hope you're ready")
    assert step.observation.startswith("-= Studio =-")
    assert play(pool, custom[0], "goal").observation == step.objective


def test_only_the_first_command_is_run(pool, custom):
    for both in ("look. take type J keycard from case", "look then quit", "look, inventory"):
        step = play(pool, custom[0], both)
        assert step.events["cut"] and not step.terminated
        assert step.observation.startswith("-= Studio =-")
        assert step.events["policy_length"] == 4


def test_fuzzed_commands_leave_the_game_playable(pool, custom):
    first = play(pool, custom[0])
    for text in [*(case for case, _ in INVALID), *META]:
        step = pool.step({0: text})[0]
        assert isinstance(step, Step), (text, step)
        assert step.invalid, text
        assert (step.reward, step.terminated) == (0.0, False)
        assert step.events["policy_length"] == 4
    assert pool.step({0: "look"})[0].observation == first.observation
    assert play(pool, custom[0], *commands(custom[0])).won


@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    st.one_of(
        st.text(max_size=250),
        st.text(st.sampled_from(" .,;:?!'\"/-abqtkn>[](){}<>%&*_=+~`^$#@|"), max_size=250),
        st.lists(
            st.sampled_from(
                ["take", "look", "then", "and", "me", "all", "type J", "chest", "it", "quit", "\\n"]
            ),
            max_size=12,
        ).map(" ".join),
    )
)
def test_anything_at_all_is_survived(pool, custom, text):
    play(pool, custom[0])
    step = pool.step({0: text})[0]
    assert isinstance(step, Step), (text, step)
    looked = pool.step({0: "look"})[0]
    assert isinstance(looked, Step)
    assert looked.observation.startswith("-= "), (text, looked.observation)


def test_episodes_side_by_side_do_not_mix(custom):
    with EnvPool(env_spec("dense", admissible=True), 2, TIMEOUT) as many:
        alone = []
        for task in custom:
            alone.append([many.reset({0: task})[0]])
            alone[-1] += [many.step({0: action})[0] for action in commands(task)[:3]]
        together = [[step] for _, step in sorted(many.reset(dict(enumerate(custom))).items())]
        for turn in range(3):
            answers = many.step({i: commands(task)[turn] for i, task in enumerate(custom)})
            for slot, answer in answers.items():
                together[slot].append(answer)
    assert together == alone


def test_demonstrations_win_and_align(custom):
    shown = demonstrations(custom, env_spec("sparse", admissible=True), TIMEOUT)
    assert [one.task for one in shown] == custom
    for one in shown:
        assert len(one.observations) == len(one.actions) == len(one.admissible)
        assert all(
            action in allowed for action, allowed in zip(one.actions, one.admissible, strict=True)
        )
        assert one.observations[0].startswith("-= ")


def test_missing_and_broken_files_are_told(tmp_path, custom):
    env = TextWorldEnv(TextWorldOptions())
    with pytest.raises(EnvError, match=r"nowhere\.z8 does not exist"):
        env.reset(replace(custom[0], file=str(tmp_path / "nowhere.z8")))
    broken = tmp_path / "broken.z8"
    broken.write_bytes(b"no game")
    broken.with_suffix(".json").write_text("{")
    with pytest.raises(EnvError, match="cannot be loaded"):
        env.reset(replace(custom[0], file=str(broken)))
