"""ALFWorld's text game: what commands there are, what they do, and what the game says.

The rules are those of `alfred.pddl` and the words those of `alfred.twl2` (ALFWorld 0.4.2, MIT;
Shridhar et al. 2021, arXiv 2010.03768), as TextWorld's `PddlEnv` plays them: the same text, the
same admissible commands, the same end, which tests/envs/alfworld checks against it. A few rules
look odd and are kept for that reason; each has its comment.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from envs.alfworld.house import House

NOTHING = "Nothing happens."
GREETING = "-= Welcome to TextWorld, ALFRED! =-"
HELP = """\
Available commands:
  look:                             look around your current location
  inventory:                        check your current inventory
  go to (receptacle):               move to a receptacle
  open (receptacle):                open a receptacle
  close (receptacle):               close a receptacle
  take (object) from (receptacle):  take an object from a receptacle
  move (object) to (receptacle):  place an object in or on a receptacle
  examine (something):              examine a receptacle or an object
  use (object):                     use an object
  heat (object) with (receptacle):  heat an object using a receptacle
  clean (object) with (receptacle): clean an object using a receptacle
  cool (object) with (receptacle):  cool an object using a receptacle
  slice (object) with (object):     slice an object using a sharp object
"""
_BLADES = {"knifetype", "butterknifetype"}
# Verb, what the receptacle must be, what the thing must allow, what it becomes and is no more.
CHANGES = (
    ("clean", "sinkbasintype", "cleanable", "isclean", None),
    ("heat", "microwavetype", "heatable", "ishot", "iscool"),
    ("cool", "fridgetype", "coolable", "iscool", "ishot"),
)
Move = Callable[[], str]


@dataclass
class State:
    """What changes. `inside[r]` are the things in a receptacle, `lies` the (thing, location) and
    `outside` the (thing, receptacle) it was taken from; `opened` and `marks[predicate]` are sets
    of receptacles and of things."""

    at: str
    held: str | None
    opened: set[str]
    inside: dict[str, set[str]]
    lies: set[tuple[str, str]]
    marks: dict[str, set[str]]
    outside: set[tuple[str, str]] = field(default_factory=set)


class World:
    """One play of a house. `commands` maps every admissible command to what it does; `seen` are the
    things that the game has told of, `looked` the receptacles of which it told what is in them."""

    def __init__(self, house: House) -> None:
        self.house = house
        self.state = State(
            at=house.start,
            held=house.held,
            opened=set(house.states["opened"]),
            inside={r: set(things) for r, things in house.inside.items()},
            lies={(o, place) for o, places in house.lies.items() for place in places},
            marks={
                name: set(house.states[name])
                for name in ("isclean", "ishot", "iscool", "issliced", "istoggled")
            },
        )
        self.seen: set[str] = set()
        self.looked: set[str] = set()
        self.commands = self._commands()

    @property
    def intro(self) -> str:
        """What the game says first, between its greeting and the task."""
        # The one time when "look" in the middle of a room lists what is in the room.
        every = [receptacle for receptacle, places in self.house.at.items() for _ in places]
        return self._look(self.state.at, every)

    @property
    def admissible(self) -> tuple[str, ...]:
        return tuple(sorted(self.commands))

    def step(self, command: str) -> str:
        """What the game answers; a command that is not admissible changes nothing."""
        move = self.commands.get(command)
        if move is None:
            return NOTHING
        text = move()
        self.commands = self._commands()
        return text

    @property
    def won(self) -> bool:
        goal, state, types = self.house.goal, self.state, self.house.types
        if goal.lamp is not None:
            return goal.target in types.get(state.held or "", ()) and any(
                goal.lamp in types.get(thing, ())
                and thing in state.marks["istoggled"]
                and thing in self.house.states["toggleable"]
                for r in self._here()
                for thing in state.inside.get(r, ())
            )
        return any(
            goal.receptacle in self.house.kinds.get(r, ()) and self._fit(things) >= goal.count
            for r, things in state.inside.items()
        )

    def _fit(self, things: Iterable[str]) -> int:
        """How many of these are of the wanted type and have been changed as wanted."""
        goal, types = self.house.goal, self.house.types
        marked = self.state.marks[goal.change] if goal.change else None
        return sum(
            goal.target in types.get(thing, ()) and (marked is None or self.changed(thing))
            for thing in things
        )

    def changed(self, thing: str) -> bool:
        """Whether a thing has become what the goal wants."""
        change = self.house.goal.change
        needed = {result: able for _, _, able, result, _ in CHANGES}
        return change is not None and (
            thing in self.state.marks[change] and thing in self.house.states[needed[change]]
        )

    def _here(self) -> list[str]:
        return self.house.located.get(self.state.at, [])

    def reachable(self, receptacle: str) -> bool:
        """Whether hands can get at what is in it: nothing to open, or open."""
        return receptacle not in self.house.states["openable"] or receptacle in self.state.opened

    def _commands(self) -> dict[str, Move]:
        house, state, name = self.house, self.state, self.house.name
        here = self._here()
        found: dict[str, Move] = {"look": lambda: self._look(state.at, here)}
        found["inventory"] = self._inventory
        if house.helps:
            found["help"] = lambda: HELP
        for receptacle, places in house.at.items():
            for place in places:
                if place != state.at:
                    found.setdefault(
                        f"go to {name[receptacle]}", _bound(self._go, receptacle, place)
                    )
        for receptacle in here:
            called = name[receptacle]
            found[f"examine {called}"] = _bound(self._contents, receptacle)
            if receptacle in house.states["openable"]:
                verb = "close" if receptacle in state.opened else "open"
                move = self._close if verb == "close" else self._open
                found[f"{verb} {called}"] = _bound(move, receptacle)
            # A lamp can be used through a closed door.
            for thing in state.inside.get(receptacle, ()):
                if thing in house.states["toggleable"]:
                    found[f"use {name[thing]}"] = _bound(self._use, thing)
            if self.reachable(receptacle):
                for thing in state.inside.get(receptacle, ()):
                    if state.held is None and thing in house.states["pickupable"]:
                        command = f"take {name[thing]} from {called}"
                        found[command] = _bound(self._take, thing, receptacle)
        if state.held is not None:
            self._with_held(state.held, here, found)
        return found

    def _with_held(self, held: str, here: Sequence[str], found: dict[str, Move]) -> None:
        house, name = self.house, self.house.name
        # The rules mean to allow it for whatever lies in reach as well, but "location," in them is
        # a type that nothing has.
        found[f"examine {name[held]}"] = _bound(self._thing, held)
        for receptacle in here:
            if self.reachable(receptacle) and house.accepts(receptacle, held):
                command = f"move {name[held]} to {name[receptacle]}"
                found[command] = _bound(self._put, held, receptacle)
            for verb, kind, able, result, ended in CHANGES:
                # Nothing has to be open for it.
                if kind in house.kinds.get(receptacle, ()) and held in house.states[able]:
                    command = f"{verb} {name[held]} with {name[receptacle]}"
                    found[command] = _bound(self._change, verb, held, receptacle, result, ended)
        if house.types.get(held, set()) & _BLADES:
            for thing, place in self.state.lies:
                if place == self.state.at and thing in house.states["sliceable"]:
                    command = f"slice {name[thing]} with {name[held]}"
                    found[command] = _bound(self._slice, thing, held)

    def _go(self, receptacle: str, place: str) -> str:
        self.state.at = place
        return f"You arrive at {self.house.name[receptacle]}. {self._contents(receptacle)}"

    def _open(self, receptacle: str) -> str:
        self.state.opened.add(receptacle)
        return f"You open the {self.house.name[receptacle]}. {self._contents(receptacle)}"

    def _close(self, receptacle: str) -> str:
        self.state.opened.discard(receptacle)
        return f"You close the {self.house.name[receptacle]}."

    def _take(self, thing: str, receptacle: str) -> str:
        state, name = self.state, self.house.name
        state.held = thing
        self.seen.add(thing)
        # Only from this one: what is listed in two receptacles stays in the other.
        state.inside[receptacle].discard(thing)
        state.outside.add((thing, receptacle))
        state.lies.discard((thing, state.at))
        return f"You pick up the {name[thing]} from the {name[receptacle]}."

    def _put(self, thing: str, receptacle: str) -> str:
        state, name = self.state, self.house.name
        state.held = None
        state.inside.setdefault(receptacle, set()).add(thing)
        state.outside.discard((thing, receptacle))
        state.lies.add((thing, state.at))
        return f"You move the {name[thing]} to the {name[receptacle]}."

    def _change(
        self, verb: str, thing: str, receptacle: str, result: str, ended: str | None
    ) -> str:
        self.state.marks[result].add(thing)
        if ended:
            self.state.marks[ended].discard(thing)
        name = self.house.name
        return f"You {verb} the {name[thing]} using the {name[receptacle]}."

    def _use(self, thing: str) -> str:
        # What was on once counts as on for ever.
        self.state.marks["istoggled"].add(thing)
        return f"You turn on the {self.house.name[thing]}."

    def _slice(self, thing: str, blade: str) -> str:
        self.state.marks["issliced"].add(thing)
        return f"You sliced the {self.house.name[thing]} with the {self.house.name[blade]}."

    def _inventory(self) -> str:
        held = self.state.held
        return (
            f"You are carrying: {self._listed([held])}."
            if held
            else ("You are not carrying anything.")
        )

    def _look(self, place: str, appliances: Iterable[str]) -> str:
        here = self.house.located.get(place, [])
        if not here:
            return (
                "You are in the middle of a room. Looking quickly around you, you see "
                f"{self._listed(appliances)}."
            )
        facing = _enumerated([self.house.name[r] for r in here])
        # What was taken from one receptacle here and put into another.
        floor = [
            thing
            for thing, there in sorted(self.state.lies)
            if there == place
            for r in here
            if (thing, r) in self.state.outside
        ]
        return f"You are facing the {facing}. Next to it, you see {self._listed(floor)}."

    def _contents(self, receptacle: str) -> str:
        called, things = self.house.name[receptacle], self.state.inside.get(receptacle, set())
        if not self.reachable(receptacle):
            return f"The {called} is closed."
        self.seen |= things
        self.looked.add(receptacle)
        listed = self._listed(sorted(things))
        if receptacle in self.house.states["openable"]:
            return f"The {called} is open. In it, you see {listed}."
        return f"On the {called}, you see {listed}."

    def _thing(self, thing: str) -> str:
        called, marks = self.house.name[thing], self.state.marks
        if thing in self.house.states["isreceptacleobject"]:
            inner = self._listed(self.house.within.get(thing, []))
            return f"This is a normal {called}. In it, you see {inner}."
        sliced = thing in marks["issliced"]
        temperature = [m for m in ("ishot", "iscool") if thing in marks[m]][:1]
        clean = thing in marks["isclean"]
        if clean and temperature:
            word = "hot" if temperature == ["ishot"] else "cool"
            return f"This is a {word} and clean {'sliced ' if sliced else ''}{called}."
        if sliced and (clean or temperature):
            word = "clean" if clean else "hot" if temperature == ["ishot"] else "cool"
            return f"This is a {word} sliced {called}."
        if temperature == ["ishot"]:
            return f"This is a hot {called}."
        if clean:
            return f"This is a clean {called}."
        if temperature:
            return f"This is a cold {called}."
        if thing in self.house.states["toggleable"] and thing in marks["istoggled"]:
            return f"This {called} is on."
        if sliced and thing in self.house.states["sliceable"]:
            return f"This is a sliced {called}."
        return f"There's nothing special about {called}."

    def _listed(self, things: Iterable[str]) -> str:
        return _enumerated([f"a {self.house.name[thing]}" for thing in things])


def _bound(move: Callable[..., str], *arguments: str | None) -> Move:
    return lambda: move(*arguments)


def _enumerated(texts: Sequence[str]) -> str:
    if not texts:
        return "nothing"
    if len(texts) == 1:
        return texts[0]
    return f"{', '.join(texts[:-1])}, and {texts[-1]}"
