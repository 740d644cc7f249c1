"""The PDDL text of a procedural house: its objects and what is true of them at the start."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from envs.alfworld.floorplans import LAMPS, able, holds, openable
from envs.alfworld.package import constants

START = "loc_bar_0"
_ABILITIES = ("Cleanable", "Heatable", "Coolable", "Sliceable")


@dataclass(frozen=True)
class Receptacle:
    """One receptacle of a house; `kind` is that of the room it is in."""

    identifier: str
    type: str
    kind: str
    location: str


def problem_facts(
    receptacles: Sequence[Receptacle], things: Sequence[tuple[str, Receptacle]]
) -> str:
    """`(:objects …)` and `(:init …)`: everything shut, everything off, the agent in the middle of
    the room. `things` are types and where they lie."""
    kinds = sorted({receptacle.type for receptacle in receptacles})
    types = sorted({name for name, _ in things})
    seen: Counter[str] = Counter()
    named = []
    for name, where in things:
        seen[name] += 1
        named.append((f"{name}_bar_{seen[name]:02d}", name, where))
    objects = ["agent1 - agent", f"{START} - location"]
    objects += [f"{name}Type - otype" for name in types]
    objects += [f"{kind}Type - rtype" for kind in kinds]
    objects += [f"{identifier} - object" for identifier, _, _ in named]
    objects += [f"{receptacle.identifier} - receptacle" for receptacle in receptacles]
    objects += [f"{receptacle.location} - location" for receptacle in receptacles]
    facts = [f"atLocation agent1 {START}"]
    facts += [fact for receptacle in receptacles for fact in _receptacle(receptacle)]
    facts += [
        f"canContain {kind}Type {name}Type"
        for kind in kinds
        for name in types
        if name in holds(kind)
    ]
    facts += [fact for identifier, name, where in named for fact in _thing(identifier, name, where)]
    lines = ["(:objects", *objects, ")", "(:init", *(f"({fact})" for fact in facts), ")"]
    return "\n".join(lines)


def _receptacle(receptacle: Receptacle) -> list[str]:
    identifier = receptacle.identifier
    facts = [
        f"receptacleType {identifier} {receptacle.type}Type",
        f"receptacleAtLocation {identifier} {receptacle.location}",
    ]
    return facts + ([f"openable {identifier}"] if openable(receptacle.type) else [])


def _thing(identifier: str, name: str, where: Receptacle) -> list[str]:
    facts = [
        f"objectType {identifier} {name}Type",
        f"{'toggleable' if name in LAMPS else 'pickupable'} {identifier}",
        f"inReceptacle {identifier} {where.identifier}",
        f"objectAtLocation {identifier} {where.location}",
    ]
    facts += [f"{a.lower()} {identifier}" for a in _ABILITIES if name in able(a)]
    if name in constants().MOVABLE_RECEPTACLES_SET:
        facts.append(f"isReceptacleObject {identifier}")
    return facts
