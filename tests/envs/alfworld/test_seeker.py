"""The expert that seeks wins whatever has gone wrong before, and knows no more than it read."""

import json
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from envs.alfworld.expert import winning_commands
from envs.alfworld.floorplans import TASK_TYPES
from envs.alfworld.house import House
from envs.alfworld.houses import HouseOptions, make_house
from envs.alfworld.rules import house_of
from envs.alfworld.seeker import seek
from envs.alfworld.world import World
from envs.experts import Mistake


def house(task_type: str, seed: int, **knobs: int) -> House:
    options = HouseOptions(**knobs)  # pyright: ignore[reportArgumentType]
    return house_of(make_house(task_type, seed, options, False)[0], "a house")


@pytest.mark.parametrize("task_type", TASK_TYPES)
@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 10_000), mistakes=st.sampled_from([0.0, 0.3]), rooms=st.integers(1, 2))
def test_it_wins_after_any_mistakes(task_type: str, seed: int, mistakes: float, rooms: int):
    world, rng = World(house(task_type, seed, rooms=rooms, receptacles=6)), random.Random(seed)
    for _ in range(300):
        if world.won:
            return
        command = seek(world)
        assert command in world.commands
        blunder = rng.random() < mistakes
        world.step(rng.choice(world.admissible) if blunder else command)
    raise AssertionError("not won in 300 commands")


def test_it_looks_in_the_order_of_the_list_and_never_twice():
    world = World(house("pick_and_place_simple", 7))
    listed = [world.house.name[r] for r in world.house.at]
    gone = []
    while not world.won:
        command = seek(world)
        assert command is not None
        if command.startswith("take"):
            break
        if command.startswith("go to"):
            gone.append(command.removeprefix("go to "))
        world.step(command)
    assert gone == listed[: len(gone)] and len(gone) > 1


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 10_000), task_type=st.sampled_from(TASK_TYPES))
def test_it_does_not_know_what_it_was_not_told(seed: int, task_type: str):
    """Where nothing was read yet, things that lie elsewhere change nothing."""
    known = house(task_type, seed)
    world, other = World(known), World(known)
    # The same house with everything in another place: as long as both say the same, so does it.
    places = list(other.state.inside)
    moved = dict(zip(places, [*places[1:], *places[:1]], strict=True))
    other.state.inside = {moved[r]: set(things) for r, things in other.state.inside.items()}
    said = (world.intro, other.intro)
    for _ in range(20):
        if said[0] != said[1] or world.won or other.won:
            break
        command = seek(world)
        assert command == seek(other)
        said = (world.step(str(command)), other.step(str(command)))


@pytest.mark.parametrize("task_type", TASK_TYPES)
def test_mistakes_are_marked_as_often_as_asked_and_the_rest_still_wins(task_type: str, tmp_path):
    commands = []
    for seed in range(12):
        game, _ = make_house(task_type, seed, HouseOptions(), False)
        file = tmp_path / f"{seed}.tw-pddl"
        file.write_text(json.dumps(game))
        shown = winning_commands(file, "seeker", mistakes=0.3)
        assert shown is not None and shown == winning_commands(file, "seeker", mistakes=0.3)
        world = World(house_of(game, "a house"))
        for command in shown:
            assert not world.won
            world.step(command)
        assert world.won
        commands += shown
    share = sum(isinstance(command, Mistake) for command in commands) / len(commands)
    # 12 games have about 200 commands: four standard errors are 0.13.
    assert 0.17 < share < 0.43
    assert not any(isinstance(c, Mistake) for c in winning_commands(file, "seeker") or [])
