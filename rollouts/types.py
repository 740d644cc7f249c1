"""The nouns of a rollout: `Turn`, `Episode`, `Group`, `Row` (design, "The nouns")."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from envs.base import Task

Ended = Literal["won", "lost", "turn_limit", "context", "error"]


@dataclass
class Turn:
    """One observation, one action. `ids` and `logp` are what the engine sampled, untouched.

    `allowed[i]` are the ids that token i was drawn from, when decoding was constrained.
    `values[i]` is the critic before token i, when it shares the actor's trunk.
    `potential` is of the state before the action, where `reward.shaping` asks for it.
    `cut`: more than one command was given and only the first was run.
    """

    observation: str
    action: str
    ids: list[int]
    logp: list[float]
    reward: float = 0.0
    invalid: str | None = None
    stopped: bool = True
    cut: bool = False
    allowed: list[list[int]] | None = None
    values: list[float] | None = None
    potential: float | None = None


@dataclass
class Row:
    """A token sequence that is trained on; T tokens, of which A are sampled.

    ids[T] int64; action[T] bool, True on sampled tokens; turn[T] int64, the turn of the
    episode that the token acts in, -1 off action; logp[T] float32, behaviour
    log-probability at the sampling temperature, 0 off action.
    `allowed` has one list of ids for each action token, in order, when decoding was constrained.
    """

    ids: Tensor
    action: Tensor
    turn: Tensor
    logp: Tensor
    episode: int
    group: int
    member: int
    version: int
    allowed: list[list[int]] | None = None


@dataclass
class Episode:
    """The turns of one task played once. Only `ended == "won"` is success.

    `unanswered`: where the turns ran out and `algo.truncation=bootstrap`, the ids of the last row
    and of the observation behind it, up to where the assistant would speak. `final_potential`
    is of the state after the last turn.
    """

    task: Task
    member: int
    turns: list[Turn]
    ended: Ended
    rows: list[Row] = field(default_factory=list)
    objective: str = ""
    paid: float = 0.0
    error: str | None = None
    final_observation: str = ""
    unanswered: list[int] | None = None
    final_potential: float | None = None

    @property
    def potentials(self) -> Tensor | None:
        """Potential before each turn and after the last, [K + 1], None without shaping."""
        values = [turn.potential for turn in self.turns] + [self.final_potential]
        known = [value for value in values if value is not None]
        return torch.tensor(known) if len(known) == len(values) else None

    @property
    def rewards(self) -> Tensor:
        """Reward of each turn, [K] float32."""
        return torch.tensor([turn.reward for turn in self.turns], dtype=torch.float32)

    @property
    def won(self) -> bool:
        return self.ended == "won"


@dataclass
class Group:
    """The episodes of one task from one policy version; errored ones are left out by `alive`."""

    task: Task
    index: int
    episodes: list[Episode]

    @property
    def alive(self) -> list[Episode]:
        return [episode for episode in self.episodes if episode.ended != "error"]
