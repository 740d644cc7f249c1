"""An expert that seeks: it knows no more than a player who has read everything so far.

It looks into one receptacle after the other, in the order in which the game lists them, until what
it needs has been seen; then it does what the task asks for. What it does next depends on the state
and on what the game has told, and on nothing else, so it goes on from any mistake.
"""

from __future__ import annotations

from collections.abc import Iterable

from envs.alfworld.world import CHANGES, World


def seek(world: World) -> str | None:
    """The next command; None when it does not know of any."""
    held, goal = world.state.held, world.house.goal
    if held is None:
        return _fetch(world)
    if goal.target not in world.house.types.get(held, ()):
        return _put_away(world, held)
    if goal.lamp is not None:
        return _light(world)
    if goal.change is not None and not world.changed(held):
        return _change(world, held)
    return _deliver(world, held)


def _fetch(world: World) -> str | None:
    """A thing that is needed, from where it was seen, else from where it may be."""
    name = world.house.name
    for thing in world.house.targets():
        place = _place(world, thing)
        if thing in world.seen and place is not None and not _done(world, place):
            return _reach(world, place) or f"take {name[thing]} from {name[place]}"
    return _search(world)


def _done(world: World, place: str) -> bool:
    """Whether what lies here lies well: only with two things does it stay while another comes."""
    goal = world.house.goal
    return goal.count > 1 and place == _destination(world)


def _search(world: World) -> str | None:
    """Look into the next receptacle that has not been looked into."""
    listed = list(world.house.at)
    here = [listed.index(r) for r in world.house.located.get(world.state.at, ())]
    for receptacle in (*(listed[i] for i in here), *_after(listed, here)):
        if receptacle not in world.looked:
            return _reach(world, receptacle) or f"examine {world.house.name[receptacle]}"
    return None


def _after(listed: list[str], here: list[int]) -> Iterable[str]:
    begin = max(here) + 1 if here else 0
    return [*listed[begin:], *listed[:begin]]


def _light(world: World) -> str | None:
    house = world.house
    for thing, types in sorted(house.types.items()):
        place = _place(world, thing) if house.goal.lamp in types else None
        if place is not None and thing in world.seen:
            return _go(world, place) or f"use {house.name[thing]}"
    return _search(world)


def _change(world: World, held: str) -> str | None:
    name = world.house.name
    for verb, kind, _, result, _ in CHANGES:
        if result == world.house.goal.change:
            for receptacle in world.house.at:
                if kind in world.house.kinds.get(receptacle, ()):
                    return _go(world, receptacle) or f"{verb} {name[held]} with {name[receptacle]}"
    return None


def _deliver(world: World, held: str) -> str | None:
    place = _destination(world)
    if place is None:
        return None
    name = world.house.name
    return _reach(world, place) or f"move {name[held]} to {name[place]}"


def _destination(world: World) -> str | None:
    """The first receptacle of the goal's kind; with two things, the one that has one of them."""
    house, goal = world.house, world.house.goal
    places = [r for r in house.at if goal.receptacle in house.kinds.get(r, ())]
    targets = set(house.targets())
    used = [r for r in places if goal.count > 1 and targets & world.state.inside.get(r, set())]
    known = [r for r in used if targets & world.state.inside[r] & world.seen]
    return next(iter(known + places), None)


def _put_away(world: World, held: str) -> str | None:
    """What is of no use goes where it fits: here, else into the next place that takes it."""
    house, name = world.house, world.house.name
    here = house.located.get(world.state.at, [])
    for receptacle in (*here, *house.at):
        if house.accepts(receptacle, held):
            return _reach(world, receptacle) or f"move {name[held]} to {name[receptacle]}"
    return None


def _reach(world: World, receptacle: str) -> str | None:
    """A command that brings hands nearer to what is in it; None when they are there."""
    away = _go(world, receptacle)
    if away is None and not world.reachable(receptacle):
        return f"open {world.house.name[receptacle]}"
    return away


def _go(world: World, receptacle: str) -> str | None:
    if world.state.at in world.house.at[receptacle]:
        return None
    return f"go to {world.house.name[receptacle]}"


def _place(world: World, thing: str) -> str | None:
    return next((r for r in world.house.at if thing in world.state.inside.get(r, ())), None)
