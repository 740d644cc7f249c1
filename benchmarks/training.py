"""Training against a bare forward and backward pass over the same tokens.

    OMP_NUM_THREADS=1 python -m benchmarks.training

`make_rows` plays the rows; other comparisons take the same ones. "Tokens" are those of the rows,
however many of them are computed: a side that computes common prompts once has more of them.
"""

from __future__ import annotations

import copy
import multiprocessing
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import torch
from hydra import compose, initialize_config_dir
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

import training.pack
from algorithms import Algorithm, make_algorithm
from benchmarks.pairs import Side, compare
from envs.suites import make_suites
from policies.load import load_policy
from policies.policy import Policy
from rollouts.player import Player
from rollouts.types import Group, Row
from training.credit import assign
from training.step import Learner

RECIPES = Path(__file__).resolve().parents[1] / "recipes"
NEVER = 2**40  # tokens in common that no rows have


@dataclass
class Played:
    """What one iteration of a run has to train on: `groups` that `policy` played for `config`."""

    config: Any
    policy: Policy
    algorithm: Algorithm
    groups: list[Group]

    @property
    def rows(self) -> list[Row]:
        """Every row of every living episode, members of a group in a line."""
        return [row for group in self.groups for e in group.alive for row in e.rows]

    @property
    def tokens(self) -> int:
        return sum(len(row.ids) for row in self.rows)


def make_rows(overrides: Sequence[str] = ()) -> Played:
    """Play the first iteration of the run that `overrides` describe, the default cell without any.

    The policy is fresh: the log-probabilities in the rows are its own. The same overrides give
    the same rows on the same machine.
    """
    with initialize_config_dir(str(RECIPES), version_base="1.3"):
        config = compose("config", list(overrides))
    policy, algorithm = _fresh(config)
    tasks = make_suites(config).get("train").draw(config.seed, 0, config.train.tasks)
    with Player(config, policy, algorithm.min_group) as player:
        return Played(config, policy, algorithm, player.play(tasks, 0))


def _fresh(config: Any) -> tuple[Policy, Algorithm]:
    torch.set_num_threads(config.threads)
    algorithm = make_algorithm(config.algo)
    reference = algorithm.needs_reference or algorithm.kl_in_reward
    policy = load_policy(config.policy, algorithm.needs_critic, reference, config.seed)
    return policy, algorithm


def an_update(played: Played, minibatch: str, least: int) -> Side:
    """A side: credit and an update from fresh weights, all that a real one does.

    `least` as `training.pack.LEAST`: from how many tokens on common beginnings are shared.
    """
    config = copy.deepcopy(played.config)
    config.optim.minibatch = minibatch
    modules = played.policy.modules()
    start = [copy.deepcopy(module.state_dict()) for module in modules]

    def side() -> float:
        for module, weights in zip(modules, start, strict=True):
            module.load_state_dict(weights)
        with _sharing_from(least):
            batch, _ = assign(played.algorithm, played.policy, played.groups, config)
            Learner(played.policy, played.algorithm, config).update(batch, 0)
        return config.algo.epochs * played.tokens

    return side


@contextmanager
def _sharing_from(least: int) -> Iterator[None]:
    usual = training.pack.LEAST
    training.pack.LEAST = least
    try:
        yield
    finally:
        training.pack.LEAST = usual


def a_bare_pass(played: Played) -> Side:
    """A side: forward and backward of the mean log-probability of the action tokens, in packs of
    `optim.micro_tokens`; torch's attention row by row, and nothing else that training needs."""
    policy, packs = played.policy, list(_packs(played.rows, played.config.optim.micro_tokens))

    def side() -> float:
        for rows in packs:
            ids, action = (
                torch.cat([getattr(row, name) for row in rows]) for name in ("ids", "action")
            )
            sizes = [len(row.ids) for row in rows]
            positions = torch.cat([torch.arange(size) for size in sizes])
            states = policy.packed_hidden(ids, positions, _row_by_row(sizes))
            at = action.nonzero()[:, 0]
            logp = policy.logits(states[at - 1]).log_softmax(-1)
            (-logp.gather(-1, ids[at, None]).mean()).backward()
        policy.model.zero_grad()
        return played.tokens

    return side


def _packs(rows: Sequence[Row], budget: int) -> Iterator[list[Row]]:
    taken: list[Row] = []
    for row in rows:
        if taken and sum(len(one.ids) for one in taken) + len(row.ids) > budget:
            yield taken
            taken = []
        taken.append(row)
    yield taken


def _row_by_row(sizes: list[int]) -> Any:
    def attend(layer: int, query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
        parts = zip(*(x.split(sizes, 2) for x in (query, key, value)), strict=True)
        out = [scaled_dot_product_attention(*qkv, is_causal=True, scale=scale) for qkv in parts]
        return torch.cat(out, 2).transpose(1, 2)

    return attend


def peak_mib(config: Any, groups: list[Group]) -> int:
    """How far an update raises the memory of a process of its own, in MiB."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(_grown, (config, groups))


def _grown(config: Any, groups: list[Group]) -> int:
    policy, algorithm = _fresh(config)
    batch, _ = assign(algorithm, policy, groups, config)
    learner = Learner(policy, algorithm, config)
    process, over = psutil.Process(), threading.Event()
    seen = [process.memory_info().rss]

    def watch() -> None:
        while not over.wait(0.002):
            seen.append(process.memory_info().rss)

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    learner.update(batch, 0)
    over.set()
    watcher.join()
    return round((max(seen) - seen[0]) / 2**20)


def main() -> None:
    """The two comparisons of this file; their numbers go to benchmarks/results."""
    played = make_rows(["algo.epochs=1"])
    again = copy.deepcopy(played)
    again.config.policy.checkpointing = True
    again.policy.recompute_activations()
    both = {"activations kept": played, "activations recomputed": again}
    usual = training.pack.LEAST
    sides = {
        "bare pass": a_bare_pass(played),
        "update, nothing shared": an_update(played, "episodes", NEVER),
        "update": an_update(played, "episodes", usual),
        "update, whole groups": an_update(played, "groups", usual),
        "update, whole groups, nothing shared": an_update(played, "groups", NEVER),
    }
    about = {"rows": len(played.rows), "tokens": played.tokens, "overrides": ["algo.epochs=1"]}
    kept = {name: an_update(one, "episodes", usual) for name, one in both.items()}
    compare("training", sides, "tokens", about=about)

    memory = {name: peak_mib(one.config, one.groups) for name, one in both.items()}
    print(f"memory that an update adds, MiB: {memory}")
    compare("training-checkpointing", kept, "tokens", about=about | {"peak_mib": memory})


if __name__ == "__main__":
    main()
