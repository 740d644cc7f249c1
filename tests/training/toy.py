"""What the training tests share: a config, a policy that samples, episodes and groups of them."""

from __future__ import annotations

import string
import zlib
from typing import Any

from omegaconf import OmegaConf

from envs.base import Step, Task
from policies.policy import Policy
from rollouts.player import Player
from rollouts.types import Group
from tests.fakes import FakePool, three_turns, toy_config, toy_policy, toy_task

COMMON = {
    "advantage_granularity": "turn",
    "group_size": 8,
    "clip": 0.2,
    "epochs": 1,
    "minibatches": 1,
    "entropy_coef": 0.0,
    "kl_coef": 0.0,
    "whiten": False,
}
ALGOS = {
    "ppo": COMMON | {"gamma": 1.0, "lam": 0.95, "value_coef": 0.5},
    "grpo": COMMON | {"std_normalise": True},
    "rloo": COMMON,
    "dr_grpo": COMMON | {"std_normalise": False, "normalise": "constant", "constant": 12},
    "dapo": COMMON | {"std_normalise": True, "clip_high": 0.28},
    "gspo": COMMON | {"std_normalise": True, "normalise": "sequence", "ratio": "sequence"},
    "cispo": COMMON | {"std_normalise": True, "surrogate": "cispo", "clip": 1.0},
    "reinforce": COMMON | {"gamma": 0.9, "discount": "turn"},
    "reinforce_pp": COMMON
    | {"gamma": 1.0, "kl_coef": 0.01, "kl_in": "reward", "kl_estimator": "k1", "whiten": True},
    "gigpo": COMMON | {"std_normalise": True, "gamma": 0.95, "step_weight": 1.0},
}


def config_for(algo: str = "ppo", **changes: Any) -> Any:
    """A resolved config for training on a toy; `changes` are paths with `__` for the dot."""
    config = toy_config()
    config.algo = {"name": algo} | ALGOS.get(algo, {})
    config.threads, config.env.timeout = 1, 20
    config.optim = {
        "lr": 3e-3,
        "critic_lr": 3e-3,
        "weight_decay": 0.0,
        "grad_clip": 1.0,
        "warmup": 1,
        "final_share": 1.0,
        "micro_tokens": 2048,
        "minibatch": "episodes",
    }
    config.sft = {"demos": 0, "epochs": 2, "lr": 3e-3, "batch": 2, "mistakes": 0.0}
    config.train = {"iterations": 2, "tasks": 2, "checkpoint_every": 1}
    config.eval = {"every": 1, "suites": ["test"], "samples": 1, "greedy": True, "transcripts": 1}
    for name, value in changes.items():
        OmegaConf.update(config, name.replace("__", "."), value)
    return config


def pays_unequally(task: Task, turn: int, action: str) -> Step:
    """Three turns whose reward depends on the action, so that members of a group differ."""
    step = three_turns(task, turn, action)
    if turn:
        step.reward = zlib.crc32(action.encode()) % 5 / 15
    return step


def policy_for(config: Any, kind: str = "llama") -> Policy:
    """A tiny policy with the critic and reference that the config's algorithm needs."""
    policy = toy_policy(kind, config)
    if config.algo.name == "ppo":
        policy.add_critic(shared=config.policy.critic == "shared")
    if config.algo.get("kl_coef"):
        policy.add_reference()
    return policy


def played(
    config: Any, policy: Policy, tasks: int = 2, iteration: int = 0, script: Any = pays_unequally
) -> list[Group]:
    """Groups that the policy sampled in a scripted environment."""
    with Player(config, policy, pool=FakePool(script)) as player:
        return player.play([toy_task(f"t{number}") for number in range(tasks)], iteration)


def likes_letters(task: Task, turn: int, action: str) -> Step:
    """Two turns; each pays a twelfth for every different lower-case letter it says."""
    step = Step(f"{task.id} turn {turn}", "say letters")
    if turn:
        step.reward = len(set(action) & set(string.ascii_lowercase)) / 12
    step.terminated = step.lost = turn == 2
    return step
