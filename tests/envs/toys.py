"""A toy environment for the worker tests: it counts, and misbehaves when told to."""

from __future__ import annotations

import ctypes
import os
import sys

from envs.base import Step, Task
from envs.rewards import RewardedEnv
from runs.errors import EnvError


def task(name: str = "toy") -> Task:
    return Task("textworld", name, 0, "", name, "custom", 1, 1.0, 1)


def make_toy(options: dict[str, str], reward: str) -> RewardedEnv:
    if options.get("broken"):
        raise EnvError("the toy box is empty")
    return RewardedEnv(Toy(options.get("log", os.devnull)), reward)


class Toy:
    deterministic = True

    def __init__(self, log: str) -> None:
        self._log = log
        self._said: list[str] = []

    def reset(self, task: Task) -> Step:
        with open(self._log, "a") as log:
            log.write(f"{os.getpid()} {task.id}\n")
        self._said = [task.id]
        return self._step()

    def step(self, action: str) -> Step:
        self._said.append(action)
        if action == "hang":
            # In C, where no Python signal handler can run: like the interpreter's own hang.
            ctypes.CDLL(None).sleep(1000)
        if action == "die":
            os._exit(3)
        if action == "raise":
            raise IndexError("no such toy")
        if action == "modules":
            self._said.append(str(sorted({"torch", "transformers"} & set(sys.modules))))
        if action == "pid":
            self._said.append(str(os.getpid()))
        return self._step()

    def close(self) -> None:
        self._said = []

    def _step(self) -> Step:
        won = self._said[-1] == "win"
        return Step(" ".join(self._said), "play", {"cut": False}, terminated=won, won=won)
