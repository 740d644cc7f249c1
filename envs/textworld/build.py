"""Building many games: parallel, resumable, in an order that depends on the seeds alone."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from multiprocessing.connection import wait
from pathlib import Path

from envs.base import Task
from envs.process import Child, ChildDied
from envs.textworld.games import GameSpec, make, stored
from runs.errors import ConfigError, EnvError

PROCESSES = 2
Progress = Callable[[str, int, int], None]


def serve_make() -> Callable[[tuple[GameSpec, str, int]], None]:
    """Child target: makes one game a message."""

    def serve(message: tuple[GameSpec, str, int]) -> None:
        spec, cache, seed = message
        make(spec, Path(cache), seed)

    return serve


def build(
    spec: GameSpec,
    cache: Path,
    first_seed: int,
    count: int,
    label: str = "games",
    progress: Progress | None = None,
) -> tuple[list[Task], dict[int, str]]:
    """`count` tasks at the first seeds from `first_seed` on that make a game, in seed order.

    Also the skipped seeds, each with its reason. A seed that makes no game makes none on any
    machine, so the list is the same everywhere. Raises `ConfigError` when too many seeds fail,
    `EnvError` when a game cannot be compiled or a building process dies.
    """
    tasks: dict[int, Task] = {}
    skipped: dict[int, str] = {}
    seed_end = first_seed
    while len(tasks) < count:
        if len(skipped) > count + 20:
            raise ConfigError(
                f"env.game={spec.name}: {len(skipped)} of the seeds from {first_seed} on make no "
                f"game (the last says: {list(skipped.values())[-1]}). Use fewer objects or a "
                "shorter quest."
            )
        seeds = range(seed_end, seed_end + count - len(tasks))
        seed_end = seeds.stop
        for seed, found in _build_all(spec, cache, seeds, label, count, len(tasks), progress):
            if isinstance(found, Task):
                tasks[seed] = found
            else:
                skipped[seed] = found
    return [tasks[seed] for seed in sorted(tasks)], dict(sorted(skipped.items()))


def _build_all(
    spec: GameSpec,
    cache: Path,
    seeds: Sequence[int],
    label: str,
    total: int,
    before: int,
    progress: Progress | None,
) -> list[tuple[int, Task | str]]:
    found = {seed: stored(spec, cache, seed) for seed in seeds}
    missing = deque(seed for seed in seeds if found[seed] is None)

    def tell() -> None:
        if progress is not None:
            done = sum(isinstance(result, Task) for result in found.values())
            progress(label, before + done, total)

    tell()
    children = [
        Child("envs.textworld.build:serve_make") for _ in range(min(PROCESSES, len(missing)))
    ]
    try:
        busy: dict[object, tuple[Child, int]] = {}
        for child in children:
            child.start()
            _give(child, spec, cache, missing, busy)
        while busy:
            for connection in wait(list(busy)):  # type: ignore[arg-type]
                child, seed = busy.pop(connection)
                _receive(child, spec, seed)
                found[seed] = stored(spec, cache, seed)
                if found[seed] is None:
                    raise EnvError(f"The game {spec.name} with seed {seed} vanished from {cache}.")
                tell()
                _give(child, spec, cache, missing, busy)
    finally:
        for child in children:
            child.kill()
    return [(seed, result) for seed, result in found.items() if result is not None]


def _give(
    child: Child,
    spec: GameSpec,
    cache: Path,
    missing: deque[int],
    busy: dict[object, tuple[Child, int]],
) -> None:
    if missing:
        seed = missing.popleft()
        child.send((spec, str(cache), seed))
        busy[child.connection] = (child, seed)


def _receive(child: Child, spec: GameSpec, seed: int) -> None:
    try:
        kind, message = child.receive()
    except ChildDied as died:
        raise EnvError(f"Building {spec.name} with seed {seed} failed: {died}") from died
    if kind != "ok":
        raise EnvError(f"Building {spec.name} with seed {seed} failed: {message}")
