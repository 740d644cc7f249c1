"""Are procedural houses what they should be, and does each knob make them harder?

    python -m benchmarks.houses --count 1000

Makes games of all task types at three difficulties, seen and unseen, plans them, plays the plans,
and checks that none is won at the start. Then turns one knob after the other and measures two
players that do not know where things are. Prints tables and draws `docs/figures/house_lengths.png`.
With `--planner PYTHON`, the Python of an environment that has stock ALFWorld and Fast Downward,
each plan is also played there, and those games are planned that Fast Downward can plan in seconds.
Exits with 1 where a check fails.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from statistics import mean
from typing import Any

import matplotlib
from rich.console import Console
from rich.table import Table

from benchmarks.pairs import CHECKOUT, machine, write
from benchmarks.peers.peer import Peer
from envs.alfworld.floorplans import TASK_TYPES
from envs.alfworld.houses import HouseOptions, make_house
from envs.alfworld.rules import house_of
from envs.alfworld.world import CHANGES, World

FIGURE = CHECKOUT / "docs" / "figures" / "house_lengths.png"
DIFFICULTIES = {
    "easy": HouseOptions(rooms=1, receptacles=5, objects=4, distractors=0),
    "default": HouseOptions(),
    "hard": HouseOptions(rooms=3, receptacles=12, objects=20, distractors=6),
}
# Fast Downward needs up to some minutes for a hard house.
PLANNED = ("easy", "default")
KNOBS = {
    "rooms": (1, 2, 4),
    "receptacles": (5, 8, 16),
    "objects": (0, 8, 32),
    "distractors": (0, 2, 6),
}
# Okabe and Ito's palette, as in analysis/summary.py.
COLOURS = {"easy": "#56B4E9", "default": "#0072B2", "hard": "#D55E00"}
HATCHES = {"easy": "", "default": "//", "hard": "xx"}


@dataclass
class Played:
    """What was measured of a game.

    `searched`: commands of a player who knows what to do and looks for the things place by place;
    `read`: characters it was told; `rash`: whether the first thing that could be changed and
    placed as asked, and the first lamp, are the right ones; `offered`: admissible commands along
    the plan.
    """

    type: str
    difficulty: str
    unseen: bool
    length: int
    early: bool
    solved: bool
    searched: int
    read: int
    rash: bool
    offered: float
    milliseconds: float


class Searcher:
    """Looks into places in a random order until it has seen what it needs, and remembers."""

    def __init__(self, world: World, rng: Random) -> None:
        self.world = world
        self.order = list(world.house.at)
        rng.shuffle(self.order)
        self.commands = 0
        self.read = len(world.intro)
        self._looked_into: set[str] = set()

    def play(self) -> None:
        """Until the game is won."""
        house, goal = self.world.house, self.world.house.goal
        left = set(house.targets())
        lamps = {thing for thing, types in house.types.items() if goal.lamp in types}
        while not self.world.won:
            thing, where = self._find(left)
            self._do(f"take {house.name[thing]} from {house.name[where]}")
            left.discard(thing)
            for verb, kind, _, result, _ in CHANGES:
                if result == goal.change:
                    appliance = self._first(kind)
                    self._do(f"go to {house.name[appliance]}")
                    self._do(f"{verb} {house.name[thing]} with {house.name[appliance]}")
            if goal.lamp is not None:
                lamp, _ = self._find(lamps)
                self._do(f"use {house.name[lamp]}")
            elif goal.receptacle is not None:
                place = self._first(goal.receptacle)
                self._look_into(place)
                self._do(f"move {house.name[thing]} to {house.name[place]}")

    def _find(self, wanted: set[str]) -> tuple[str, str]:
        """One of the things and where it is; ends beside it."""
        inside = self.world.state.inside
        known = [r for r in self.order if r in self._looked_into]
        for receptacle in [*known, *(r for r in self.order if r not in known)]:
            if receptacle in known and not wanted & inside.get(receptacle, set()):
                continue
            self._look_into(receptacle)
            if found := sorted(wanted & inside.get(receptacle, set())):
                return found[0], receptacle
        raise AssertionError("every receptacle was looked into")

    def _first(self, kind: str) -> str:
        return next(r for r in self.order if kind in self.world.house.kinds[r])

    def _look_into(self, receptacle: str) -> None:
        house, state = self.world.house, self.world.state
        if state.at not in house.at[receptacle]:
            self._do(f"go to {house.name[receptacle]}")
        if not self.world.reachable(receptacle):
            self._do(f"open {house.name[receptacle]}")
        self._looked_into.add(receptacle)

    def _do(self, command: str) -> None:
        if command not in self.world.commands:
            if command.startswith("go to "):
                return  # already there
            raise AssertionError(f"{command} is not admissible")
        self.read += len(self.world.step(command))
        self.commands += 1


def rash(world: World, rng: Random) -> bool:
    """Whether the first thing seen that could be changed and placed as asked is the right one, and
    so is the first lamp."""
    house, goal = world.house, world.house.goal
    ability = {result: able for _, _, able, result, _ in CHANGES}
    able = house.states[ability[goal.change]] if goal.change else house.states["pickupable"]
    places = [r for r, kinds in house.kinds.items() if goal.receptacle in kinds]
    order = [r for r in house.at if r not in places]
    rng.shuffle(order)
    seen = [thing for receptacle in order for thing in sorted(house.inside.get(receptacle, ()))]
    fits = [t for t in seen if t in able and (not places or house.accepts(places[0], t))]
    lamps = [thing for thing in seen if thing in house.states["toggleable"]]
    lit = goal.lamp is None or goal.lamp in house.types[lamps[0]]
    return lit and fits[0] in house.targets()


def played(
    task_type: str, difficulty: str, seed: int, options: HouseOptions, unseen: bool
) -> tuple[Played, dict[str, Any]]:
    """A game, measured, and its content."""
    began = time.perf_counter()
    game, _ = make_house(task_type, seed, options, unseen)
    seconds = time.perf_counter() - began
    house = house_of(game, task_type)
    world, offered, early = World(house), [], False
    for command in game["walkthrough"]:
        early = early or world.won
        offered.append(len(world.commands))
        if command not in world.commands:
            break
        world.step(command)
    searcher = Searcher(World(house), Random(seed))
    searcher.play()
    return Played(
        type=task_type,
        difficulty=difficulty,
        unseen=unseen,
        length=len(game["walkthrough"]),
        early=early,
        solved=world.won,
        searched=searcher.commands,
        read=searcher.read,
        rash=rash(World(house), Random(seed)),
        offered=mean(offered),
        milliseconds=1000 * seconds,
    ), game


def spread(count: int) -> Iterable[tuple[str, str, int, bool]]:
    """(task type, difficulty, seed, unseen): all combinations in turn."""
    names = list(DIFFICULTIES)
    for seed in range(count):
        types, rest = len(TASK_TYPES), seed // len(TASK_TYPES)
        unseen = rest // len(names) % 2 == 1
        yield TASK_TYPES[seed % types], names[rest % len(names)], seed, unseen


def means(rows: Sequence[Played]) -> dict[str, float]:
    """What is in a line of the tables."""
    names = ("length", "searched", "read", "rash", "offered", "milliseconds")
    return {name: mean(getattr(row, name) for row in rows) for name in names}


def by_difficulty(rows: Sequence[Played]) -> list[dict[str, Any]]:
    """Each task type at each difficulty and at all of them."""
    lines = []
    for task_type in TASK_TYPES:
        for difficulty in (*DIFFICULTIES, "all"):
            some = [
                row
                for row in rows
                if row.type == task_type and difficulty in (row.difficulty, "all")
            ]
            if some:
                lines.append(
                    {
                        "type": task_type,
                        "difficulty": difficulty,
                        "games": len(some),
                        "shortest": min(row.length for row in some),
                        "longest": max(row.length for row in some),
                        "solved": sum(row.solved for row in some),
                        "early": sum(row.early for row in some),
                        **means(some),
                    }
                )
    return lines


def by_knob(houses: int) -> list[dict[str, Any]]:
    """Means for each value of each knob and each task type, the others as by default."""
    lines = []
    for task_type in TASK_TYPES:
        lengths = {played(task_type, "", s, HouseOptions(), False)[0].length for s in range(houses)}
        ends = tuple((end, end) for end in (min(lengths), max(lengths)))
        for knob, values in {**KNOBS, "path_length": ends}.items():
            for value in values:
                options = replace(HouseOptions(), **{knob: value})
                rows = [played(task_type, "", s, options, False)[0] for s in range(houses)]
                lines.append({"type": task_type, "knob": knob, "value": value, **means(rows)})
    return lines


def draw(rows: Sequence[Played], path: Path) -> None:
    """Above: lengths of shortest plans; below: commands of the searching player; by task type."""
    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(
        2, len(TASK_TYPES), figsize=(15, 6), layout="constrained", sharey="row"
    )
    width = 0.8 / len(DIFFICULTIES)
    for column, task_type in enumerate(TASK_TYPES):
        above, below = axes[0][column], axes[1][column]
        mine = [row for row in rows if row.type == task_type]
        lengths = range(min(r.length for r in mine), max(r.length for r in mine) + 1)
        boxes = []
        for place, name in enumerate(DIFFICULTIES):
            some = [row for row in mine if row.difficulty == name]
            shares = [sum(r.length == n for r in some) / max(1, len(some)) for n in lengths]
            at = [n + (place - 1) * width for n in lengths]
            style: dict[str, Any] = {"color": COLOURS[name], "hatch": HATCHES[name]}
            above.bar(at, shares, width, label=name, edgecolor="white", **style)
            boxes.append([row.searched for row in some])
        # Whiskers end at the 5th and 95th of a hundred games.
        drawn = below.boxplot(boxes, whis=(5, 95), showfliers=False, widths=0.6, patch_artist=True)
        for box, line, name in zip(drawn["boxes"], drawn["medians"], DIFFICULTIES, strict=True):
            box.set(facecolor=COLOURS[name])
            line.set(color="black", linewidth=2)
        above.set(title=task_type.replace("_then_", "\nthen_"), xticks=list(lengths))
        above.set_xlabel("commands of a shortest plan")
        below.set_xticks(range(1, len(DIFFICULTIES) + 1), list(DIFFICULTIES))
    axes[0][0].set_ylabel("share of games")
    axes[1][0].set(ylabel="commands of a player\nwho has to search", ylim=(0, None))
    handles, labels = axes[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, title="difficulty", loc="outside right center")
    path.parent.mkdir(parents=True, exist_ok=True)
    # Without the date and version: the same numbers give the same file.
    figure.savefig(path, dpi=100, metadata={"Software": None})
    pyplot.close(figure)


def show(title: str, lines: Sequence[dict[str, Any]], columns: dict[str, str]) -> Table:
    """`columns`: what a column is called, and how its numbers are written."""
    view = Table(title=title)
    for name in columns:
        view.add_column(name, justify="left" if columns[name] == "" else "right")
    for index, line in enumerate(lines):
        last = index + 1 == len(lines) or lines[index + 1]["type"] != line["type"]
        cells = [
            format(line[name], how) if how else str(line[name]) for name, how in columns.items()
        ]
        view.add_row(*cells, end_section=last)
    return view


def failures(rows: Sequence[Played], answers: Sequence[dict[str, Any]]) -> list[str]:
    """What is not as it should be, a sentence each."""
    found = [f"game {i} is won before its plan ends" for i, row in enumerate(rows) if row.early]
    found += [f"game {i} is not won by its plan" for i, row in enumerate(rows) if not row.solved]
    for i, (row, answer) in enumerate(zip(rows, answers, strict=False)):
        if answer["planned"] is not None and len(answer["planned"]) < row.length:
            found.append(f"game {i}: Fast Downward needs {len(answer['planned'])} of {row.length}")
        if not answer["won"] or answer["early"]:
            found.append(f"game {i} is not won by its plan in stock ALFWorld, or too early")
    return found


def stock_answers(
    python: str, rows: Sequence[Played], games: Sequence[dict[str, Any]]
) -> list[dict[str, Any]]:
    """What stock ALFWorld makes of the games (`benchmarks.peers.alfworld_plan`)."""
    answers = []
    with Peer("alfworld_plan", python, {}) as peer:
        for row, game in zip(rows, games, strict=True):
            answers.append(peer.ask({"game": game, "plan": row.difficulty in PLANNED}))
            if len(answers) % 50 == 0:
                print(f"{len(answers)} games played in stock", file=sys.stderr, flush=True)
    return answers


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.houses")
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--knobs", type=int, default=50, help="houses for each value of a knob")
    parser.add_argument("--planner", help="Python with stock ALFWorld and Fast Downward")
    parser.add_argument("--figure", type=Path, default=FIGURE)
    options = parser.parse_args(arguments)
    if options.count < len(TASK_TYPES) * len(DIFFICULTIES):
        parser.error("--count must be at least 18: a game of each type at each difficulty")
    made = [played(t, d, s, DIFFICULTIES[d], u) for t, d, s, u in spread(options.count)]
    rows, games = [row for row, _ in made], [game for _, game in made]
    answers = stock_answers(options.planner, rows, games) if options.planner else []
    console = Console(width=170)
    measured = {"length": ".2f", "searched": ".1f", "read": ".0f", "rash": ".0%", "offered": ".0f"}
    counts = dict.fromkeys(("games", "shortest", "longest", "solved", "early"), "d")
    lines = by_difficulty(rows)
    columns = {"type": "", "difficulty": "", **counts, **measured, "milliseconds": ".1f"}
    console.print(show(f"{len(rows)} procedural houses", lines, columns))
    knobs = by_knob(options.knobs) if options.knobs else []
    console.print(show("One knob turned", knobs, {"type": "", "knob": "", "value": "", **measured}))
    draw(rows, options.figure)
    wrong = failures(rows, answers)
    print(*wrong[:20], f"{len(wrong)} faults in {len(rows)} games", sep="\n")
    pairs = [
        (row.length, len(answer["planned"]))
        for row, answer in zip(rows, answers, strict=False)
        if answer["planned"] is not None
    ]
    report = {
        "difficulties": lines,
        "knobs": knobs,
        "faults": wrong,
        "stock": {
            "played": len(answers),
            "planned": len(pairs),
            "equal": sum(ours == theirs for ours, theirs in pairs),
            "ours_shorter": sum(ours < theirs for ours, theirs in pairs),
        },
    }
    print(f"stock ALFWorld: {report['stock']}")
    write({"name": "houses", "machine": machine(), "count": len(rows), **report})
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
