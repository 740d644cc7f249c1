"""The expert: the walkthrough that a game carries, or TextWorld's own policy, if it wins."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from envs.base import Step, Task
from envs.process import Child, ChildDied
from envs.textworld.env import start_game
from envs.textworld.text import command
from envs.workers import EnvFailure, EnvPool, EnvSpec
from runs.errors import EnvError

MAX_STEPS = 200
EXPERT_SECONDS = 120.0


@dataclass(frozen=True)
class Difficulty:
    """The difficulty fields of `Task`; the means are over the expert's K turns."""

    optimal_length: int
    actions_mean: float
    state_size: int


@dataclass(frozen=True)
class Demonstration:
    """K turns that win: `observations[k]` is what `actions[k]` answers, `admissible[k]` what was
    admissible there (empty unless requested)."""

    task: Task
    objective: str
    observations: list[str]
    actions: list[str]
    admissible: list[tuple[str, ...]]


def walkthrough(file: Path) -> list[str]:
    """The commands stored in the game's `.json` (empty when it has none)."""
    metadata = json.loads(file.with_suffix(".json").read_text())["metadata"]
    return [str(action) for action in metadata.get("walkthrough") or []]


def winning_commands(file: Path) -> tuple[list[str], list[int]] | None:
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
    found = winning_commands(file)
    if found is None:
        return None
    commands, counts = found
    infos = json.loads(file.with_suffix(".json").read_text())["infos"]
    return Difficulty(
        optimal_length=len(commands),
        actions_mean=sum(counts) / len(counts),
        state_size=sum(info["type"] not in ("P", "I") for _, info in infos),
    )


class Expert:
    """The expert in a process of its own, where a game that hangs costs nothing else.

    Context manager. Raises `EnvError` naming the file when the expert hangs or breaks.
    """

    def __enter__(self) -> Expert:
        self._child = Child("envs.textworld.expert:serve")
        self._child.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._child.kill()

    def commands(self, file: str) -> list[str] | None:
        """See `winning_commands`."""
        found = self._ask("commands", file)
        return None if found is None else found[0]

    def difficulty(self, file: str) -> Difficulty | None:
        """See `measure`."""
        return self._ask("difficulty", file)

    def _ask(self, operation: str, file: str) -> Any:
        try:
            self._child.send((operation, file))
            if not self._child.connection.poll(EXPERT_SECONDS):
                raise EnvError(f"The expert did not finish {file} in {EXPERT_SECONDS:.0f} seconds.")
            kind, found = self._child.receive()
        except ChildDied as died:
            raise EnvError(f"The expert died while playing {file}: {died}") from died
        if kind != "ok":
            raise EnvError(f"The expert could not play {file}: {found}")
        return found


def serve() -> Callable[[tuple[str, str]], Any]:
    """Child target of `Expert`."""
    operations = {"commands": winning_commands, "difficulty": measure}

    def answer(message: tuple[str, str]) -> Any:
        operation, file = message
        return operations[operation](Path(file))

    return answer


def demonstrations(
    tasks: Sequence[Task],
    spec: EnvSpec,
    timeout: float,
    progress: Callable[[str, int, int], None] | None = None,
) -> list[Demonstration]:
    """The expert's episodes over `tasks`, in order, through the player's own environment.

    Only what wins is kept, so the list may be shorter than `tasks`.
    """
    kept = []
    with Expert() as expert, EnvPool(spec, workers=1, timeout=timeout) as pool:
        for done, task in enumerate(tasks, start=1):
            commands = expert.commands(task.file)
            shown = _demonstrate(pool, task, commands) if commands else None
            if shown is not None:
                kept.append(shown)
            if progress is not None:
                progress("demonstrations", done, len(tasks))
    return kept


def _demonstrate(pool: EnvPool, task: Task, commands: list[str]) -> Demonstration | None:
    steps: list[Step] = []
    answer = pool.reset({0: task})[0]
    for action in [*commands, None]:
        if isinstance(answer, EnvFailure):
            return None
        steps.append(answer)
        if action is None or answer.terminated:
            break
        answer = pool.step({0: action})[0]
    if not steps[-1].won:
        return None
    played = steps[:-1]
    return Demonstration(
        task=task,
        objective=steps[0].objective,
        observations=[step.observation for step in played],
        actions=commands[: len(played)],
        admissible=[step.admissible for step in played],
    )
