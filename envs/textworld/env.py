"""One TextWorld game played command by command (`TextEnv`)."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from envs.base import Step, Task, TextEnv
from envs.rewards import RewardedEnv, game_kind
from envs.textworld.text import command, observation
from runs.errors import EnvError

if TYPE_CHECKING:
    from envs.textworld.loaded import Games, Loaded, Place

T = TypeVar("T")


@dataclass(frozen=True)
class TextWorldOptions:
    """`admissible` lists the admissible commands in each Step; `policy_length` tracks the winning
    policy of w-o-q games (dense reward only). What is off is not requested from TextWorld."""

    admissible: bool = False
    policy_length: bool = False
    show_score: bool = False


def make_env(options: dict[str, Any], reward: str) -> TextEnv:
    """Built in a worker from plain values (`envs.workers.EnvSpec`)."""
    paid = {name: options[name] for name in ("shaping", "compat") if name in options}
    mine = {name: value for name, value in options.items() if name not in paid}
    return RewardedEnv(TextWorldEnv(TextWorldOptions(**mine)), reward, **paid)


class TextWorldEnv:
    """`events`: score, max_score, cut, and policy_length when tracked (0 when won, None when
    winning has become impossible). `invalid` steps never reach the interpreter, yet are turns.

    Raises `EnvError` for a game that is missing or broken, and for stepping before `reset` or
    after the end.
    """

    deterministic = True

    def __init__(self, options: TextWorldOptions) -> None:
        importlib.import_module("envs.textworld.loaded")
        self._options = options
        self._game: Loaded | None = None
        self._place: Place | None = None
        self._last: Step | None = None

    def reset(self, task: Task) -> Step:
        self.close()
        self._track = self._options.policy_length and game_kind(task.family, task.type) == "custom"
        self._game = load_game(
            Path(task.file), admissible=self._options.admissible, policy=self._track
        )
        self._place = self._game.start
        state = self._place.state
        self._objective, self._max_score = state["objective"], state["max_score"]
        self._last = self._step_from(state, cut=False)
        return self._last

    def step(self, action: str) -> Step:
        if self._last is None or self._game is None or self._place is None:
            raise EnvError("reset(task) comes before step(action).")
        if self._last.terminated:
            raise EnvError("This episode has ended: call reset(task) before the next step.")
        cleaned, reason, cut = command(action)
        if reason is None:
            self._place = self._game.step(self._place, cleaned)
            self._last = self._step_from(self._place.state, cut)
        else:
            self._last = Step(
                observation=f"That command cannot be used ({reason}).",
                objective=self._objective,
                events={**self._last.events, "cut": cut},
                invalid=reason,
                admissible=self._last.admissible,
            )
        return self._last

    def close(self) -> None:
        self._game = self._place = None
        self._last = None

    def _step_from(self, state: Any, cut: bool) -> Step:
        won, lost = bool(state["won"]), bool(state["lost"])
        events = {"score": state["score"], "max_score": self._max_score, "cut": cut}
        if self._track:
            # Without a policy the game is won, or can be won no more.
            events["policy_length"] = 0 if won else len(state["_winning_policy"] or ()) or None
        return Step(
            observation=observation(state["feedback"], self._objective, self._options.show_score),
            objective=self._objective,
            events=events,
            terminated=won or lost,
            won=won,
            lost=lost,
            admissible=tuple(state["admissible_commands"]) if self._options.admissible else (),
        )


@cache
def _games() -> Games:
    from envs.textworld.loaded import Games

    return Games()


def load_game(file: Path, *, admissible: bool, policy: bool) -> Loaded:
    """A game of this process, shared by all who play it."""
    return _told(file, lambda: _games().take(file, _infos(admissible, policy)))


def start_game(file: Path, *, admissible: bool = False, policy: bool = False) -> Any:
    """TextWorld's own environment for a game file, with only what is used requested."""
    import textworld

    return _told(file, lambda: textworld.start(str(file), _infos(admissible, policy)))


def _infos(admissible: bool, policy: bool) -> Any:
    import textworld

    return textworld.EnvInfos(
        feedback=True,
        won=True,
        lost=True,
        score=True,
        max_score=True,
        objective=True,
        admissible_commands=admissible,
        policy_commands=policy,
    )


def _told(file: Path, load: Callable[[], T]) -> T:
    for needed in (file, file.with_suffix(".json")):
        if not needed.is_file():
            raise EnvError(f"The game file {needed} does not exist: check env.game.")
    try:
        return load()
    except (ValueError, KeyError, TypeError, OSError) as error:
        raise EnvError(f"The game file {file} cannot be loaded ({error!r}).") from error
