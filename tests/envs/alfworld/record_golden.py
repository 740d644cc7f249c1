"""Record what stock ALFWorld says: `python -m tests.envs.alfworld.record_golden [FOLDER]`.

Writes tests/golden/alfworld/<name>.json, one house each: a generated one of every task type, and
the rooms made by hand in `tests.envs.alfworld.rooms`, where rare rules meet. Needs the witness
(`tests.envs.alfworld.stock`); the tests that compare with what was recorded do not.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from random import Random
from typing import Any

from envs.alfworld.floorplans import TASK_TYPES
from envs.alfworld.houses import HouseOptions, make_house
from tests.envs.alfworld.made import game_of, some_command, world_of
from tests.envs.alfworld.rooms import ROOMS
from tests.envs.alfworld.stock import Seen, Stock

GOLDEN = Path(__file__).resolve().parents[2] / "golden" / "alfworld"
SEED, WANDERING = 7, 16


def houses() -> Iterator[dict[str, Any]]:
    """What is to be played: name, objective, PDDL problem, commands, and the trajectory of a
    generated house."""
    for task_type in TASK_TYPES:
        game, trajectory = make_house(task_type, SEED, HouseOptions(objects=12), False)
        yield {
            "name": task_type,
            "objective": trajectory["turk_annotations"]["anns"][0]["task_desc"],
            "trajectory": trajectory,
            "pddl_problem": game["pddl_problem"],
            "commands": _wandering(game),
        }
    for name, room in ROOMS.items():
        yield {"name": name, "objective": f"try {name}", "trajectory": None, **room}


def _wandering(game: dict[str, Any]) -> list[str]:
    """Random commands, then a shortest plan from where they led."""
    # Our engine only chooses commands: what they do is asked of stock.
    from envs.alfworld.planner import plan

    world, rng, commands = world_of(game), Random(SEED), []
    for _ in range(WANDERING):
        commands.append(some_command(world, rng))
        world.step(commands[-1])
    return commands + (plan(world) or [])


def changes(before: Iterable[str], now: Iterable[str]) -> dict[str, list[str]]:
    """Which commands became admissible and which no longer are: whole lists would be long."""
    return {
        "new": sorted(set(now) - set(before)),
        "gone": sorted(set(before) - set(now)),
    }


def record(stock: Stock, house: dict[str, Any]) -> dict[str, Any]:
    """The house with what stock says at the start and to each command."""
    stock.load(game_of(house["pddl_problem"], house["objective"]))
    seen = stock.reset()
    steps = [_step("", Seen("", (), False), seen)]
    for command in house["commands"]:
        before, seen = seen, stock.step(command)
        steps.append(_step(command, before, seen))
    return {key: house[key] for key in house if key != "commands"} | {"steps": steps}


def _step(command: str, before: Seen, seen: Seen) -> dict[str, Any]:
    told = {"command": command, "text": seen.text, "won": seen.won}
    return told | changes(before.admissible, seen.admissible)


def main(folder: Path = GOLDEN) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as data:
        stock = Stock(Path(data))
        for house in houses():
            file = folder / f"{house['name']}.json"
            file.write_text(json.dumps(record(stock, house), indent=1) + "\n")
            print(file)


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:2]))
