"""Stock ALFWorld, the witness of our engine: TextWorld's `PddlEnv` over Fast Downward.

Optional, since Fast Downward (GPL) comes as source and compiles for more than a minute:

    pip install fast-downward-textworld==20.6.4
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

INSTALL = (
    "an independent witness, which compiles for a minute: `pip install "
    "fast-downward-textworld==20.6.4` and run this file again"
)


class Seen(NamedTuple):
    """What a player sees after a command, and what could come next."""

    text: str
    admissible: tuple[str, ...]
    won: bool


@contextmanager
def data_in(folder: Path) -> Iterator[None]:
    """Importing `alfworld` makes a folder for its data; this is where."""
    before = os.environ.get("ALFWORLD_DATA")
    os.environ["ALFWORLD_DATA"] = str(folder)
    try:
        yield
    finally:
        del os.environ["ALFWORLD_DATA"]
        if before is not None:
            os.environ["ALFWORLD_DATA"] = before


class Stock:
    """ALFWorld 0.4.2 as its own `AlfredTWEnv` starts it.

    One object for all games: every further `PddlEnv` keeps 4 MB of memory and 30 MB of disk until
    the process ends. Raises `ImportError` without Fast Downward.
    """

    def __init__(self, data: Path) -> None:
        with data_in(data):
            from alfworld.agents.environment.alfred_tw_env import AlfredDemangler
        from textworld import EnvInfos
        from textworld.envs import PddlEnv

        self._infos = EnvInfos(admissible_commands=True, won=True)
        self._env = AlfredDemangler(PddlEnv(self._infos))

    def load(self, game: Path | dict[str, Any]) -> None:
        """A game file, or its content."""
        self._env.load(game if isinstance(game, dict) else str(game))

    def reset(self) -> Seen:
        return _seen(self._env.reset())

    def step(self, command: str) -> Seen:
        return _seen(self._env.step(command)[0])

    def plan(self) -> list[str]:
        """Commands by which Fast Downward wins from the start; resets the game."""
        self._infos.policy_commands = True
        try:
            return list(self._env.reset()["policy_commands"])
        finally:
            self._infos.policy_commands = False


def _seen(state: Any) -> Seen:
    return Seen(state.feedback, tuple(state["admissible_commands"]), bool(state["won"]))
