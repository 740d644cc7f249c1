"""What a grid found: one line a run, one line an arm of several seeds, and the learning curves."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import yaml
from rich.table import Table
from scipy.stats import binomtest

from runs.rng import generator

# Okabe and Ito's palette, which colour-blind readers can tell apart; the line styles and markers
# keep the lines apart in grey.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
DASHES = ("-", "--", ":", "-.")
RESAMPLES = 2000


@dataclass(frozen=True)
class Score:
    """Success and its 95 % interval."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.2f} [{self.low:.2f}, {self.high:.2f}]"


@dataclass(frozen=True)
class RunResult:
    """A run as the table shows it; scores are of `suite`, None where they were not measured."""

    directory: Path
    config: dict[str, Any]
    suite: str
    evaluation: pd.DataFrame
    last: dict[str, Any]

    @property
    def iterations(self) -> list[int]:
        """Updates after which the suite was played, in order."""
        return sorted({int(i) for i in self.evaluation["iteration"].tolist()})

    @property
    def final_iteration(self) -> int:
        return max(self.iterations)

    def wins(self, iteration: int, greedy: bool = False) -> pd.Series | None:
        """Share of wins of each task [tasks] after `iteration` updates, by task id."""
        lines = self._lines(iteration, greedy)
        return pd.Series(lines.groupby("task_id", sort=False)["won"].mean()) if len(lines) else None

    def score(self, iteration: int, greedy: bool = False) -> Score | None:
        wins = self.wins(iteration, greedy)
        return None if wins is None else wilson(float(wins.sum()), len(wins))

    def mean(self, column: str) -> float:
        """Mean of a column over the final sampled evaluation, errors apart."""
        lines = self._lines(self.final_iteration, greedy=False)
        return float(np.mean(lines.loc[lines["ended"] != "error", column].to_numpy()))

    def _lines(self, iteration: int, greedy: bool) -> pd.DataFrame:
        lines = self.evaluation
        return pd.DataFrame(
            lines[(lines["iteration"] == iteration) & ((lines["temperature"] == 0) == greedy)]
        )


def wilson(wins: float, n: int) -> Score:
    """95 % interval of Wilson (1927) for `wins` of `n` tasks.

    With several samples a task `wins` is a sum of shares and is rounded for the interval, which
    is then that of one sample a task, wider than need be.
    """
    interval = binomtest(round(wins), n).proportion_ci(0.95, method="wilson")
    return Score(wins / n, min(interval.low, wins / n), max(interval.high, wins / n))


def pass_at_k(wins: int, samples: int, k: int) -> float:
    """Unbiased chance that one of k of `samples` wins (Chen et al. 2021, arXiv 2107.03374).

    >>> pass_at_k(1, 2, 1)
    0.5
    """
    misses = samples - wins
    if k > samples:
        raise ValueError(f"pass@{k} needs at least {k} samples, there are {samples}")
    return 1.0 - float(np.prod([max(misses - i, 0) / (samples - i) for i in range(k)]))


def arm_interval(shares: Sequence[pd.Series]) -> Score:
    """Mean over seeds and tasks; seeds, then tasks within them, are drawn with replacement.

    shares: for each seed the value of each task [tasks], for example wins or paired gains.
    """
    draw = generator(0, "bootstrap", len(shares), len(shares[0]))
    values = [series.to_numpy(dtype=float) for series in shares]
    means = np.empty(RESAMPLES)
    for i in range(RESAMPLES):
        seeds = draw.integers(len(values), size=len(values))
        means[i] = np.mean([draw.choice(values[s], size=len(values[s])).mean() for s in seeds])
    low, high = np.quantile(means, [0.025, 0.975])
    return Score(float(np.mean([v.mean() for v in values])), float(low), float(high))


def load(directory: Path) -> RunResult:
    """Read a finished run; its headline suite is the first of `eval.suites`."""
    config = yaml.safe_load((directory / "config.yaml").read_text())
    evaluation = pd.read_parquet(directory / "eval.parquet")
    suite = config["eval"]["suites"][0]
    lines = (directory / "metrics.jsonl").read_text().splitlines()
    headline_suite = pd.DataFrame(evaluation[evaluation["suite"] == suite])
    return RunResult(directory, config, suite, headline_suite, json.loads(lines[-1]))


def arms(results: Sequence[RunResult]) -> dict[str, list[RunResult]]:
    """Runs that differ in nothing but the seed, under the name of what tells them apart."""
    flat = {id(r): dict(_flatten(r.config)) for r in results}
    peers: dict[tuple[str, str], list[RunResult]] = defaultdict(list)
    for result in results:
        peers[_pillars(result)].append(result)
    found: dict[str, list[RunResult]] = defaultdict(list)
    for (algorithm, reward), group in peers.items():
        keys = {key for r in group for key in flat[id(r)]} - {"seed"}
        keys = {key for key in keys if not key.startswith(("run.", "paths.", "compat."))}
        varying = sorted(k for k in keys if len({flat[id(r)].get(k) for r in group}) > 1)
        for result in group:
            extra = [f"{key}={flat[id(result)].get(key)}" for key in varying]
            found[" ".join([algorithm, reward, *extra, *faults(result)])].append(result)
    return dict(found)


def faults(result: RunResult) -> list[str]:
    """Known faults that a run was told to reproduce; what has one is no result (docs)."""
    return [f"compat.{name}" for name, on in result.config.get("compat", {}).items() if on]


def table(results: Sequence[RunResult]) -> Table:
    """The summary, a line a run."""
    view = Table(title=f"Success on the {results[0].suite} games, with 95 % intervals")
    view.add_column("run", overflow="fold")
    columns = ("success", "base", "greedy", "greedy base", "return", "turns")
    for name in (*columns, "episodes", "tokens", "wall s", "CPU s"):
        view.add_column(name, justify="right")
    for name, members in arms(results).items():
        for result in members:
            view.add_row(f"{name} seed {result.config['seed']}", *_cells(result))
    return view


def arm_lines(results: Sequence[RunResult]) -> list[str]:
    """Per arm: the gain over the base, paired over tasks, and whether it only sharpens."""
    lines = []
    for name, members in arms(results).items():
        pairs = [(m.wins(m.final_iteration), m.wins(0)) for m in members]
        gains = [final - base for final, base in pairs if final is not None and base is not None]
        if not gains or any(member.final_iteration == 0 for member in members):
            continue
        gain = arm_interval(gains)
        text = f"{name}: {gain.value:+.2f} [{gain.low:+.2f}, {gain.high:+.2f}] over the base"
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


def _pillars(result: RunResult) -> tuple[str, str]:
    return result.config["algo"]["name"], result.config["reward"]["name"]


def _label(arm: str) -> str:
    algorithm, _, *extra = arm.split(" ")
    return " ".join([algorithm, *extra])


def _flatten(config: Mapping[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    flat: list[tuple[str, Any]] = []
    for key, value in config.items():
        if isinstance(value, Mapping):
            flat += _flatten(value, f"{prefix}{key}.")
        else:
            flat.append((f"{prefix}{key}", json.dumps(value)))
    return flat
