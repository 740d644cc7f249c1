"""Play a game by hand, or commands from a pipe: `python -m envs.play w2-o3-q4 --seed 1`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from envs.base import Step, Task
from envs.rewards import game_kind, make_reward
from envs.suites import CHECKOUT, env_spec, find_tasks
from envs.workers import EnvFailure, EnvPool
from runs.errors import TrivetError


def arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m envs.play", description=__doc__)
    parser.add_argument(
        "game",
        nargs="?",
        default="w2-o3-q4",
        help="w2-o3-q4 (the default), tw-simple-brief, cooking, … or a .z8 file",
    )
    parser.add_argument("--seed", type=int, default=1, help="of a generated game")
    parser.add_argument("--reward", default="dense", help="sparse, dense or balanced")
    parser.add_argument("--admissible", action="store_true", help="list admissible commands")
    parser.add_argument("--show-score", action="store_true", help="keep the score notices")
    parser.add_argument("--timeout", type=float, default=60, help="seconds a step may take")
    parser.add_argument("--cache", type=Path, default=CHECKOUT / ".cache", help="keeps games")
    return parser


def commands() -> Iterator[str]:
    """Lines from a person, with a prompt, or from a pipe."""
    if sys.stdin.isatty():
        while True:
            try:
                yield input("> ")
            except EOFError:
                return
    for line in sys.stdin:
        print(f"> {line.rstrip()}")
        yield line


def play(pool: EnvPool, task: Task, show_admissible: bool) -> Step | EnvFailure:
    """Plays until the game ends or commands do; returns what was seen last."""
    answer = pool.reset({0: task})[0]
    if isinstance(answer, Step):
        print(f"{answer.objective}\n")
    total = 0.0
    lines = commands()
    while True:
        if isinstance(answer, EnvFailure):
            return answer
        total += answer.reward
        print(f"{answer.observation}\n[reward {answer.reward:+.3f}, in all {total:.3f}]")
        if show_admissible:
            print("[" + " | ".join(answer.admissible) + "]")
        action = None if answer.terminated else next(lines, None)
        if action is None:
            return answer
        answer = pool.step({0: action})[0]
        if isinstance(answer, Step) and answer.events.get("cut"):
            print("[only the first command was used]")


def main(argv: Sequence[str] | None = None) -> int:
    options = arguments().parse_args(argv)
    try:
        (task, *_) = find_tasks(options.game, options.seed, 1, options.reward, options.cache)
        make_reward(options.reward, task.family, game_kind(task.family, task.type))
        spec = env_spec(options.reward, options.admissible, options.show_score, task.family)
        with EnvPool(spec, workers=1, timeout=options.timeout) as pool:
            last = play(pool, task, options.admissible)
    except TrivetError as error:
        print(error, file=sys.stderr)
        return 2
    if isinstance(last, EnvFailure):
        print(f"The game failed ({last.kind}): {last.message}", file=sys.stderr)
        return 1
    print("You won." if last.won else "You lost." if last.lost else "The game goes on.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
