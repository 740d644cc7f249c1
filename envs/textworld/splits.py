"""The splits of TextWorld: generated games by seed, or files that a user names."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from envs.base import Task
from envs.experts import Difficulty, Expert
from envs.rewards import game_kind
from envs.stored import file_sha256, write_whole
from envs.suites import CHECKOUT, SPLITS, Progress, Suite, apportion
from envs.textworld.build import build
from envs.textworld.games import (
    FORMAT,
    GameSpec,
    file_type,
    game_files,
    parse_game,
)
from runs.errors import ConfigError, EnvError


def knows(game: str) -> bool:
    """Whether `env.game` can be a game of TextWorld."""
    return parse_game(game, "sparse") is not None or game.endswith(".z8")


def make_splits(config: Any) -> TextWorldSplits:
    """See `envs.suites.make_suites`."""
    return TextWorldSplits(config)


class TextWorldSplits:
    """Plans all splits from the config and builds one when asked (`envs.suites.SplitBuilder`).

    `env.game` is the name of a game, or one or more files or folders of files. Files are dealt
    out to test, train and validation (see `deal`); demonstrations need generated games.
    """

    def __init__(self, config: Any) -> None:
        self._env = config.env
        self._counts = {**dict(config.env.tasks), "sft": int(config.sft.demos)}
        self._cache = CHECKOUT / str(config.paths.cache)
        self._reward = str(config.reward.name)
        self._specs: dict[str, list[tuple[float, GameSpec]]] = {}
        self._files: dict[str, list[Path]] = {}
        self.kinds: set[str] = set()
        self._read_games(self._env.game)
        if self._env.mixture is not None:
            self._read_mixture(self._env.mixture)
        self.planned = {split: self._plan(split) for split in SPLITS}

    def build(self, split: str, progress: Progress | None) -> Suite:
        """Builds the games of a split. Raises `ConfigError` when it has none, `EnvError` when a
        game cannot be made or measured."""
        if split in self._specs:
            suite = self._generated(split, progress)
        else:
            suite = Suite(split, self._measured(split, progress))
        if not suite.tasks:
            raise ConfigError(
                f"The suite {split} is empty: raise "
                + ("sft.demos." if split == "sft" else f"env.tasks.{split}, or name more files.")
            )
        return suite

    def _read_games(self, game: Any) -> None:
        if isinstance(game, str) and parse_game(game, "sparse") is not None:
            for split in SPLITS:
                # The reward mode is baked into a tw-simple file: every arm is evaluated on the
                # sparse one.
                spec = parse_game(game, self._reward if split in ("train", "sft") else "sparse")
                assert spec is not None
                self._specs[split] = [(1.0, spec)]
                self.kinds.add(spec.kind)
            return
        if self._counts["sft"]:
            raise ConfigError(
                "sft.demos needs generated games, since files cannot be in two suites: set "
                "sft.demos=0 or env.game to a name such as w2-o3-q4."
            )
        named = [game] if isinstance(game, str) else list(game)
        files = [file for one in named for file in game_files(str(one))]
        if len(set(files)) < len(files):
            raise ConfigError("env.game names a file twice: remove the second mention.")
        counts = dict(self._counts)
        if self._env.mixture is not None:
            counts["train"] = 0
        self._files = deal(files, counts)
        self.kinds |= {game_kind("textworld", file_type(file)) for file in files}

    def _read_mixture(self, mixture: Any) -> None:
        if isinstance(mixture, str):
            raise ConfigError(
                f"env.mixture={mixture} is the name of a mixture, which TextWorld has none of: "
                "list tasks, as [{task: w2-o3-q4, weight: 1}]."
            )
        parts = []
        for part in mixture:
            spec = parse_game(str(part["task"]), self._reward)
            if spec is None:
                raise ConfigError(
                    f"env.mixture holds {part['task']}, which is no generated game: use names "
                    "such as w2-o3-q4, tw-simple-brief or cooking."
                )
            if not float(part["weight"]) > 0:
                raise ConfigError(f"env.mixture gives {spec.name} no weight: make it positive.")
            parts.append((float(part["weight"]), spec))
            self.kinds.add(spec.kind)
        if not parts:
            raise ConfigError("env.mixture is empty: set it to null, or name a task and a weight.")
        if len({spec.name for _, spec in parts}) < len(parts):
            raise ConfigError("env.mixture names a task twice: merge its weights.")
        self._files.pop("train", None)
        self._specs["train"] = parts

    def _plan(self, split: str) -> set[str]:
        if split not in self._specs:
            return {str(file) for file in self._files.get(split, [])}
        # Seeds are kept apart whatever the type, so that a mixture can change without care.
        first = int(self._env.first_seed[split])
        return {f"seed {seed}" for seed in range(first, first + int(self._counts[split]))}

    def _generated(self, split: str, progress: Progress | None) -> Suite:
        specs = self._specs[split]
        shares = apportion(int(self._counts[split]), [weight for weight, _ in specs])
        parts: list[tuple[float, Sequence[Task]]] = []
        skipped: dict[str, str] = {}
        for (weight, spec), share in zip(specs, shares, strict=True):
            label = f"{split} games, {spec.name}"
            first = int(self._env.first_seed[split])
            tasks, failed = build(spec, self._cache, first, share, label, progress)
            parts.append((weight, tasks))
            skipped |= {f"{spec.name}-{seed}": reason for seed, reason in failed.items()}
        for name, reason in skipped.items():
            logging.getLogger(__name__).warning("%s makes no game, skipped: %s", name, reason)
        every = [task for _, tasks in parts for task in tasks]
        return Suite(split, every, parts, skipped)

    def _measured(self, split: str, progress: Progress | None) -> list[Task]:
        files = self._files.get(split, [])
        tasks: list[Task] = []
        if not files:
            return tasks
        with Expert("textworld") as expert:
            for done, file in enumerate(files, start=1):
                tasks.append(file_task(file, self._cache, expert))
                if progress is not None:
                    progress(f"{split} games", done, len(files))
        return tasks


def deal(files: Sequence[Path], counts: Mapping[str, int]) -> dict[str, list[Path]]:
    """Files for test, train and validation, in order: the first is for test, the next go where
    `counts[split] / (files it has + 1)` is largest (D'Hondt), none gets more than its count."""
    order = ("test", "train", "validation")
    dealt: dict[str, list[Path]] = {split: [] for split in order}
    for file in files:
        split = "test"
        if dealt["test"] or not counts["test"]:
            split = max(order, key=lambda one: counts[one] / (len(dealt[one]) + 1))
        hungry = [one for one in order if len(dealt[one]) < counts[one]]
        if split in hungry:
            dealt[split].append(file)
        elif hungry:
            dealt[hungry[0]].append(file)
    return dealt


def file_task(file: Path, cache: Path, expert: Expert) -> Task:
    """The task of a user's game file, measured once and remembered by content.

    Raises `EnvError` when the file cannot be played or no expert wins it.
    """
    digest = file_sha256(file.with_suffix(".json"))
    remembered = cache / "files" / f"{digest[:32]}-{FORMAT}.json"
    if not remembered.is_file():
        measured = expert.difficulty(str(file))
        if measured is None:
            raise EnvError(
                f"Neither the walkthrough in {file.with_suffix('.json')} nor TextWorld's policy "
                "wins this game, so its difficulty cannot be measured: take it out of env.game."
            )
        write_whole(remembered, json.dumps(asdict(measured)))
    difficulty = Difficulty(**json.loads(remembered.read_text()))
    return Task(
        family="textworld",
        id=f"{file.stem}-{digest[:8]}",
        seed=0,
        file=str(file),
        sha256=digest,
        type=file_type(file),
        **asdict(difficulty),
    )


def find_tasks(game: str, first_seed: int, count: int, reward: str, cache: Path) -> list[Task]:
    """Tasks outside of any run: the first `count` of a generated game, or the files at a path."""
    spec = parse_game(game, reward)
    if spec is not None:
        return build(spec, cache, first_seed, count)[0]
    with Expert("textworld") as expert:
        return [file_task(file, cache, expert) for file in game_files(game)]
