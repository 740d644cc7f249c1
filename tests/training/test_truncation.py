"""What happens at the end of an episode that ran out of turns, and potentials on their way."""

import pytest
import torch

from algorithms import make_algorithm
from envs.base import Step, Task
from tests.fakes import three_turns
from tests.training.toy import config_for, played, policy_for
from training.batch import read_final_values
from training.credit import assign


def endless(task: Task, turn: int, action: str) -> Step:
    """Never ends by itself and pays nothing; the first task is won in its second turn."""
    step = three_turns(task, turn, action)
    step.reward, step.won, step.terminated = 0.0, False, False
    if turn == 2 and task.id == "t0":
        step.reward, step.won, step.terminated = 1.0, True, True
    return step


def shaped(task: Task, turn: int, action: str) -> Step:
    step = endless(task, turn, action)
    step.potential = -1.0 + 0.25 * turn
    return step


def credited(truncation: str, script=endless, **changes):
    config = config_for("ppo", algo__group_size=2, algo__truncation=truncation, **changes)
    policy = policy_for(config)
    torch.nn.init.normal_(policy.critic.head.out.weight, std=0.5)
    groups = played(config, policy, script=script)
    batch, _ = assign(make_algorithm(config.algo), policy, groups, config)
    return policy, groups, batch


@pytest.mark.parametrize("kind", ["turn", "token"])
@pytest.mark.parametrize("critic", ["shared", "separate"])
def test_only_an_episode_out_of_turns_is_bootstrapped(kind, critic):
    changes = {"algo__gamma": 0.9, "algo__lam": 1.0, "algo__advantage_granularity": kind}
    policy, groups, batch = credited("bootstrap", policy__critic=critic, **changes)
    won, cut = groups[0].episodes[0], groups[1].episodes[0]
    assert won.ended == "won" and won.unanswered is None
    assert cut.ended == "turn_limit" and cut.unanswered is not None
    assert cut.unanswered[: len(cut.rows[-1].ids)] == cut.rows[-1].ids.tolist()
    assert cut.final_observation in policy.tokenizer.decode(cut.unanswered)

    [alone] = read_final_values(policy, [cut.unanswered], 10_000)
    among = read_final_values(policy, [won.rows[0].ids.tolist(), cut.unanswered], 1)
    assert among[1] == pytest.approx(alone, abs=1e-5)

    assert batch.returns is not None
    ends = torch.tensor([sum(len(t.ids) for t in e.turns) for e in batch.episodes]).cumsum(0) - 1
    of_won, of_cut = batch.returns[ends[0]].item(), batch.returns[ends[2]].item()
    assert of_won == pytest.approx(1.0, abs=1e-5)
    assert of_cut == pytest.approx(0.9 * alone, abs=1e-5)


def test_terminal_truncation_reads_and_credits_nothing_after_the_end():
    _, groups, batch = credited("terminal", algo__lam=1.0)
    assert all(e.unanswered is None for group in groups for e in group.episodes)
    assert batch.returns is not None
    assert batch.returns[-1].item() == pytest.approx(0.0, abs=1e-6)


def test_an_observation_beyond_the_context_is_not_bootstrapped():
    policy, groups, _ = credited("bootstrap")
    longest = max(len(e.unanswered or []) for e in groups[1].episodes)
    tight = config_for("ppo", algo__group_size=2, algo__truncation="bootstrap")
    tight.policy.context = longest - 1
    again = played(tight, policy, script=endless)
    assert any(e.unanswered is None and e.ended == "turn_limit" for e in again[1].episodes)


def test_potentials_reach_credit_and_telescope():
    _, groups, batch = credited("terminal", script=shaped, algo__lam=1.0)
    assert batch.returns is not None
    # An end has no potential: what the last turn adds is 0 - Phi(s_2).
    assert batch.returns[-1].item() == pytest.approx(0.5, abs=1e-5)
    cut = groups[1].episodes[0]
    assert cut.potentials is not None
    assert cut.potentials.tolist() == pytest.approx([-1.0, -0.75, -0.5, -0.25])
    assert cut.rewards.tolist() == [0.0, 0.0, 0.0]  # shaping is not what was paid (rule 2)
