"""The splits of ALFWorld: houses made here by seed, or the official games."""

from __future__ import annotations

import logging
import os
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from envs.alfworld.expert import EXPERTS
from envs.alfworld.floorplans import TASK_TYPES
from envs.alfworld.games import GAME, TRAJECTORY, below, file_task, find, games_at, make
from envs.alfworld.houses import HouseOptions
from envs.base import Task
from envs.suites import CHECKOUT, SPLITS, Progress, Suite, apportion
from runs.errors import ConfigError, EnvError
from runs.rng import generator

_PLACE, _LIGHT, _CLEAN, _HEAT, _COOL, _TWO = TASK_TYPES
# The mixtures of the paper's table 7, which does not print what "single" and "four" hold.
MIXTURES: dict[str, tuple[str, ...]] = {
    "single": (_PLACE,),
    "four": (_PLACE, _CLEAN, _HEAT, _COOL),
    "six": TASK_TYPES,
} | {name: (name,) for name in TASK_TYPES}
FOLDERS = {
    "train": "train",
    "sft": "train",
    "validation": "valid_seen",
    "test": "valid_unseen",
}
# Games that stock ALFWorld finds in the official data (its README).
SIZES = {"train": 3553, "valid_seen": 140, "valid_unseen": 134}
VERSIONS = ("json_2.1.2", "json_2.1.1")
_DOWNLOAD = "run alfworld-download, or set env.data=generated"
Part = tuple[float, str]


def knows(game: str) -> bool:
    """Whether `env.game` can be a game of ALFWorld, or a path to games of it."""
    path = Path(game).expanduser()
    holds = path.is_dir() and bool(below(path, TRAJECTORY))
    return game in MIXTURES or path.name.endswith(".tw-pddl") or holds


def make_splits(config: Any) -> Generated | Official:
    """See `envs.suites.make_suites`. Raises `ConfigError`."""
    if config.env.expert not in EXPERTS:
        raise ConfigError(
            f"env.expert={config.env.expert} is no expert: set it to {' or '.join(EXPERTS)}."
        )
    return Generated(config) if config.env.data == "generated" else Official(config)


def parts_of(key: str, mixture: Any) -> list[Part]:
    """(weight, task type) of a mixture: a name, or a list of tasks with weights."""
    if isinstance(mixture, str):
        if mixture not in MIXTURES:
            raise ConfigError(
                f"{key}={mixture} is no task of ALFWorld: use one of {', '.join(MIXTURES)}."
            )
        return [(1.0, name) for name in MIXTURES[mixture]]
    if not isinstance(mixture, Sequence) or not all(isinstance(one, Mapping) for one in mixture):
        raise ConfigError(f"{key}={mixture} must be one of {', '.join(MIXTURES)}.")
    parts = []
    for part in mixture:
        if part["task"] not in TASK_TYPES:
            raise ConfigError(
                f"{key} holds {part['task']}, which is no task type of ALFWorld: use "
                f"{', '.join(TASK_TYPES)}."
            )
        parts.append((float(part["weight"]), str(part["task"])))
    if len({name for _, name in parts}) < len(parts):
        raise ConfigError(f"{key} names a task twice: merge its weights.")
    return parts


class _Splits(ABC):
    """What both kinds of data have in common: the task types of each split, and the counts."""

    def __init__(self, config: Any) -> None:
        self.kinds = {"house"}
        self._env = config.env
        self._counts = {**dict(config.env.tasks), "sft": int(config.sft.demos)}
        self._cache = CHECKOUT / str(config.paths.cache)
        every = parts_of("env.game", config.env.game)
        mixture = config.env.mixture
        trained = every if mixture is None else parts_of("env.mixture", mixture)
        # Demonstrations are of what is trained on.
        self._parts = {s: trained if s in ("train", "sft") else every for s in SPLITS}
        self._mixed = mixture is not None
        self.planned = {split: self._plan(split) for split in SPLITS}

    @abstractmethod
    def _plan(self, split: str) -> set[str]:
        """See `envs.suites.SplitBuilder.planned`."""

    @abstractmethod
    def _tasks(self, split: str, name: str, count: int) -> Iterator[Task]:
        """At most `count` tasks of a type."""

    def build(self, split: str, progress: Progress | None) -> Suite:
        """Builds the games of a split. Raises `ConfigError` when it has none, `EnvError` when one
        cannot be made or read."""
        total, parts = int(self._counts[split]), self._parts[split]
        key = "sft.demos" if split == "sft" else f"env.tasks.{split}"
        shares = apportion(total, [weight for weight, _ in parts], key) if total else []
        found: list[tuple[float, Sequence[Task]]] = []
        done = 0
        for (weight, name), share in zip(parts, shares, strict=bool(total)):
            tasks = []
            for task in self._tasks(split, name, share):
                tasks.append(task)
                done += 1
                if progress is not None:
                    progress(f"{split} games", done, total)
            if tasks:
                found.append((weight, tasks))
        every = [task for _, tasks in found for task in tasks]
        if not every:
            if split == "train" and self._counts["sft"]:
                key += ", lower sft.demos"
            raise ConfigError(
                f"The suite {split} is empty: raise {key}, or choose another env.game."
            )
        return Suite(split, every, found if self._mixed and split == "train" else ())


class Generated(_Splits):
    """Houses made here (`envs.suites.SplitBuilder`). Those of `test` are unseen: their floor plans
    occur in no other split, and their pairs of thing and receptacle with no task of their type."""

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self._options = HouseOptions(**OmegaConf.to_container(config.env.house))  # pyright: ignore

    def _plan(self, split: str) -> set[str]:
        first = int(self._env.first_seed[split])
        return {f"seed {seed}" for seed in range(first, first + int(self._counts[split]))}

    def _tasks(self, split: str, name: str, count: int) -> Iterator[Task]:
        first = int(self._env.first_seed[split])
        for seed in range(first, first + count):
            yield make(name, seed, self._options, split == "test", self._cache)


class Official(_Splits):
    """The official games (`envs.suites.SplitBuilder`): train and demonstrations from `train`,
    validation from `valid_seen`, test from `valid_unseen`."""

    def __init__(self, config: Any) -> None:
        self._root = data_folder(str(config.env.data))
        self._games: dict[str, list[tuple[Path, str]]] = {}
        super().__init__(config)

    def _plan(self, split: str) -> set[str]:
        # Which games these are is known when the folder has been read; train and sft share one.
        return {f"{split} of {self._root}"}

    def _tasks(self, split: str, name: str, count: int) -> Iterator[Task]:
        games = [game for game, kind in self._read(FOLDERS[split]) if kind == name]
        # One order for every run, so that fewer games are always the same ones.
        order = generator(0, "official", FOLDERS[split], name).permutation(len(games)).tolist()
        if FOLDERS[split] == "train":
            # Demonstrated games come from the end.
            free = max(0, len(order) - self._demonstrated(name))
            order = order[::-1] if split == "sft" else order[:free]
        if len(order) < count:
            _log().warning(
                "%s has %d games of %s for %s, not %d.", self._root, len(order), name, split, count
            )
        for index in sorted(order[:count]):
            yield file_task(games[index], name, self._cache)

    def _demonstrated(self, name: str) -> int:
        total, parts = int(self._counts["sft"]), self._parts["sft"]
        if not total:
            return 0
        shares = apportion(total, [weight for weight, _ in parts])
        return dict(zip([kind for _, kind in parts], shares, strict=True)).get(name, 0)

    def _read(self, folder: str) -> list[tuple[Path, str]]:
        if folder not in self._games:
            path = self._root / folder
            if not path.is_dir():
                raise ConfigError(f"{path} does not exist: {_DOWNLOAD}.")
            found = find(path)
            for reason, paths in found.left_out.items():
                _log().warning(
                    "%s: %d games left out (%s), the first is %s",
                    path, len(paths), reason, paths[0],
                )  # fmt: skip
            if not found.games:
                raise ConfigError(f"{path} holds no game that can be played: {_DOWNLOAD}.")
            if len(found.games) != SIZES[folder]:
                _log().warning(
                    "%s holds %d games, ALFWorld's own has %d: results are not comparable.",
                    path, len(found.games), SIZES[folder],
                )  # fmt: skip
            self._games[folder] = found.games
        return self._games[folder]


def data_folder(data: str) -> Path:
    """The folder that holds train, valid_seen and valid_unseen.

    `data` is `official` ($ALFWORLD_DATA, or where alfworld-download puts its data) or a path.
    Raises `ConfigError` when there is none.
    """
    root = Path(data).expanduser()
    if data == "official":
        root = Path(os.environ.get("ALFWORLD_DATA") or "~/.cache/alfworld").expanduser()
    if not root.is_dir():
        said = f"env.data={data}"
        if data == "official":
            said += f" means $ALFWORLD_DATA, or {root} where that is not set, which"
        raise ConfigError(f"{said} is no folder: {_DOWNLOAD}.")
    for candidate in (*(root / version for version in VERSIONS), root):
        if any((candidate / folder).is_dir() for folder in SIZES):
            if not below(candidate, GAME):
                raise ConfigError(
                    f"{candidate} has trajectories but no {GAME}: the download is not complete; "
                    f"{_DOWNLOAD}."
                )
            return candidate
    raise ConfigError(
        f"env.data={data}: {root} holds neither {' nor '.join(VERSIONS)}, nor train, valid_seen "
        f"or valid_unseen; {_DOWNLOAD}."
    )


def find_tasks(game: str, first_seed: int, count: int, reward: str, cache: Path) -> list[Task]:
    """Tasks outside of any run: the first `count` of each type, or the files at a path."""
    if game in MIXTURES:
        options = HouseOptions()
        return [
            make(name, seed, options, False, cache)
            for name in MIXTURES[game]
            for seed in range(first_seed, first_seed + count)
        ]
    path = Path(game).expanduser()
    if not path.exists():
        raise EnvError(f"The game file {path} does not exist.")
    return [file_task(file.resolve(), kind, cache) for file, kind in games_at(path)]


def _log() -> logging.Logger:
    return logging.getLogger(__name__)
