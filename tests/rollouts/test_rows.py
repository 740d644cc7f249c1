"""Each rule that rows and groups obey, broken once."""

import dataclasses

import pytest
import torch

from rollouts.engine import Sample
from rollouts.rows import RowBuilder, check_groups, check_rewards, check_tokens, rows
from rollouts.seat import Seat
from rollouts.types import Episode, Group, Turn
from runs.errors import InvariantError
from tests.fakes import toy_task


def episode(member=0, version=0):
    """Prompt 1 2, action 3 4, observation 5, action 6."""
    builder = RowBuilder([1, 2])
    builder.act(Sample([3, 4], [-0.5, -0.25], True), turn=0)
    builder.extend([5])
    builder.act(Sample([6], [-1.0], True), turn=1)
    turns = [
        Turn("o", "a", [3, 4], [-0.5, -0.25], reward=0.25),
        Turn("p", "b", [6], [-1.0], reward=0.5),
    ]
    row = builder.row(episode=member, group=0, member=member, version=version)
    return Episode(toy_task("red"), member, turns, "won", rows=[row], paid=0.75)


def test_a_row_by_hand():
    (row,) = episode().rows
    assert row.ids.tolist() == [1, 2, 3, 4, 5, 6]
    assert row.action.tolist() == [False, False, True, True, False, True]
    assert row.turn.tolist() == [-1, -1, 0, 0, -1, 1]
    assert row.logp.tolist() == [0, 0, -0.5, -0.25, 0, -1]
    check_tokens(episode())
    check_rewards(episode())


@pytest.mark.parametrize(
    ("field", "index", "value", "message"),
    [
        ("ids", 3, 9, "differ from the sampled ids"),
        ("action", 3, False, "differ from the sampled ids"),
        ("action", 4, True, "differ from the sampled ids"),
        ("turn", 3, 1, "wrong turn"),
        ("turn", 4, 0, "not sampled"),
        ("logp", 2, 0.0, "behaviour log-probability"),
    ],
)
def test_rule_1_is_asserted(field, index, value, message):
    broken = episode()
    getattr(broken.rows[0], field)[index] = value
    with pytest.raises(InvariantError, match=message):
        check_tokens(broken)


def test_rule_1_covers_lost_repeated_and_infinite_tokens():
    for count in (0, 2):
        broken = episode()
        broken.rows = broken.rows * count
        with pytest.raises(InvariantError, match="sampled ids"):
            check_tokens(broken)
    broken = episode()
    broken.turns[0].logp[0] = float("-inf")
    broken.rows[0].logp[2] = float("-inf")
    with pytest.raises(InvariantError, match="log-probability"):
        check_tokens(broken)


def test_allowed_ids_stand_on_action_tokens():
    broken = episode()
    broken.rows[0].allowed = [[3]]
    with pytest.raises(InvariantError, match="allowed"):
        check_tokens(broken)


def test_rule_2_is_asserted():
    broken = episode()
    broken.turns[1].reward = 0.0
    with pytest.raises(InvariantError, match=r"0\.25.*0\.75"):
        check_rewards(broken)


def group(*episodes):
    return Group(toy_task("red"), 0, list(episodes))


def test_rule_3_is_asserted():
    check_groups([group(episode(0), episode(1))], size=2, smallest=2)
    errored = dataclasses.replace(episode(1), ended="error")
    check_groups([group(episode(0), errored)], size=2, smallest=1)
    other = dataclasses.replace(episode(1), task=toy_task("blue"))
    for broken, message in [
        ([group(episode(0))], "1 living of 1"),
        ([group(episode(0), errored)], "1 living of 2"),
        ([group(episode(0), episode(0))], "same member"),
        ([group(episode(0), other)], "another task"),
        ([group(episode(0), episode(1, version=1))], "more than one policy version"),
        ([group(episode(0), episode(1))] * 2, "share an index"),
    ]:
        with pytest.raises(InvariantError, match=message):
            check_groups(broken, size=2, smallest=2)


def test_rows_leave_errored_episodes_out():
    errored = dataclasses.replace(episode(1), ended="error")
    assert [row.member for row in rows([group(episode(0), errored, episode(2))])] == [0, 2]


def test_an_end_is_never_overwritten():
    seat = Seat(toy_task("red"), 0, 0, ())
    seat.end("won")
    with pytest.raises(InvariantError, match="won ends as context"):
        seat.end("context")


def test_rows_are_what_training_expects():
    (row,) = episode().rows
    assert (row.ids.dtype, row.action.dtype) == (torch.int64, torch.bool)
    assert (row.turn.dtype, row.logp.dtype) == (torch.int64, torch.float32)
