"""What our ALFWorld costs beside stock ALFWorld, and what workers and shaping cost.

    python -m benchmarks.alfworld [--only stepping|resets|workers|memory|shaping] [--rounds 5]

`stepping` and `resets` compare with stock (TextWorld's `PddlEnv` over Fast Downward) and need
`pip install fast-downward-textworld==20.6.4`: six generated houses, and six real games where the
public test data lies beside the checkout. `workers`: one against two. `memory`: a worker after 50
and after 500 resets. `shaping`: a plan at every step against none. Exits with 1 where a bound
breaks.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import psutil

from benchmarks.pairs import CHECKOUT, Measured, MeasureError, compare, machine, write
from envs.alfworld.env import AlfWorldEnv, AlfWorldOptions
from envs.alfworld.rules import _load, load
from envs.alfworld.splits import find_tasks
from envs.alfworld.world import World
from envs.base import Step, Task
from envs.suites import env_spec
from envs.workers import EnvFailure, EnvPool

REAL = CHECKOUT.parent / "shared" / "data" / "alfworld" / "json_2.1.2"
CACHE = CHECKOUT / ".cache"
GAMES, STEPS, TIMEOUT = 36, 10, 60.0
FASTER, RESET_MS, GROWTH = 15.0, 50.0, 0.05
RESETS = (50, 500)
Played = dict[Task, list[str]]


def one_of_each(tasks: Iterable[Task]) -> list[Task]:
    """The first game of each type."""
    return list({task.type: task for task in reversed(list(tasks))}.values())[::-1]


def kinds(count: int) -> dict[str, list[Task]]:
    """Generated houses, `count` of each type, and all real games that are here."""
    found = {"generated": find_tasks("six", 1, count, "sparse", CACHE)}
    if REAL.is_dir():
        found["real"] = find_tasks(str(REAL), 1, 1, "sparse", CACHE)
    return found


def walks(tasks: Iterable[Task], steps: int = STEPS) -> Played:
    """Random admissible commands of each game, none of which wins."""
    found = {}
    for task in tasks:
        world, rng, commands = World(load(Path(task.file))), random.Random(task.id), []
        while len(commands) < steps:
            command = rng.choice(world.admissible)
            world.step(command)
            if world.won:
                world, commands = World(load(Path(task.file))), []
            else:
                commands.append(command)
        found[task] = commands
    return found


class Timed:
    """Adds up the seconds of what is done inside it, of this process alone."""

    def __init__(self) -> None:
        self.cpu = self.wall = 0.0

    def __enter__(self) -> None:
        self._began = time.process_time(), time.perf_counter()

    def __exit__(self, *exception: object) -> None:
        self.cpu += time.process_time() - self._began[0]
        self.wall += time.perf_counter() - self._began[1]

    def measured(self, units: int) -> Measured:
        return Measured(float(units), self.cpu, self.wall)


def step_stock(stock: Any, played: Played) -> Measured:
    """All walks, loading and resets off the clock."""
    timed = Timed()
    for task, commands in played.items():
        stock.load(Path(task.file))
        stock.reset()
        with timed:
            for command in commands:
                stock.step(command)
    return timed.measured(sum(map(len, played.values())))


def step_ours(options: AlfWorldOptions, played: Played, repeats: int) -> Measured:
    """The same, through the environment that a worker has."""
    timed, env = Timed(), AlfWorldEnv(options)
    for _ in range(repeats):
        for task, commands in played.items():
            env.reset(task)
            with timed:
                for command in commands:
                    env.step(command)
    return timed.measured(repeats * sum(map(len, played.values())))


def stepping(stock: Any, rounds: int) -> bool:
    """Both tell the admissible commands, which stock cannot leave out."""
    good = True
    for kind, tasks in kinds(1).items():
        played = walks(one_of_each(tasks))
        report = compare(
            f"alfworld_stepping_{kind}",
            {
                "stock": lambda p=played: step_stock(stock, p),
                "ours": lambda p=played: step_ours(AlfWorldOptions(admissible=True), p, 100),
            },
            unit="steps",
            rounds=rounds,
            about={"games": len(played), "steps_an_episode": STEPS},
        )
        ratio = report["sides"]["ours"]["ratio"]["median"]
        good &= _bound(f"steps, {kind}", ratio, FASTER, "times stock", True)
    return good


def reset_stock(stock: Any, tasks: Sequence[Task], switching: bool) -> Measured:
    """`switching` counts the loading of the next game, too, as a training loop has it."""
    timed = Timed()
    for task in tasks:
        if not switching:
            stock.load(Path(task.file))
        with timed:
            if switching:
                stock.load(Path(task.file))
            stock.reset()
    return timed.measured(len(tasks))


def reset_ours(tasks: Sequence[Task], seen: bool, repeats: int) -> Measured:
    """With `seen`, each game was played before; else its file is read."""
    timed, env = Timed(), AlfWorldEnv(AlfWorldOptions(admissible=True))
    for _ in range(repeats):
        for task in tasks:
            if not seen:
                _load.cache_clear()
            with timed:
                env.reset(task)
    return timed.measured(repeats * len(tasks))


def resets(stock: Any, rounds: int) -> bool:
    """Stock's, and ours of a game that was played before and of one that was not."""
    good = True
    for kind, found in kinds(1).items():
        tasks = one_of_each(found)
        report = compare(
            f"alfworld_resets_{kind}",
            {
                "stock, the same game": lambda t=tasks: reset_stock(stock, t, False),
                "stock, the next game": lambda t=tasks: reset_stock(stock, t, True),
                "ours, played before": lambda t=tasks: reset_ours(t, True, 300),
                "ours, never played": lambda t=tasks: reset_ours(t, False, 10),
            },
            unit="resets",
            rounds=rounds,
            about={"games": len(tasks)},
        )
        for side in ("ours, played before", "ours, never played"):
            taken = 1000 / report["sides"][side]["rate"]["median"]
            good &= _bound(f"reset, {kind}, {side}", taken, RESET_MS, "ms", False)
    return good


def through(pool: EnvPool, played: Played, repeats: int) -> float:
    """All walks side by side."""
    for _ in range(repeats):
        _good(pool.reset(dict(enumerate(played))))
        for actions in zip(*played.values(), strict=True):
            _good(pool.step(dict(enumerate(actions))))
    return float(repeats * sum(map(len, played.values())))


def _good(answers: dict[int, Step | EnvFailure]) -> None:
    for answer in answers.values():
        if isinstance(answer, EnvFailure):
            raise MeasureError(f"an environment failed: {answer}")


def workers(rounds: int) -> bool:
    """One worker against two, which play every step they are asked for."""
    spec = env_spec("dense", family="alfworld")
    for kind, tasks in kinds(6).items():
        played = walks(tasks[:GAMES])
        with (
            EnvPool(spec, 1, TIMEOUT, remember=0) as one,
            EnvPool(spec, 2, TIMEOUT, remember=0) as two,
        ):
            compare(
                f"alfworld_workers_{kind}",
                {
                    "one worker": lambda p=played, pool=one: through(pool, p, 20),
                    "two workers": lambda p=played, pool=two: through(pool, p, 20),
                },
                unit="steps",
                rounds=rounds,
                about={"games": len(played), "steps_an_episode": STEPS},
            )
    return True


def bytes_in(folder: str) -> int:
    return sum(path.stat().st_size for path in Path(folder).rglob("*") if path.is_file())


def memory(rounds: int) -> bool:
    """The resident memory of a worker, and what it left in its temporary folder and its home."""
    # As many games as fit into the first resets: what is read once is no growth.
    tasks = list(kinds(6).values())[-1][:GAMES]
    sizes: dict[int, dict[str, float]] = {}
    before = dict(os.environ)
    with tempfile.TemporaryDirectory() as folder:
        os.environ.update(TMPDIR=folder, HOME=folder, XDG_CACHE_HOME=folder)
        try:
            pool = EnvPool(env_spec("dense", family="alfworld"), 1, TIMEOUT, remember=0)
        finally:
            os.environ.clear()
            os.environ.update(before)
        with pool:
            for number, (task, commands) in enumerate(_again(walks(tasks), max(RESETS)), start=1):
                _good(pool.reset({0: task}))
                for command in commands:
                    _good(pool.step({0: command}))
                if number in RESETS:
                    worker = psutil.Process(pool._workers[0].child.process.pid)
                    sizes[number] = {
                        "rss_mib": worker.memory_info().rss / 2**20,
                        "disk_bytes": bytes_in(folder),
                    }
    first, last = (sizes[number] for number in RESETS)
    growth = last["rss_mib"] / first["rss_mib"] - 1
    write(
        {
            "name": "alfworld_memory",
            "machine": machine(),
            "about": {"games": len(tasks)},
            "after_resets": sizes,
            "growth": growth,
        }
    )
    print(f"memory and disk after resets over {len(tasks)} games: {sizes}")
    good = _bound("memory, 50 to 500 resets", growth * 100, GROWTH * 100, "%", False)
    return good & _bound("disk", last["disk_bytes"], 0, "bytes", False)


def _again(played: Played, count: int) -> Iterable[tuple[Task, list[str]]]:
    games = list(played.items())
    return (games[number % len(games)] for number in range(count))


def shaping(rounds: int) -> bool:
    """What a plan at every step costs; a ratio of 0.1 is ten times as slow."""
    for kind, tasks in kinds(6).items():
        played = walks(tasks[:GAMES], 30)
        compare(
            f"alfworld_shaping_{kind}",
            {
                "plain": lambda p=played: step_ours(AlfWorldOptions(), p, 5),
                "a plan at every step": lambda p=played: step_ours(
                    AlfWorldOptions(policy_length=True), p, 1
                ),
            },
            unit="steps",
            rounds=rounds,
            about={"games": len(played), "steps_an_episode": 30},
        )
    return True


def _bound(name: str, value: float, bound: float, unit: str, least: bool) -> bool:
    met = value >= bound if least else value <= bound
    asked = "at least" if least else "at most"
    print(f"{name}: {value:.3g} {unit}, asked {asked} {bound:g}: {'met' if met else 'NOT met'}")
    return met


def start_stock(folder: str) -> Any:
    """The witness of the tests. Raises `MeasureError` where it is not installed."""
    from tests.envs.alfworld.stock import Stock

    try:
        return Stock(Path(folder))
    except ImportError as error:
        raise MeasureError(
            f"stock ALFWorld cannot start ({error}): run `pip install "
            "fast-downward-textworld==20.6.4`, or choose another part with --only"
        ) from error


def main(argv: Sequence[str] | None = None) -> int:
    with_stock: dict[str, Callable[[Any, int], bool]] = {"stepping": stepping, "resets": resets}
    alone: dict[str, Callable[[int], bool]] = {
        "workers": workers,
        "memory": memory,
        "shaping": shaping,
    }
    parser = argparse.ArgumentParser(prog="python -m benchmarks.alfworld", description=__doc__)
    parser.add_argument("--only", choices=(*with_stock, *alone))
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args(argv)
    good = True
    with tempfile.TemporaryDirectory() as folder:
        try:
            chosen = [name for name in with_stock if options.only in (None, name)]
            stock = start_stock(folder) if chosen else None
            for name in chosen:
                good &= with_stock[name](stock, options.rounds)
            for name in alone:
                if options.only in (None, name):
                    good &= alone[name](options.rounds)
        except MeasureError as error:
            print(error, file=sys.stderr)
            return 2
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
