"""Success by type of game: an average over types hides which of them an agent learned."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

import numpy as np
import pandas as pd
from rich.table import Table

from analysis.scores import RunResult, Score, arm_interval, arms, shown

UNKNOWN = "–"


def type_table(results: Sequence[RunResult]) -> Table | None:
    """A line a run and an arm of several seeds, a column a type; None where no suite has several.

    A cell is the base's success → the final one, its interval below; where demonstrations came
    before RL, what they made of it stands between. The number of games of a
    type stands in the header, or in the cells when the runs differ in it.
    """
    if all(len(result.types) < 2 for result in results):
        return None
    types = sorted({name for result in results for name in result.types})
    counts = {name: {_games(result, name) for result in results} - {0} for name in types}
    taught = "demonstrations → " if any(result.taught for result in results) else ""
    steps = f"base → {taught}final"
    title = f"Success by type on the {results[0].suite} games, {steps}, with 95 % intervals"
    view = Table(title=f"{title}\n{shown(results)}".strip(), header_style="", show_lines=True)
    view.add_column("run", overflow="fold")
    for name, short in short_names(types).items():
        same = len(counts[name]) == 1
        view.add_column(f"{short}\nn = {min(counts[name])}" if same else short, justify="right")
    for arm, members in arms(results).items():
        for result in members:
            cells = [_cell([result], name, len(counts[name]) > 1) for name in types]
            view.add_row(f"{arm} seed {result.config['seed']}", *cells)
        if len(members) > 1:
            cells = [_cell(members, name, False) for name in types]
            view.add_row(f"{arm}, {len(members)} seeds", *cells)
    return view


def type_lines(result: RunResult) -> list[str]:
    """The result of one run, a line a type; none where the suite has one type only."""
    if len(result.types) < 2:
        return []
    lines, width = [], max(len(name) for name in result.types)
    for name in result.types:
        text = f"{name:{width}}  success {_score([result], name) or UNKNOWN}"
        base = result.score(0, task_type=name)
        if base and result.final_iteration > 0:
            text += f", base {base.value:.2f}"
        taught = result.score(result.taught, task_type=name) if result.taught else None
        if taught:
            text += f", after demonstrations {taught.value:.2f}"
        lines.append(f"{text}, n = {_games(result, name)}")
    return lines


def short_names(types: Sequence[str]) -> dict[str, str]:
    """Each name without the words that other types have too; whole when that leaves all or nothing.

    No two come out alike, because a word that is left is in one type only.

    >>> list(short_names(["pick_clean_then_place", "pick_heat_then_place"]).values())
    ['clean', 'heat']
    """
    words = {name: re.findall(r"[^\W_]+", name) for name in types}
    holders = Counter(word for listed in words.values() for word in set(listed))
    short = {}
    for name, listed in words.items():
        own = [word for word in listed if holders[word] == 1]
        short[name] = " ".join(own) if 0 < len(own) < len(listed) else name
    return short


def _cell(members: Sequence[RunResult], task_type: str, count: bool) -> str:
    score = _score(members, task_type)
    if score is None:
        return UNKNOWN
    before = _mean([member.wins(0, task_type=task_type) for member in members])
    if any(member.taught for member in members):
        taught = [m.wins(m.taught, task_type=task_type) if m.taught else None for m in members]
        before = f"{before} → {_mean(taught)}"
    trained = any(member.final_iteration > 0 for member in members)
    value, _, interval = str(score).partition(" ")
    lines = [f"{before} → {value}" if trained else value, interval]
    return "\n".join(lines + [f"n = {_games(members[0], task_type)}"] * count)


def _mean(wins: Sequence[pd.Series | None]) -> str:
    known = [one.mean() for one in wins if one is not None]
    return f"{np.mean(known):.2f}" if len(known) == len(wins) else UNKNOWN


def _score(members: Sequence[RunResult], task_type: str) -> Score | None:
    """Final sampled success on the games of a type: of a run, or of an arm."""
    if len(members) == 1:
        return members[0].score(members[0].final_iteration, task_type=task_type)
    played = [m.wins(m.final_iteration, task_type=task_type) for m in members]
    shares = [wins for wins in played if wins is not None]
    return arm_interval(shares) if shares else None


def _games(result: RunResult, task_type: str) -> int:
    wins = result.wins(result.final_iteration, task_type=task_type)
    return 0 if wins is None else len(wins)
