"""Houses made by hand, and random walks, for the tests of ALFWorld."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from random import Random
from typing import Any

from envs.alfworld.floorplans import TASK_TYPES, able, holds, openable
from envs.alfworld.package import constants, goal_library, source
from envs.alfworld.rules import house_of
from envs.alfworld.world import World

PLACE, LIGHT, CLEAN, HEAT, COOL, TWO = TASK_TYPES
_LAMPS = ("DeskLamp", "FloorLamp")
# What is never admissible, however a house looks.
_WRONG = ("fly to moon", "", "LOOK", "take everything", "open", "go to moon 1", "help me\nlook")
_IDLE = ("go", "look", "help", "inventory", "examine")


def identifier(name: str) -> str:
    """`Mug 1` is Mug_bar_1; a basin is known by the fixture that it is part of."""
    kind, number = name.split()
    fixture = kind.removesuffix("Basin")
    return f"{fixture}_bar_{number}" + ("" if fixture == kind else f"_bar_{kind}")


def goal_of(task_type: str, target: str, place: str) -> str:
    """The goal of a task in PDDL; `place` is a receptacle, or the lamp to look at things with."""
    slots = {"obj": target, "recep": place, "toggle": place, "mrecep": ""}
    return goal_library().gdict[task_type]["pddl"].format(**slots).replace("#", "-")


def problem(
    places: Mapping[str, int],
    things: Mapping[str, str | Sequence[str]],
    goal: str,
    facts: Iterable[str] = (),
    start: int = 0,
) -> str:
    """A PDDL problem. `places` are receptacles by location, `things` lie in receptacles (names,
    "Mug 1"); kinds and abilities are ALFWorld's. `facts` are further ones, in PDDL."""
    kinds = sorted({name.split()[0] for name in places})
    types = sorted({name.split()[0] for name in things})
    locations = sorted({start, *places.values()})
    objects = [f"{identifier(name)} - receptacle" for name in places]
    objects += [f"{identifier(name)} - object" for name in things]
    objects += [f"loc_bar_{number} - location" for number in locations]
    objects += [f"{kind}Type - rtype" for kind in kinds] + [f"{one}Type - otype" for one in types]
    init = [f"atLocation agent1 loc_bar_{start}", *facts]
    for name, at in places.items():
        kind = name.split()[0]
        init.append(f"receptacleType {identifier(name)} {kind}Type")
        init.append(f"receptacleAtLocation {identifier(name)} loc_bar_{at}")
        init += [f"openable {identifier(name)}"] * openable(kind)
    for name, where in things.items():
        init += _thing(name, [where] if isinstance(where, str) else where, places)
    init += [f"canContain {k}Type {t}Type" for k in kinds for t in types if t in holds(k)]
    lines = [*objects, "agent1 - agent", ")", "(:init", *(f"({fact})" for fact in init), ")"]
    return "\n".join(["(define (problem made)", "(:domain alfred)", "(:objects", *lines, goal])


def _thing(name: str, where: Sequence[str], places: Mapping[str, int]) -> list[str]:
    one, kind = identifier(name), name.split()[0]
    facts = [f"objectType {one} {kind}Type"]
    facts.append(f"toggleable {one}" if kind in _LAMPS else f"pickupable {one}")
    facts += [f"inReceptacle {one} {identifier(place)}" for place in where]
    facts += [f"objectAtLocation {one} loc_bar_{at}" for at in {places[p]: 0 for p in where}]
    abilities = ("Cleanable", "Heatable", "Coolable", "Sliceable")
    facts += [f"{ability.lower()} {one}" for ability in abilities if kind in able(ability)]
    facts += [f"isReceptacleObject {one}"] * (kind in constants().MOVABLE_RECEPTACLES_SET)
    return facts


def game_of(pddl_problem: str, objective: str = "do what is asked") -> dict[str, Any]:
    """The content of a game file with the rules and words of the installed package."""
    return {
        "pddl_domain": source("data/alfred.pddl"),
        "grammar": source("data/alfred.twl2").replace("UNKNOWN GOAL", objective),
        "pddl_problem": pddl_problem,
        "solvable": True,
    }


def world_of(game: dict[str, Any]) -> World:
    return World(house_of(game, "made by a test"))


def some_command(world: World, rng: Random) -> str:
    """Mostly one that changes something, at times one that is not admissible."""
    chance = rng.random()
    if chance < 0.06:
        return rng.choice(_WRONG)
    doing = [command for command in world.admissible if command.split()[0] not in _IDLE]
    return rng.choice(doing if doing and chance < 0.66 else world.admissible)
