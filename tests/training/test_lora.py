"""An adapter is all that moves, its base is the reference, and a checkpoint plays without peft."""

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf

from algorithms import make_algorithm
from policies.load import load_policy
from runs.config import check_values
from runs.errors import ConfigError, PolicyError
from tests.training.slow_path import slow_score
from tests.training.toy import config_for, played, policy_for
from training import checkpoint
from training.batch import score
from training.credit import assign
from training.step import Learner

LORA = SimpleNamespace(rank=2, alpha=8, targets="all-linear")


def adapted(config, kind="llama", lora=LORA):
    """A toy policy with an adapter and what the algorithm needs beside it."""
    policy = policy_for(config, kind)
    policy.critic = policy.reference = None
    policy.add_adapter(lora)
    if config.algo.name == "ppo":
        policy.add_critic(shared=config.policy.critic == "shared")
    if config.algo.get("kl_coef"):
        policy.add_reference()
    return policy


def learned(config, policy, updates=2):
    learner = Learner(policy, make_algorithm(config.algo), config)
    for iteration in range(updates):
        batch, _ = assign(learner.algorithm, policy, played(config, policy), config)
        learner.update(batch, iteration)
    return learner, batch


def everything(policy):
    return {
        f"{place}.{name}": value.clone()
        for place, module in enumerate(policy.modules())
        for name, value in module.state_dict().items()
    }


@pytest.mark.parametrize("kind", ["llama", "gpt2"])
@pytest.mark.parametrize("critic", ["shared", "separate"])
def test_only_adapter_and_critic_move(kind, critic):
    config = config_for("ppo", policy__critic=critic)
    policy = adapted(config, kind)
    torch.nn.init.normal_(policy.critic.head.out.weight, std=0.5)
    before = everything(policy)
    learner, _ = learned(config, policy)
    moved = {
        name for name, value in everything(policy).items() if not torch.equal(value, before[name])
    }
    trained = {n for n in before if ".lora_" in n or n.startswith("1.head.")}
    assert moved == trained
    assert any(".lora_" in name for name in moved if name.startswith("1.")) == (
        critic == "separate"
    )
    in_optimizer = sum(p.numel() for g in learner.optimizer.param_groups for p in g["params"])
    assert in_optimizer == sum(before[name].numel() for name in trained)
    if critic == "separate":
        frozen = [p for p in policy.critic.trunk.parameters() if not p.requires_grad]
        mine = {p.data_ptr() for p in policy.model.parameters()}
        assert len(frozen) > 5 and all(p.data_ptr() in mine for p in frozen)


def test_the_reference_is_the_base_without_a_copy():
    config = config_for("grpo", algo__kl_coef=0.1)
    policy, base = adapted(config), policy_for(config_for("grpo"))
    assert policy.reference is None
    _, batch = learned(config, policy, updates=3)
    rows = [row for of_episode in batch.rows for row in of_episode]
    index = torch.cat([row.index for row in rows])
    start = slow_score(base, rows, 0.7).logp
    torch.testing.assert_close(batch.reference[index], start, atol=2e-5, rtol=1e-5)
    assert (score(policy, rows, 0.7).logp - start).abs().max() > 1e-3
    assert any(p.requires_grad for p in policy.model.parameters())


def test_gradients_of_an_adapter_are_those_of_the_slow_path():
    config = config_for("rloo")
    policy = adapted(config)
    _, batch = learned(config, policy)
    rows = [row for of_episode in batch.rows for row in of_episode]
    parameters = [p for p in policy.model.parameters() if p.requires_grad]
    policy.recompute_activations()
    ours = torch.autograd.grad(score(policy, rows, 0.7).logp.square().mean(), parameters)
    slow = torch.autograd.grad(slow_score(policy, rows, 0.7).logp.square().mean(), parameters)
    assert len(parameters) == 2 * 2 * 7
    for a, b in zip(ours, slow, strict=True):
        torch.testing.assert_close(a, b, atol=1e-5 * float(b.abs().max() + 1), rtol=1e-4)


@pytest.mark.parametrize("kind", ["llama", "gpt2"])
def test_a_checkpoint_restores_exactly_and_plays_as_a_plain_model(tmp_path, kind):
    config = config_for("ppo", policy__critic="separate")
    policy = adapted(config, kind)
    learner, batch = learned(config, policy)
    checkpoint._write(tmp_path / "c", learner, 2)
    assert checkpoint.whole(tmp_path / "c")

    again = Learner(adapted(config, kind), make_algorithm(config.algo), config)
    checkpoint.load(tmp_path / "c", again)
    ours, theirs = everything(policy), everything(again.policy)
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    assert again.policy.version == policy.version == 2
    moments, others = (one.optimizer.state_dict()["state"] for one in (learner, again))
    assert moments.keys() == others.keys()
    for index, state in moments.items():
        assert torch.equal(state["exp_avg_sq"], others[index]["exp_avg_sq"])

    settings = SimpleNamespace(
        name="hf", path=str(tmp_path / "c"), critic="shared", temperature=0.7, max_tokens=6,
        context=512, checkpointing=False, lora=SimpleNamespace(rank=0),
    )  # fmt: skip
    plain = load_policy(settings)
    assert not any("lora" in name for name, _ in plain.model.named_parameters())
    rows = [row for of_episode in batch.rows for row in of_episode]
    torch.testing.assert_close(
        score(plain, rows, 0.7).logp, score(policy, rows, 0.7).logp, atol=2e-5, rtol=1e-5
    )


def test_an_adapter_is_drawn_from_the_seed(tmp_path):
    policy_for(config_for("rloo")).save(tmp_path)
    settings = SimpleNamespace(
        name="hf", path=str(tmp_path), critic="shared", temperature=0.7, max_tokens=6, context=512,
        checkpointing=True, lora=LORA,
    )  # fmt: skip
    one, two, other = (load_policy(settings, seed=seed) for seed in (3, 3, 4))
    assert one.adapter is not None
    first, second, third = (
        torch.cat([p.flatten() for n, p in policy.model.named_parameters() if "lora_A" in n])
        for policy in (one, two, other)
    )
    assert torch.equal(first, second) and not torch.equal(first, third)


def test_targets_that_a_model_does_not_have_are_refused():
    lora = SimpleNamespace(rank=2, alpha=8, targets=["nowhere"])
    with pytest.raises(PolicyError, match="policy.lora.targets=.*nowhere"):
        adapted(config_for("rloo"), lora=lora)
    policy = adapted(config_for("rloo"), lora=SimpleNamespace(rank=2, alpha=8, targets=["q_proj"]))
    assert sum("lora_A" in name for name, _ in policy.model.named_parameters()) == 2


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (["policy.lora.rank=-1"], "policy.lora.rank=-1"),
        (["policy.lora.targets=[]"], "policy.lora.targets is empty"),
        (["policy.lora.targets=3"], "policy.lora.targets=3"),
        (["policy.lora.rank=4", "sft.demos=4", "algo.kl_coef=0.1"], "do not go together"),
        (["policy.checkpointing=1"], "policy.checkpointing=1"),
        (["optim.minibatch=rows"], "optim.minibatch=rows"),
        (["optim.minibatch=groups", "algo.minibatches=20"], "the 16 groups"),
    ],
)
def test_what_cannot_be_is_refused_by_key(changes, message):
    recipes = str(Path(__file__).parents[2] / "recipes")
    with initialize_config_dir(recipes, version_base="1.3"):
        config = OmegaConf.to_container(compose("config", ["algo=grpo", *changes]), resolve=True)
    with pytest.raises(ConfigError, match=message):
        check_values(config)
