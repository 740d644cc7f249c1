"""The expert: the walkthrough that a game carries, or TextWorld's own policy, if it wins."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from envs.experts import Difficulty
from envs.textworld.env import start_game
from envs.textworld.text import command

MAX_STEPS = 200


def walkthrough(file: Path) -> list[str]:
    """The commands stored in the game's `.json` (empty when it has none)."""
    metadata = json.loads(file.with_suffix(".json").read_text())["metadata"]
    return [str(action) for action in metadata.get("walkthrough") or []]


def winning_commands(file: Path) -> list[str] | None:
    """Commands that win; None if none do. See `winning_play`."""
    found = winning_play(file)
    return None if found is None else found[0]


def winning_play(file: Path) -> tuple[list[str], list[int]] | None:
    """K commands that win and the number of admissible commands before each; None if none do.

    The walkthrough first, else TextWorld's tracked policy, asked again after every command.
    Runs the interpreter in this process: call it in a child.
    """
    stored = walkthrough(file)
    for choose in (
        lambda state, k: stored[k] if k < len(stored) else None,
        lambda state, k: next(iter(state["policy_commands"]), None),
    ):
        found = _play(file, choose)
        if found is not None:
            return found
    return None


def _play(
    file: Path, choose: Callable[[Any, int], str | None]
) -> tuple[list[str], list[int]] | None:
    game = start_game(file, admissible=True, policy=True)
    try:
        state = game.reset()
        commands: list[str] = []
        counts: list[int] = []
        while len(commands) < MAX_STEPS:
            chosen = choose(state, len(commands))
            if chosen is None:
                return None
            cleaned, reason, cut = command(chosen)
            if reason is not None or cut:
                return None
            commands.append(cleaned)
            counts.append(len(state["admissible_commands"]))
            state, _, done = game.step(cleaned)
            if done:
                return (commands, counts) if state["won"] else None
        return None
    finally:
        game.close()


def measure(file: Path) -> Difficulty | None:
    """Measured by playing; None when no expert wins. Player and inventory are no objects."""
    found = winning_play(file)
    if found is None:
        return None
    commands, counts = found
    infos = json.loads(file.with_suffix(".json").read_text())["infos"]
    return Difficulty(
        optimal_length=len(commands),
        actions_mean=sum(counts) / len(counts),
        state_size=sum(info["type"] not in ("P", "I") for _, info in infos),
    )
