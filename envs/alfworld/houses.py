"""Procedural houses: ALFWorld games of any difficulty, made without a download or a simulator.

A house is rooms, each one of the numbered floor plans of `envs.alfworld.floorplans`, with things in
them. Tables, goals, sentences, rules and words are those of the package `alfworld`, so stock
ALFWorld plays the same games. Houses can be won by construction, and our planner finds how.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

from envs.alfworld.floorplans import (
    CHANGE,
    KINDS,
    LAMP_PLACES,
    LAMPS,
    LEAST_RECEPTACLES,
    TASK_TYPES,
    THINGS,
    Scene,
    able,
    floor_plan,
    holds,
    homes,
    may_begin_in,
    openable,
    pairs,
    scenes,
)
from envs.alfworld.package import goal_library, source
from envs.alfworld.planner import plan
from envs.alfworld.problem import Receptacle, problem_facts
from envs.alfworld.rules import house_of
from envs.alfworld.world import World
from runs.errors import ConfigError, EnvError
from runs.rng import key

# Houses of another plan length that are thrown away before a path length is called impossible.
TRIES = 5000
# With fewer types that look useless in a kind of room, all its types may lie about.
VARIETY = 6
_LIMITS = {
    "rooms": (1, 12, "a house has at least one"),
    "receptacles": (LEAST_RECEPTACLES, 40, "with fewer all rooms of a kind are alike"),
    "objects": (0, 200, "0 leaves the house bare"),
    "distractors": (0, 40, "0 means that only the thing itself looks useful"),
}


@dataclass(frozen=True)
class HouseOptions:
    """How hard houses are: the knobs `env.house.*`.

    `rooms` of a house; `receptacles` of a room, a fifth more or less; `objects` that the task is
    not about; `distractors`: things of other types that could be changed and placed as the task
    asks, where the right one might be, and a lamp of the other type where it asks for light;
    `path_length`: bounds, both included, of the number of commands of a shortest plan. Raises
    `ConfigError` for values that no house can have.
    """

    rooms: int = 1
    receptacles: int = 8
    objects: int = 8
    distractors: int = 2
    path_length: tuple[int, int] | None = None

    def __post_init__(self) -> None:
        for name, (least, most, why) in _LIMITS.items():
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
                raise ConfigError(
                    f"env.house.{name}={value} is no house: use a whole number from {least} to "
                    f"{most} ({why})."
                )
        if self.path_length is not None:
            # Hydra gives a list; a tuple keeps options hashable.
            object.__setattr__(self, "path_length", _bounds(self.path_length))


@dataclass(frozen=True)
class _Draft:
    """What a task is about, in which rooms. `begins` are the receptacles in which the thing may lie
    at first; `things` are types and where they lie, a lamp last. What else is in a house changes
    nothing about how it is won."""

    task_type: str
    target: str
    place: str
    home: Scene
    rooms: tuple[Scene, ...]
    receptacles: tuple[Receptacle, ...]
    begins: tuple[Receptacle, ...]
    things: tuple[tuple[str, Receptacle], ...]

    @property
    def commands(self) -> int:
        """Length of a shortest plan, known without planning: every place is one command away."""
        found = {where for name, where in self.things if name == self.target}
        doors = sum(openable(where.type) for where in found)
        if self.place in LAMPS:
            # Go, take, go to the lamp, use it; the lamp may be where the thing is.
            return 3 + doors + (self.things[-1][1] not in found)
        change = 2 if self.task_type in CHANGE else 0
        return 4 * len(self.things) + change + doors + openable(self.place)


def make_house(
    task_type: str, seed: int, options: HouseOptions, unseen: bool
) -> tuple[dict[str, Any], dict[str, Any]]:
    """(the content of `game.tw-pddl`, that of `traj_data.json`), a pure function of its arguments.

    `unseen` houses have floor plans and pairs of thing and place that other houses never have.
    The walkthrough is a shortest plan. Raises `ConfigError` when the options allow no such house.
    """
    if task_type not in TASK_TYPES:
        raise ConfigError(
            f"env.game={task_type} is no task of a house: use one of {', '.join(TASK_TYPES)}."
        )
    knobs = (options.rooms, options.receptacles, options.objects, options.distractors)
    lengths = set()
    for attempt in range(TRIES):
        # The bounds of the length choose among the houses of a seed and make no others.
        rng = Random(key(seed, "house", task_type, int(unseen), *knobs, attempt))
        draft = _draft(rng, task_type, options, unseen)
        if options.path_length is None or _within(draft.commands, options.path_length):
            things = [*draft.things, *_clutter(rng, draft, options)]
            template = rng.choice(goal_library().gdict[task_type]["templates"])
            return _written(draft, things, template, seed)
        lengths.add(draft.commands)
    raise ConfigError(
        f"env.house.path_length={list(options.path_length or ())} is met by none of {TRIES} houses "
        f"of {task_type}, whose plans have {min(lengths)} to {max(lengths)} commands: widen it to "
        "overlap with these, or leave this type of task out of env.game."
    )


def _written(
    draft: _Draft, things: Sequence[tuple[str, Receptacle]], template: str, seed: int
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The two files of a house, once our planner has won it."""
    lamp = draft.place if draft.place in LAMPS else ""
    recep = "" if lamp else draft.place
    slots = {"obj": draft.target, "recep": recep, "toggle": lamp, "mrecep": ""}
    sentence = template.format(**{slot: word.lower() for slot, word in slots.items()})
    # The library writes # for the dash of PDDL's types.
    goal = goal_library().gdict[draft.task_type]["pddl"].format(**slots).replace("#", "-")
    facts = problem_facts(draft.receptacles, things)
    trial = f"trial_{key(seed, 'trial', draft.task_type, goal, facts):016x}"
    game: dict[str, Any] = {
        "pddl_domain": source("data/alfred.pddl"),
        "grammar": source("data/alfred.twl2").replace("UNKNOWN GOAL", sentence),
        "pddl_problem": f"(define (problem plan_{trial})\n(:domain alfred)\n{facts}{goal}",
        "solvable": True,
    }
    game["walkthrough"] = plan(World(house_of(game, trial)))
    if not game["walkthrough"]:
        raise EnvError(f"The procedural house {trial} cannot be won: report this.")
    return game, {
        "task_id": trial,
        "task_type": draft.task_type,
        "pddl_params": {
            "object_target": draft.target,
            "parent_target": recep,
            "toggle_target": lamp,
            "mrecep_target": "",
            "object_sliced": False,
        },
        "turk_annotations": {"anns": [{"task_desc": sentence}]},
        "scene": {
            "floor_plan": f"FloorPlan{draft.home.scene_number}",
            "scene_num": draft.home.scene_number,
            "rooms": [room.scene_number for room in draft.rooms],
        },
    }


def _within(length: int, bounds: tuple[int, int]) -> bool:
    return bounds[0] <= length <= bounds[1]


def _bounds(value: Any) -> tuple[int, int]:
    bounds = tuple(value) if isinstance(value, Sequence) and not isinstance(value, str) else ()
    if len(bounds) != 2 or any(isinstance(b, bool) or not isinstance(b, int) for b in bounds):
        raise ConfigError(
            f"env.house.path_length={value} is no range: use two whole numbers such as [4,8], or "
            "null for any length."
        )
    if not 1 <= bounds[0] <= bounds[1]:
        raise ConfigError(
            f"env.house.path_length={value} is no range: give the smaller number first, at least 1."
        )
    return bounds


def _draft(rng: Random, task_type: str, options: HouseOptions, unseen: bool) -> _Draft:
    pair, home = _task(rng, task_type, options.receptacles, unseen)
    target, place = pair
    rooms = _rooms(rng, home, options.rooms, unseen)
    receptacles = _receptacles(rooms, options.receptacles)
    begins = tuple(r for r in receptacles if may_begin_in(task_type, pair, r.kind, r.type))
    wanted = 2 if task_type == "pick_two_obj_and_place" else 1
    things = [(target, _somewhere(rng, begins)) for _ in range(wanted)]
    if place in LAMPS:
        things.append((place, rng.choice([r for r in receptacles if r.type in LAMP_PLACES])))
    return _Draft(task_type, target, place, home, rooms, receptacles, begins, tuple(things))


def _task(
    rng: Random, task_type: str, receptacles: int, unseen: bool
) -> tuple[tuple[str, str], Scene]:
    """What the house is about, and the room that has all that the task needs."""
    known = pairs(task_type, unseen)
    for pair in rng.sample(known, len(known)):
        if found := homes(task_type, pair, receptacles, unseen):
            return pair, rng.choice(found)
    raise ConfigError(
        f"env.house.receptacles={receptacles} is too few for {task_type} in "
        f"{'unseen' if unseen else 'training'} houses: raise it."
    )


def _rooms(rng: Random, home: Scene, count: int, unseen: bool) -> tuple[Scene, ...]:
    """The home of the task and others, of as many kinds as there can be, in any order."""
    rooms = [home]
    while len(rooms) < count:
        had = Counter(room.kind for room in rooms)
        fewest = min(had[kind] for kind in KINDS)
        kinds = [kind for kind in KINDS if had[kind] == fewest]
        rooms.append(rng.choice([s for s in scenes(kinds, unseen) if s not in rooms]))
    rng.shuffle(rooms)
    return tuple(rooms)


def _receptacles(rooms: Sequence[Scene], count: int) -> tuple[Receptacle, ...]:
    found: list[Receptacle] = []
    for number, room in enumerate(rooms, start=1):
        seen: Counter[str] = Counter()
        for name in floor_plan(room, count):
            seen[name] += 1
            # ALFWorld knows these by the fixture that they are part of, and by "basin".
            fixture = name.removesuffix("Basin")
            identifier = f"{fixture}_bar_{number:02d}_bar_{seen[name]:02d}"
            if fixture != name:
                identifier += f"_bar_{name}"
            found.append(Receptacle(identifier, name, room.kind, f"loc_bar_{len(found) + 1}"))
    return tuple(found)


def _clutter(rng: Random, draft: _Draft, options: HouseOptions) -> list[tuple[str, Receptacle]]:
    """Distractors, and things that the task is not about."""
    place = draft.place
    changeable = {name for names in THINGS.values() for name in names} - {draft.target}
    if draft.task_type in CHANGE:
        changeable &= able(CHANGE[draft.task_type][0])
    useful = {name for name in changeable if place in LAMPS or name in holds(place)}
    alike, others = _alike(draft, changeable, useful), _others(draft, useful)
    lamps = _other_lamps(rng, draft, options.distractors)
    found = _scattered(rng, alike, options.distractors - len(lamps))
    return lamps + found + _scattered(rng, others, options.objects)


def _other_lamps(rng: Random, draft: _Draft, distractors: int) -> list[tuple[str, Receptacle]]:
    """Where a task is about light, the first distractor is a lamp of the other type: any other
    thing would be one more among many that could be looked at."""
    if draft.place not in LAMPS or distractors == 0:
        return []
    places = [r for r in draft.receptacles if r.type in LAMP_PLACES]
    return [(lamp, rng.choice(places)) for lamp in LAMPS if lamp != draft.place]


def _alike(
    draft: _Draft, changeable: set[str], useful: set[str]
) -> list[tuple[Receptacle, set[str]]]:
    """What looks useful, where the right thing might be. Where nothing else fits into the place, as
    in a coffee machine, it has to do that it could be changed, and next that it lies elsewhere."""
    for where in (draft.begins, draft.receptacles):
        for wanted in (useful, changeable):
            found = [(r, wanted & holds(r.type) & set(THINGS[r.kind])) for r in where]
            if any(names for _, names in found):
                return found
    raise EnvError("A procedural house has no room for a distractor: report this.")


def _others(draft: _Draft, useful: set[str]) -> list[tuple[Receptacle, set[str]]]:
    """Where what may lie that the task is not about. In a room where nearly everything is useful,
    since all of it fits on a side table, useful things lie about as well."""
    plain = {}
    for kind in {receptacle.kind for receptacle in draft.receptacles}:
        rest = set(THINGS[kind]) - {draft.target}
        plain[kind] = rest - useful if len(rest - useful) >= VARIETY else rest
    return [(r, plain[r.kind] & holds(r.type)) for r in draft.receptacles]


def _scattered(
    rng: Random, choices: Sequence[tuple[Receptacle, set[str]]], count: int
) -> list[tuple[str, Receptacle]]:
    """Things, each of a type drawn first and then put where it may lie, so that what fits into few
    places is no rarer than the rest."""
    where: dict[str, list[Receptacle]] = {}
    for receptacle, names in choices:
        for name in names:
            where.setdefault(name, []).append(receptacle)
    names = sorted(where)
    return [(name, _somewhere(rng, where[name])) for name in rng.choices(names, k=count)]


def _somewhere(rng: Random, places: Sequence[Receptacle]) -> Receptacle:
    """Behind a door as often as in the open, where there are both, so that opening things is worth
    a try in every house and long plans are not rare."""
    sides = [[r for r in places if openable(r.type) == shut] for shut in (False, True)]
    return rng.choice(rng.choice([side for side in sides if side]))
