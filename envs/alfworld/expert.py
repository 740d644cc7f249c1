"""Who wins: an expert that seeks, ALFWorld's hand-coded one, and the planner, which knows all."""

from __future__ import annotations

import os
import random
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from envs.alfworld.planner import plan
from envs.alfworld.rules import load
from envs.alfworld.seeker import seek
from envs.alfworld.world import GREETING, World
from envs.experts import Difficulty, Mistake
from envs.stored import file_sha256
from runs.errors import ConfigError

EXPERTS = ("seeker", "handcoded", "planner")
MAX_STEPS = 150
# Commands that change nothing: a demonstration goes without them.
IDLE = ("look", "inventory", "help", "examine ")


def winning_commands(
    file: Path, expert: str = "planner", mistakes: float = 0.0
) -> list[str] | None:
    """Commands that win, None when the expert does not.

    `seeker`: looks for things in the order of the list. `handcoded`: the expert that comes with
    ALFWorld, which looks for things as well; what changes nothing is left out. `planner`: a
    shortest plan, by what no player could know. A share of `mistakes` of the seeker's commands are
    replaced by a `Mistake`, after which it goes on (noise injection: Laskey et al. 2017, arXiv
    1703.09327).
    Raises `ConfigError` for another expert, `EnvError` for a game that cannot be loaded.
    """
    if expert not in EXPERTS:
        raise ConfigError(f"env.expert={expert} is none: set it to {' or '.join(EXPERTS)}.")
    if expert == "seeker":
        return sought(World(load(file)), mistakes, random.Random(file_sha256(file)))
    if expert == "handcoded":
        return handcoded(file)
    return plan(World(load(file)))


def sought(world: World, mistakes: float, rng: random.Random) -> list[str] | None:
    """Commands by which the seeker wins in `MAX_STEPS`; None when it does not."""
    commands: list[str] = []
    while not world.won:
        command = seek(world)
        if command is None or len(commands) == MAX_STEPS:
            return None
        if rng.random() < mistakes:
            command = _mistake(world, command, commands, rng)
        commands.append(command)
        world.step(command)
    return commands


def _mistake(world: World, best: str, before: list[str], rng: random.Random) -> Mistake:
    """What a learner might say instead: the last command again, one that is admissible, or the
    right one with a wrong word."""
    kind = rng.random()
    if kind < 0.3 and before:
        return Mistake(before[-1])
    if kind < 0.7:
        return Mistake(rng.choice(world.admissible))
    words, house = best.split(), world.house
    other = rng.choice(sorted({*house.at, *house.lies}))
    words[rng.randrange(len(words))] = house.name[other].split()[0]
    return Mistake(" ".join(words))


def measure(file: Path) -> Difficulty | None:
    """Of the shortest plan; the size is the number of receptacles and things."""
    house = load(file)
    commands = plan(World(house))
    if not commands:
        return None
    world, counts = World(house), []
    for command in commands:
        counts.append(len(world.commands))
        world.step(command)
    return Difficulty(
        optimal_length=len(commands),
        actions_mean=sum(counts) / len(counts),
        state_size=len(house.at) + len(house.types),
    )


def handcoded(file: Path) -> list[str] | None:
    """Commands by which ALFWorld's hand-coded expert wins in `MAX_STEPS`; None when it fails."""
    world, agent = World(load(file)), HandCoded(file)
    text, commands = world.intro, []
    while not world.won:
        command = agent.choose(world, text)
        if command is None:
            return None
        text = world.step(command)
        agent.saw(command)
        if not command.startswith(IDLE):
            commands.append(command)
    return commands


class HandCoded:
    """ALFWorld's hand-coded expert, which looks for things as a player has to.

    It draws from Python's global generator, which is seeded by the game: use it in a process of
    its own.
    """

    def __init__(self, file: Path) -> None:
        with _imports_without_a_trace():
            from alfworld.agents.expert import HandCodedTWAgent
        random.seed(file_sha256(file))
        self._agent = HandCodedTWAgent(max_steps=MAX_STEPS)
        self._agent.reset(str(file))
        self._last = ""

    def choose(self, world: World, text: str) -> str | None:
        """The next command, having read `text`; None when it gives up.

        "look" where it says nothing that is admissible, and at first, as in stock ALFWorld.
        """
        if not self._last:
            greeting = f"{GREETING}\n\n{text}\n\nYour task is to: {world.house.objective}."
            self._agent.observe(greeting)
            return "look"
        # It was never told that "put" is called "move" now, and takes what it has put down for
        # what it holds: without this it wins half of the games with two things.
        told = self._last.replace("move ", "put ", 1)
        try:
            chosen = self._agent.act(_seen(world, text), 0, False, told)
        except (NameError, IndexError, KeyError):
            # It gives up, which it says by a NameError, or stumbles (alfworld issue 128).
            return None
        return chosen if chosen in world.commands else "look"

    def saw(self, command: str) -> None:
        """The command that was given, its own or another."""
        self._last = command


def _seen(world: World, text: str) -> dict[str, Any]:
    """What the hand-coded expert looks at, in stock ALFWorld's form."""
    name, state = world.house.name, world.state
    pairs = [("inreceptacle", o, r) for r, things in state.inside.items() for o in things]
    pairs += [(mark, thing) for mark, things in state.marks.items() for thing in things]
    facts = [(first, [name[one] for one in rest]) for first, *rest in sorted(pairs)]
    if state.held is not None:
        facts.append(("holds", ["agent1 ", name[state.held]]))
    return {
        "feedback": text,
        "won": world.won,
        "admissible_commands": list(world.admissible),
        "facts": [SimpleNamespace(name=first, names=names) for first, names in facts],
    }


@contextmanager
def _imports_without_a_trace() -> Iterator[None]:
    """Importing `alfworld` makes a folder for its data, which a run that has none does not need."""
    given = os.environ.get("ALFWORLD_DATA")
    if given is None:
        os.environ["ALFWORLD_DATA"] = tempfile.gettempdir()
    try:
        yield
    finally:
        if given is None:
            del os.environ["ALFWORLD_DATA"]
