"""Runs as a table shows them: what they won, with intervals, and which of them belong together."""

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
from scipy.stats import binomtest

from runs.rng import generator

RESAMPLES = 2000
# What the policy was shown of a game: success under one of these says nothing about another.
SHOWN = ("env.show_admissible", "env.constrain", "env.history_window")


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

    @property
    def taught(self) -> int | None:
        """The iteration at which RL began, where demonstrations were before it and measured."""
        shown = self.config.get("sft", {}).get("demos", 0) and self.config["algo"]["name"] != "sft"
        return 1 if shown and 1 in self.iterations[:-1] else None

    @property
    def types(self) -> list[str]:
        """Types of the games of the suite, in the order of their names."""
        return sorted(set(self.evaluation["task_type"].tolist()))

    def wins(
        self, iteration: int, greedy: bool = False, task_type: str | None = None
    ) -> pd.Series | None:
        """Share of wins of each task [tasks] after `iteration` updates, by task id.

        With a `task_type` only of its tasks; None where none was played.
        """
        lines = self._lines(iteration, greedy)
        if task_type is not None:
            lines = lines[lines["task_type"] == task_type]
        return pd.Series(lines.groupby("task_id", sort=False)["won"].mean()) if len(lines) else None

    def score(
        self, iteration: int, greedy: bool = False, task_type: str | None = None
    ) -> Score | None:
        wins = self.wins(iteration, greedy, task_type)
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
    shown_apart = {k for k in SHOWN if len({flat[id(r)].get(k) for r in results}) > 1}
    peers: dict[tuple[str, str], list[RunResult]] = defaultdict(list)
    for result in results:
        peers[_pillars(result)].append(result)
    found: dict[str, list[RunResult]] = defaultdict(list)
    for (algorithm, reward), group in peers.items():
        keys = {key for r in group for key in flat[id(r)]} - {"seed"}
        keys = {key for key in keys if not key.startswith(("run.", "paths.", "compat."))}
        varying = {k for k in keys if len({flat[id(r)].get(k) for r in group}) > 1}
        for result in group:
            extra = [f"{key}={flat[id(result)].get(key)}" for key in sorted(varying | shown_apart)]
            found[" ".join([algorithm, reward, *extra, *faults(result)])].append(result)
    return dict(found)


def faults(result: RunResult) -> list[str]:
    """Known faults that a run was told to reproduce; what has one is no result (docs)."""
    return [f"compat.{name}" for name, on in result.config.get("compat", {}).items() if on]


def shown(results: Sequence[RunResult]) -> str:
    """How the games were shown, as far as all runs agree; `arms` names what they differ in."""
    ways = zip(*(_ways(result.config["env"]) for result in results), strict=True)
    return ", ".join(way[0] for way in ways if len(set(way)) == 1)


def _ways(env: Mapping[str, Any]) -> tuple[str, ...]:
    window = env["history_window"]
    return (
        f"admissible commands {'shown' if env['show_admissible'] else 'hidden'}",
        f"decoding {'constrained to admissible commands' if env['constrain'] else 'free'}",
        "full history" if window is None else f"history window of {window} turns",
    )


def _pillars(result: RunResult) -> tuple[str, str]:
    return result.config["algo"]["name"], result.config["reward"]["name"]


def _flatten(config: Mapping[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    flat: list[tuple[str, Any]] = []
    for key, value in config.items():
        if isinstance(value, Mapping):
            flat += _flatten(value, f"{prefix}{key}.")
        else:
            flat.append((f"{prefix}{key}", json.dumps(value)))
    return flat
