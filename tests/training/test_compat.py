"""Known faults can be reproduced, are said aloud, and switch off one check each."""

import json
from pathlib import Path

import pytest
import torch
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf

from algorithms import EpisodeCredit, make_algorithm
from runs.config import FAULTS, check_values
from runs.errors import ConfigError, InvariantError
from tests.training.toy import config_for, played, policy_for
from training.batch import score
from training.credit import assign
from training.step import Learner

LATE = EpisodeCredit(torch.tensor([0.0, 0.0, 1.0]), [2, 1, 2], values=torch.zeros(5))


def advantages(name: str, episodes: list[EpisodeCredit], *faults: str, **changes) -> list[list]:
    config = config_for(name, **{f"algo__{key}": value for key, value in changes.items()}).algo
    return [c.advantages.tolist() for c in make_algorithm(config, faults).credit([episodes])[0]]


@pytest.mark.parametrize(
    ("name", "granularity", "whole"),
    [("ppo", "turn", 0.95**2), ("ppo", "token", 0.95**4), ("reinforce", "turn", 0.81)],
)
def test_cut_returns_leave_early_turns_without_credit(name, granularity, whole):
    [right] = advantages(name, [LATE], advantage_granularity=granularity)
    assert right[0] == pytest.approx(whole)
    [wrong] = advantages(name, [LATE], "cut_returns", advantage_granularity=granularity)
    assert wrong[:3] == [0.0, 0.0, 0.0]
    assert wrong[-1] == pytest.approx(1.0)


def test_cut_returns_leave_early_turns_of_a_group_without_credit():
    other = EpisodeCredit(torch.zeros(3), [1, 1, 1])
    right, _ = advantages("rloo", [LATE, other])
    assert right == pytest.approx([1.0] * 5)
    wrong, _ = advantages("rloo", [LATE, other], "cut_returns")
    assert wrong == pytest.approx([0.0, 0.0, 0.0, 1.0, 1.0])


@pytest.mark.parametrize("name", ["rloo", "grpo"])
def test_a_group_of_one_gives_its_raw_return(name):
    [wrong] = advantages(name, [LATE], "group_of_one", group_size=1)
    assert wrong == [1.0] * 5


def test_a_trainer_that_sees_little_of_the_prompt_is_told_apart_by_rule_4(monkeypatch):
    config = config_for("rloo")
    policy = policy_for(config)
    groups = played(config, policy)
    blind = Learner(policy, make_algorithm(config.algo, ["prompt_attention"]), config)
    batch, _ = assign(blind.algorithm, policy, groups, config)
    error = blind.update(batch, 0)["health"]["logp_error_max"]
    assert error > 1e-2

    policy = policy_for(config)
    right = Learner(policy, make_algorithm(config.algo), config)
    batch, _ = assign(right.algorithm, policy, played(config, policy), config)
    monkeypatch.setattr("training.step.score", lambda p, r, t, w, _: score(p, r, t, w, blind=True))
    with pytest.raises(InvariantError, match="recomputed log-probability"):
        right.update(batch, 0)


@pytest.fixture
def full_config():
    with initialize_config_dir(str(Path(__file__).parents[2] / "recipes"), version_base="1.3"):
        return OmegaConf.to_container(compose("config", ["algo=grpo"]), resolve=True)


@pytest.mark.parametrize(
    ("fault", "changes", "key"),
    [
        ("wins_only", {"reward": {"name": "sparse", "shaping": 0.0}}, "reward=sparse"),
        ("group_of_one", {}, "algo.group_size=1"),
        ("cut_returns", {"granularity": "trajectory"}, "algo.advantage_granularity"),
    ],
)
def test_a_switch_that_changes_nothing_is_refused(full_config, fault, changes, key):
    full_config["compat"][fault] = True
    full_config["reward"] = changes.get("reward", full_config["reward"])
    if "granularity" in changes:
        full_config["algo"]["advantage_granularity"] = changes["granularity"]
    with pytest.raises(ConfigError, match=key):
        check_values(full_config)


def test_every_fault_is_a_key_and_says_what_it_switches_off(full_config):
    assert set(full_config["compat"]) == set(FAULTS)
    assert not any(full_config["compat"].values())
    assert json.dumps(FAULTS).count("rule") == len(FAULTS)


@pytest.mark.parametrize(("parts", "budget"), [(2, 100_000), (4, 100_000), (2, 600)])
def test_the_reference_is_hidden_the_same_tokens(parts, budget):
    """On fresh weights policy and reference are one, whatever the cut: their KL is 0."""
    config = config_for(
        "grpo",
        algo__kl_coef=0.1,
        algo__kl_in="loss",
        algo__minibatches=parts,
        algo__group_size=6,
        optim__micro_tokens=budget,
        optim__lr=1e-12,
    )
    config.compat = {"prompt_attention": True}
    policy = policy_for(config)
    algorithm = make_algorithm(config.algo, ["prompt_attention"])
    batch, _ = assign(algorithm, policy, played(config, policy), config)
    health = Learner(policy, algorithm, config).update(batch, 0)["health"]
    assert health["kl"] == pytest.approx(0, abs=1e-6)
