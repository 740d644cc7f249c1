"""Rooms made by hand, with the commands that are tried in them: where rare rules meet.

Real houses have few of these, and random walks do not find them. Facts are those that ALFWorld's
files may have; commands that are not admissible are tried as well.
"""

from __future__ import annotations

from typing import Any

from tests.envs.alfworld.made import CLEAN, COOL, LIGHT, PLACE, TWO, goal_of, problem


def _room(pddl_problem: str, commands: str) -> dict[str, Any]:
    """`commands` are parted by slashes."""
    told = [command.strip() for command in " ".join(commands.split()).split("/")]
    return {"pddl_problem": pddl_problem, "commands": told}


# Everything that examining can say of a thing: sliced or not, clean or not, hot, cold or neither.
_KITCHEN = _room(
    problem(
        {"CounterTop 1": 1, "SinkBasin 1": 2, "Microwave 1": 3, "Fridge 1": 4, "GarbageCan 1": 5},
        {
            **dict.fromkeys(["Knife 1", "Apple 1", "Bread 1", "Lettuce 1"], "CounterTop 1"),
            **dict.fromkeys(["Tomato 1", "Egg 1", "Plate 1"], "CounterTop 1"),
            "Mug 1": "SinkBasin 1",
        },
        goal_of(COOL, "Apple", "GarbageCan"),
        ["inReceptacleObject Egg_bar_1 Plate_bar_1"],
    ),
    """look / inventory / help / go to countertop 1 / look / examine countertop 1 /
    slice apple 1 with knife 1 / examine apple 1 / take knife 1 from countertop 1 /
    take apple 1 from countertop 1 / inventory / examine knife 1 / slice bread 1 with knife 1 /
    slice bread 1 with knife 1 / slice apple 1 with knife 1 / slice lettuce 1 with knife 1 /
    slice plate 1 with knife 1 / go to sinkbasin 1 / slice tomato 1 with knife 1 /
    clean knife 1 with sinkbasin 1 / examine knife 1 / move knife 1 to sinkbasin 1 / inventory /
    take mug 1 from sinkbasin 1 / heat mug 1 with microwave 1 / examine mug 1 /
    move mug 1 to sinkbasin 1 / look / go to countertop 1 /
    take apple 1 from countertop 1 / examine apple 1 / clean apple 1 with sinkbasin 1 /
    go to sinkbasin 1 / clean apple 1 with sinkbasin 1 / examine apple 1 / go to microwave 1 /
    heat apple 1 with microwave 1 / examine apple 1 / move apple 1 to microwave 1 /
    go to fridge 1 / cool apple 1 with fridge 1 / examine apple 1 / examine fridge 1 /
    open fridge 1 / open fridge 1 / move apple 1 to fridge 1 / close fridge 1 / go to countertop 1 /
    take bread 1 from countertop 1 / examine bread 1 / go to microwave 1 /
    heat bread 1 with microwave 1 / examine bread 1 / go to fridge 1 / cool bread 1 with fridge 1 /
    examine bread 1 / move bread 1 to fridge 1 / open fridge 1 / move bread 1 to fridge 1 / look /
    go to countertop 1 / take lettuce 1 from countertop 1 / go to sinkbasin 1 /
    clean lettuce 1 with sinkbasin 1 / examine lettuce 1 / move lettuce 1 to sinkbasin 1 /
    go to countertop 1 / take tomato 1 from countertop 1 / examine tomato 1 / go to microwave 1 /
    heat tomato 1 with microwave 1 / examine tomato 1 / go to sinkbasin 1 /
    clean tomato 1 with sinkbasin 1 / examine tomato 1 / go to fridge 1 /
    cool tomato 1 with fridge 1 / examine tomato 1 / close fridge 1 / move tomato 1 to fridge 1 /
    go to countertop 1 / move tomato 1 to countertop 1 / take egg 1 from countertop 1 /
    go to fridge 1 / cool egg 1 with fridge 1 / examine egg 1 / go to microwave 1 /
    heat egg 1 with microwave 1 / examine egg 1 / open microwave 1 / move egg 1 to microwave 1 /
    close microwave 1 / go to countertop 1 / take plate 1 from countertop 1 / examine plate 1 /
    go to sinkbasin 1 / clean plate 1 with sinkbasin 1 / examine plate 1 /
    move plate 1 to sinkbasin 1 / take knife 1 from sinkbasin 1 / go to fridge 1 / open fridge 1 /
    slice bread 1 with knife 1 / look / go to sinkbasin 1 / move knife 1 to sinkbasin 1 /
    go to fridge 1 / take apple 1 from fridge 1 / examine apple 1 / go to garbagecan 1 /
    move apple 1 to garbagecan 1 / look / examine garbagecan 1""",
)

# Three receptacles in one place, where the agent begins; a lamp behind a door; a thing in two.
_CORNER = _room(
    problem(
        {"CounterTop 1": 1, "Shelf 1": 1, "Cabinet 1": 1, "SideTable 1": 2},
        {
            "Candle 1": ["CounterTop 1", "Shelf 1"],
            "Mug 1": "CounterTop 1",
            "Mug 2": "SideTable 1",
            "DeskLamp 1": "Cabinet 1",
        },
        goal_of(LIGHT, "Mug", "DeskLamp"),
        start=1,
    ),
    """look / inventory / examine shelf 1 / take mug 2 from countertop 1 / look /
    move mug 2 to shelf 1 / look / examine shelf 1 / take mug 2 from shelf 1 / look /
    move mug 2 to countertop 1 / look / take mug 2 from countertop 1 / move mug 2 to cabinet 1 /
    open cabinet 1 / move mug 2 to cabinet 1 / look / close cabinet 1 / look / use mug 2 /
    take candle 1 from shelf 1 / examine countertop 1 / take candle 1 from countertop 1 /
    examine candle 1 / move candle 1 to shelf 1 / look / take candle 1 from countertop 1 / look /
    go to sidetable 1 / move candle 1 to sidetable 1 / look / examine sidetable 1 /
    go to shelf 1 / look / take candle 1 from shelf 1 / move candle 1 to countertop 1 / look /
    go to cabinet 1 / use desklamp 1 / use desklamp 1 / examine desklamp 1 / look /
    go to sidetable 1 / use desklamp 1 / take mug 1 from sidetable 1 / go to countertop 1 /
    look / inventory / look""",
)

# The agent begins with a thing in hand; a thing that lies nowhere, one that no place accepts, a
# lamp that can be carried, doors that begin open, states that things begin with.
_HAND = _room(
    problem(
        {"Drawer 1": 1, "Desk 1": 2, "Sofa 1": 3, "Safe 1": 4},
        {
            "Pencil 1": (),
            "Bowl 1": "Desk 1",
            "DeskLamp 1": "Desk 1",
            "Pillow 1": "Sofa 1",
            "Book 1": "Drawer 1",
            "CD 1": "Drawer 1",
            "Kettle 1": (),
        },
        goal_of(PLACE, "CD", "Safe"),
        [
            "holds agent1 Pencil_bar_1",
            "holdsAny agent1",
            "opened Drawer_bar_1",
            "pickupable DeskLamp_bar_1",
            "isToggled DeskLamp_bar_1",
            "isClean Bowl_bar_1",
            "objectAtLocation Kettle_bar_1 loc_bar_2",
        ],
    ),
    """look / inventory / examine pencil 1 / go to sofa 1 / move pencil 1 to sofa 1 /
    take pillow 1 from sofa 1 / go to drawer 1 / take cd 1 from drawer 1 /
    move pencil 1 to drawer 1 / examine drawer 1 / close drawer 1 / examine drawer 1 /
    take cd 1 from drawer 1 / go to desk 1 / look / take kettle 1 from desk 1 /
    take bowl 1 from desk 1 / examine bowl 1 / move bowl 1 to desk 1 / use desklamp 1 /
    go to drawer 1 / open drawer 1 / take cd 1 from drawer 1 / go to safe 1 /
    move cd 1 to safe 1 / open safe 1 / move cd 1 to safe 1 / look / take cd 1 from safe 1 /
    look / move cd 1 to safe 1 / go to desk 1 / take desklamp 1 from desk 1 / use desklamp 1 /
    examine desklamp 1 / inventory / move desklamp 1 to desk 1 / go to drawer 1 /
    move desklamp 1 to drawer 1 / inventory""",
)

# One receptacle in two places, a thing in two receptacles, a lamp in hand that is off.
# ALFWorld counts backwards: countertop 2 is the one made as CounterTop 1.
_TWO_PLACES = _room(
    problem(
        {"CounterTop 1": 1, "CounterTop 2": 2, "SinkBasin 1": 2, "Fridge 1": 3},
        {
            **dict.fromkeys(["Cup 1", "Fork 1", "Spoon 1", "ButterKnife 1"], "CounterTop 1"),
            "Apple 1": ["CounterTop 1", "Fridge 1"],
            "DeskLamp 1": (),
        },
        goal_of(CLEAN, "Fork", "CounterTop"),
        [
            "receptacleAtLocation CounterTop_bar_1 loc_bar_3",
            "pickupable DeskLamp_bar_1",
            "holds agent1 DeskLamp_bar_1",
            "holdsAny agent1",
            "canContain CounterTopType DeskLampType",
        ],
    ),
    """examine desklamp 1 / use desklamp 1 / go to countertop 2 / look / go to countertop 2 /
    move desklamp 1 to countertop 1 / go to countertop 1 / look / go to fridge 1 / look /
    move desklamp 1 to countertop 2 / look / use desklamp 1 / go to countertop 2 /
    take butterknife 1 from countertop 2 / look / slice apple 1 with butterknife 1 /
    go to fridge 1 / open fridge 1 / look / slice apple 1 with butterknife 1 /
    go to sinkbasin 1 / look / clean butterknife 1 with sinkbasin 1 /
    move butterknife 1 to sinkbasin 1 / go to countertop 2 / take desklamp 1 from countertop 2 /
    examine desklamp 1 / move desklamp 1 to countertop 2 / take apple 1 from countertop 2 /
    examine apple 1 / look / go to fridge 1 / move apple 1 to fridge 1 / look /
    go to countertop 2 / look / take fork 1 from countertop 2 / go to sinkbasin 1 /
    clean fork 1 with sinkbasin 1 / examine fork 1 / move fork 1 to sinkbasin 1 / look /
    take fork 1 from sinkbasin 1 / move fork 1 to countertop 1 / look / inventory""",
)

# Two things for one place, won only when both lie in the same receptacle of the kind.
_TWO_THINGS = _room(
    problem(
        {"Shelf 1": 1, "Drawer 1": 2, "Drawer 2": 3},
        {"Pen 1": "Shelf 1", "Pen 2": "Shelf 1", "Pen 3": "Drawer 1"},
        goal_of(TWO, "Pen", "Drawer"),
    ),
    """go to shelf 1 / take pen 3 from shelf 1 / go to drawer 1 / open drawer 1 /
    move pen 3 to drawer 1 / go to drawer 2 / open drawer 2 / take pen 1 from drawer 2 /
    go to drawer 1 / move pen 1 to drawer 1 / take pen 1 from drawer 1 / close drawer 1 / look""",
)

# A lamp that is on and cannot be used does not count.
_DEAD_LAMP = _room(
    problem(
        {"Shelf 1": 1, "Desk 1": 2},
        {"Pen 1": "Shelf 1", "DeskLamp 1": "Shelf 1", "DeskLamp 2": "Desk 1"},
        goal_of(LIGHT, "Pen", "DeskLamp"),
        ["isToggled DeskLamp_bar_1"],
    ).replace("(toggleable DeskLamp_bar_1)", ""),
    """go to shelf 1 / use desklamp 2 / take pen 1 from shelf 1 / look / go to desk 1 /
    use desklamp 1 / look""",
)

ROOMS: dict[str, dict[str, Any]] = {
    "kitchen": _KITCHEN,
    "corner": _CORNER,
    "hand": _HAND,
    "two_places": _TWO_PLACES,
    "two_things": _TWO_THINGS,
    "dead_lamp": _DEAD_LAMP,
}
