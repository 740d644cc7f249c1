"""The planner: a shortest list of commands that wins, from any state of a game.

With one hand and every place one command away from every other, a shortest plan always has the
same shape: put down what is of no use, then for each thing that is needed go, open, take, go and
change it, go, open, put. What is left is to choose the things and the places, and to try them all
is cheap.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import permutations

from envs.alfworld.world import CHANGES, World


@dataclass(frozen=True)
class _Draft:
    """Commands so far, where they lead, and what they opened."""

    at: str
    opened: frozenset[str]
    commands: tuple[str, ...] = ()

    def then(self, *commands: str) -> _Draft:
        return replace(self, commands=self.commands + commands)


def plan(world: World) -> list[str] | None:
    """A shortest list of commands that wins; empty when the game is won, None when none does.

    Of equal ones the first by identifiers, so that the plan is the same everywhere.
    """
    if world.won:
        return []
    begin = _Draft(world.state.at, frozenset(world.state.opened))
    drafts = list(_wins(world, begin, world.state.held))
    held = world.state.held
    if held is not None:
        for receptacle in _different(world, _homes(world, held)):
            put = _put(world, _reach(world, begin, receptacle, True), held, receptacle)
            drafts += _wins(world, put, None, dropped=(held, receptacle))
    if not drafts:
        return None
    return list(min(drafts, key=lambda draft: len(draft.commands)).commands)


def plan_length(world: World) -> int | None:
    """Number of commands of a shortest plan; None when nothing wins."""
    found = plan(world)
    return None if found is None else len(found)


def _wins(
    world: World, begin: _Draft, held: str | None, dropped: tuple[str, str] | None = None
) -> Iterator[_Draft]:
    """Ways to win with `held` in hand, which has to be of use; `dropped` is a thing that was put
    into a receptacle on the way."""
    targets = world.house.targets()
    if held is not None and held not in targets:
        return
    if world.house.goal.lamp is not None:
        for thing in [held] if held else targets:
            for taken, _ in _taken(world, [begin], thing, held, dropped):
                yield from _light(world, taken, dropped)
        return
    goal = world.house.goal
    kinds = world.house.kinds
    # One that has no place cannot be gone to.
    destinations = [r for r in world.house.at if goal.receptacle in kinds.get(r, ())]
    for receptacle in _different(world, destinations, dropped):
        there = [t for t in targets if _inside(world, t, receptacle, dropped) and _ready(world, t)]
        needed = goal.count - len(there)
        others = [thing for thing in targets if thing not in there]
        for chosen in permutations(others, max(needed, 0)):
            if held is None or held in chosen[:1]:
                yield from _deliver(world, begin, chosen, receptacle, held, dropped)


def _deliver(
    world: World,
    begin: _Draft,
    things: Sequence[str],
    receptacle: str,
    held: str | None,
    dropped: tuple[str, str] | None,
) -> Iterator[_Draft]:
    drafts = [begin]
    for number, thing in enumerate(things, start=1):
        reached = []
        for taken, source in _taken(world, drafts, thing, held, dropped):
            # What lies in two receptacles is changed in both at once.
            lies = source != receptacle and _inside(world, thing, receptacle, dropped)
            for changed in _change(world, taken, thing):
                if lies and number == len(things):
                    reached.append(changed)
                elif world.house.accepts(receptacle, thing):
                    there = _reach(world, changed, receptacle, True)
                    reached.append(_put(world, there, thing, receptacle))
        drafts, held = reached, None
    yield from drafts


def _taken(
    world: World,
    drafts: Iterable[_Draft],
    thing: str,
    held: str | None,
    dropped: tuple[str, str] | None,
) -> Iterator[tuple[_Draft, str | None]]:
    """Ways to have the thing in hand, and the receptacle that it is taken from."""
    for draft in drafts:
        if thing == held:
            yield draft, None
        elif thing in world.house.states["pickupable"]:
            name = world.house.name
            for receptacle in _places(world, thing, dropped):
                reached = _reach(world, draft, receptacle, True)
                yield reached.then(f"take {name[thing]} from {name[receptacle]}"), receptacle


def _change(world: World, draft: _Draft, thing: str) -> Iterator[_Draft]:
    """As the goal wants it."""
    if _ready(world, thing):
        yield draft
        return
    for verb, kind, able, result, _ in CHANGES:
        if result == world.house.goal.change and thing in world.house.states[able]:
            for receptacle in world.house.at:
                if kind in world.house.kinds.get(receptacle, ()):
                    reached = _reach(world, draft, receptacle, False)
                    name = world.house.name
                    yield reached.then(f"{verb} {name[thing]} with {name[receptacle]}")


def _light(world: World, draft: _Draft, dropped: tuple[str, str] | None) -> Iterator[_Draft]:
    house = world.house
    for lamp in sorted(t for t, types in house.types.items() if house.goal.lamp in types):
        for receptacle in _places(world, lamp, dropped):
            if lamp in house.states["toggleable"]:
                reached = _reach(world, draft, receptacle, False)
                on = lamp in world.state.marks["istoggled"]
                yield reached if on else reached.then(f"use {house.name[lamp]}")


def _put(world: World, draft: _Draft, thing: str, receptacle: str) -> _Draft:
    return draft.then(f"move {world.house.name[thing]} to {world.house.name[receptacle]}")


def _reach(world: World, draft: _Draft, receptacle: str, inside: bool) -> _Draft:
    """Beside the receptacle, and with `inside` it is open."""
    name, places = world.house.name[receptacle], world.house.at[receptacle]
    if draft.at not in places:
        draft = replace(draft.then(f"go to {name}"), at=places[0])
    shut = receptacle in world.house.states["openable"] and receptacle not in draft.opened
    if inside and shut:
        draft = replace(draft.then(f"open {name}"), opened=draft.opened | {receptacle})
    return draft


def _ready(world: World, thing: str) -> bool:
    return world.house.goal.change is None or world.changed(thing)


def _different(
    world: World, receptacles: Iterable[str], dropped: tuple[str, str] | None = None
) -> list[str]:
    """Of receptacles between which a plan may choose, those that can make a difference.

    All that are where a plan has to go anyway, or where something was put down; of the others,
    which are all one command away, the first of each kind that is shut and that is not.
    """
    house, goal = world.house, world.house.goal
    things = {t for t, types in house.types.items() if types & {goal.target, goal.lamp}}
    appliances = {kind for _, kind, _, result, _ in CHANGES if result == goal.change}
    near = {world.state.at} | {
        place
        for r, places in house.at.items()
        if things & world.state.inside.get(r, set())
        or appliances & house.kinds.get(r, set())
        or (dropped is not None and r == dropped[1])
        for place in places
    }
    kept, had = [], set()
    for receptacle in receptacles:
        alike = (frozenset(house.kinds.get(receptacle, ())), world.reachable(receptacle))
        if near & set(house.at.get(receptacle, ())):
            kept.append(receptacle)
        elif alike not in had:
            had.add(alike)
            kept.append(receptacle)
    return kept


def _homes(world: World, thing: str) -> Iterable[str]:
    """Receptacles that a thing can be put into."""
    return [r for r in world.house.at if world.house.accepts(r, thing)]


def _places(world: World, thing: str, dropped: tuple[str, str] | None) -> list[str]:
    """Receptacles that hold the thing and that can be gone to."""
    return [r for r in world.house.at if _inside(world, thing, r, dropped)]


def _inside(world: World, thing: str, receptacle: str, dropped: tuple[str, str] | None) -> bool:
    return thing in world.state.inside.get(receptacle, ()) or dropped == (thing, receptacle)
