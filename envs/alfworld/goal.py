"""How much of a goal is done: facts, each of which counts once, and all of which are a win."""

from __future__ import annotations

from envs.alfworld.world import World


def facts(world: World) -> tuple[int, int]:
    """(facts that are true, facts that the goal has), for the things that are nearest to it.

    Of each thing that is asked for: it was found (seen once; this cannot be undone), it is held or
    already where it belongs, it was cleaned, heated or cooled where that is asked for, and it lies
    where it belongs, changed as wanted. With a lamp: a thing is found and held, the lamp is found
    and on, and the agent is beside it. What is undone no longer counts. All facts at once are a
    win and nothing less is one.
    """
    goal = world.house.goal
    if goal.lamp is not None:
        return _light(world), 5
    each = 3 if goal.change is None else 4
    best = 0
    for receptacle, kinds in world.house.kinds.items():
        if goal.receptacle in kinds:
            scores = sorted(_placed(world, thing, receptacle) for thing in world.house.targets())
            best = max(best, sum(scores[-goal.count :]))
    return best, each * goal.count


def _placed(world: World, thing: str, receptacle: str) -> int:
    changed = world.house.goal.change is not None and world.changed(thing)
    there = thing in world.state.inside.get(receptacle, ())
    # Putting it where it belongs before it is changed would only have to be undone.
    done = there and (changed or world.house.goal.change is None)
    # What lies where it belongs from the start is found even if it was never told of.
    found = done or thing in world.seen or thing == world.state.held
    return found + (done or thing == world.state.held) + changed + done


def _light(world: World) -> int:
    house, goal, state = world.house, world.house.goal, world.state
    targets = house.targets()
    lamps = [
        thing
        for thing, types in house.types.items()
        if goal.lamp in types and thing in house.states["toggleable"]
    ]
    found = any(thing in world.seen or thing == state.held for thing in targets)
    lit = [lamp for lamp in lamps if lamp in state.marks["istoggled"]]
    near = {thing for r in house.located.get(state.at, ()) for thing in state.inside.get(r, ())}
    return (
        found
        + (state.held in targets)
        + any(lamp in world.seen or lamp in lit for lamp in lamps)
        + bool(lit)
        + any(lamp in near for lamp in lit)
    )
