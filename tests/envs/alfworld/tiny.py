"""Tiny houses drawn by hypothesis, and all states that can be reached in one."""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Hashable
from dataclasses import replace
from typing import Any

from hypothesis import strategies as st

from envs.alfworld.floorplans import TASK_TYPES, openable
from envs.alfworld.world import World
from tests.envs.alfworld.made import LIGHT, TWO, game_of, goal_of, identifier, problem, world_of

_PLACES = ["Fridge 1", "Microwave 1", "SinkBasin 1", "CounterTop 1", "Drawer 1", "Drawer 2"]
_THINGS = ["Apple 1", "Apple 2", "Egg 1", "Knife 1"]
# Commands that change nothing that a plan could need.
_IDLE = ("look", "inventory", "help", "examine", "slice")


@st.composite
def tiny_worlds(draw: Any) -> World:
    """Two or three receptacles, some of them in one place or open, and two or three things that
    lie in none, one or two of them, or in the agent's hand; the goal may be out of reach."""
    names = draw(st.lists(st.sampled_from(_PLACES), min_size=2, max_size=3, unique=True))
    places = {name: draw(st.integers(1, 3)) for name in names}
    task_type = draw(st.sampled_from(TASK_TYPES))
    carried = draw(st.lists(st.sampled_from(_THINGS), min_size=1, max_size=2, unique=True))
    if task_type == TWO:
        carried = ["Apple 1", "Apple 2"]
    somewhere = st.lists(st.sampled_from(names), min_size=1, max_size=2, unique=True)
    where = st.one_of(somewhere, st.just([]))
    things: dict[str, Any] = {name: draw(where) for name in carried}
    facts = [f"opened {identifier(name)}" for name in names if draw(_rarely(name))]
    if draw(st.booleans()) and draw(st.booleans()):
        things[carried[0]] = []
        facts += [f"holds agent1 {identifier(carried[0])}", "holdsAny agent1"]
    mark = draw(st.sampled_from(["isClean", "isHot", "isCool", None, None, None]))
    if mark is not None:
        facts.append(f"{mark} {identifier(carried[-1])}")
    target = draw(st.sampled_from(carried)).split()[0]
    if task_type == LIGHT:
        things["DeskLamp 1"] = draw(where)
        goal = goal_of(task_type, target, "DeskLamp")
    else:
        goal = goal_of(task_type, target, draw(st.sampled_from(names)).split()[0])
    start = draw(st.sampled_from([0, *places.values()]))
    return world_of(game_of(problem(places, things, goal, facts, start)))


def _rarely(name: str) -> Any:
    return st.sampled_from([False, False, True]) if openable(name.split()[0]) else st.just(False)


def twin(world: World) -> World:
    """Another world in the same state."""
    other, state = copy.copy(world), world.state
    # A deep copy takes ten times as long.
    other.state = replace(
        state,
        opened=set(state.opened),
        inside={receptacle: set(things) for receptacle, things in state.inside.items()},
        lies=set(state.lies),
        marks={mark: set(things) for mark, things in state.marks.items()},
        outside=set(state.outside),
    )
    other.seen = set(world.seen)
    other.commands = other._commands()
    return other


def state_of(world: World) -> Hashable:
    """What plans depend on; where a thing once lay matters to slicing and looking only."""
    state = world.state
    return (
        state.at,
        state.held,
        frozenset(state.opened),
        frozenset((r, thing) for r, things in state.inside.items() for thing in things),
        frozenset((mark, thing) for mark, things in state.marks.items() for thing in things),
    )


def explore(world: World) -> dict[Hashable, tuple[World, int | None]]:
    """Every state that can be reached, with the number of commands to a win, None for no win."""
    begin = state_of(world)
    known = {begin: world}
    before: dict[Hashable, set[Hashable]] = {begin: set()}
    queue = deque([begin])
    while queue:
        here = queue.popleft()
        for command in known[here].admissible:
            if command.startswith(_IDLE):
                continue
            reached = twin(known[here])
            reached.step(command)
            there = state_of(reached)
            if there not in known:
                known[there] = reached
                before[there] = set()
                queue.append(there)
            before[there].add(here)
    away: dict[Hashable, int] = {one: 0 for one, found in known.items() if found.won}
    queue = deque(away)
    while queue:
        there = queue.popleft()
        for here in before[there]:
            if here not in away:
                away[here] = away[there] + 1
                queue.append(here)
    return {one: (found, away.get(one)) for one, found in known.items()}
