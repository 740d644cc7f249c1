"""Which configuration is which run: a readable slug and a hash of what could change a number."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

CODE = ("envs", "policies", "algorithms", "rollouts", "training", "constraints.txt")
LEFT_OUT = ("run", "tracking", "paths")
_DATA_ENDINGS = (".tw-pddl", "traj_data.json")
_GAME_SUFFIXES = (".z8", ".ulx", ".json")


def canonical(config: Mapping[str, Any], checkout: Path) -> dict[str, Any]:
    """What identifies a run, from its resolved configuration.

    Numbers of equal value become equal (`10.0` is `10`); `run`, `tracking` and `paths` are left
    out; game files and model weights that are read enter by content. A hub name stays a name.
    """
    kept = {key: _plain(value) for key, value in config.items() if key not in LEFT_OUT}
    env = kept["env"]
    if "data" in env:
        env["data"] = _data_by_content(env["data"])
    else:
        env["game"] = _games_by_content(env["game"])
        for part in env["mixture"] or []:
            part["task"] = _games_by_content(part["task"])
    kept["policy"]["weights"] = _weights(kept["policy"], checkout)
    return kept


def fingerprint(identity: Mapping[str, Any]) -> str:
    """sha256 of a `canonical` configuration, 64 hex digits."""
    text = json.dumps(identity, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()


def run_id(config: Mapping[str, Any], checkout: Path) -> tuple[str, str]:
    """(name of the run's directory, full fingerprint)."""
    full = fingerprint(canonical(config, checkout))
    return f"{slug(config)}-{full[:12]}", full


def slug(config: Mapping[str, Any]) -> str:
    """For people: game, reward, algorithm, policy and seed."""
    game, mixture = config["env"]["game"], config["env"]["mixture"]
    game = game if isinstance(game, str) else f"{Path(game[0]).stem}-and-{len(game) - 1}-more"
    if mixture:
        game = mixture if isinstance(mixture, str) else "mixture"
    if config["env"]["family"] != "textworld":
        game = f"{config['env']['family']}-{game}"
    policy = config["policy"]
    policy_name = policy["path"] or f"{policy['name']}-{policy.get('size', '')}"
    parts = [_stem(game), config["reward"]["name"], config["algo"]["name"], _stem(policy_name)]
    words = [re.sub(r"[^A-Za-z0-9]+", "-", str(part)).strip("-").lower() for part in parts]
    return "-".join([word[:32] for word in words if word] + [f"s{config['seed']}"])


def code_hash(checkout: Path) -> str:
    """sha256 over every file whose change could change a number."""
    files: list[Path] = []
    for name in CODE:
        root = checkout / name
        found = [root] if root.is_file() else root.rglob("*")
        files += [path for path in found if path.is_file() and not _is_litter(path, checkout)]
    return hash_files(files, checkout)


def hash_files(files: Iterable[Path], root: Path) -> str:
    """sha256 over names relative to `root` and contents, in the order of the names."""
    digest = hashlib.sha256()
    for path in sorted(files):
        digest.update(path.relative_to(root).as_posix().encode() + b"\0")
        digest.update(file_sha256(path).encode() + b"\0")
    return digest.hexdigest()


def file_sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def is_game_file(game: str) -> bool:
    """True when a game is named by a path and not by a recipe such as `w2-o3-q4`."""
    return game.endswith(_GAME_SUFFIXES) or "/" in game or Path(game).expanduser().exists()


def game_files(game: Any) -> list[Path] | None:
    """The files that `env.game` names, in order, or None when it names a recipe."""
    if not isinstance(game, str):
        return [path for one in game for path in game_files(one) or [Path(one)]]
    if not is_game_file(game):
        return None
    path = Path(game).expanduser()
    return sorted(path.glob("*.z8")) if path.is_dir() else [path]


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value


def _games_by_content(game: Any) -> Any:
    files = game_files(game)
    if files is None:
        return game
    # A .z8 carries the date it was compiled on; the .json beside it is the game.
    sources = [path.with_suffix(".json") for path in files]
    read = [s if s.is_file() else f for s, f in zip(sources, files, strict=True)]
    return [file_sha256(path) for path in read]


@cache
def _data_by_content(data: str) -> str:
    """A folder of games by what is in it; `generated` stays a word."""
    folder = Path(data)
    if not folder.is_dir():
        return data
    # Folders of data may be links to where there is room.
    walked = ((Path(top), names) for top, _, names in os.walk(folder, followlinks=True))
    files = [top / name for top, names in walked for name in names if name.endswith(_DATA_ENDINGS)]
    return hash_files(files, folder)


def _weights(policy: dict[str, Any], checkout: Path) -> str | None:
    """Hash of the model that is read; its path is then no part of the identity."""
    if policy["path"] is None:
        root = checkout / "policies" / "base" / str(policy.get("size"))
    else:
        root = Path(policy["path"]).expanduser()
        if not root.exists():
            return None
        policy["path"] = None
    if root.is_file():
        return file_sha256(root)
    return hash_files((path for path in root.rglob("*") if path.is_file()), root)


def _stem(name: str) -> str:
    return Path(name).stem if name.endswith(_GAME_SUFFIXES) else Path(name).name


def _is_litter(path: Path, checkout: Path) -> bool:
    parts = path.relative_to(checkout).parts
    return any(part == "__pycache__" or part.startswith(".") for part in parts)
