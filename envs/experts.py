"""Experts of every family: who wins a game, and their episodes as demonstrations."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from envs.base import Step, Task
from envs.process import Child, ChildDied
from envs.workers import EnvFailure, EnvPool, EnvSpec
from runs.errors import EnvError

EXPERT_SECONDS = 120.0


@dataclass(frozen=True)
class Difficulty:
    """The difficulty fields of `Task`; the means are over the expert's K turns."""

    optimal_length: int
    actions_mean: float
    state_size: int


class Mistake(str):
    """A command that an expert gave so as to show how it goes on: it is read and not learned."""


@dataclass(frozen=True)
class Demonstration:
    """K turns that win: `observations[k]` is what `actions[k]` answers (a `Mistake` is none of the
    expert's), `admissible[k]` what was admissible there (empty unless requested)."""

    task: Task
    objective: str
    observations: list[str]
    actions: list[str]
    admissible: list[tuple[str, ...]]


class Expert:
    """The expert of a family in a process of its own, where a game that hangs costs nothing else.

    `envs.<family>.expert` has `winning_commands(file, **options)` and `measure(file)`. Context
    manager. Raises `EnvError` naming the file when the expert hangs or breaks.
    """

    def __init__(self, family: str, **options: Any) -> None:
        self._family, self._options = family, options

    def __enter__(self) -> Expert:
        self._child = Child("envs.experts:serve", self._family, self._options)
        self._child.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._child.kill()

    def commands(self, file: str) -> list[str] | None:
        """Commands that win, None when the expert does not."""
        return self._ask("commands", file)

    def difficulty(self, file: str) -> Difficulty | None:
        """Measured by playing; None when no expert wins."""
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


def serve(family: str, options: dict[str, Any]) -> Callable[[tuple[str, str]], Any]:
    """Child target of `Expert`."""
    module = importlib.import_module(f"envs.{family}.expert")
    operations = {
        "commands": partial(module.winning_commands, **options),
        "difficulty": module.measure,
    }

    def answer(message: tuple[str, str]) -> Any:
        operation, file = message
        return operations[operation](Path(file))

    return answer


def demonstrations(
    tasks: Sequence[Task],
    spec: EnvSpec,
    timeout: float,
    progress: Callable[[str, int, int], None] | None = None,
    most: int | None = None,
    **options: Any,
) -> list[Demonstration]:
    """The expert's episodes over `tasks` (of one family), in order, through the player's own
    environment. Only what wins, in `most` turns, is kept: the list may be shorter than `tasks`.

    `options` go to the family's expert.
    """
    kept = []
    expert_of = Expert(tasks[0].family, **options)
    with expert_of as expert, EnvPool(spec, workers=1, timeout=timeout) as pool:
        for done, task in enumerate(tasks, start=1):
            commands = expert.commands(task.file)
            shown = None
            if commands and len(commands) <= (most or len(commands)):
                shown = _demonstrate(pool, task, commands)
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
    played = steps[:-1]
    shows = any(not isinstance(command, Mistake) for command in commands[: len(played)])
    if not steps[-1].won or not shows:
        return None
    return Demonstration(
        task=task,
        objective=steps[0].objective,
        observations=[step.observation for step in played],
        actions=commands[: len(played)],
        admissible=[step.admissible for step in played],
    )
