"""The engine without a witness: what must hold in every house and on every walk."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from envs.alfworld.floorplans import TASK_TYPES
from envs.alfworld.goal import facts
from envs.alfworld.houses import make_house
from envs.alfworld.planner import plan, plan_length
from envs.alfworld.rules import load
from envs.alfworld.world import NOTHING, World
from tests.envs.alfworld.conftest import SMALL
from tests.envs.alfworld.made import HEAT, PLACE, game_of, goal_of, problem, some_command, world_of
from tests.envs.alfworld.rooms import ROOMS
from tests.envs.alfworld.tiny import explore, state_of, tiny_worlds, twin

# What may undo a part of a goal: leaving the lamp, taking back, putting down, cooling what was hot.
_UNDOING = ("go", "take", "move", "heat", "cool")


@cache
def house(task_type: str, seed: int) -> World:
    return world_of(make_house(task_type, seed, SMALL, False)[0])


@cache
def room(name: str) -> World:
    return world_of(game_of(ROOMS[name]["pddl_problem"]))


begun = st.one_of(
    st.builds(house, st.sampled_from(TASK_TYPES), st.integers(1, 12)),
    st.sampled_from(sorted(ROOMS)).map(room),
    tiny_worlds(),
)


@st.composite
def played(draw, most: int = 40) -> World:
    """A world somewhere in the middle of a random walk, at times a winning one."""
    world = twin(draw(begun))
    rng = Random(draw(st.integers(0, 2**32)))
    for _ in range(draw(st.integers(0, most))):
        world.step(some_command(world, rng))
    if draw(st.booleans()):
        for command in (plan(world) or [])[: draw(st.integers(0, 12))]:
            world.step(command)
    return world


@given(played(), st.text(max_size=12))
@settings(max_examples=60)
def test_what_is_not_admissible_changes_nothing(world: World, noise: str) -> None:
    before = twin(world)
    wrong = [noise, *(command.upper() for command in world.admissible), "examine ", "go to shelf 0"]
    for command in wrong:
        if command not in world.commands:
            assert world.step(command) == NOTHING
    assert (world.state, world.seen) == (before.state, before.seen)
    assert world.admissible == before.admissible == tuple(sorted(set(world.admissible)))


@given(played())
@settings(max_examples=60)
def test_looking_changes_no_state(world: World) -> None:
    before = twin(world)
    for command in world.admissible:
        if command.startswith(("look", "inventory", "help", "examine")):
            assert world.step(command)
            assert world.state == before.state
            assert world.admissible == before.admissible


@given(begun, st.integers(0, 2**32))
@settings(max_examples=80)
def test_all_facts_are_a_win_and_only_undoing_loses_one(start: World, seed: int) -> None:
    world, rng = twin(start), Random(seed)
    score, most = facts(world)
    for _ in range(60):
        assert 0 <= score <= most
        assert (score == most) == world.won
        commands = plan(world)
        command = commands[0] if commands and rng.random() < 0.3 else some_command(world, rng)
        world.step(command)
        before, (score, now) = score, facts(world)
        assert now == most
        assert score >= before or command.split()[0] in _UNDOING, command


def _back(world: World, command: str) -> str | None:
    """What undoes a command."""
    verb, *rest = command.split()
    if verb in ("open", "close"):
        return " ".join(["close" if verb == "open" else "open", *rest])
    if verb == "take":
        return f"move {' '.join(rest[:2])} to {' '.join(rest[3:])}"
    if verb == "move":
        return f"take {' '.join(rest[:2])} from {' '.join(rest[3:])}"
    here = world.house.located.get(world.state.at, [])
    return f"go to {world.house.name[here[0]]}" if verb == "go" and here else None


@given(played())
@settings(max_examples=80)
def test_there_and_back_pays_once_at_most(world: World) -> None:
    """The first time may find something; then a loop is worth nothing, and no state is better
    for having been left."""
    for command in world.admissible:
        back = _back(world, command)
        there = twin(world)
        there.step(command)
        if back is None or back not in there.commands:
            continue
        there.step(back)
        if state_of(there) != state_of(world):
            continue  # a thing in two receptacles, which was put where it was already
        assert facts(there)[0] >= facts(world)[0]
        known = facts(there)
        for again in (command, back):
            there.step(again)
        assert facts(there) == known, (command, back)


@given(tiny_worlds())
@settings(max_examples=40)
def test_no_plan_is_shorter_and_none_means_no_win(world: World) -> None:
    """From every state that can be reached, against a search through all of them."""
    for found, away in explore(world).values():
        assert plan_length(found) == away


@given(played())
@settings(max_examples=100)
def test_plans_win(world: World) -> None:
    commands = plan(world)
    if commands is not None:
        check(world, commands)


def check(world: World, commands: list[str]) -> None:
    for command in commands:
        assert not world.won
        assert command in world.commands
        world.step(command)
    assert world.won


@pytest.mark.parametrize("number", range(36))
def test_plans_win_in_real_games(real: list[Path], number: int) -> None:
    start = World(load(real[number]))
    check(twin(start), plan(start) or [])
    for seed in range(10):
        world, rng = twin(start), Random(seed)
        for _ in range(rng.randint(1, 40)):
            world.step(some_command(world, rng))
            score, most = facts(world)
            assert (score == most) == world.won
        commands = plan(world)
        if commands is None:
            assert not any(world.house.accepts(r, world.state.held or "") for r in world.house.at)
        else:
            check(world, commands)


def test_a_thing_that_no_place_accepts_is_a_dead_end() -> None:
    world = world_of(
        game_of(
            problem(
                {"Sofa 1": 1, "Drawer 1": 2},
                {"Kettle 1": "Sofa 1", "Pen 1": "Sofa 1"},
                goal_of(PLACE, "Pen", "Drawer"),
            )
        )
    )
    assert plan_length(world) == 5
    world.step("go to sofa 1")
    world.step("take kettle 1 from sofa 1")
    assert plan(world) is None
    assert not world.won


def test_what_lies_in_two_receptacles_is_heated_in_both() -> None:
    """So it need not be carried back; found by the search above."""
    places = {"CounterTop 1": 1, "Microwave 1": 1, "Fridge 1": 2}
    things = {"Apple 1": ["CounterTop 1", "Fridge 1"]}
    start = world_of(game_of(problem(places, things, goal_of(HEAT, "Apple", "Fridge"))))
    commands = plan(start)
    assert commands is not None and len(commands) == 3 == explore(start)[state_of(start)][1]
    check(start, commands)


def test_the_search_finds_what_is_known() -> None:
    """A win by hand: go, take, go, open, put; and states beyond the win are counted too."""
    goal = goal_of(PLACE, "Pen", "Drawer")
    start = world_of(game_of(problem({"Shelf 1": 1, "Drawer 1": 2}, {"Pen 1": "Shelf 1"}, goal)))
    known = explore(start)
    assert known[state_of(start)][1] == 5
    assert {away for _, away in known.values()} == {0, 1, 2, 3, 4, 5}
    # The start; then two places, the drawer open or not, the pen in it, on the shelf or in hand.
    assert len(known) == 1 + 2 * 2 * 3
