"""Gradients do not see batching, rule 4 is enforced, broken numbers never reach a weight."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from algorithms import make_algorithm
from rollouts.types import Row
from runs.errors import InvariantError, TrainingError
from runs.rng import generator
from tests.training.toy import config_for, played, policy_for
from training.batch import lay_out, micro_batches, read_values
from training.credit import assign
from training.pack import pack
from training.step import Learner, minibatches

ALGOS = ["ppo", "grpo", "rloo"]


def batch_of(config, policy, groups):
    return assign(make_algorithm(config.algo), policy, groups, config)[0]


def gradients(config, policy, batch):
    """Gradients of the one step of an update; weights are put back."""
    before = [{k: v.clone() for k, v in module.state_dict().items()} for module in policy.modules()]
    learner = Learner(policy, make_algorithm(config.algo), config)
    learner.update(batch, 0)
    found = [
        p.grad.clone()
        for module in policy.modules()
        for p in module.parameters()
        if p.grad is not None
    ]
    for module, weights in zip(policy.modules(), before, strict=True):
        module.load_state_dict(weights)
    return found


def assert_same(ours, theirs):
    assert len(ours) == len(theirs)
    assert max(float(g.abs().max()) for g in ours) > 1e-4
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, atol=2e-6, rtol=1e-4)


def cut_by_turn(row: Row) -> list[Row]:
    """The same tokens as a row a turn, each with all that came before it."""
    rows = []
    for turn in row.turn[row.action].unique().tolist():
        here = row.action & (row.turn == turn)
        end = int(here.nonzero()[-1]) + 1
        rows.append(
            Row(
                row.ids[:end],
                here[:end],
                torch.where(here, row.turn, -1)[:end],
                torch.where(here, row.logp, 0.0)[:end],
                row.episode,
                row.group,
                row.member,
                row.version,
            )
        )
    return rows


@pytest.mark.parametrize("algo", ALGOS)
@pytest.mark.parametrize("kind", ["llama", "gpt2"])
def test_gradients_depend_neither_on_micro_batches_nor_on_row_order_nor_on_cuts(algo, kind):
    config = config_for(algo, optim__grad_clip=1e9, algo__kl_coef=0.1, algo__entropy_coef=0.01)
    policy = policy_for(config, kind)
    groups = played(config, policy)
    whole = gradients(config, policy, batch_of(config, policy, groups))

    config.optim.micro_tokens = 1
    assert_same(gradients(config, policy, batch_of(config, policy, groups)), whole)
    config.optim.micro_tokens = 500
    assert_same(gradients(config, policy, batch_of(config, policy, groups)), whole)

    for group in groups:
        for episode in group.episodes:
            episode.rows = [r for row in episode.rows for r in reversed(cut_by_turn(row))]
    assert all(len(e.rows) == 3 for g in groups for e in g.episodes)
    assert_same(gradients(config, policy, batch_of(config, policy, groups)), whole)

    batch = batch_of(config, policy, groups)
    batch.rows.reverse()
    assert_same(gradients(config, policy, batch), whole)


@pytest.mark.parametrize("algo", ["grpo", "rloo"])
def test_rows_without_an_advantage_are_skipped_and_change_no_gradient(algo, monkeypatch):
    config = config_for(algo, optim__grad_clip=1e9)
    policy = policy_for(config)
    groups = played(config, policy)
    for episode in groups[0].episodes:
        for turn in episode.turns:
            turn.reward = 0.0
        episode.paid = 0.0
    for number, episode in enumerate(groups[1].episodes):
        episode.turns[0].reward += number
        episode.paid += number
    batch = batch_of(config, policy, groups)
    lean = gradients(config, policy, batch)
    learner = Learner(policy, make_algorithm(config.algo), config)
    taught = learner.update(batch, 0)
    tokens = sum(len(turn.ids) for e in groups[1].episodes for turn in e.turns)
    assert taught["update"]["tokens_trained"] == tokens
    assert taught["health"]["groups_without_variance"] == 0.5
    assert taught["health"]["ratio_mean"] == pytest.approx(1.0, abs=1e-4)

    policy = policy_for(config)
    monkeypatch.setattr(Learner, "_teaches", lambda self, batch, row: True)
    assert_same(gradients(config, policy, batch), lean)


def test_a_batch_in_which_nothing_teaches_takes_no_step():
    config = config_for("rloo")
    policy = policy_for(config)
    groups = played(config, policy)
    for episode in (e for g in groups for e in g.episodes):
        for turn in episode.turns:
            turn.reward = 0.0
        episode.paid = 0.0
    before = [p.clone() for p in policy.model.parameters()]
    update = Learner(policy, make_algorithm(config.algo), config).update(
        batch_of(config, policy, groups), 0
    )
    assert update["update"]["gradient_steps"] == 0
    assert all(torch.equal(a, b) for a, b in zip(before, policy.model.parameters(), strict=True))


@pytest.mark.parametrize("constrain", [False, True])
@pytest.mark.parametrize("kind", ["llama", "gpt2"])
def test_recomputed_log_probabilities_are_the_behaviour_ones(kind, constrain):
    config = config_for("ppo", env__constrain=constrain)
    policy = policy_for(config, kind)
    groups = played(config, policy, tasks=3)
    update = Learner(policy, make_algorithm(config.algo), config).update(
        batch_of(config, policy, groups), 0
    )
    assert len({len(row.ids) for g in groups for e in g.episodes for row in e.rows}) > 2
    assert update["health"]["logp_error_max"] < 2e-5
    assert update["health"]["ratio_max"] == pytest.approx(1.0, abs=1e-4)
    assert update["health"]["entropy"] > 0
    assert math.isfinite(update["health"]["grad_norm"])


def test_another_temperature_or_other_weights_break_rule_four_before_a_step():
    config = config_for("rloo")
    policy = policy_for(config)
    batch = batch_of(config, policy, played(config, policy))
    before = [p.clone() for p in policy.model.parameters()]
    config.policy.temperature = 1.0
    with pytest.raises(InvariantError, match="behaviour"):
        Learner(policy, make_algorithm(config.algo), config).update(batch, 3)
    assert all(torch.equal(a, b) for a, b in zip(before, policy.model.parameters(), strict=True))
    config.policy.temperature = 0.7
    with torch.no_grad():
        policy.model.get_input_embeddings().weight.mul_(1.05)
    with pytest.raises(InvariantError, match="behaviour"):
        Learner(policy, make_algorithm(config.algo), config).update(batch, 3)


@pytest.mark.parametrize("broken", ["loss", "gradient"])
def test_a_number_that_is_not_finite_names_the_iteration_and_touches_nothing(broken):
    config = config_for("ppo")
    policy = policy_for(config)
    batch = batch_of(config, policy, played(config, policy))
    if broken == "loss":
        batch.advantages[3] = math.nan
    else:
        weight = policy.model.get_input_embeddings().weight
        weight.register_hook(lambda grad: grad * math.inf)
    before = [p.clone() for module in policy.modules() for p in module.parameters()]
    with pytest.raises(TrainingError, match=f"iteration 7.*{broken} is not finite"):
        Learner(policy, make_algorithm(config.algo), config).update(batch, 7)
    after = [p for module in policy.modules() for p in module.parameters()]
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))


@pytest.mark.parametrize("kind", ["llama", "gpt2"])
def test_values_of_the_engine_are_those_of_a_separate_pass(kind):
    config = config_for("ppo")
    policy = policy_for(config, kind)
    with torch.no_grad():
        policy.critic.head.out.weight.normal_(generator=torch.Generator().manual_seed(1))
    groups = played(config, policy)
    batch = batch_of(config, policy, groups)
    rows = [row for of_episode in batch.rows for row in of_episode]
    again = read_values(policy, rows, 300, len(batch.logp))
    torch.testing.assert_close(batch.values, again, atol=1e-5, rtol=1e-4)
    for turn in (turn for e in batch.episodes for turn in e.turns):
        turn.values = None
    alone = batch_of(config, policy, groups)
    torch.testing.assert_close(alone.values, batch.values, atol=1e-5, rtol=1e-4)
    assert alone.values.std() > 0.01


def test_a_separate_critic_does_not_move_the_actor():
    config = config_for("ppo", policy__critic="separate")
    policy = policy_for(config)
    groups = played(config, policy)
    batch = batch_of(config, policy, groups)
    actor = len(list(policy.model.parameters()))
    calm = gradients(config, policy, batch)[:actor]
    batch.returns = batch.returns * 1e4
    assert_same(gradients(config, policy, batch)[:actor], calm)


def test_only_matrices_decay():
    config = config_for("ppo", optim__weight_decay=0.1, optim__critic_lr=5e-4)
    groups = Learner(policy_for(config), make_algorithm(config.algo), config).optimizer.param_groups
    for group in groups:
        assert all((p.ndim >= 2) == (group["weight_decay"] == 0.1) for p in group["params"])
    assert {group["lr"] for group in groups} == {3e-3, 5e-4}


def test_learning_rates_rise_over_the_warm_up_and_then_stay():
    config = config_for("ppo", optim__warmup=4, optim__critic_lr=1e-3, algo__epochs=6)
    policy = policy_for(config)
    learner = Learner(policy, make_algorithm(config.algo), config)
    seen, step = [], learner.optimizer.step

    def recording():
        seen.append(tuple(group["lr"] for group in learner.optimizer.param_groups))
        step()

    learner.optimizer.step = recording
    learner.update(batch_of(config, policy, played(config, policy)), 0)
    actor, critic = [rates[0] for rates in seen], [rates[-1] for rates in seen]
    assert actor == pytest.approx([3e-3 * share for share in (0.25, 0.5, 0.75, 1, 1, 1)])
    assert critic == pytest.approx([1e-3 * share for share in (0.25, 0.5, 0.75, 1, 1, 1)])


def test_learning_rates_fall_in_a_line_towards_their_final_share():
    config = config_for("ppo", optim__final_share=0.2, train__iterations=4)
    policy = policy_for(config)
    learner = Learner(policy, make_algorithm(config.algo), config)
    seen = []
    for iteration in range(4):
        learner.update(batch_of(config, policy, played(config, policy)), iteration)
        seen.append(learner.optimizer.param_groups[0]["lr"])
    assert seen == pytest.approx([3e-3 * share for share in (1.0, 0.8, 0.6, 0.4)])


@given(count=st.integers(1, 40), parts=st.integers(1, 9), seed=st.integers(0, 99))
def test_minibatches_hold_every_episode_once(count, parts, seed):
    units = [[place] for place in range(count)]
    cut = list(minibatches(units, parts, generator(seed, "shuffle", 0, 0)))
    assert sorted(place for part in cut for place in part) == list(range(count))
    sizes = [len(part) for part in cut]
    assert len(cut) == min(count, parts)
    assert max(sizes) - min(sizes) <= 1
    assert cut == list(minibatches(units, parts, generator(seed, "shuffle", 0, 0)))


@pytest.mark.parametrize("kept", ["episodes", "groups"])
def test_groups_are_kept_whole_in_a_minibatch_where_that_is_asked_for(kept, monkeypatch):
    config = config_for("rloo", optim__minibatch=kept, algo__minibatches=2, algo__group_size=4)
    policy = policy_for(config)
    batch = batch_of(config, policy, played(config, policy, tasks=4))
    learner = Learner(policy, make_algorithm(config.algo), config)
    monkeypatch.setattr(Learner, "_teaches", lambda self, batch, row: True)
    steps, descend = [], learner.descend
    monkeypatch.setattr(
        learner, "descend", lambda rows, *rest: steps.append(rows) or descend(rows, *rest)
    )
    learner.update(batch, 0)
    assert sorted(row.episode for rows in steps for row in rows) == list(range(16))
    assert [len(rows) for rows in steps] == [8, 8]
    parts = [{batch.groups[row.episode] for row in rows} for rows in steps]
    assert (not parts[0] & parts[1]) == (kept == "groups")


@pytest.mark.parametrize("budget", [1, 200, 10_000])
def test_micro_batches_keep_the_budget_and_every_row(budget):
    config = config_for("rloo")
    policy = policy_for(config)
    groups = played(config, policy, tasks=3)
    rows = [r for of in lay_out([e for g in groups for e in g.episodes]) for r in of]
    cut = micro_batches(rows, budget)
    assert sorted(id(r) for micro in cut for r in micro) == sorted(id(r) for r in rows)
    computed = [len(pack([r.read for r in micro]).ids) for micro in cut]
    for micro, tokens in zip(cut, computed, strict=True):
        assert len(micro) == 1 or tokens <= budget
    assert budget < 10_000 or computed[0] < sum(r.length for r in rows)
