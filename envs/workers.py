"""Environments in worker processes: a hang or a death costs one episode, never the run."""

from __future__ import annotations

import importlib
import time
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from multiprocessing.connection import wait
from typing import Any, Literal

from envs.base import Step, Task, TextEnv
from envs.process import Child, ChildDied
from runs.errors import EnvError

RESETS_BEFORE_RECYCLING = 1000


@dataclass(frozen=True)
class EnvSpec:
    """How a worker builds an environment: `target` is "module:function", called with
    (options, reward) and returning a TextEnv. Plain values only, since they travel."""

    target: str
    options: dict[str, Any]
    reward: str


@dataclass(frozen=True)
class EnvFailure:
    """In place of a Step: the episode ended because of its environment, not of its player."""

    kind: Literal["hung", "died", "raised", "diverged"]
    message: str


class Host:
    """What runs inside a worker: one environment a slot, one message at a time."""

    def __init__(self, spec: EnvSpec) -> None:
        module, name = spec.target.split(":")
        self._make = getattr(importlib.import_module(module), name)
        self._spec = spec
        self._envs: dict[int, TextEnv] = {}
        # What an environment imports is loaded now, and not on the clock of the first episode.
        self._make(spec.options, spec.reward).close()

    def __call__(self, message: tuple[str, int, Any]) -> Step | None:
        operation, slot, payload = message
        if operation == "release":
            self._close(slot)
            return None
        try:
            if operation == "reset":
                self._close(slot)
                self._envs[slot] = self._make(self._spec.options, self._spec.reward)
                return self._envs[slot].reset(payload)
            if operation == "replay":
                return self._replay(slot, *payload)
            return self._envs[slot].step(payload)
        except Exception:
            self._close(slot)
            raise

    def _replay(self, slot: int, task: Task, actions: list[str]) -> Step:
        self._envs[slot] = self._make(self._spec.options, self._spec.reward)
        step = self._envs[slot].reset(task)
        for action in actions:
            step = self._envs[slot].step(action)
        return step

    def _close(self, slot: int) -> None:
        env = self._envs.pop(slot, None)
        if env is not None:
            env.close()


@dataclass
class _Session:
    """An episode that goes on: what it takes to play it again."""

    task: Task
    last: Step
    actions: list[str] = field(default_factory=list)


@dataclass
class _Worker:
    child: Child
    jobs: deque[tuple[str, int, Any]] = field(default_factory=deque)
    current: tuple[str, int, Any] | None = None
    deadline: float = 0.0
    resets: int = 0


class EnvPool:
    """Many episodes over a few processes. Results depend on actions only, never on timing.

    `slots` are the caller's numbers of episodes; slot s lives in worker s % workers. A worker
    that hangs for `timeout` seconds or dies is replaced, and its other episodes are replayed.
    Stepping a slot that is not playing raises `EnvError`.
    """

    def __init__(self, spec: EnvSpec, workers: int, timeout: float) -> None:
        self._spec = spec
        self._timeout = timeout
        self._sessions: dict[int, _Session] = {}
        self._workers: list[_Worker] = []
        try:
            for _ in range(workers):
                self._workers.append(_Worker(self._child()))
            for worker in self._workers:
                worker.child.start()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> EnvPool:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def reset(self, slots: dict[int, Task]) -> dict[int, Step | EnvFailure]:
        """Begins an episode in each slot (whatever it played before) and gives its first Step."""
        for slot in slots:
            self._sessions.pop(slot, None)
        for slot, task in slots.items():
            worker = self._worker_of(slot)
            worker.resets += 1
            worker.jobs.append(("reset", slot, task))
        for index, worker in enumerate(self._workers):
            if worker.resets > RESETS_BEFORE_RECYCLING:
                self._replace(index)
                worker.resets = sum(self._worker_of(slot) is worker for slot in slots)
        return self._run()

    def step(self, actions: dict[int, str]) -> dict[int, Step | EnvFailure]:
        """One action for each slot named."""
        for slot in actions:
            if slot not in self._sessions:
                raise EnvError(f"Slot {slot} plays no episode: reset it before stepping it.")
        for slot, action in actions.items():
            self._worker_of(slot).jobs.append(("step", slot, action))
        return self._run()

    def release(self, slots: Iterable[int]) -> None:
        """Frees the environments of these slots."""
        for slot in slots:
            self._sessions.pop(slot, None)
            self._worker_of(slot).jobs.append(("release", slot, None))
        self._run()

    def close(self) -> None:
        for worker in self._workers:
            worker.child.kill()
        self._workers.clear()
        self._sessions.clear()

    def _child(self) -> Child:
        return Child("envs.workers:Host", self._spec)

    def _worker_of(self, slot: int) -> _Worker:
        return self._workers[slot % len(self._workers)]

    def _run(self) -> dict[int, Step | EnvFailure]:
        results: dict[int, Step | EnvFailure] = {}
        for index, worker in enumerate(self._workers):
            if worker.jobs:
                if not worker.child.alive:
                    self._replace(index)
                self._send_next(index, results)
        while busy := [i for i, worker in enumerate(self._workers) if worker.current is not None]:
            connections = {self._workers[i].child.connection: i for i in busy}
            nearest = min(self._workers[i].deadline for i in busy)
            ready = wait(list(connections), timeout=max(0.0, nearest - time.monotonic()))
            answered = {connections[connection] for connection in ready}  # type: ignore[index]
            for index in busy:
                if index in answered:
                    self._take(index, results)
                elif time.monotonic() >= self._workers[index].deadline:
                    message = f"no answer in {self._timeout:g} seconds"
                    self._fail(index, EnvFailure("hung", message), results)
        return results

    def _send_next(self, index: int, results: dict[int, Step | EnvFailure]) -> None:
        worker = self._workers[index]
        worker.current = worker.jobs.popleft() if worker.jobs else None
        if worker.current is None:
            return
        turns = len(worker.current[2][1]) if worker.current[0] == "replay" else 0
        worker.deadline = time.monotonic() + self._timeout * (1 + turns)
        try:
            worker.child.send(worker.current)
        except ChildDied as died:
            self._fail(index, EnvFailure("died", str(died)), results)

    def _take(self, index: int, results: dict[int, Step | EnvFailure]) -> None:
        worker = self._workers[index]
        assert worker.current is not None
        operation, slot, payload = worker.current
        try:
            kind, answer = worker.child.receive()
        except ChildDied as died:
            self._fail(index, EnvFailure("died", str(died)), results)
            return
        if operation != "release":
            if kind == "ok":
                self._record(operation, slot, payload, answer, results)
            else:
                self._lose(worker, slot, EnvFailure("raised", answer), results)
        self._send_next(index, results)

    def _record(
        self,
        operation: str,
        slot: int,
        payload: Any,
        step: Step,
        results: dict[int, Step | EnvFailure],
    ) -> None:
        if operation == "replay":
            session = self._sessions[slot]
            if step != session.last:
                failure = EnvFailure("diverged", "the replayed episode was another one")
                self._lose(self._worker_of(slot), slot, failure, results)
            return
        if operation == "reset":
            self._sessions[slot] = _Session(payload, step)
        else:
            self._sessions[slot].actions.append(payload)
            self._sessions[slot].last = step
        if step.terminated:
            del self._sessions[slot]
        results[slot] = step

    def _fail(self, index: int, failure: EnvFailure, results: dict[int, Step | EnvFailure]) -> None:
        worker = self._workers[index]
        assert worker.current is not None
        operation, slot, _ = worker.current
        if operation != "release":
            self._lose(worker, slot, failure, results)
        self._replace(index)
        self._send_next(index, results)

    def _lose(
        self,
        worker: _Worker,
        slot: int,
        failure: EnvFailure,
        results: dict[int, Step | EnvFailure],
    ) -> None:
        self._sessions.pop(slot, None)
        worker.jobs = deque(job for job in worker.jobs if job[1] != slot)
        results[slot] = failure

    def _replace(self, index: int) -> None:
        """A fresh process in place of the worker's, with its living episodes to be replayed."""
        worker = self._workers[index]
        worker.child.kill()
        worker.child = self._child()
        worker.child.start()
        worker.current = None
        waiting = [job for job in worker.jobs if job[0] != "replay"]
        replays = [
            ("replay", slot, (session.task, list(session.actions)))
            for slot, session in self._sessions.items()
            if self._worker_of(slot) is worker
        ]
        worker.jobs = deque([*replays, *waiting])
