"""The nouns of an environment: `Task`, `Step` and the protocol `TextEnv`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Protocol


@dataclass(frozen=True)
class Task:
    """One game or problem, named so that results can be paired across runs.

    `optimal_length` is the length of the expert's or winning policy, `actions_mean` the mean
    number of admissible commands along it, `state_size` the number of rooms and objects.
    """

    family: str
    id: str
    seed: int
    file: str
    sha256: str
    type: str
    optimal_length: int
    actions_mean: float
    state_size: int


@dataclass
class Step:
    """What the environment says after `reset` or `step`.

    `events` are facts (score, policy length, subgoals …); `reward` is set by
    `envs.rewards` from them, inside the worker, and is 0 at reset.
    `invalid` is None, or the reason why the action did nothing. `potential` of the state, where
    shaping asks for it, is no reward: credit adds its differences (design, rule 2).
    """

    observation: str
    objective: str
    events: dict[str, Any] = field(default_factory=dict)
    reward: float = 0.0
    terminated: bool = False
    won: bool = False
    lost: bool = False
    invalid: str | None = None
    admissible: tuple[str, ...] = ()
    potential: float | None = None


class TextEnv(Protocol):
    """A text game played one command a turn. Stepping a finished episode raises `EnvError`."""

    deterministic: bool

    def reset(self, task: Task) -> Step: ...

    def step(self, action: str) -> Step: ...

    def close(self) -> None: ...
