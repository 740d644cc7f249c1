"""Which games there are: houses made here, kept in the cache, and the files of the official data.

A house is `<cache>/games/alfworld/<type>/<seed>-<key>/` with `game.tw-pddl` and `traj_data.json`,
as stock ALFWorld reads them, and `task.json` (the measured task). The key hashes everything that
it was made from.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from envs.alfworld.expert import measure
from envs.alfworld.floorplans import TASK_TYPES
from envs.alfworld.houses import HouseOptions, make_house
from envs.alfworld.package import VERSION
from envs.alfworld.rules import read
from envs.base import Task
from envs.experts import Difficulty
from envs.stored import discard, file_sha256, make_folder, write_whole
from runs.errors import EnvError

FORMAT = 1  # raised when what is stored beside a game, or how it is measured, changes
GAME, TRAJECTORY = "game.tw-pddl", "traj_data.json"


def make(task_type: str, seed: int, options: HouseOptions, unseen: bool, cache: Path) -> Task:
    """The task of a house, made when the cache does not have it whole.

    Raises `ConfigError` when no house can be as `options` want it, `EnvError` when the cache
    cannot be used.
    """
    identity = {
        "format": FORMAT,
        "alfworld": VERSION,
        "type": task_type,
        "options": asdict(options),
        "unseen": unseen,
        "seed": seed,
    }
    key = hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:16]
    folder = cache / "games" / "alfworld" / task_type / f"{seed}-{key}"
    try:
        record = _stored(folder)
        if record is None:
            make_folder(folder, lambda work: _fill(work, task_type, seed, options, unseen), GAME)
            record = _stored(folder)
    except OSError as error:
        raise EnvError(
            f"The cache {cache} cannot be used ({error.strerror}): set paths.cache to a folder "
            "that can be written."
        ) from error
    if record is None:
        raise EnvError(f"The game {task_type} with seed {seed} vanished from {cache}.")
    name = f"{task_type}-{seed}" + ("-unseen" if unseen else "")
    return _task(name, task_type, seed, folder / GAME, record)


def _fill(work: Path, task_type: str, seed: int, options: HouseOptions, unseen: bool) -> None:
    game, trajectory = make_house(task_type, seed, options, unseen)
    (work / GAME).write_text(json.dumps(game))
    (work / TRAJECTORY).write_text(json.dumps(trajectory, indent=1))
    difficulty = measure(work / GAME)
    if difficulty is None:
        raise EnvError(f"The house {task_type} with seed {seed} cannot be won: report this.")
    record = {"sha256": file_sha256(work / GAME), "difficulty": asdict(difficulty)}
    (work / "task.json").write_text(json.dumps(record, indent=1))


def _stored(folder: Path) -> dict[str, Any] | None:
    """What is known of a whole folder; one that is not whole is moved out of the way."""
    try:
        record = json.loads((folder / "task.json").read_text())
        Difficulty(**record["difficulty"])
        whole = file_sha256(folder / GAME) == record["sha256"]
        if whole and type_from_file(folder / GAME):
            return record
    except FileNotFoundError:
        if not folder.exists():
            return None
    except (ValueError, KeyError, TypeError, EnvError):
        pass  # damaged: made again below
    discard(folder)
    return None


def _task(name: str, task_type: str, seed: int, file: Path, record: dict[str, Any]) -> Task:
    return Task(
        family="alfworld",
        id=name,
        seed=seed,
        file=str(file),
        sha256=record["sha256"],
        type=task_type,
        **record["difficulty"],
    )


@dataclass
class Found:
    """The games of a folder by path, in order, with their types, and what was left out: paths by
    reason."""

    games: list[tuple[Path, str]] = field(default_factory=list)
    left_out: dict[str, list[Path]] = field(default_factory=dict)

    def leave(self, path: Path, reason: str) -> None:
        self.left_out.setdefault(reason, []).append(path)


def below(folder: Path, name: str) -> list[Path]:
    """Files of this name, sorted; folders of data may be links to where there is room."""
    walked = os.walk(folder, followlinks=True)
    return sorted(Path(top) / name for top, _, names in walked if name in names)


def find(folder: Path) -> Found:
    """The games below a folder of the official data, as stock ALFWorld chooses them.

    Raises `EnvError` for a file that is damaged.
    """
    found = Found()
    for trajectory in below(folder, TRAJECTORY):
        game = trajectory.with_name(GAME)
        inside = str(game.relative_to(folder))
        if "movable" in inside or "Sliced" in inside:
            found.leave(game, "movable receptacles and slices are not part of ALFWorld")
        elif not game.is_file():
            found.leave(game, f"no {GAME} beside {TRAJECTORY}: the download is not complete")
        elif (kind := _type_of(trajectory)) not in TASK_TYPES:
            found.leave(game, f"its type {kind} is none of the six")
        elif not read(game).get("solvable"):
            found.leave(game, "not known to be solvable")
        else:
            found.games.append((game, kind))
    return found


def _type_of(trajectory: Path) -> str:
    try:
        return str(json.loads(trajectory.read_text())["task_type"])
    except (ValueError, KeyError, TypeError) as error:
        raise EnvError(
            f"{trajectory} is damaged ({error!r}): fetch it again with alfworld-download -f."
        ) from error


def file_task(game: Path, task_type: str, cache: Path) -> Task:
    """The task of a file, measured once and remembered by content.

    Raises `EnvError` when it cannot be played or won.
    """
    digest = file_sha256(game)
    remembered = cache / "files" / f"{digest[:32]}-alfworld-{FORMAT}.json"
    try:
        difficulty = Difficulty(**json.loads(remembered.read_text()))
    except (FileNotFoundError, ValueError, TypeError):
        difficulty = measure(game)
        if difficulty is None:
            raise EnvError(
                f"The game file {game} cannot be won, whatever it says: leave it out."
            ) from None
        write_whole(remembered, json.dumps(asdict(difficulty)))
    record = {"sha256": digest, "difficulty": asdict(difficulty)}
    # Two trials of one problem have the same folder above them.
    return _task("/".join(game.parts[-3:-1]), task_type, 0, game, record)


def type_from_file(game: Path) -> str:
    """Of a single game file, from the trajectory beside it."""
    trajectory = game.with_name(TRAJECTORY)
    if not trajectory.is_file():
        raise EnvError(f"{TRAJECTORY} is not beside {game}: it says which task the game is.")
    return _type_of(trajectory)


def games_at(path: Path) -> Iterator[tuple[Path, str]]:
    """A game file with its type, or those of a folder."""
    if path.is_dir():
        found = find(path)
        for reason, paths in found.left_out.items():
            logging.getLogger(__name__).warning("%s: left out, %s", paths[0], reason)
        if not found.games:
            raise EnvError(f"{path} holds no game that can be played.")
        yield from found.games
    else:
        yield path, type_from_file(path)
