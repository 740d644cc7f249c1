"""A house: what a game file says about one ALFWorld game, and what never changes in it."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from runs.errors import EnvError

_TOKEN = re.compile(r"[()]|[^\s()]+")
_COMMENT = re.compile(r";[^\n]*")
_SPELT = (("_bar_", "|"), ("_minus_", "-"), ("_plus_", "+"), ("_dot_", "."), ("_comma_", ","))
# Facts of a problem that this engine knows; another one would be ignored in silence.
_UNARY = (
    "openable opened pickupable cleanable heatable coolable sliceable toggleable moveable "
    "isreceptacleobject isclean ishot iscool issliced istoggled ison isreceptacleobjectfull full "
    "checked holdsany holdsanyreceptacleobject examined"
).split()
_BINARY = (
    "atlocation receptacleatlocation objectatlocation inreceptacle inreceptacleobject "
    "wasinreceptacle receptacletype objecttype cancontain holds"
).split()


@dataclass(frozen=True)
class Goal:
    """What has to be true at the end, of the six kinds that ALFRED has.

    `target` is the type of the object, `change` what it must be (`isclean`, `ishot`, `iscool` or
    None), `receptacle` the type it must lie in, `count` how many; or `lamp`, the type of what must
    be on beside the agent who holds the object.
    """

    target: str
    receptacle: str | None = None
    change: str | None = None
    count: int = 1
    lamp: str | None = None


@dataclass(frozen=True)
class House:
    """Everything is keyed by PDDL identifiers in lower case; `name` has those that players read.

    `at[r]` are the locations of receptacle r, `located[l]` the receptacles at location l, in the
    order in which the game lists them. `inside[r]` and `lies[o]` are where objects begin:
    receptacles and locations. `states[predicate]` are the objects of which it holds at the start.
    """

    objective: str
    helps: bool
    goal: Goal
    start: str
    name: dict[str, str]
    at: dict[str, list[str]]
    located: dict[str, list[str]]
    kinds: dict[str, set[str]]
    types: dict[str, set[str]]
    contains: dict[str, set[str]]
    inside: dict[str, set[str]]
    lies: dict[str, set[str]]
    within: dict[str, list[str]]
    held: str | None
    states: dict[str, set[str]] = field(default_factory=dict)

    def accepts(self, receptacle: str, thing: str) -> bool:
        """Whether the receptacle's kind may hold things of this type."""
        kinds = self.kinds.get(receptacle, ())
        return any(self.types.get(thing, set()) & self.contains.get(kind, set()) for kind in kinds)

    def targets(self) -> list[str]:
        """Things of the type that the goal asks for."""
        return sorted(t for t, types in self.types.items() if self.goal.target in types)


def read_house(problem: str, objective: str, helps: bool) -> House:
    """The house of a PDDL problem of the domain `alfred`. Raises `EnvError` where it is none."""
    parts = [one for one in _parse(problem)[1:] if isinstance(one, list) and one]
    sections = {one[0]: one[1:] for one in parts if isinstance(one[0], str)}
    for needed in (":objects", ":init", ":goal"):
        if needed not in sections:
            raise EnvError(f"the PDDL problem has no {needed}")
    facts = defaultdict(list)
    for fact in sections[":init"]:
        if not isinstance(fact, list) or not fact:
            raise EnvError(f"{fact!r} is no fact of the PDDL problem")
        if fact[0] == "=" or not all(isinstance(part, str) for part in fact):
            continue  # costs and distances
        if not _known(fact):
            raise EnvError(f"the PDDL problem has a fact that ALFWorld does not: {' '.join(fact)}")
        facts[fact[0]].append(tuple(fact[1:]))
    if len(facts["atlocation"]) != 1:
        raise EnvError("the PDDL problem does not say where the agent is")
    goal = _goal(sections[":goal"])
    held = [thing for _, thing in facts["holds"]]
    return House(
        objective=objective,
        helps=helps,
        goal=goal,
        start=facts["atlocation"][0][1],
        name=_names({argument for group in facts.values() for fact in group for argument in fact}),
        at=_ordered(facts["receptacleatlocation"]),
        located=_ordered((place, r) for r, place in facts["receptacleatlocation"]),
        kinds=_grouped(facts["receptacletype"]),
        types=_grouped(facts["objecttype"]),
        contains=_grouped(facts["cancontain"]),
        inside=_grouped((r, o) for o, r in facts["inreceptacle"]),
        lies=_grouped(facts["objectatlocation"]),
        within=_ordered((outer, inner) for inner, outer in facts["inreceptacleobject"]),
        held=held[0] if held else None,
        states={name: {fact[0] for fact in facts[name]} for name in _UNARY},
    )


def _parse(text: str) -> list[Any]:
    """S-expressions, in lower case as Fast Downward reads them."""
    stack: list[list[Any]] = [[]]
    for token in _TOKEN.findall(_COMMENT.sub("", text).lower()):
        if token == "(":
            stack.append([])
        elif token == ")":
            if len(stack) < 2:
                raise EnvError("the PDDL problem closes a bracket that it did not open")
            closed = stack.pop()
            stack[-1].append(closed)
        else:
            stack[-1].append(token)
    if len(stack) > 1:
        raise EnvError("the PDDL problem ends before its last bracket is closed")
    if not stack[0] or not isinstance(stack[0][0], list):
        raise EnvError("the PDDL problem is empty")
    return stack[0][0]


def _known(fact: list[Any]) -> bool:
    """Whether ALFWorld has such a fact, about as many things."""
    arity = 1 if fact[0] in _UNARY else 2 if fact[0] in _BINARY else 0
    return len(fact) == arity + 1


def _atoms(condition: Any) -> Iterator[list[str]]:
    """The facts that a goal asks for; ALFRED's goals are conjunctions under `exists`."""
    if not isinstance(condition, list) or not condition:
        raise EnvError(f"the goal holds {condition!r}, which is no condition")
    head = condition[0]
    if head == "and":
        for part in condition[1:]:
            yield from _atoms(part)
    elif head == "exists" and len(condition) == 3:
        yield from _atoms(condition[2])
    elif all(isinstance(part, str) for part in condition) and _known(condition):
        yield condition
    elif head != "not" or not (isinstance(condition[-1], list) and condition[-1][:1] == ["="]):
        raise EnvError(f"the goal holds {head}, which ALFWorld's goals do not")


def _goal(section: list[Any]) -> Goal:
    atoms = [atom for part in section for atom in _atoms(part)]
    asked = Counter(atom[0] for atom in atoms)
    variables = {atom[1]: atom[2] for atom in atoms if atom[0] == "objecttype"}
    inside = [tuple(atom[1:]) for atom in atoms if atom[0] == "inreceptacle"]
    kinds = {atom[2] for atom in atoms if atom[0] == "receptacletype"}
    changes = [name for name in ("isclean", "ishot", "iscool") if asked[name]]
    if asked["holds"] == asked["istoggled"] == 1 and not kinds:
        (thing,) = [atom[2] for atom in atoms if atom[0] == "holds"]
        (lamp,) = [atom[1] for atom in atoms if atom[0] == "istoggled"]
        if {thing, lamp} == set(variables) and inside and inside[0][0] == lamp:
            return Goal(variables[thing], lamp=variables[lamp])
    elif len(kinds) == 1 and len(inside) in (1, 2) and len(changes) <= 1 and not asked["issliced"]:
        wanted = {variables.get(thing, "") for thing, _ in inside}
        if len(wanted) == 1 and "" not in wanted and len(inside) == len(variables):
            change = changes[0] if changes else None
            return Goal(wanted.pop(), kinds.pop(), change, len(inside))
    raise EnvError(
        "the goal is none of ALFWorld's six task types (sliced objects and movable receptacles "
        "are left out, as ALFWorld does)"
    )


def _names(identifiers: set[str]) -> dict[str, str]:
    """What ALFWorld calls them: a type and a number, the last identifier being number 1."""
    total: Counter[str] = Counter(_kind(one) for one in identifiers if "_bar_" in one)
    names = {}
    for one in sorted(identifiers):
        if "_bar_" in one:
            kind = _kind(one)
            names[one] = f"{kind} {total[kind]}"
            total[kind] -= 1
        else:
            names[one] = one + " "
    return names


def _kind(identifier: str) -> str:
    """`sink_bar_1_bar_sinkbasin` is a sinkbasin."""
    text = identifier
    for spelling, character in _SPELT:
        text = text.replace(spelling, character)
    return text.split("|", 1)[0] + ("basin" if "basin" in identifier else "")


def _grouped(pairs: Iterable[tuple[str, ...]]) -> dict[str, set[str]]:
    found: dict[str, set[str]] = defaultdict(set)
    for one, other in pairs:
        found[one].add(other)
    return dict(found)


def _ordered(pairs: Iterable[tuple[str, ...]]) -> dict[str, list[str]]:
    return {one: sorted(others) for one, others in sorted(_grouped(pairs).items())}
