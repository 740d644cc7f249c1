"""Which games there are, and making one of them on disk.

A game is `<cache>/games/<name>/<seed>-<key>/` with `game.z8`, `game.json` and `task.json` (the
measured task). The key hashes generator version and arguments.
"""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from envs.base import Task
from envs.stored import discard, file_sha256, make_folder
from runs.errors import ConfigError, EnvError

FORMAT = 1  # raised when what is stored beside a game, or how it is measured, changes

# One recipe of one ingredient that has to be found behind closed doors and containers, cut and
# cooked, over six rooms: every skill of the cooking games but the inventory limit.
COOKING = {"recipe": 1, "take": 1, "go": 6, "open": True, "cook": True, "cut": True, "drop": False}

_CUSTOM = re.compile(r"w([1-9]\d*)-o([1-9]\d*)-q([1-9]\d*)")
_SIMPLE = re.compile(r"tw-simple-(detailed|brief)")


@dataclass(frozen=True)
class GameSpec:
    """A kind of generated game: its name (`Task.type`), kind and the generator's arguments."""

    name: str
    kind: str
    arguments: tuple[tuple[str, Any], ...]

    def folder(self, cache: Path, seed: int) -> Path:
        identity = {
            "format": FORMAT,
            "textworld": version("textworld"),
            "kind": self.kind,
            "arguments": dict(self.arguments),
            "seed": seed,
        }
        key = hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:16]
        return cache / "games" / self.name / f"{seed}-{key}"


def parse_game(name: str, rewards: str) -> GameSpec | None:
    """The generated game that `name` means, or None when it can only be a file.

    `rewards` (sparse, balanced, dense) is baked into tw-simple files and ignored by the others.
    """
    if match := _CUSTOM.fullmatch(name):
        rooms, objects, quest = map(int, match.groups())
        return GameSpec(name, "custom", (("objects", objects), ("quest", quest), ("rooms", rooms)))
    if match := _SIMPLE.fullmatch(name):
        return GameSpec(name, "tw-simple", (("goal", match[1]), ("rewards", rewards)))
    if name == "cooking":
        return GameSpec(name, "cooking", tuple(sorted(COOKING.items())))
    return None


def stored(spec: GameSpec, cache: Path, seed: int) -> Task | str | None:
    """What the cache holds: the task, the reason why this seed makes no game, or None.

    A folder whose files are not the ones that were stored is moved out of the way. Raises
    `EnvError` when the cache cannot be read.
    """
    folder = spec.folder(cache, seed)
    try:
        record = json.loads((folder / "task.json").read_text())
    except FileNotFoundError:
        return None
    except json.JSONDecodeError:
        discard(folder)
        return None
    except OSError as error:
        raise EnvError(
            f"The cache {cache} cannot be used ({error.strerror}): set paths.cache to a folder "
            "that can be written."
        ) from error
    if "failed" in record:
        return str(record["failed"])
    game = folder / "game.json"
    for path, digest in ((game, record["sha256"]), (folder / "game.z8", record["z8"])):
        if not path.is_file() or file_sha256(path) != digest:
            discard(folder)
            return None
    return Task(
        family="textworld",
        id=f"{spec.name}-{seed}",
        seed=seed,
        file=str(folder / "game.z8"),
        sha256=record["sha256"],
        type=spec.name,
        **record["difficulty"],
    )


def make(spec: GameSpec, cache: Path, seed: int) -> None:
    """Makes, compiles and measures one game (or stores why it cannot be made).

    Runs in a child process: TextWorld keeps a global generator. Raises `EnvError` when Inform 7
    does not compile, which is a matter of the machine and not of the seed.
    """

    def fill(work: Path) -> None:
        record = _make_in(work, spec, seed)
        (work / "task.json").write_text(json.dumps(record, indent=1))
        (work / "game.ni").unlink(missing_ok=True)

    make_folder(spec.folder(cache, seed), fill, "task.json")


def _make_in(work: Path, spec: GameSpec, seed: int) -> dict[str, Any]:
    from textworld.generator import CouldNotCompileGameError, QuestGenerationError, compile_game
    from textworld.generator.maker import FailedConstraintsError, QuestError
    from textworld.generator.vtypes import NotEnoughNounsError
    from textworld.generator.world import NoFreeExitError

    from envs.textworld.expert import measure

    options = _options(spec, seed)
    options.path = str(work / "game.z8")
    try:
        game = _generate(spec, seed, options)
    except (
        QuestGenerationError,
        NoFreeExitError,
        NotEnoughNounsError,
        FailedConstraintsError,
        QuestError,
    ) as error:
        return {"failed": f"{type(error).__name__}: {error}"}
    try:
        compile_game(game, options)
    except CouldNotCompileGameError as error:
        raise EnvError(f"Inform 7 could not compile {spec.name} with seed {seed}.") from error
    difficulty = measure(work / "game.z8")
    if difficulty is None:
        return {"failed": "neither its walkthrough nor TextWorld's policy wins"}
    return {
        "sha256": file_sha256(work / "game.json"),
        "z8": file_sha256(work / "game.z8"),
        "difficulty": asdict(difficulty),
    }


def _options(spec: GameSpec, seed: int) -> Any:
    from textworld.generator import GameOptions

    options = GameOptions()
    options.seeds = seed
    if spec.kind == "custom":
        arguments = dict(spec.arguments)
        options.nb_rooms = arguments["rooms"]
        options.nb_objects = arguments["objects"]
        # `tw-make custom` has breadth up to 5 where GameOptions() has 1.
        options.chaining.min_breadth, options.chaining.max_breadth = 1, 5
        options.chaining.min_depth, options.chaining.max_depth = 1, arguments["quest"]
        options.chaining.min_length = options.chaining.max_length = arguments["quest"]
    return options


def _generate(spec: GameSpec, seed: int, options: Any) -> Any:
    from textworld.challenges import CHALLENGES
    from textworld.generator import make_game

    if spec.kind == "custom":
        return make_game(options)
    settings = dict(spec.arguments)
    if spec.kind == "tw-simple":
        settings["test"] = False
    else:
        settings |= {"recipe_seed": seed, "split": None}
    _, make_challenge, _ = CHALLENGES["tw-" + spec.kind.removeprefix("tw-")]
    return make_challenge(settings, options)


def game_files(named: str) -> list[Path]:
    """The `.z8` files that a path in `env.game` names (a file, or a folder's files by name).

    Raises `ConfigError` when there are none, or when a `.json` is missing beside one.
    """
    path = Path(named)
    if path.is_dir():
        files = sorted(path.glob("*.z8"))
        if not files:
            raise ConfigError(f"env.game={named} is a folder without .z8 files: name another one.")
    elif path.suffix != ".z8":
        raise ConfigError(
            f"env.game={named} is no game: use w2-o3-q4 (rooms, objects, quest length, each at "
            "least 1), tw-simple-detailed, tw-simple-brief, cooking, or the path of a .z8 file."
        )
    else:
        files = [path]
    for file in files:
        if not file.is_file():
            raise ConfigError(f"env.game names {file}, which does not exist: correct the path.")
        if not file.with_suffix(".json").is_file():
            raise ConfigError(
                f"env.game names {file}, but {file.with_suffix('.json').name} is not beside it: "
                "only games with their .json can be played."
            )
    return [file.resolve() for file in files]


def file_type(file: Path) -> str:
    """`Task.type` of a user's file (`custom-file`, `tw-simple-file`, `cooking-file`)."""
    sidecar = file.with_suffix(".json")
    try:
        uuid = str(json.loads(sidecar.read_text())["metadata"].get("uuid", ""))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigError(
            f"env.game names {file}, whose {sidecar.name} is not a TextWorld game: replace it."
        ) from error
    for kind in ("tw-simple", "tw-cooking"):
        if uuid.startswith(kind):
            return kind.replace("tw-cooking", "cooking") + "-file"
    return "custom-file"
