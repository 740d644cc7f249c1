"""What the peers' scripts share. It runs in their environments: no package of ours but `envs`."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any

from envs.base import Task
from envs.textworld.env import TextWorldEnv, TextWorldOptions

Handler = Callable[[dict[str, Any]], dict[str, Any]]


def serve(start: Callable[[dict[str, Any]], Handler]) -> None:
    """Answer lines of JSON until stdin ends: the first is the plan, the others are rounds.

    What libraries print goes to stderr, for stdout carries the answers.
    """
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    handler: Handler | None = None
    for line in sys.stdin:
        if handler is None:
            handler = start(json.loads(line))
            answer: dict[str, Any] = {"ready": True, "versions": _versions()}
        else:
            answer = handler(json.loads(line))
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


class World:
    """One game in this process, with the texts that Trivet shows and what sparse reward needs."""

    def __init__(self) -> None:
        self._env = TextWorldEnv(TextWorldOptions())
        self.over, self.won = True, False

    def reset(self, file: str) -> str:
        """The user's first message: objective and first observation."""
        step = self._env.reset(Task("textworld", file, 0, file, "", "", 0, 0.0, 0))
        self.over, self.won = False, False
        return f"{step.objective}\n{step.observation}"

    def step(self, answer: str) -> str:
        """The next observation; `over` says that there is nothing more to answer."""
        step = self._env.step(answer)
        self.over, self.won = step.terminated, step.won
        return step.observation


def spoken(text: str, stop: str) -> str:
    """An answer of a fixed number of tokens, cut where its author would have stopped."""
    return text.split(stop, 1)[0].split("\n", 1)[0]


class Parts:
    """Seconds (of CPU in this process, of wall) and tokens inside a model's trunk, by part.

    Decoding gives every conversation at most one token, so a pass with more tokens than there are
    conversations reads. Attach it to the module without its head; seconds elsewhere (drawing,
    text, environments) belong to neither part.
    """

    def __init__(self, trunk: Any, conversations: int) -> None:
        self._most = conversations
        self._start = (0.0, 0.0)
        self.clear()
        trunk.register_forward_pre_hook(self._before, with_kwargs=True)
        trunk.register_forward_hook(self._after, with_kwargs=True)

    def clear(self) -> None:
        self.seconds = {"reading": 0.0, "decoding": 0.0}
        self.wall = {"reading": 0.0, "decoding": 0.0}
        self.tokens = {"reading": 0, "decoding": 0}

    def taken(self) -> dict[str, Any]:
        """What was counted since the last call."""
        out = {"seconds": self.seconds, "wall": self.wall, "tokens": self.tokens}
        self.clear()
        return out

    def _before(self, _module: Any, _args: Any, _kwargs: Any) -> None:
        self._start = time.process_time(), time.perf_counter()

    def _after(self, _module: Any, args: Any, kwargs: Any, _output: Any) -> None:
        ids = kwargs["input_ids"] if "input_ids" in kwargs else args[0]
        part = "reading" if ids.numel() > self._most else "decoding"
        self.seconds[part] += time.process_time() - self._start[0]
        self.wall[part] += time.perf_counter() - self._start[1]
        self.tokens[part] += ids.numel()


def _versions() -> dict[str, str]:
    from importlib import metadata

    found = {}
    for name in ("trl", "agilerl", "transformers", "torch", "textworld"):
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found
