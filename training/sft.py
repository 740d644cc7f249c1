"""Imitation of experts: demonstrations become episodes through the same chat form as play.

What is learned is exactly what a policy would have to sample: the command's tokens and the token
that ends the turn. Prompts and observations are read and never in the loss.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from algorithms import make_algorithm, minibatch_weights, sft_loss
from envs.base import Step
from envs.experts import Demonstration, Mistake, demonstrations
from envs.suites import Suites, make_env_spec
from policies.chat import ChatForm
from policies.policy import Policy
from rollouts.conversation import Conversation
from rollouts.engine import Sample
from rollouts.rows import check_tokens
from rollouts.types import Episode, Turn
from runs.errors import ConfigError, EnvError, PolicyError
from runs.rng import generator
from training.batch import PlacedRow, lay_out, score
from training.step import Learner, RowsLoss, Tally

Report = Callable[[str, int, int], None]
LOSSES = ("sft_loss", "tokens_trained", "gradient_steps")


class Teacher:
    """The expert of a run: its demonstrations, played once when they are first needed."""

    def __init__(self, config: Any, policy: Policy, suites: Suites, report: Report) -> None:
        self.config, self.policy, self.suites, self.report = config, policy, suites, report

    @cached_property
    def episodes(self) -> list[Episode]:
        """The demonstrations that won, as episodes; raises `EnvError` when there is none."""
        env, tasks = self.config.env, self.suites.get("sft").tasks
        options = {"expert": env.expert} if "expert" in env else {}
        if self.config.sft.mistakes:
            options["mistakes"] = float(self.config.sft.mistakes)
        spec = make_env_spec(self.config)
        shown = demonstrations(tasks, spec, env.timeout, self.report, env.max_turns, **options)
        if not shown:
            raise EnvError(
                f"the expert won none of {len(tasks)} demonstration games in env.max_turns="
                f"{env.max_turns}; raise it or choose another env.game"
            )
        return [as_episode(self.policy, one, env) for one in shown]

    def teach(self, learner: Learner, iteration: int) -> dict[str, dict[str, float]]:
        """An update by imitation; returns sections "update" and "health".

        For algo=sft an update is one epoch. Before RL all of `sft.epochs` are the first update,
        with an optimiser of their own, and the reference becomes what they made.
        """
        if learner.algorithm.plays:
            epochs = list(range(self.config.sft.epochs))
            learner = Learner(self.policy, make_algorithm({"name": "sft"}), self.config)
        else:
            epochs = [iteration]
        measured = imitate(learner, self.episodes, epochs)
        if self.policy.reference is not None:
            self.policy.add_reference()
        losses = {name: measured.pop(name) for name in LOSSES}
        # Demonstrations are paid for once, whatever the number of passes over them.
        count = 0 if iteration else len(self.episodes)
        return {"update": losses | {"demonstrations": count}, "health": measured}


def imitate(
    learner: Learner, episodes: Sequence[Episode], epochs: Sequence[int]
) -> dict[str, float]:
    """Maximum likelihood of the action tokens of `episodes`, `sft.batch` of them a step.

    `epochs` are the numbers of the passes to make: each is shuffled by its own number. The loss
    is taken at temperature 1. Raises `TrainingError` for a loss or gradient that is not finite.
    """
    config, tally, tokens = learner.config, Tally(), 0
    placed = lay_out(episodes)
    for epoch in epochs:
        order = generator(config.seed, "shuffle", "sft", epoch).permutation(len(episodes))
        for chosen in np.array_split(order, -(-len(order) // config.sft.batch)):
            rows = [row for place in chosen.tolist() for row in placed[place]]
            learner.descend(rows, _loss(learner.policy, rows), tally, f"sft epoch {epoch}")
            tokens += sum(len(row.index) for row in rows)
    learner.policy.version += 1
    return tally.read() | {"tokens_trained": tokens, "gradient_steps": tally.steps}


def _loss(policy: Policy, rows: list[PlacedRow]) -> RowsLoss:
    total = sum(len(row.index) for row in rows)
    nowhere = torch.zeros(total, dtype=torch.bool)
    share = float(minibatch_weights(torch.ones(total), nowhere)[0][0])

    def loss(micro: list[PlacedRow]) -> tuple[Tensor, dict[str, float]]:
        scores = score(policy, micro, temperature=1.0)
        value = sft_loss(scores.logp, torch.full_like(scores.logp, share))
        entropy = share * scores.entropy.sum().item()
        return value, {"sft_loss": value.item(), "entropy": entropy}

    return loss


def as_episode(policy: Policy, shown: Demonstration, env: Any) -> Episode:
    """A demonstration as an episode whose "sampled" ids are the expert's commands; its mistakes
    are read, as observations are.

    `env` says what a player would be shown: `history_window` and `show_admissible`. Raises
    `PolicyError` when a command does not survive the tokenizer or there is none, and
    `ConfigError` when a command, or the conversation, is too long for the policy.
    """
    if not shown.actions:
        raise PolicyError(f"the demonstration of task {shown.task.id} has no token to learn")
    stop = end_of_turn(policy.chat, policy.stop_ids)
    steps = [
        Step(observation, shown.objective, admissible=admissible)
        for observation, admissible in zip(shown.observations, shown.admissible, strict=True)
    ]
    conversation = Conversation(policy.chat, steps[0], env.history_window, env.show_admissible)
    turns: list[Turn] = []
    for place, (step, command) in enumerate(zip(steps, shown.actions, strict=True)):
        if place:
            conversation.observe(step)
        ids = [*_encode(policy, command), stop]
        if isinstance(command, Mistake):
            conversation.hear(ids)
            ids = []
        _refuse_too_long(policy, shown.task.id, command, ids, conversation.prompt)
        if ids:
            conversation.act(Sample(ids, [0.0] * len(ids), stopped=True))
        turns.append(Turn(step.observation, command, ids, [0.0] * len(ids)))
    episode = Episode(shown.task, 0, turns, "won", objective=shown.objective)
    episode.rows = conversation.rows(0, 0, 0, policy.version)
    check_tokens(episode)
    return episode


def end_of_turn(chat: ChatForm, stop_ids: Sequence[int]) -> int:
    """The id with which the chat template closes an answer.

    Raises `PolicyError` when what follows an answer does not begin with a stop token.
    """
    question = chat.user("a")
    following = chat.extend([question], _ids(chat, "b"), question)
    if not following or following[0] not in stop_ids:
        raise PolicyError(
            "policy.path: the chat template does not close an answer with an end-of-turn token, "
            "so sft would teach a policy that never stops; use another template"
        )
    return following[0]


def _refuse_too_long(
    policy: Policy, task: str, command: str, ids: list[int], prompt: list[int]
) -> None:
    if len(ids) > policy.max_tokens:
        raise ConfigError(
            f"policy.max_tokens={policy.max_tokens} is too small for the expert's command "
            f"{command!r}; set it to at least {len(ids)}"
        )
    if len(prompt) + policy.max_tokens > policy.context:
        raise ConfigError(
            f"policy.context={policy.context} is too small for the demonstration of task {task}; "
            "raise it, or set env.history_window"
        )


def _encode(policy: Policy, command: str) -> list[int]:
    ids = _ids(policy.chat, command)
    if policy.chat.text(ids) != command:
        raise PolicyError(
            f"policy.path: the tokenizer turns the command {command!r} into "
            f"{policy.chat.text(ids)!r}, so it cannot be learned"
        )
    return ids


def _ids(chat: ChatForm, text: str) -> list[int]:
    return list(chat.tokenizer(text, add_special_tokens=False)["input_ids"])
