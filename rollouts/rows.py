"""Rows: the token sequences that are trained on, and the rules they must obey (design, 1 to 3)."""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch

from rollouts.engine import Sample
from rollouts.types import Episode, Group, Row
from runs.errors import InvariantError


class RowBuilder:
    """One row growing with its conversation: prompts and observations between sampled ids."""

    def __init__(self, prompt: list[int]) -> None:
        self.ids = list(prompt)
        self._action = [False] * len(prompt)
        self._turn = [-1] * len(prompt)
        self._logp = [0.0] * len(prompt)
        self._allowed: list[list[int]] | None = None
        self.acted = False

    def act(self, sample: Sample, turn: int) -> None:
        """Append what was sampled in turn `turn` of the episode."""
        count = len(sample.ids)
        self.ids += sample.ids
        self._action += [True] * count
        self._turn += [turn] * count
        self._logp += sample.logp
        if sample.allowed is not None:
            self._allowed = [*(self._allowed or []), *sample.allowed]
        self.acted = True

    def extend(self, ids: list[int]) -> None:
        """Append tokens that nobody sampled."""
        self.ids += ids
        self._action += [False] * len(ids)
        self._turn += [-1] * len(ids)
        self._logp += [0.0] * len(ids)

    def row(self, episode: int, group: int, member: int, version: int) -> Row:
        """The row up to its last action: nothing is predicted from an observation after it."""
        end = len(self._action) - self._action[::-1].index(True)
        return Row(
            ids=torch.tensor(self.ids[:end], dtype=torch.long),
            action=torch.tensor(self._action[:end], dtype=torch.bool),
            turn=torch.tensor(self._turn[:end], dtype=torch.long),
            logp=torch.tensor(self._logp[:end], dtype=torch.float32),
            episode=episode,
            group=group,
            member=member,
            version=version,
            allowed=self._allowed,
        )


def rows(groups: Iterable[Group]) -> list[Row]:
    """Every row of every episode that did not error, in the order of groups and members."""
    return [row for group in groups for episode in group.alive for row in episode.rows]


def check_tokens(episode: Episode) -> None:
    """Rule 1: over the rows of an episode, `ids[action]` are the sampled ids, bit for bit.

    Also that log-probabilities, turns and allowed ids stand on the same tokens.
    Raises InvariantError.
    """
    name = f"task {episode.task.id}, member {episode.member}"
    sampled = [token for turn in episode.turns for token in turn.ids]
    trained = [token for row in episode.rows for token in row.ids[row.action].tolist()]
    if trained != sampled:
        raise InvariantError(
            f"{name}: action tokens of the rows differ from the sampled ids; nothing may be "
            "decoded and encoded again"
        )
    turns = [index for index, turn in enumerate(episode.turns) for _ in turn.ids]
    acted = [index for row in episode.rows for index in row.turn[row.action].tolist()]
    if acted != turns:
        raise InvariantError(f"{name}: action tokens stand in the wrong turn")
    for row in episode.rows:
        if bool((row.turn[~row.action] != -1).any()):
            raise InvariantError(f"{name}: a token that was not sampled belongs to a turn")
        if row.allowed is not None and len(row.allowed) != int(row.action.sum()):
            raise InvariantError(f"{name}: allowed ids do not match the action tokens")
    behaviour = [value for turn in episode.turns for value in turn.logp]
    kept = torch.cat([row.logp[row.action] for row in episode.rows]) if episode.rows else None
    if not all(map(math.isfinite, behaviour)) or (
        kept is not None and not torch.equal(kept, torch.tensor(behaviour, dtype=torch.float32))
    ):
        raise InvariantError(f"{name}: a sampled token lacks its behaviour log-probability")


def check_rewards(episode: Episode) -> None:
    """Rule 2: the rewards of the turns sum to what the environment paid. Raises InvariantError."""
    total = math.fsum(turn.reward for turn in episode.turns)
    if not math.isclose(total, episode.paid, rel_tol=1e-9, abs_tol=1e-9):
        raise InvariantError(
            f"task {episode.task.id}, member {episode.member}: turns hold a reward of {total}, "
            f"the environment paid {episode.paid}"
        )


def check_groups(groups: list[Group], size: int, smallest: int = 1) -> None:
    """Rule 3: groups of `smallest` to `size` distinct living members, one task, one version.

    Raises InvariantError.
    """
    if len({group.index for group in groups}) != len(groups):
        raise InvariantError("two groups share an index; groups are keyed by draw, not by text")
    for group in groups:
        name = f"group {group.index} (task {group.task.id})"
        alive = group.alive
        if not smallest <= len(alive) <= size or len(group.episodes) != size:
            raise InvariantError(
                f"{name} has {len(alive)} living of {len(group.episodes)} members, not "
                f"{smallest} to {size}"
            )
        if len({episode.member for episode in group.episodes}) != len(group.episodes):
            raise InvariantError(f"{name} has the same member twice")
        if any(episode.task != group.task for episode in group.episodes):
            raise InvariantError(f"{name} holds an episode of another task")
        if len({row.version for episode in alive for row in episode.rows}) > 1:
            raise InvariantError(f"{name} was played by more than one policy version")
