"""What a grid found: one line a run, one line an arm of several seeds, and the learning curves.

It is all of `analysis` that `run.py` knows, so what that needs of other modules is here too.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich.table import Table

from analysis.by_type import type_lines, type_table
from analysis.scores import (
    RunResult,
    arm_interval,
    arms,
    faults,
    load,
    pass_at_k,
    shown,
    wilson,
)

__all__ = ["arm_lines", "headline", "learning_curves", "load", "tables", "type_lines"]

# Okabe and Ito's palette, which colour-blind readers can tell apart; the line styles and markers
# keep the lines apart in grey.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
DASHES = ("-", "--", ":", "-.")


def tables(results: Sequence[RunResult]) -> list[Table]:
    """Success of each run and, where a suite holds several types of game, by type."""
    by_type = type_table(results)
    return [table(results)] + ([by_type] if by_type else [])


def table(results: Sequence[RunResult]) -> Table:
    """The summary, a line a run."""
    title = f"Success on the {results[0].suite} games, with 95 % intervals"
    view = Table(title=f"{title}\n{shown(results)}".strip(), header_style="")
    view.add_column("run", overflow="fold")
    columns = ("success", "base", "greedy", "greedy base", "return", "turns")
    for name in (*columns, "episodes", "tokens", "wall s", "CPU s"):
        view.add_column(name, justify="right")
    for name, members in arms(results).items():
        for result in members:
            view.add_row(f"{name} seed {result.config['seed']}", *_cells(result))
    return view


def arm_lines(results: Sequence[RunResult]) -> list[str]:
    """Per arm: the gain over the base, paired over tasks, and whether it only sharpens; where
    demonstrations came before RL, the gain over what they made of it as well."""
    lines = []
    for name, members in arms(results).items():
        pairs = [(m.wins(m.final_iteration), m.wins(0)) for m in members]
        gains = [final - base for final, base in pairs if final is not None and base is not None]
        if not gains or any(member.final_iteration == 0 for member in members):
            continue
        gain = arm_interval(gains)
        text = f"{name}: {gain.value:+.2f} [{gain.low:+.2f}, {gain.high:+.2f}] over the base"
        rest = [
            final - before
            for m in members
            if m.taught
            and (final := m.wins(m.final_iteration)) is not None
            and (before := m.wins(m.taught)) is not None
        ]
        if len(rest) == len(gains):
            by_rl = arm_interval(rest)
            text += f", {by_rl.value:+.2f} [{by_rl.low:+.2f}, {by_rl.high:+.2f}] of it by RL"
        if len(gains) > 1:
            text += f", {len(gains)} seeds, {sum(g.mean() > 0 for g in gains)} positive"
        greedy = [w for m in members if (w := m.wins(0, greedy=True)) is not None]
        final = np.mean([float(f.mean()) for f, _ in pairs if f is not None])
        if greedy and gain.value > 0 and final <= np.mean([float(w.mean()) for w in greedy]):
            text += "; it only sharpens: not above the base's greedy success"
        lines.append(text)
    return lines


def learning_curves(results: Sequence[RunResult], path: Path) -> None:
    """Write a PNG: a panel a reward, a line an arm, 95 % intervals shaded."""
    import matplotlib

    # Chosen before pyplot is imported: a machine without a display has no other backend.
    matplotlib.use("Agg")
    from matplotlib import pyplot, ticker

    rewards = list(dict.fromkeys(r.config["reward"]["name"] for r in results))
    figure, axes = pyplot.subplots(
        1, len(rewards), figsize=(4.6 * len(rewards) + 0.6, 3.8), sharey=True, squeeze=False
    )
    grouped = arms(results)
    labels = list(dict.fromkeys(_label(name) for name in grouped))
    for axis, reward in zip(axes[0], rewards, strict=True):
        for name, members in grouped.items():
            if members[0].config["reward"]["name"] == reward:
                _draw(axis, members, _label(name), labels.index(_label(name)))
        axis.set(title=f"reward = {reward}", xlabel="updates", ylim=(0, 1))
        axis.xaxis.set_major_locator(ticker.MaxNLocator(integer=True))
        axis.grid(alpha=0.25)
        axis.spines[["top", "right"]].set_visible(False)
        axis.legend(frameon=False, loc="upper left")
    axes[0][0].set_ylabel(f"success on {results[0].suite} games")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.tight_layout()
    figure.savefig(path, dpi=150)
    pyplot.close(figure)


def headline(result: RunResult) -> str:
    """The result of one run in one line."""
    final, base = result.score(result.final_iteration), result.score(0)
    text = f"success {final}" if final else "success was not measured"
    if base and result.final_iteration > 0:
        text += f", base {base.value:.2f}"
    taught = result.score(result.taught) if result.taught else None
    if taught:
        text += f", after demonstrations {taught.value:.2f}"
    greedy = result.score(result.final_iteration, greedy=True)
    if greedy:
        text += f", greedy {greedy.value:.2f}"
    samples = max(int(number) for number in result.evaluation["sample"].tolist()) + 1
    if samples > 1:
        text += f", pass@{samples} {_pass_at(result, samples):.2f}"
    text += f" on {result.suite} after {result.final_iteration} updates"
    return f"{text}; no result, it has {', '.join(faults(result))}" if faults(result) else text


def _pass_at(result: RunResult, samples: int) -> float:
    wins = result.wins(result.final_iteration)
    if wins is None:
        return float("nan")
    return float(np.mean([pass_at_k(round(w * samples), samples, samples) for w in wins]))


def _draw(axis: Any, members: Sequence[RunResult], label: str, index: int) -> None:
    points = []
    for iteration in sorted({i for m in members for i in m.iterations}):
        shares = [w for m in members if (w := m.wins(iteration)) is not None]
        if shares:
            single = wilson(float(shares[0].sum()), len(shares[0]))
            points.append((iteration, arm_interval(shares) if len(shares) > 1 else single))
    at = [iteration for iteration, _ in points]
    colour = COLOURS[index % len(COLOURS)]
    axis.plot(
        at,
        [score.value for _, score in points],
        color=colour,
        linestyle=DASHES[index % len(DASHES)],
        marker=MARKERS[index % len(MARKERS)],
        markersize=5,
        label=f"{label} ({len(members)} seeds)" if len(members) > 1 else label,
    )
    low, high = [s.low for _, s in points], [s.high for _, s in points]
    axis.fill_between(at, low, high, color=colour, alpha=0.12, linewidth=0)


def _cells(result: RunResult) -> list[str]:
    final = result.final_iteration
    base, greedy = result.score(0), result.score(final, greedy=True)
    greedy_base = result.score(0, greedy=True)
    return [
        str(result.score(final) or "–"),
        f"{base.value:.2f}" if base else "–",
        f"{greedy.value:.2f}" if greedy else "–",
        f"{greedy_base.value:.2f}" if greedy_base else "–",
        f"{result.mean('return'):.2f}",
        f"{result.mean('turns'):.1f}",
        f"{result.last['episodes']:,}",
        f"{result.last['tokens_generated']:,}",
        f"{result.last['seconds']:.0f}",
        f"{result.last['cpu_seconds']:.0f}",
    ]


def _label(arm: str) -> str:
    algorithm, _, *extra = arm.split(" ")
    return " ".join([algorithm, *extra])
