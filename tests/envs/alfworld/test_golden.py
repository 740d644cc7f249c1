"""Our engine says what stock ALFWorld said: the transcripts of tests/golden/alfworld.

`python -m tests.envs.alfworld.record_golden` records them; the rules and words come from the
installed package, as when they were recorded.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from envs.alfworld.floorplans import TASK_TYPES
from envs.alfworld.world import GREETING
from tests.envs.alfworld.made import game_of, world_of
from tests.envs.alfworld.record_golden import GOLDEN, changes
from tests.envs.alfworld.rooms import ROOMS

NAMES = [*TASK_TYPES, *ROOMS]


def recorded(name: str) -> dict[str, Any]:
    return json.loads((GOLDEN / f"{name}.json").read_text())


@pytest.mark.parametrize("name", NAMES)
def test_replay(name: str) -> None:
    golden = recorded(name)
    world = world_of(game_of(golden["pddl_problem"], golden["objective"]))
    before: tuple[str, ...] = ()
    for number, step in enumerate(golden["steps"]):
        if number:
            text = world.step(step["command"].strip())
        else:
            text = f"{GREETING}\n\n{world.intro}\n\nYour task is to: {world.house.objective}."
        mine = {"command": step["command"], "text": text, "won": world.won}
        assert mine | changes(before, world.admissible) == step, f"step {number}"
        before = world.admissible
    assert any(step["won"] for step in golden["steps"])


def test_every_golden_file_is_replayed() -> None:
    assert sorted(file.stem for file in GOLDEN.glob("*")) == sorted(NAMES)


# Pieces of what the game says; together the walks hear all that it can say.
HEARD = (
    ["You are in the middle of a room. Looking quickly around you, you see nothing."]
    + ["Next to it, you see nothing.", "Next to it, you see a mug 2.", "a mug 2, and a mug 2."]
    + ["You are facing the cabinet 1, countertop 1, and shelf 1.", "Available commands:"]
    + ["You are carrying: a ", "You are not carrying anything.", "Nothing happens."]
    + ["You turn on the ", "You sliced the ", "You clean the ", "You heat the ", "You cool the "]
    + ["You open the ", "You close the ", " is closed.", " is open. In it, you see nothing."]
    + [f"This is a {word} apple 1." for word in ("sliced", "clean sliced")]
    + [f"This is a {word} and clean sliced apple 1." for word in ("hot", "cool")]
    + ["This is a hot sliced bread 1.", "This is a cool sliced bread 1."]
    + ["This is a hot tomato 1.", "This is a hot and clean tomato 1.", "This is a cold egg 1."]
    + ["This is a cool and clean tomato 1.", "This is a clean knife 1."]
    + ["This desklamp 1 is on.", "There's nothing special about desklamp 1."]
    + ["This is a normal plate 1. In it, you see a egg 1."]
)


@pytest.mark.parametrize("words", HEARD)
def test_rare_words_were_heard(words: str) -> None:
    assert any(words in step["text"] for name in ROOMS for step in recorded(name)["steps"])
