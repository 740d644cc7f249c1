"""Rewards from scripted facts: golden values, conservation, refusals."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envs.base import Step, Task
from envs.rewards import RewardedEnv, game_kind, make_reward, valid_rewards
from runs.errors import ConfigError, EnvError


def facts(length=4, score=0, won=False, lost=False, max_score=5) -> Step:
    events = {"policy_length": length, "score": score, "max_score": max_score}
    return Step("", "", events, terminated=won or lost, won=won, lost=lost)


def payments(name: str, kind: str, steps: list[Step]) -> list[float]:
    reward = make_reward(name, "textworld", kind)
    reward.start(steps[0])
    return [reward.pay(step) for step in steps[1:]]


def test_potential_by_hand():
    steps = [facts(4), facts(3), facts(4), facts(5), facts(3), facts(1), facts(0, won=True)]
    assert payments("dense", "custom", steps) == pytest.approx([0.25, -0.25, -0.25, 0.5, 0.5, 0.25])


def test_what_is_true_before_the_first_command_is_not_paid_for():
    # 2 of 5 points are there already: each of the other three is a third of a win.
    steps = [facts(score=2), facts(score=2), facts(score=3), facts(score=1), facts(score=3)]
    steps += [facts(score=4), facts(score=5, won=True)]
    paid = payments("dense", "tw-simple", steps)
    assert paid == pytest.approx([0, 1 / 3, -2 / 3, 2 / 3, 1 / 3, 1 / 3])
    assert sum(paid) == pytest.approx(1.0)


@pytest.mark.parametrize("end", [facts(None), facts(2, lost=True), facts(None, lost=True)])
@pytest.mark.parametrize("before", [1, 4, 7])
def test_losing_returns_the_total_to_nothing(end, before):
    paid = payments("dense", "custom", [facts(4), facts(before), end, end])
    assert sum(paid) == pytest.approx(0.0)
    assert paid[-1] == 0.0


lengths = st.lists(st.one_of(st.none(), st.integers(1, 30)), max_size=20)


@given(st.integers(1, 10), lengths)
def test_potential_conserves(initial, course):
    steps = [facts(initial), *map(facts, course)]
    paid = payments("dense", "custom", steps)
    for end in range(len(paid) + 1):
        assert sum(paid[:end]) < 1.0 - 1e-9
    assert sum(payments("dense", "custom", [*steps, facts(0, won=True)])) == pytest.approx(1.0)


@given(st.integers(1, 12).flatmap(lambda top: st.tuples(st.just(top), st.lists(
    st.integers(0, top - 1), max_size=10))), st.sampled_from(["dense", "balanced"]))  # fmt: skip
def test_score_shares_conserve(game, name):
    top, scores = game
    steps = [facts(score=score, max_score=top) for score in [0, *scores]]
    paid = payments(name, "tw-simple", steps)
    assert sum(paid) == pytest.approx(steps[-1].events["score"] / top)
    won = payments(name, "tw-simple", [*steps, facts(score=top, max_score=top, won=True)])
    assert sum(won) == pytest.approx(1.0)


def test_sparse_pays_only_a_win():
    for kind in ("custom", "tw-simple", "cooking"):
        steps = [facts(), facts(3, score=4), facts(None, lost=True)]
        assert payments("sparse", kind, steps) == [0.0, 0.0]
        assert payments("sparse", kind, [facts(), facts(0, won=True)]) == [1.0]


def test_refusals_name_what_is_valid():
    with pytest.raises(ConfigError, match="sparse, dense"):
        make_reward("balanced", "textworld", "custom")
    with pytest.raises(ConfigError, match="sparse, balanced, dense"):
        make_reward("judge", "textworld", "cooking")
    with pytest.raises(ConfigError, match="textworld"):
        valid_rewards("chess", "custom")


def test_rewards_that_the_game_cannot_define_are_refused():
    with pytest.raises(EnvError, match="reward=sparse"):
        payments("dense", "custom", [facts(None)])
    with pytest.raises(EnvError, match="reward=sparse"):
        payments("dense", "tw-simple", [facts(max_score=0)])


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("w2-o3-q4", "custom"),
        ("custom-file", "custom"),
        ("tw-simple-brief", "tw-simple"),
        ("tw-simple-file", "tw-simple"),
        ("cooking", "cooking"),
        ("cooking-file", "cooking"),
    ],
)
def test_kind_of_a_type(name, kind):
    assert game_kind("textworld", name) == kind


class Scripted:
    """A TextEnv that hands out its steps one after the other."""

    deterministic = True

    def __init__(self, steps: list[Step]) -> None:
        self.steps = list(steps)

    def reset(self, task: Task) -> Step:
        return self.steps.pop(0)

    def step(self, action: str) -> Step:
        return self.steps.pop(0)

    def close(self) -> None:
        pass


def walk(steps: list[Step], **options) -> list[Step]:
    env = RewardedEnv(Scripted(steps), options.pop("reward", "sparse"), **options)
    task = Task("textworld", "g", 0, "", "", options.pop("kind", "custom"), 4, 1.0, 1)
    return [env.reset(task), *(env.step("") for _ in steps[1:])]


def test_potentials_are_facts_of_the_state_and_no_reward():
    steps = [facts(4), facts(3), facts(None), facts(5), facts(0, won=True)]
    walked = walk(steps, shaping=2.0)
    assert [step.potential for step in walked] == pytest.approx([-2.0, -1.5, -2.0, -2.5, 0.0])
    assert [step.reward for step in walked] == [0.0, 0.0, 0.0, 0.0, 1.0]
    assert walk([facts(4), facts(3)])[1].potential is None


@pytest.mark.parametrize("kind", ["custom", "tw-simple"])
def test_wins_only_lets_failing_pay_more_than_winning(kind):
    """What the paper's released code does (faults.md, the shaped total without success)."""
    failing = [facts(4), facts(2, score=3), facts(1, score=4)]
    winning = [*failing, facts(0, score=5, won=True)]
    fault = {"reward": "dense", "compat": ("wins_only",)}
    totals = [sum(step.reward for step in walk(steps, **fault)) for steps in (failing, winning)]
    assert totals[0] > totals[1] == pytest.approx(1.0)
    right = [sum(step.reward for step in walk(s, reward="dense")) for s in (failing, winning)]
    assert right[0] < right[1] == pytest.approx(1.0)


def test_done_is_won_takes_a_lost_game_for_a_win():
    lost = [facts(4), facts(None, lost=True)]
    step = walk(lost, compat=("done_is_won",))[1]
    assert (step.won, step.lost, step.reward) == (True, False, 1.0)
    assert walk([facts(4), facts(None, lost=True)])[1].reward == 0.0
