"""Trivet's side of the comparisons: a player whose turns have a fixed number of tokens."""

from __future__ import annotations

import time
from collections.abc import Sequence
from types import TracebackType
from typing import Any

import torch
from hydra import compose, initialize_config_dir

from algorithms import make_algorithm
from benchmarks.pairs import CHECKOUT, tree_cpu_seconds
from benchmarks.peers.serve import Parts, spoken
from envs.suites import make_suites
from policies.chat import ChatForm
from policies.load import load_policy
from policies.policy import Policy, trunk_of
from rollouts.player import Player
from rollouts.types import Episode, Group, Row

FIXED = ("algo=grpo", "reward=sparse")


def configure(overrides: Sequence[str]) -> Any:
    """The config of `run.py` for these overrides, with the checkout's cache of games."""
    paths = [f"paths.cache={CHECKOUT / '.cache'}", f"paths.runs={CHECKOUT / 'outputs'}"]
    with initialize_config_dir(str(CHECKOUT / "recipes"), version_base="1.3"):
        return compose("config", [*paths, *overrides])


class FixedAnswers(ChatForm):
    """Answers that no token ends; what is heard of one stops where its author would have."""

    def text(self, ids: list[int]) -> str:
        return spoken(super().text(ids), str(self.tokenizer.eos_token))


def without_stops(policy: Policy) -> Policy:
    """The policy, with a stop token that cannot occur: turns take all of `policy.max_tokens`."""
    never = [int(policy.model.config.vocab_size)]
    policy.stop_ids = never
    policy.chat = FixedAnswers(policy.tokenizer, "benchmark", never)
    return policy


class Ours:
    """A `Player` on `train.tasks` games, `algo.group_size` episodes each.

    Every call of `play` plays the same games with the same random numbers, so that what is
    compared with it can forward the very same tokens. Environments would know by heart what they
    played the round before, which a run with new games does not: each round begins with workers
    that have just started and know no game. `pool` replaces the games.
    """

    def __init__(self, overrides: Sequence[str], dtype: str = "float32", pool: Any = None) -> None:
        self.config = configure([*FIXED, *overrides])
        torch.set_num_threads(self.config.threads)
        self.policy = without_stops(load_policy(self.config.policy, seed=self.config.seed))
        self.policy.model.to(getattr(torch, dtype))
        self.algorithm = make_algorithm(self.config.algo)
        count = self.config.train.tasks
        suite = make_suites(self.config).get("train")
        self.tasks = suite.draw(self.config.seed, 0, count)
        self.parts = Parts(trunk_of(self.policy.model), count * self.config.algo.group_size)
        self._pool = pool
        self.player = Player(self.config, self.policy, pool=pool)
        self.groups: list[Group] = []
        self.episodes: list[Episode] = []

    def __enter__(self) -> Ours:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.player.__exit__(kind, value, trace)

    def play(self) -> dict[str, Any]:
        """One round; `units` are generated tokens, `read` those of observations, once each, `cpu`
        and `wall` the seconds from the first reset to the end of the last episode."""
        self.parts.clear()
        if self._pool is None:
            self.player.__exit__(None, None, None)
            self.player = Player(self.config, self.policy)
        wall, cpu = time.perf_counter(), tree_cpu_seconds()
        self.groups = self.player.play(self.tasks, 0)
        wall, cpu = time.perf_counter() - wall, tree_cpu_seconds() - cpu
        self.episodes = [episode for group in self.groups for episode in group.episodes]
        health = self.player.health.summary()
        return {
            "units": int(health["tokens_sampled"]),
            "read": sum(int((~row.action).sum()) for row in self.rows),
            "prefilled": int(health["tokens_prefilled"]),
            "turns": int(health["turns"]),
            "longest": max(len(episode.turns) for episode in self.episodes),
            "parts": self.parts.taken(),
            "cpu": cpu,
            "wall": wall,
            "health": health,
        }

    @property
    def rows(self) -> list[Row]:
        """The rows of what was played last; one an episode, for no prefix breaks here."""
        return [row for episode in self.episodes for row in episode.rows]
