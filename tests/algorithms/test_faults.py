"""Faults that users of systems like this one met, each shown to be absent here by its kind.

Numbers are the rows of the collected faults, tokens to ratios; a name without a file is below.

| row | test |
|---|---|
| 1 | rollouts/test_player.py: test_sampled_ids_are_trained_bit_for_bit |
| 2, 3 | policies/test_chat.py: test_growing_equals_rendering_at_once |
| 4 | rollouts/test_player.py: test_a_template_that_strips_earlier_answers_starts_a_new_row |
| 5 | training/test_fault_kinds.py: test_what_a_template_puts_first_is_there_once |
| 6, 7 | rollouts/test_rows.py: test_rule_1_is_asserted |
| 8 | training/test_fault_kinds.py: test_an_observation_is_read_and_never_learned |
| 9, 51 | rollouts/test_torch_engine.py: test_padded_rows_equal_unpadded_ones |
| 10 | rollouts/test_player.py: test_the_stop_token_is_an_action_and_a_missing_one_is_not |
| 11 | policies/test_chat.py: test_no_end_token_twice_in_a_row |
| 12 | training/test_sft.py: test_the_loss_mask_is_the_commands_and_their_end_of_turn |
| 13 | training/test_sft.py: test_a_template_without_an_end_of_turn_is_refused |
| 15 | test_a_token_without_weight_enters_no_mean |
| 16 | rollouts/test_torch_engine.py: test_batches_of_1_4_and_7_agree |
| 17 | training/test_credit.py: test_a_policy_that_says_one_token_only_stops_the_run |
| 18 | test_credit_crosses_the_observation |
| 20 | test_there_is_no_room_for_the_value_of_an_observation |
| 21 | training/test_credit.py: test_rewards_that_were_not_paid_stop_the_run |
| 22 | test_nothing_changes_where_a_reward_is_nothing_or_next_to_it |
| 23, 24 | algorithms/test_rules.py: test_how_a_turn_is_cut_into_tokens_changes_no_turns_credit |
| 26 | test_an_early_reward_counts |
| 27 | training/test_fault_kinds.py: test_kl_of_observations_is_paid_by_nobody |
| 28 | rollouts/test_player.py: test_two_tasks_with_one_prompt_are_two_groups |
| 29 | rollouts/test_rows.py: test_rule_3_is_asserted |
| 31 | algorithms/test_rules.py: test_ten_times_the_rewards_of_a_group_leave_the_others_alone |
| 32 | envs/test_textworld.py: test_no_prefix_of_a_walkthrough_pays_like_winning |
| 33 | envs/test_textworld.py: test_walking_away_and_back_pays_nothing |
| 34 | algorithms/test_rules.py: test_a_single_member_is_refused_by_every_group_estimator |
| 35 | test_no_recipe_compares_an_episode_with_itself |
| 37 | test_a_million_on_every_return_gives_no_root_of_a_negative_number |
| 39 | algorithms/test_losses.py: test_tokens_of_a_group_without_variance_only_share_the_mean |
| 41 | rollouts/test_player.py: test_an_errored_episode_shrinks_its_group_and_is_no_zero |
| 42 | algorithms/test_rules.py: test_a_cut_episode_is_continued_and_an_end_is_not |
| 43 | training/test_truncation.py: test_only_an_episode_out_of_turns_is_bootstrapped |
| 44 | rollouts/test_player.py: test_context_ends_before_generating_and_never_replaces_a_true_end |
| 45 | training/test_fault_kinds.py: test_tokens_of_a_turn_and_of_an_episode_are_two_bounds |
| 46 | rollouts/test_player.py: test_how_an_episode_ends |
| 48 | rollouts/test_rows.py: test_rule_1_covers_lost_repeated_and_infinite_tokens |
| 49 | training/test_fault_kinds.py: test_an_end_of_turn_that_is_also_padding_is_learned |
| 50 | policies/test_load.py: test_every_stop_token_counts |
| 54 | training/test_step.py: test_recomputed_log_probabilities_are_the_behaviour_ones |
| 55 | test_a_generator_that_drifts_is_corrected_within_the_cap |
| 56 | algorithms/test_rules.py: test_gradients_of_every_loss_ignore_micro_batches_and_order |
"""

import ast
import re
from pathlib import Path

import pytest
import torch

from algorithms import AlgorithmError, EpisodeCredit, algorithm_names, make_algorithm
from algorithms.losses import Surrogate, policy_loss
from tests.algorithms.references import ARMS, GROUP_ARMS, Played, recipe

TESTS = Path(__file__).parents[1]


def advantages(name, granularity, *plays, **changes):
    config = recipe(name, granularity, **changes)
    [group] = make_algorithm(config).credit([[play.credit() for play in plays]])
    return [credit.advantages for credit in group]


def test_every_row_of_the_table_names_a_test_that_exists():
    rows = re.findall(r"^\| [\d, ]+ \| (?:(\S+): )?(test_\w+) \|$", __doc__, re.MULTILINE)
    assert len(rows) == __doc__.count("\n|") - 2
    for file, name in rows:
        tree = ast.parse((TESTS / (file or "algorithms/test_faults.py")).read_text())
        assert name in {n.name for n in tree.body if isinstance(n, ast.FunctionDef)}, name


def test_a_token_without_weight_enters_no_mean():
    """Row 15: what a mask leaves out must not reach the statistics of the ratio."""
    logp, weights = torch.tensor([-1.0, -9.0]), torch.tensor([1.0, 0.0])
    _, stats = policy_loss(logp, torch.tensor([-1.0, -1.0]), torch.ones(2), weights, Surrogate())
    assert stats["ratio_mean"] == stats["ratio_square"] == 1.0
    assert stats["clip_fraction"] == stats["approx_kl"] == 0.0


@pytest.mark.parametrize(("name", "granularity"), ARMS)
def test_credit_crosses_the_observation(name, granularity):
    """Row 18: [2 sampled][observation][2 sampled], won at the end, no discount, V = 0: every
    sampled token has the same credit, and it is not nothing."""
    changes = {"gamma": 1.0} if "gamma" in recipe(name) else {}
    changes |= {"lam": 1.0} if name == "ppo" else {}
    won, lost = Played([0.0, 1.0], [2, 2]), Played([0.0, 0.0], [2, 2])
    mine = advantages(name, granularity, won, lost, **changes)[0]
    assert mine[0] > 0
    assert torch.equal(mine, mine[:1].expand(4))
    if (name, granularity) not in GROUP_ARMS:
        assert mine[0] == 1.0


def test_there_is_no_room_for_the_value_of_an_observation():
    """Row 20: an estimator takes a value for each sampled token, so an observation's has no
    place, and its number of tokens cannot be told."""
    with pytest.raises(AlgorithmError, match="values have shape"):
        EpisodeCredit(torch.tensor([0.0, 1.0]), [2, 2], values=torch.tensor([0, 0, 1e6, 0, 0]))


@pytest.mark.parametrize(("name", "granularity"), ARMS)
def test_nothing_changes_where_a_reward_is_nothing_or_next_to_it(name, granularity):
    """Row 22: the end of a turn is not inferred from a reward, so 1e-9 is next to 0."""
    nothing = [Played([0.0, 0.0, 0.0], [2, 1, 3]) for _ in range(3)]
    speck = [Played([1e-9, 0.0, 0.0], [2, 1, 3]), *nothing[1:]]
    for one, two in zip(
        advantages(name, granularity, *nothing),
        advantages(name, granularity, *speck),
        strict=True,
    ):
        assert torch.equal(one, torch.zeros(6).double())
        assert (two - one).abs().max() < 2e-3  # 1e-9 over a deviation of at least 1e-6


@pytest.mark.parametrize(("name", "granularity"), ARMS)
def test_an_early_reward_counts(name, granularity):
    """Row 26: a reward of the first turn alone is credited to the first turn."""
    paid, unpaid = Played([1.0, 0.0], [1, 2]), Played([0.0, 0.0], [1, 2])
    mine, other = advantages(name, granularity, paid, unpaid)
    assert mine[0] > other[0]


def test_no_recipe_compares_an_episode_with_itself():
    """Row 35: no shipped recipe has a group too small for its own baseline."""
    for name in algorithm_names():
        if name in ("none", "sft"):
            continue
        algorithm = make_algorithm(recipe(name))
        assert algorithm.group_size >= algorithm.min_group
        assert algorithm.min_group == (2 if algorithm.needs_group else 1)


@pytest.mark.parametrize(("name", "granularity"), GROUP_ARMS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_million_on_every_return_gives_no_root_of_a_negative_number(name, granularity, dtype):
    """Row 37: equal returns of 1e6 have no variance, and eighths beside 1e6 have theirs."""
    algorithm = make_algorithm(recipe(name, granularity))
    for rewards in ([0.1] * 5, [0.0, 0.125, 0.25, 0.25, 0.0]):
        far = [Played([1e6 + r], [1]).credit(dtype) for r in rewards]
        near = [Played([r], [1]).credit(dtype) for r in rewards]
        [ours], [theirs] = algorithm.credit([far]), algorithm.credit([near])
        for one, two in zip(ours, theirs, strict=True):
            torch.testing.assert_close(one.advantages, two.advantages, atol=1e-6, rtol=0)


@pytest.mark.parametrize("cap", [1.0, 1.02, 2.0])
def test_a_generator_that_drifts_is_corrected_within_the_cap(cap):
    """Row 55: probabilities 5 % off count for their quotient, and for the cap at most."""
    old = torch.tensor([0.5, 0.5]).double().log()
    behaviour = torch.tensor([0.5 * 1.05, 0.5 / 1.05]).double().log()
    slopes = old.clone().requires_grad_()
    half = torch.full((2,), 0.5).double()
    rule = Surrogate(behaviour_cap=cap)
    policy_loss(slopes, old, torch.ones(2), half, rule, None, behaviour)[0].backward()
    expected = torch.tensor([min(1 / 1.05, cap), min(1.05, cap)]).double()
    torch.testing.assert_close(slopes.grad, -0.5 * expected, atol=1e-6, rtol=0)
