"""Check games and rewards before training: `python -m envs.validate w2-o3-q4 --tasks 5`.

Every game is loaded, its expert is played in every reward mode, and the totals are compared:
the expert wins, a win totals 1, and no earlier point of the episode is worth as much.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from envs.base import Step, Task
from envs.experts import Expert
from envs.rewards import game_kind, valid_rewards
from envs.suites import CHECKOUT, env_spec, find_tasks
from envs.workers import EnvFailure, EnvPool
from runs.errors import TrivetError

WIN = 1.0
ROUNDING = 1e-9


def totals(pool: EnvPool, task: Task, actions: Sequence[str]) -> tuple[list[float], bool, str]:
    """Total reward after each of the K actions, [K + 1] with the start; whether the last one won;
    and what went wrong, or ""."""
    paid = [0.0]
    answer = pool.reset({0: task})[0]
    for action in actions:
        if isinstance(answer, EnvFailure):
            return paid, False, f"{answer.kind}: {answer.message}"
        if answer.terminated:
            return paid, answer.won, "ended before its last command"
        answer = pool.step({0: action})[0]
        if isinstance(answer, Step):
            paid.append(paid[-1] + answer.reward)
    if isinstance(answer, EnvFailure):
        return paid, False, f"{answer.kind}: {answer.message}"
    return paid, answer.won, ""


def faults(pool: EnvPool, task: Task, actions: Sequence[str]) -> list[str]:
    """What is wrong with a game in one reward mode, by playing its expert."""
    paid, won, trouble = totals(pool, task, actions)
    if trouble:
        return [trouble]
    if not won:
        return ["the expert does not win"]
    found = []
    if abs(paid[-1] - WIN) > ROUNDING:
        found.append(f"winning pays {paid[-1]:g} and not 1")
    if max(paid[:-1]) >= WIN - ROUNDING:
        found.append(f"not winning pays {max(paid[:-1]):g}")
    return found


def validate(tasks: Sequence[Task], reward: str, timeout: float) -> dict[str, list[str]]:
    """Faults by task id; an empty list is a good game."""
    results = {}
    family = tasks[0].family
    spec = env_spec(reward, family=family)
    with Expert(family) as expert, EnvPool(spec, workers=1, timeout=timeout) as pool:
        for task in tasks:
            actions = expert.commands(task.file)
            # Two trees of one data set hold games of one name.
            name = task.file if task.id in results else task.id
            results[name] = faults(pool, task, actions) if actions else ["no expert wins"]
    return results


def counted(text: str) -> int:
    """A number of games for argparse, at least 1."""
    if int(text) < 1:
        raise argparse.ArgumentTypeError("it takes one game to check any")
    return int(text)


def arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m envs.validate", description=__doc__)
    parser.add_argument(
        "games",
        nargs="*",
        default=["w2-o3-q4"],
        help="w2-o3-q4 (the default), tw-simple-brief, a .z8 file or a folder",
    )
    parser.add_argument("--tasks", type=counted, default=5, help="games of each generated kind")
    parser.add_argument("--first-seed", type=int, default=1, help="seed of the first of them")
    parser.add_argument("--timeout", type=float, default=60, help="seconds a step may take")
    parser.add_argument("--cache", type=Path, default=CHECKOUT / ".cache", help="keeps games")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    options = arguments().parse_args(argv)
    bad = 0
    try:
        for game in options.games:
            sparse = find_tasks(game, options.first_seed, options.tasks, "sparse", options.cache)
            family = sparse[0].family
            for kind in sorted({game_kind(family, task.type) for task in sparse}):
                for reward in valid_rewards(family, kind):
                    found = find_tasks(
                        game, options.first_seed, options.tasks, reward, options.cache
                    )
                    tasks = [task for task in found if game_kind(family, task.type) == kind]
                    for task_id, wrong in validate(tasks, reward, options.timeout).items():
                        bad += bool(wrong)
                        print(f"{task_id:32} {reward:9} {'; '.join(wrong) or 'good'}")
    except TrivetError as error:
        print(error, file=sys.stderr)
        return 2
    print(f"{bad} faults." if bad else "All good.")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
