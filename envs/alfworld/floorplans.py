"""The rooms of procedural houses: which receptacles a floor plan has, what lies in which kind of
room, and which floor plans and pairs of a task are kept for unseen houses.

As in ALFRED, each of four kinds of room has 30 numbered floor plans, and 1 to 6 are for unseen
houses. What holds what, and what can be cleaned, heated or cooled, are ALFWorld's own constants;
the two tables here say what belongs into which kind of room.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from random import Random

from envs.alfworld.package import constants
from runs.rng import key

TASK_TYPES = (
    "pick_and_place_simple",
    "look_at_obj_in_light",
    "pick_clean_then_place_in_recep",
    "pick_heat_then_place_in_recep",
    "pick_cool_then_place_in_recep",
    "pick_two_obj_and_place",
)
KINDS = ("Kitchen", "LivingRoom", "Bedroom", "Bathroom")
UNSEEN_PLANS = range(1, 7)
SEEN_PLANS = range(7, 31)
UNSEEN_SHARE = 0.2
LEAST_UNSEEN = 3
# With fewer receptacles there are not 30 different kitchens.
LEAST_RECEPTACLES = 5
LAMPS = ("DeskLamp", "FloorLamp")
# In ALFWorld's text games even a floor lamp has to stand in a receptacle to be found.
LAMP_PLACES = frozenset(("Desk", "SideTable", "Dresser", "Shelf", "CoffeeTable"))
# What a thing becomes: the ability that it needs, and the receptacle that does it.
CHANGE = {
    "pick_clean_then_place_in_recep": ("Cleanable", "SinkBasin"),
    "pick_heat_then_place_in_recep": ("Heatable", "Microwave"),
    "pick_cool_then_place_in_recep": ("Coolable", "Fridge"),
}

# Of each kind: what every floor plan has, and what else it may have: (weight, at most). Cabinets,
# drawers and shelves fill the rest, as in ALFRED, where a kitchen may have 27 drawers.
_MANY = 99
_ALWAYS = {
    "Kitchen": "Fridge Microwave SinkBasin CounterTop",
    "LivingRoom": "Sofa CoffeeTable SideTable",
    "Bedroom": "Bed Desk SideTable",
    "Bathroom": "SinkBasin CounterTop Toilet",
}
_OTHERS = {
    "Kitchen": {
        "Cabinet": (6, _MANY),
        "Drawer": (4, _MANY),
        "CounterTop": (3, 4),
        "StoveBurner": (3, 6),
        "GarbageCan": (2, 1),
        "CoffeeMachine": (2, 1),
        "DiningTable": (2, 3),
        "Shelf": (2, 4),
        "Toaster": (1, 1),
        "SideTable": (1, 1),
    },
    "LivingRoom": {
        "Drawer": (4, _MANY),
        "Shelf": (3, _MANY),
        "Cabinet": (3, _MANY),
        "ArmChair": (3, 3),
        "SideTable": (2, 4),
        "Dresser": (2, 2),
        "GarbageCan": (2, 1),
        "Safe": (1, 1),
        "DiningTable": (1, 2),
        "Desk": (1, 1),
        "Ottoman": (1, 1),
    },
    "Bedroom": {
        "Drawer": (6, _MANY),
        "Shelf": (4, _MANY),
        "SideTable": (2, 3),
        "Dresser": (2, 2),
        "Desk": (2, 3),
        "GarbageCan": (2, 1),
        "LaundryHamper": (2, 1),
        "Safe": (2, 2),
        "ArmChair": (1, 2),
        "Bed": (1, 2),
        "Cabinet": (1, 4),
    },
    "Bathroom": {
        "Cabinet": (4, _MANY),
        "Drawer": (3, _MANY),
        "Shelf": (2, 4),
        "GarbageCan": (2, 1),
        "BathtubBasin": (2, 1),
        "ToiletPaperHanger": (2, 2),
        "TowelHolder": (1, 2),
        "HandTowelHolder": (1, 2),
        "Cart": (1, 1),
        "SideTable": (1, 1),
        "SinkBasin": (1, 2),
    },
}
# What lies about in which kind of room.
_THINGS = {
    "Kitchen": "Apple Bowl Bread ButterKnife CellPhone CreditCard Cup DishSponge Egg Fork "
    "Glassbottle Kettle Knife Ladle Lettuce Mug Pan PaperTowel PepperShaker Plate Pot Potato "
    "SaltShaker SoapBottle Spatula Spoon Statue Tomato Vase WineBottle",
    "LivingRoom": "Apple Book Bowl Box Bread Candle CellPhone CreditCard Cup Glassbottle KeyChain "
    "Laptop Mug Newspaper Pen Pencil Pillow Plate RemoteControl Statue TissueBox Vase Watch "
    "WateringCan WineBottle",
    "Bedroom": "AlarmClock Apple BaseballBat BasketBall Book Bowl Box CD CellPhone Cloth "
    "CreditCard Cup KeyChain Laptop Mug Newspaper Pen Pencil Pillow Plate RemoteControl Statue "
    "TennisRacket TissueBox Vase Watch",
    "Bathroom": "Candle Cloth DishSponge HandTowel Newspaper PaperTowel Plunger SoapBar "
    "SoapBottle SprayBottle TissueBox ToiletPaper Towel",
}
THINGS = {kind: tuple(names.split()) for kind, names in _THINGS.items()}
Pair = tuple[str, str]


@dataclass(frozen=True, order=True)
class Scene:
    """A numbered floor plan of a kind of room."""

    kind: str
    number: int

    @property
    def scene_number(self) -> int:
        """As ALFRED counts: 7 is a kitchen, 207 a living room, 307 a bedroom, 407 a bathroom."""
        return constants().SCENE_TYPE[self.kind][0] - 1 + self.number


def scenes(kinds: Iterable[str], unseen: bool) -> list[Scene]:
    """The floor plans that seen or unseen houses may have."""
    numbers = UNSEEN_PLANS if unseen else SEEN_PLANS
    return [Scene(kind, number) for kind in kinds for number in numbers]


def floor_plan(scene: Scene, receptacles: int) -> tuple[str, ...]:
    """Types of the receptacles of a floor plan: `receptacles` of them, a fifth more or less, but
    always what such a room cannot be without. No two plans of a kind are alike."""
    return _floor_plans(scene.kind, receptacles)[scene.number - 1]


@lru_cache(256)
def _floor_plans(kind: str, receptacles: int) -> tuple[tuple[str, ...], ...]:
    rng = Random(key(0, "floor plans", kind, receptacles))
    spread = receptacles // 5
    found: list[tuple[str, ...]] = []
    while len(found) < SEEN_PLANS.stop - 1:
        plan = _drawn_plan(rng, kind, rng.randint(receptacles - spread, receptacles + spread))
        # An unseen floor plan that looks like a seen one would be unseen in name only.
        if plan not in found:
            found.append(plan)
    return tuple(found)


def _drawn_plan(rng: Random, kind: str, size: int) -> tuple[str, ...]:
    counts = Counter(_ALWAYS[kind].split())
    others = _OTHERS[kind]
    while counts.total() < size:
        left = [name for name, (_, most) in others.items() if counts[name] < most]
        counts[rng.choices(left, [others[name][0] for name in left])[0]] += 1
    return tuple(sorted(counts.elements()))


@cache
def holds(receptacle: str) -> frozenset[str]:
    """Types that fit into a type of receptacle; sliced things are left out."""
    things = constants().VAL_RECEPTACLE_OBJECTS.get(receptacle, ())
    return frozenset(name for name in things if not name.endswith("Sliced"))


@cache
def able(ability: str) -> frozenset[str]:
    """Types that are Cleanable, Heatable, Coolable or Sliceable."""
    return frozenset(constants().VAL_ACTION_OBJECTS[ability])


@cache
def openable(receptacle: str) -> bool:
    return receptacle in constants().OPENABLE_CLASS_SET


@cache
def task_kinds(task_type: str) -> tuple[str, ...]:
    """Kinds of room that a task may be about; a house has at least one of them."""
    return tuple(kind for kind in KINDS if kind in constants().GOALS_VALID[task_type])


@cache
def may_begin_in(task_type: str, pair: Pair, kind: str, receptacle: str) -> bool:
    """Whether the thing that a task is about may lie there at first: it fits, it belongs into such
    a room, and neither the goal nor the change that is asked for is already at hand."""
    target, place = pair
    _, appliance = CHANGE.get(task_type, ("", ""))
    fits = target in holds(receptacle) and target in THINGS[kind]
    return fits and receptacle not in (place, appliance)


@cache
def all_pairs(task_type: str) -> tuple[Pair, ...]:
    """(type of thing, type of receptacle or lamp) that a task may be about, in ALFWorld's rooms."""
    ability, appliance = CHANGE.get(task_type, (None, None))
    found = set()
    for kind in task_kinds(task_type):
        places = sorted({*_ALWAYS[kind].split(), *_OTHERS[kind]})
        for target in THINGS[kind]:
            if ability is not None and target not in able(ability):
                continue
            ends = LAMPS if task_type == "look_at_obj_in_light" else places
            for end in ends:
                fits = end in LAMPS or (target in holds(end) and end != appliance)
                if fits and any(may_begin_in(task_type, (target, end), kind, p) for p in places):
                    found.add((target, end))
    return tuple(sorted(found))


@cache
def pairs(task_type: str, unseen: bool) -> tuple[Pair, ...]:
    """The pairs of seen or of unseen houses: by the rank of a hash, so that no type of task is
    left with too few, whatever the hash."""
    ranked = sorted(all_pairs(task_type), key=lambda pair: key(0, "pair", task_type, *pair))
    kept = max(LEAST_UNSEEN, round(UNSEEN_SHARE * len(ranked)))
    return tuple(sorted(ranked[:kept] if unseen else ranked[kept:]))


@lru_cache(4096)
def homes(task_type: str, pair: Pair, receptacles: int, unseen: bool) -> tuple[Scene, ...]:
    """Floor plans in which the task can be set: with its appliance, a place to bring the thing to
    (or to stand a lamp on), and another where it may lie at first."""
    found = []
    for scene in scenes(task_kinds(task_type), unseen):
        plan = floor_plan(scene, receptacles)
        begins = any(may_begin_in(task_type, pair, scene.kind, r) for r in plan)
        if begins and _needed(task_type, pair, plan):
            found.append(scene)
    return tuple(found)


def _needed(task_type: str, pair: Pair, plan: Sequence[str]) -> bool:
    _, appliance = CHANGE.get(task_type, (None, None))
    _, place = pair
    end = bool(LAMP_PLACES & set(plan)) if place in LAMPS else place in plan
    return end and (appliance is None or appliance in plan)
