"""What worker processes cost, and what the tree of known steps saves.

    python -m benchmarks.envs [--only stepping|workers|tree] [--rounds 5] [override ...]

`stepping`: TextWorld alone, its games loaded beforehand, against our pool with one worker that
has to play every step, at six steps an episode and at sixty. `workers`: one worker against two.
`tree`: the calls of real episodes (both evaluations of the base policy, then two iterations), as
the policy of the config played them, repeated with nothing shared (every episode loads and plays
its game), with the games and places of a worker shared, and with the tree of known steps on top.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import cache
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import textworld
from hydra import compose, initialize_config_dir

import envs.textworld.env
from algorithms import make_algorithm
from benchmarks.pairs import CHECKOUT, Measured, compare, tree_cpu_seconds
from envs.base import Step, Task, TextEnv
from envs.suites import env_spec, make_env_spec, make_suites
from envs.textworld.expert import walkthrough
from envs.textworld.loaded import Games, Loaded
from envs.textworld.splits import find_tasks
from envs.workers import EnvFailure, EnvPool, EnvSpec
from policies.load import load_policy
from rollouts.player import Player

GAMES, ITERATIONS, TIMEOUT = 12, 2, 60.0
# Workers that play every step they are asked for.
PLAYING = EnvSpec("benchmarks.envs:make_forgetful", env_spec("sparse").options, "sparse")
Call = tuple[str, Any]


def scripts(tasks: Sequence[Task], steps: int) -> dict[Task, list[str]]:
    """Commands that do not win: the start of the walkthrough, then a few that change nothing."""
    idle = ("look", "inventory", "examine me")
    found = {}
    for task in tasks:
        start = walkthrough(Path(task.file))[:-1][: steps - 1]
        found[task] = [*start, *islice(cycle(idle), steps - len(start))]
    return found


class Raw:
    """TextWorld in this process, one environment a game, loaded once; games side by side, since
    an interpreter that has just stepped is faster, and a pool has no such luck."""

    def __init__(self, tasks: Sequence[Task]) -> None:
        infos = textworld.EnvInfos(
            feedback=True, won=True, lost=True, score=True, max_score=True, objective=True
        )
        self._games = {task: textworld.start(task.file, infos) for task in tasks}

    def play(self, commands: dict[Task, list[str]], repeats: int) -> float:
        for _ in range(repeats):
            for task in commands:
                self._games[task].reset()
            for actions in zip(*commands.values(), strict=True):
                for task, action in zip(commands, actions, strict=True):
                    self._games[task].step(action)
        return float(repeats * sum(map(len, commands.values())))


def through(pool: EnvPool, commands: dict[Task, list[str]], repeats: int) -> float:
    """The same, all games side by side in a pool."""
    for _ in range(repeats):
        _good(pool.reset(dict(enumerate(commands))))
        for actions in zip(*commands.values(), strict=True):
            _good(pool.step(dict(enumerate(actions))))
    return float(repeats * sum(map(len, commands.values())))


def _good(answers: dict[int, Step | EnvFailure]) -> None:
    for answer in answers.values():
        if isinstance(answer, EnvFailure):
            raise RuntimeError(f"an environment failed: {answer}")


def stepping(rounds: int) -> None:
    """TextWorld alone against one worker."""
    tasks = find_tasks("w2-o3-q4", 1, GAMES, "sparse", CHECKOUT / ".cache")
    raw = Raw(tasks)
    with EnvPool(PLAYING, 1, TIMEOUT, remember=0) as pool:
        for steps, repeats in ((6, 10), (60, 2)):
            played = scripts(tasks, steps)
            compare(
                f"envs_stepping_{steps}",
                {
                    "TextWorld in process": lambda p=played, n=repeats: raw.play(p, n),
                    "pool, one worker": lambda p=played, n=repeats: through(pool, p, n),
                },
                unit="steps",
                rounds=rounds,
                about={"games": GAMES, "steps_an_episode": steps},
            )


def workers(rounds: int) -> None:
    """One worker against two."""
    tasks = find_tasks("w2-o3-q4", 1, GAMES, "sparse", CHECKOUT / ".cache")
    played = scripts(tasks, 12)
    with (
        EnvPool(PLAYING, 1, TIMEOUT, remember=0) as one,
        EnvPool(PLAYING, 2, TIMEOUT, remember=0) as two,
    ):
        compare(
            "envs_workers",
            {
                "one worker": lambda: through(one, played, 5),
                "two workers": lambda: through(two, played, 5),
            },
            unit="steps",
            rounds=rounds,
            about={"games": GAMES, "steps_an_episode": 12},
        )


class Recorder(EnvPool):
    """A pool that keeps what it was asked."""

    def __init__(self, config: Any) -> None:
        super().__init__(make_env_spec(config), config.env.workers, config.env.timeout)
        self.calls: list[Call] = []

    def reset(self, slots: dict[int, Task]) -> dict[int, Step | EnvFailure]:
        self.calls.append(("reset", dict(slots)))
        return super().reset(slots)

    def step(self, actions: dict[int, str]) -> dict[int, Step | EnvFailure]:
        self.calls.append(("step", dict(actions)))
        return super().step(actions)

    def release(self, slots: Iterable[int]) -> None:
        self.calls.append(("release", list(slots)))
        super().release(self.calls[-1][1])


def record(overrides: Sequence[str]) -> tuple[EnvSpec, int, list[Call]]:
    """Episodes of the base policy: the spec of their environments, workers, and the calls."""
    with initialize_config_dir(str(CHECKOUT / "recipes"), version_base=None):
        config = compose("config", [f"paths.cache={CHECKOUT / '.cache'}", *overrides])
    algorithm = make_algorithm(config.algo, [])
    suites = make_suites(config)
    policy = load_policy(
        config.policy, algorithm.needs_critic, algorithm.needs_reference, config.seed
    )
    pool = Recorder(config)
    with Player(config, policy, algorithm.min_group, pool=pool) as player:
        phases: dict[str, Callable[[], object]] = {
            "evaluation": lambda: player.evaluate(suites.test, 0),
            "greedy evaluation": lambda: player.evaluate(suites.test, 0, greedy=True),
        }
        for number in range(ITERATIONS):
            tasks = suites.train.draw(config.seed, number, config.train.tasks)
            phases[f"iteration {number}"] = lambda t=tasks, n=number: player.play(t, n)
        before = dict.fromkeys(pool.counts, 0)
        for name, play in phases.items():
            play()
            counts = pool.counts
            asked = {key: counts[key] - before[key] for key in counts}
            before = counts
            print(f"{name}: {asked}", flush=True)
    return make_env_spec(config), config.env.workers, pool.calls


def repeat(spec: EnvSpec, count: int, calls: list[Call], **memory: int) -> Measured:
    """The calls once more in fresh workers, their start not counted."""
    with EnvPool(spec, count, TIMEOUT, **memory) as pool:
        cpu, wall = tree_cpu_seconds(), time.perf_counter()
        for operation, asked in calls:
            _good(getattr(pool, operation)(asked) or {})
        done = Measured(1.0, tree_cpu_seconds() - cpu, time.perf_counter() - wall)
        counts = pool.counts
    return Measured(float(counts["steps"]), done.cpu_seconds, done.wall_seconds)


class Alone:
    """In place of `Games`: every episode has a game of its own."""

    def take(self, file: Path, infos: textworld.EnvInfos) -> Loaded:
        return Loaded(file, infos)


class Forgetful(Games):
    """No place is gone back to: every reset and every step is played."""

    def take(self, file: Path, infos: textworld.EnvInfos) -> Loaded:
        game = super().take(file, infos)
        game.forget()
        return game


@cache
def _forgetful() -> Forgetful:
    return Forgetful()


def make_forgetful(options: dict[str, Any], reward: str) -> TextEnv:
    """For a worker: environments that know no place, one episode a game at a time."""
    envs.textworld.env._games = _forgetful  # type: ignore[assignment]
    return envs.textworld.env.make_env(options, reward)


def make_alone(options: dict[str, Any], reward: str) -> TextEnv:
    """For a worker: environments that share nothing."""
    envs.textworld.env._games = Alone  # type: ignore[assignment]
    return envs.textworld.env.make_env(options, reward)


def tree(rounds: int, overrides: Sequence[str]) -> None:
    """Real episodes, without and with memory."""
    spec, count, calls = record(overrides)
    alone = replace(spec, target="benchmarks.envs:make_alone")
    compare(
        "envs_tree",
        {
            "nothing shared": lambda: repeat(alone, count, calls, remember=0),
            "shared in the worker": lambda: repeat(spec, count, calls, remember=0),
            "tree of known steps": lambda: repeat(spec, count, calls),
        },
        unit="steps",
        rounds=rounds,
        about={"iterations": ITERATIONS, "overrides": list(overrides)},
    )


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.envs", description=__doc__)
    parser.add_argument("--only", choices=("stepping", "workers", "tree"))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("overrides", nargs="*", help="of the config, for the tree: algo=grpo ...")
    options = parser.parse_args(argv)
    if options.only in (None, "stepping"):
        stepping(options.rounds)
    if options.only in (None, "workers"):
        workers(options.rounds)
    if options.only in (None, "tree"):
        tree(options.rounds, options.overrides)


if __name__ == "__main__":
    main()
