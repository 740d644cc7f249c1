"""One ALFWorld game played command by command (`TextEnv`)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from envs.alfworld.goal import facts
from envs.alfworld.planner import plan_length
from envs.alfworld.rules import load
from envs.alfworld.world import World
from envs.base import Step, Task, TextEnv
from envs.rewards import RewardedEnv
from runs.errors import EnvError


@dataclass(frozen=True)
class AlfWorldOptions:
    """`admissible` lists the admissible commands in each Step; `policy_length` plans again after
    every step (shaping only), which costs about as much as ten steps, and far more in the largest
    kitchens."""

    admissible: bool = False
    policy_length: bool = False


def make_env(options: dict[str, Any], reward: str) -> TextEnv:
    """Built in a worker from plain values (`envs.workers.EnvSpec`)."""
    paid = {name: options[name] for name in ("shaping", "compat") if name in options}
    names = AlfWorldOptions.__dataclass_fields__
    mine = {name: value for name, value in options.items() if name in names}
    return RewardedEnv(AlfWorldEnv(AlfWorldOptions(**mine)), reward, **paid)


class AlfWorldEnv:
    """The texts are the game's own; at reset, without its greeting and the task, which is the
    objective. A command that is not admissible is `invalid` and a turn.

    `events`: `score` and `max_score`, the facts of the goal that are true and those there are
    (`envs.alfworld.goal`), and with `policy_length` the number of commands to a win, None when
    winning has become impossible. Raises `EnvError` for a game that is missing or broken, and for
    stepping before `reset` or after the end.
    """

    deterministic = True

    def __init__(self, options: AlfWorldOptions) -> None:
        self._options = options
        self._world: World | None = None
        self._ended = False

    def reset(self, task: Task) -> Step:
        self._world = World(load(Path(task.file)))
        self._ended = self._world.won
        if self._ended:
            raise EnvError(f"The game {task.file} is won before it begins: leave it out.")
        return self._step(self._world, self._world.intro, None)

    def step(self, action: str) -> Step:
        if self._world is None:
            raise EnvError("reset(task) comes before step(action).")
        if self._ended:
            raise EnvError("This episode has ended: call reset(task) before the next step.")
        command = action.strip()
        known = command in self._world.commands
        text = self._world.step(command)
        return self._step(self._world, text, None if known else "not admissible")

    def close(self) -> None:
        self._world = None
        self._ended = False

    def _step(self, world: World, text: str, invalid: str | None) -> Step:
        won = self._ended = world.won
        score, most = facts(world)
        events: dict[str, Any] = {"score": score, "max_score": most}
        if self._options.policy_length:
            events["policy_length"] = plan_length(world)
        return Step(
            observation=text,
            objective=world.house.objective,
            events=events,
            terminated=won,
            won=won,
            invalid=invalid,
            admissible=world.admissible if self._options.admissible else (),
        )
