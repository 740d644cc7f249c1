"""Reward densities: the only place where facts (`Step.events`) become `Step.reward`.

Every reward is paid as the change of a total that depends on the present state, so totals
telescope: a win totals exactly 1, and what never wins stays below 1 (design, rule 10).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from envs.base import Step, Task, TextEnv
from runs.errors import ConfigError, EnvError

_VALID = {
    ("textworld", "custom"): ("sparse", "dense"),
    ("textworld", "tw-simple"): ("sparse", "balanced", "dense"),
    ("textworld", "cooking"): ("sparse", "balanced", "dense"),
    ("alfworld", "house"): ("sparse", "dense"),
}
FAMILIES = tuple(dict.fromkeys(family for family, _ in _VALID))
# Kinds whose environments can tell how many commands a win is away.
_PLANNED = ("custom", "house")


class Reward(Protocol):
    """Fed with the Step of `reset`, then with each Step; one object an episode."""

    def start(self, step: Step) -> None: ...

    def pay(self, step: Step) -> float: ...


class Sparse:
    """1 on winning, else 0."""

    def start(self, step: Step) -> None:
        """Nothing is paid for where an episode begins."""

    def pay(self, step: Step) -> float:
        return 1.0 if step.won else 0.0


class _Telescoping:
    """Pays the change of `total(step)`; the total of a win is 1.

    With `wins_only` (compat.wins_only) whatever is not won stays on the scale of the game, `most`
    points: failing then pays more than winning.
    """

    paid: float
    most: float
    wins_only: bool = False

    def start(self, step: Step) -> None:
        self.paid = 0.0

    def total(self, step: Step) -> float:
        raise NotImplementedError

    def pay(self, step: Step) -> float:
        scale = self.most if self.wins_only else 1.0
        due = (1.0 if step.won else self.total(step) * scale) - self.paid
        self.paid += due
        return due


class ScoreShare(_Telescoping):
    """The game's own score over what it can pay (tw-simple, cooking), or the facts of a goal that
    are true over those it has (ALFWorld).

    A lost game keeps what it was paid, as the game keeps its score: always less than a win.
    """

    def start(self, step: Step) -> None:
        super().start(step)
        if not step.events["max_score"]:
            raise EnvError(
                "This game pays no score, so reward=dense and reward=balanced are undefined: "
                "set reward=sparse."
            )
        self.most = step.events["max_score"]
        # What is true before the first command is nobody's merit.
        self._given = step.events["score"]

    def total(self, step: Step) -> float:
        return (step.events["score"] - self._given) / (self.most - self._given)


class PolicyPotential(_Telescoping):
    """Potential-based shaping (Ng, Harada and Russell, 1999) with gamma = 1.

    The potential is minus the length L of the winning policy that TextWorld tracks, or that
    ALFWorld's planner finds, over its initial length L0: a state is worth 1 - L / L0, which is
    below 0 when the player is further away than at the start. Lost, or winning impossible: the
    total returns to 0.
    """

    def start(self, step: Step) -> None:
        super().start(step)
        length = step.events["policy_length"]
        if not length:
            raise EnvError(
                "No winning policy is known of this game, so reward=dense and reward.shaping are "
                "undefined: set reward=sparse and reward.shaping=0."
            )
        self.most = length

    def total(self, step: Step) -> float:
        length = step.events["policy_length"]
        if step.lost or length is None:
            return 0.0
        return 1.0 - length / self.most


def game_kind(family: str, task_type: str) -> str:
    """`house` (ALFWorld); `custom` (w-o-q), `tw-simple` or `cooking`, from `Task.type`."""
    if family == "alfworld":
        return "house"
    for kind in ("tw-simple", "cooking"):
        if task_type.startswith(kind):
            return kind
    return "custom"


def valid_rewards(family: str, kind: str) -> tuple[str, ...]:
    """Names of the rewards that exist for games of this kind; `ConfigError` on another family."""
    if (family, kind) not in _VALID:
        raise ConfigError(
            f"env.family={family} is unknown: set env.family to one of {', '.join(FAMILIES)}."
        )
    return _VALID[family, kind]


def make_reward(name: str, family: str, kind: str, wins_only: bool = False) -> Reward:
    """The reward of one episode; `ConfigError` names the valid ones for another pair."""
    valid = valid_rewards(family, kind)
    if name not in valid:
        raise ConfigError(
            f"reward={name} does not exist for {kind} games of {family}: "
            f"set reward to one of {', '.join(valid)}."
        )
    if name == "sparse":
        return Sparse()
    reward = PolicyPotential() if kind == "custom" else ScoreShare()
    reward.wins_only = wins_only
    return reward


def needs_policy(family: str, reward: str, shaping: float) -> bool:
    """Whether the environment has to know how many commands a win is away."""
    return shaping > 0 or (family == "textworld" and reward == "dense")


class Potential:
    """How far a state is from winning, for shaping: 0 when won, -1 where the episode began.

    By the commands that a win is away, or by the score where that is not known; a state from which
    winning is impossible counts as the beginning.
    """

    def __init__(self, family: str, kind: str, step: Step) -> None:
        valid_rewards(family, kind)
        distance = PolicyPotential() if kind in _PLANNED else ScoreShare()
        distance.start(step)
        self._total = distance.total

    def __call__(self, step: Step) -> float:
        return 0.0 if step.won else self._total(step) - 1.0


class RewardedEnv:
    """A TextEnv whose steps carry rewards; it lives inside the worker process.

    With `shaping` above 0 they carry that many times their potential, too. `compat` names the
    known faults (recipes/config.yaml) that are to be reproduced.
    """

    def __init__(
        self, env: TextEnv, reward: str, shaping: float = 0.0, compat: Sequence[str] = ()
    ) -> None:
        self.deterministic = env.deterministic
        self._env = env
        self._name = reward
        self._shaping = shaping
        self._compat = compat
        self._reward: Reward | None = None
        self._potential: Potential | None = None

    def reset(self, task: Task) -> Step:
        step = self._env.reset(task)
        kind = game_kind(task.family, task.type)
        self._reward = make_reward(
            self._name, task.family, kind, wins_only="wins_only" in self._compat
        )
        self._reward.start(step)
        self._potential = Potential(task.family, kind, step) if self._shaping else None
        return self._weighed(step)

    def step(self, action: str) -> Step:
        if self._reward is None:
            raise EnvError("reset(task) comes before step(action).")
        step = self._env.step(action)
        if "done_is_won" in self._compat and step.terminated:
            step.won, step.lost = True, False
        step.reward = self._reward.pay(step)
        return self._weighed(step)

    def _weighed(self, step: Step) -> Step:
        if self._potential is not None:
            step.potential = self._shaping * self._potential(step)
        return step

    def close(self) -> None:
        self._env.close()
