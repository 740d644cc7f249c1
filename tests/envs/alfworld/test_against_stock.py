"""Our engine against stock ALFWorld, observation by observation; skipped where that is not.

Stock takes a tenth of a second a step, so walks are short here; what was recorded from it
(`test_golden.py`) is compared everywhere.
"""

from __future__ import annotations

import json
from pathlib import Path
from random import Random
from typing import Any

import pytest

from envs.alfworld.floorplans import TASK_TYPES
from envs.alfworld.planner import plan
from envs.alfworld.rules import load
from envs.alfworld.world import GREETING, World
from tests.envs.alfworld.made import some_command, world_of
from tests.envs.alfworld.stock import INSTALL, Seen, Stock

pytest.importorskip("fast_downward", reason=INSTALL)
pytest.importorskip("alfworld.agents.utils.misc", reason=INSTALL)

EVERY = [(task_type, seed) for task_type in TASK_TYPES for seed in (1, 2)]


@pytest.fixture(scope="module")
def stock(tmp_path_factory) -> Stock:
    return Stock(tmp_path_factory.mktemp("alfworld-data"))


def seen(world: World, text: str) -> Seen:
    return Seen(text, world.admissible, world.won)


def walk_together(stock: Stock, world: World, rng: Random, length: int) -> None:
    """Stock, which has loaded the game, and our engine hear the same commands."""
    opening = f"{GREETING}\n\n{world.intro}\n\nYour task is to: {world.house.objective}."
    assert seen(world, opening) == stock.reset()
    said = []
    for _ in range(length):
        said.append(some_command(world, rng))
        text = world.step(said[-1].strip())
        assert seen(world, text) == stock.step(said[-1]), said


@pytest.mark.parametrize("which", EVERY)
def test_walks_in_generated_houses(stock: Stock, generated: Any, which: tuple[str, int]) -> None:
    game = generated[which]
    stock.load(game)
    walk_together(stock, world_of(game), Random(str(which)), 30)


@pytest.mark.parametrize("number", range(6))
def test_walks_in_real_games(stock: Stock, real: list[Path], number: int) -> None:
    """The smallest of each type, ten commands; the slow test below walks in all games."""
    file = min(by_type(real)[TASK_TYPES[number]], key=lambda one: one.stat().st_size)
    stock.load(file)
    walk_together(stock, World(load(file)), Random(number), 10)


@pytest.mark.slow
@pytest.mark.parametrize("number", range(36))
def test_long_walks_in_real_games(stock: Stock, real: list[Path], number: int) -> None:
    stock.load(real[number])
    walk_together(stock, World(load(real[number])), Random(number), 30)


def by_type(files: list[Path]) -> dict[str, list[Path]]:
    found: dict[str, list[Path]] = {}
    for file in files:
        trajectory = json.loads(file.with_name("traj_data.json").read_text())
        found.setdefault(trajectory["task_type"], []).append(file)
    return found


@pytest.mark.parametrize("which", EVERY)
def test_plans(stock: Stock, small: list[Any], which: tuple[str, int]) -> None:
    """Ours wins in stock, and Fast Downward finds none that is shorter."""
    game = small[EVERY.index(which)]
    commands = plan(world_of(game))
    assert commands
    stock.load(game)
    assert len(stock.plan()) >= len(commands)
    stock.reset()
    won = [stock.step(command).won for command in commands]
    assert won == [False] * (len(commands) - 1) + [True]


def test_the_witness_tells_games_apart(stock: Stock, small: list[Any]) -> None:
    """A walk in another house is noticed: the comparison can fail."""
    stock.load(small[0])
    with pytest.raises(AssertionError):
        walk_together(stock, world_of(small[2]), Random(0), 3)
