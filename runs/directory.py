"""`Run`: what the training loop tells about itself, and where it goes on disk.

An `iteration` in every file counts updates done: 0 is the base policy, k the policy after k
updates. `Run.iterations()` yields the 0-based index of the update to make, so the loop passes
`iteration + 1` to whatever happens afterwards:

    restored = ...                              # newest of run.checkpoints() that loads, or None
    run.resume_from(restored)                   # cuts the records back to it
    if run.wants_evaluation(0): ...             # the base policy
    for iteration in run.iterations():
        groups = ...; update = ...
        done = iteration + 1
        run.record_episodes(done, groups, advantages)
        run.log(done, play=groups, update=update)
        if run.wants_evaluation(done): run.record_evaluation(done, ...)
        if run.wants_checkpoint(done): ...      # last, into run.checkpoint_dir(done)
"""

from __future__ import annotations

import hashlib
import math
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil

from runs.config import FAULTS
from runs.errors import RunError
from runs.progress import Display
from runs.records import (
    EPISODE_SCHEMA,
    EVAL_SCHEMA,
    Metrics,
    Table,
    episode_line,
    group_columns,
    tokens,
    transcript,
    write_aside,
)
from runs.store import read_record, update_record

COUNTERS = (
    "episodes",
    "games",
    "env_steps",
    "tokens_generated",
    "tokens_trained",
    "gradient_steps",
    "cost_units",
)
COUNTED = ("tokens_trained", "gradient_steps", "demonstrations")
SECTIONS = {"update": "train", "playing": "health"}
# The paper's unit: a demonstration costs as much as ten episodes.
DEMONSTRATION_COST = 10


def cpu_seconds() -> float:
    """CPU seconds of this process and its children, living or waited for."""
    process = psutil.Process()
    spent = process.cpu_times()
    total = spent.user + spent.system + spent.children_user + spent.children_system
    for child in process.children(recursive=True):
        try:
            spent = child.cpu_times()
        except psutil.NoSuchProcess:
            continue
        total += spent.user + spent.system
    return total


class Run:
    """A run directory that this process owns (`runs.store.claim` makes one).

    `config` is the resolved configuration (attribute access), `directory` the run's folder.
    """

    def __init__(self, directory: Path, config: Any, display: Display | None = None) -> None:
        self.directory, self.config = directory, config
        self.id = directory.name
        self.display = display or Display()
        self.start = 0
        self._metrics = Metrics(directory / "metrics.jsonl")
        self._eval = Table(directory / "eval.parquet", EVAL_SCHEMA)
        self._episodes = Table(directory / "episodes.parquet", EPISODE_SCHEMA)
        self._totals = dict.fromkeys(COUNTERS, 0)
        self._seconds_before = self._cpu_before = 0.0
        # Loading the libraries is part of what a run costs.
        self._began = time.monotonic() - (time.time() - psutil.Process().create_time())
        self._resumed: bool | None = None
        self._seen = ""

    # -- where it stands ---------------------------------------------------------------------

    @property
    def total(self) -> int:
        """Updates that this run makes in all: none for `none`, one a pass for `sft`.

        Demonstrations before RL (`sft.demos` > 0) are the first update, so the learning curve
        shows base, after demonstrations, and then RL.
        """
        name = self.config.algo.name
        if name == "none":
            return 0
        if name == "sft":
            return self.config.sft.epochs
        return self.config.train.iterations + (1 if self.imitates else 0)

    @property
    def imitates(self) -> bool:
        """True when update 0 trains on demonstrations instead of playing."""
        return self.config.sft.demos > 0 and self.config.algo.name != "none"

    def checkpoints(self) -> list[tuple[int, Path]]:
        """(iteration, directory) of every complete checkpoint, newest first."""
        root = self.directory / "checkpoints"
        found = [path for path in root.glob("*") if path.is_dir() and path.name.isdigit()]
        return sorted(((int(path.name), path) for path in found), reverse=True)

    def checkpoint_dir(self, iteration: int) -> Path:
        """Where the checkpoint after `iteration` updates belongs; written aside and renamed."""
        root = self.directory / "checkpoints"
        root.mkdir(exist_ok=True)
        return root / f"{iteration:06d}"

    def resume_from(self, iteration: int | None) -> None:
        """Go on after `iteration` updates (None: from the beginning) and drop later records.

        Call it once, before anything else; raises `RunError` on a second call.
        """
        if self._resumed is not None:
            raise RunError("resume_from was called twice for one run.")
        self._resumed = iteration is not None
        self.start = iteration or 0
        last = -1 if iteration is None else iteration
        self._eval.cut(last)
        self._episodes.cut(last)
        kept = self._metrics.cut(last)
        for path in (self.directory / "transcripts").glob("*.jsonl"):
            if int(path.name.split("-")[0]) > last:
                path.unlink()
        self._totals = {name: kept.get(name, 0) for name in COUNTERS}
        self._seconds_before = kept.get("seconds", 0.0)
        self._cpu_before = kept.get("cpu_seconds", 0.0)
        if iteration is not None:
            self.display.say(f"  going on after iteration {iteration}")

    def iterations(self) -> Iterator[int]:
        """0-based indices of the updates still to make."""
        self._settle()
        self.display.begin(self.start)
        yield from range(self.start, self.total)

    def wants_evaluation(self, iteration: int) -> bool:
        """The base (0), what demonstrations made of it before RL, every `eval.every` updates
        (0: never between) and the last one."""
        self._settle()
        if self._resumed and iteration <= self.start:
            return False
        every = self.config.eval.every
        fixed = {0, self.total} | (
            {1} if self.imitates and self.config.algo.name != "sft" else set()
        )
        return iteration in fixed or bool(every and iteration % every == 0)

    def wants_checkpoint(self, iteration: int) -> bool:
        """Every `train.checkpoint_every` updates (0: never between) and the last one."""
        every = self.config.train.checkpoint_every
        return iteration == self.total or bool(every and iteration % every == 0)

    # -- what it did -------------------------------------------------------------------------

    def log(self, iteration: int, **sections: Any) -> None:
        """Append a line to `metrics.jsonl` and move the progress bar.

        `play=groups` (list of `Group`) is counted; every other section is a mapping of names to
        numbers, written as `section/name`, `update` as `train/name` and `playing` as
        `health/name`. The names `tokens_trained`, `gradient_steps` and `demonstrations` are
        totals over the run, or cost, and are counted instead. Raises `RunError` for a number
        that is not finite.
        """
        self._settle()
        values: dict[str, float] = {}
        groups = sections.pop("play", None)
        if groups is not None:
            values |= self._count_play(groups)
        for section, mapping in sections.items():
            if mapping is None:
                continue
            self._count_update(mapping)
            prefix = SECTIONS.get(section, section)
            values |= {f"{prefix}/{k}": number for k, number in mapping.items() if k not in COUNTED}
        self._write(iteration, values)
        self.display.iteration(iteration, self.total, values.get("train/success"), self._seen)

    def record_episodes(
        self, iteration: int, groups: Sequence[Any], advantages: Sequence[Sequence[Any]] | None
    ) -> None:
        """Add training episodes to `episodes.parquet`.

        `advantages[g][m]` is the flat tensor of the m-th member of `groups[g].alive`; None when
        the algorithm has none. Errored episodes are recorded without advantages.
        """
        self._settle()
        lines = []
        temperature = float(self.config.policy.temperature)
        for index, group in enumerate(groups):
            rows = advantages[index] if advantages is not None else [None] * len(group.alive)
            of_member = {id(e): a for e, a in zip(group.alive, rows, strict=True)}
            for episode in group.episodes:
                line = episode_line(
                    self.id, iteration, "train", episode, episode.member, temperature
                )
                lines.append(line | group_columns(group, of_member.get(id(episode))))
        self._episodes.append(lines)

    def record_evaluation(
        self,
        iteration: int,
        suite: str,
        episodes: Sequence[Any],
        temperature: float,
        sample: int = 0,
    ) -> None:
        """Add one pass over a suite to `eval.parquet`, keep some transcripts, log the success.

        Greedy passes have `temperature` 0; `sample` numbers the passes at a temperature.
        """
        self._settle()
        self._eval.append(
            [episode_line(self.id, iteration, suite, e, sample, temperature) for e in episodes]
        )
        way = "greedy" if temperature == 0 else f"sample{sample}"
        kept = episodes[: self.config.eval.transcripts]
        if kept:
            folder = self.directory / "transcripts"
            folder.mkdir(exist_ok=True)
            text = "".join(transcript(e, sample, temperature) + "\n" for e in kept)
            write_aside(folder / f"{iteration:06d}-{suite}-{way}.jsonl", text.encode())
        if sample == 0:
            self.note_suite(suite, [episode.task for episode in episodes])
        values = outcome(episodes)
        success = values["success"]
        by_type = success_by_type(episodes)
        if len(by_type) > 1:
            values |= {f"success/{kind}": share for kind, share in by_type.items()}
        self._write(iteration, {f"eval/{suite}/{way}/{k}": v for k, v in values.items()})
        self._seen = f"{suite} {success:.2f}" if way != "greedy" else self._seen
        self.display.say(f"  evaluation after {iteration}: {suite} {way} success {success:.2f}")

    def progress(self, what: str, done: int, total: int, note: str = "") -> None:
        """Show that `done` of `total` units of `what` ("games", "playing" …) are finished."""
        self.display.report(what, done, total, note)

    def announce(self, faults: Sequence[str]) -> None:
        """Say which known faults are reproduced, and what is not asserted because of each."""
        for fault in faults:
            self.display.say(f"  compat.{fault} is on, this is no result: {FAULTS[fault]}")

    def note_suite(self, name: str, tasks: Sequence[Any]) -> None:
        """Keep the hash of a suite's games, in their order, in `run.json`.

        Raises `RunError` when an earlier attempt of this run played other games.
        """
        found = hashlib.sha256("\n".join(task.sha256 for task in tasks).encode()).hexdigest()
        suites = read_record(self.directory).get("suites", {})
        if suites.get(name, found) != found:
            raise RunError(f"The {name} games changed since this run began; move {self.id} away.")
        if name not in suites:
            update_record(self.directory, suites=suites | {name: found})

    # -- inside ------------------------------------------------------------------------------

    def _settle(self) -> None:
        if self._resumed is None:
            self.resume_from(None)

    def _count_play(self, groups: Sequence[Any]) -> dict[str, float]:
        episodes = [episode for group in groups for episode in group.episodes]
        self._totals["episodes"] += len(episodes)
        self._totals["cost_units"] += len(episodes)
        seen = self._episodes.distinct("task_id") | {group.task.id for group in groups}
        self._totals["games"] = len(seen)
        self._totals["env_steps"] += sum(len(episode.turns) for episode in episodes)
        self._totals["tokens_generated"] += sum(tokens(episode) for episode in episodes)
        measured = outcome(episodes) | self._mixture(episodes)
        smallest = min((len(group.alive) for group in groups), default=0)
        return {f"train/{name}": value for name, value in measured.items()} | {
            "health/smallest_group": smallest
        }

    def _mixture(self, episodes: Sequence[Any]) -> dict[str, float]:
        """Episodes and success by type, once training has met a second type of game."""
        played = Counter(episode.task.type for episode in episodes)
        met = self._episodes.distinct("task_type") | set(played)
        if len(met) < 2:
            return {}
        success = {f"success/{k}": share for k, share in success_by_type(episodes).items()}
        return {f"episodes/{kind}": played[kind] for kind in sorted(met)} | success

    def _count_update(self, mapping: Mapping[str, float]) -> None:
        for name in ("tokens_trained", "gradient_steps"):
            self._totals[name] += int(mapping.get(name, 0))
        self._totals["cost_units"] += DEMONSTRATION_COST * int(mapping.get("demonstrations", 0))

    def _write(self, iteration: int, values: Mapping[str, float]) -> None:
        bad = [name for name, value in values.items() if not math.isfinite(value)]
        if bad:
            raise RunError(f"Metrics {', '.join(bad)} of iteration {iteration} are not finite.")
        line: dict[str, Any] = {"iteration": iteration} | self._totals
        line["seconds"] = round(self._seconds_before + time.monotonic() - self._began, 3)
        line["cpu_seconds"] = round(self._cpu_before + cpu_seconds(), 3)
        self._metrics.append(line | dict(values))


def outcome(episodes: Sequence[Any]) -> dict[str, float]:
    """Success over all episodes (an error is no success), return and turns of those that ended.

    Raises `RunError` when nothing was played or every episode failed with an error.
    """
    ended = [episode for episode in episodes if episode.ended != "error"]
    if not ended:
        why = next((e.error for e in episodes if e.error), "there were none")
        raise RunError(f"None of {len(episodes)} episodes could be played: {why}")
    return {
        "success": sum(episode.won for episode in episodes) / len(episodes),
        "return": sum(float(episode.paid) for episode in ended) / len(ended),
        "turns": sum(len(episode.turns) for episode in ended) / len(ended),
        "errors": len(episodes) - len(ended),
    }


def success_by_type(episodes: Sequence[Any]) -> dict[str, float]:
    """Success on the tasks of each type that was played, in the order of the names."""
    won: dict[str, list[bool]] = {}
    for episode in episodes:
        won.setdefault(episode.task.type, []).append(episode.won)
    return {kind: sum(wins) / len(wins) for kind, wins in sorted(won.items())}
