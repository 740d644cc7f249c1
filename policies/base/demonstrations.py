"""Demonstrations that the base policies are trained on: experts in small generated games.

Games have seeds from 60001 on and at most the difficulty of w2-o3-q4; no suite of a run uses them.
Each is played three times: as the expert does, and twice with a quarter of the commands replaced
by mistakes, after which the expert goes on from where the mistake led. Only the expert's commands
are learned. TextWorld's own winning policy is the expert.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.progress import track
from textworld import Game

from envs.base import Task
from envs.textworld.env import start_game
from envs.textworld.games import make, parse_game, stored
from envs.textworld.text import observation

MAX_TURNS = 14
MISTAKES = (0.0, 0.25, 0.25)
VERBS = ("take", "open", "unlock", "go", "put", "insert", "eat")


@dataclass
class Demonstration:
    """One won game. `turns` holds (command given, the expert's command, what was then seen)."""

    seed: int
    names: list[str]
    objective: str
    first: str
    turns: list[tuple[str, str, str]]


def difficulty(rng: random.Random) -> tuple[int, int, int]:
    """Rooms, objects and quest length of a game, at most w2-o3-q4."""
    rooms, objects = rng.choice([1, 2, 2]), rng.choice([1, 2, 3, 3])
    return rooms, objects, rng.choice([1, 2, 2, 3, 3, 3, 4, 4])


def mistake(best: str, admissible: Sequence[str], names: Sequence[str], rng: random.Random) -> str:
    """A command that a learner might give instead of `best`: legal, misspelt or made up."""
    kind = rng.random()
    if kind < 0.5:
        return rng.choice(admissible)
    words = best.split()
    if kind < 0.75 and len(words) > 1:
        words[rng.randrange(len(words))] = rng.choice(rng.choice(names).split())
        return " ".join(words)
    return f"{rng.choice(VERBS)} {rng.choice(names)}"


def write(path: Path, demonstrations: Sequence[Demonstration]) -> None:
    """Append demonstrations to a JSON Lines file."""
    with path.open("a") as file:
        for demonstration in demonstrations:
            file.write(json.dumps(asdict(demonstration)) + "\n")


def read(path: Path) -> Iterator[Demonstration]:
    with path.open() as file:
        for line in file:
            fields = json.loads(line)
            fields["turns"] = [tuple(turn) for turn in fields["turns"]]
            yield Demonstration(**fields)


def collect(path: Path, cache: Path, seeds: Sequence[int]) -> None:
    """Build the game of each seed and append its won demonstrations to `path`.

    Seeds that are in the file already are passed over, so an interrupted collection goes on.
    A seed from which no game can be made is left out.
    """
    known = {demonstration.seed for demonstration in read(path)} if path.exists() else set()
    for seed in track(seeds, description="demonstrations"):
        if seed in known:
            continue
        rng = random.Random(seed)
        rooms, objects, quest = difficulty(rng)
        spec = parse_game(f"w{rooms}-o{objects}-q{quest}", "sparse")
        assert spec is not None
        if stored(spec, cache, seed) is None:
            make(spec, cache, seed)
        task = stored(spec, cache, seed)
        if isinstance(task, Task):
            played = (play(task, share, rng) for share in MISTAKES)
            write(path, [demonstration for demonstration in played if demonstration is not None])


def play(task: Task, mistakes: float, rng: random.Random) -> Demonstration | None:
    """Play a game as the expert, a share of the commands replaced; None unless it is won."""
    infos = Game.load(task.file.replace(".z8", ".json")).infos.values()
    things: list[str] = sorted(i.name for i in infos if i.name and i.type not in ("P", "I"))
    rooms = {i.name for i in infos if i.type == "r"}
    game = start_game(Path(task.file), admissible=True, policy=True)
    state = game.reset()
    objective = state["objective"]
    first, turns, over = observation(state["feedback"], objective, False), [], False
    while not over and state["policy_commands"] and len(turns) < MAX_TURNS:
        best = command = state["policy_commands"][0]
        if rng.random() < mistakes:
            command = mistake(best, state["admissible_commands"], things, rng)
        state, _, over = game.step(command)
        turns.append((command, best, observation(state["feedback"], objective, False)))
    won = bool(state["won"])
    game.close()
    names: list[str] = [name for name in things if name not in rooms]
    return Demonstration(task.seed, names, objective, first, turns) if won else None
