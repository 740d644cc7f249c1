"""Environments in worker processes: a hang or a death costs one episode, never the run."""

from __future__ import annotations

import importlib
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from multiprocessing.connection import wait
from typing import Any, Literal

from envs.base import Step, Task, TextEnv
from envs.process import Child, ChildDied
from envs.transitions import Node, Transitions
from runs.errors import EnvError

RESETS_BEFORE_RECYCLING = 1000
# Steps of deterministic games that are kept: about 1 kB each.
REMEMBERED = 100_000


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


@dataclass(frozen=True)
class Job:
    """For a worker: play `actions` in the environment of `slot`, after a reset where there is a
    `task`. With neither, free the environment."""

    slot: int
    task: Task | None = None
    actions: tuple[str, ...] = ()


class Host:
    """What runs inside a worker: one environment a slot, one job at a time."""

    def __init__(self, spec: EnvSpec) -> None:
        module, name = spec.target.split(":")
        self._make = getattr(importlib.import_module(module), name)
        self._spec = spec
        self._envs: dict[int, TextEnv] = {}
        # What an environment imports is loaded now, and not on the clock of the first episode.
        env = self._make(spec.options, spec.reward)
        self._deterministic = bool(env.deterministic)
        env.close()

    def __call__(self, job: Job | None) -> bool | tuple[Step | None, Step | None]:
        """The last two Steps of what was played; whether environments are deterministic, when
        there is no job."""
        if job is None:
            return self._deterministic
        if job.task is None and not job.actions:
            self._close(job.slot)
            return None, None
        try:
            return self._play(job)
        except Exception:
            self._close(job.slot)
            raise

    def _play(self, job: Job) -> tuple[Step | None, Step | None]:
        before = last = None
        if job.task is not None:
            self._close(job.slot)
            self._envs[job.slot] = self._make(self._spec.options, self._spec.reward)
            last = self._envs[job.slot].reset(job.task)
        for action in job.actions:
            before, last = last, self._envs[job.slot].step(action)
        return before, last

    def _close(self, slot: int) -> None:
        env = self._envs.pop(slot, None)
        if env is not None:
            env.close()


@dataclass
class _Session:
    """An episode that goes on. Its environment has seen `played` of the actions, or has to be
    reset first (None)."""

    task: Task
    node: Node
    actions: list[str] = field(default_factory=list)
    played: int | None = None


@dataclass
class _Question:
    """A Step that only an environment can tell: the first of `slots` asks it for all of them.
    Without an action it is the one of a reset."""

    task: Task
    action: str | None
    slots: list[int]


@dataclass
class _Worker:
    child: Child
    jobs: list[Job] = field(default_factory=list)
    sent: list[Job] = field(default_factory=list)
    homes: set[int] = field(default_factory=set)
    resets: int = 0


class EnvPool:
    """Many episodes over a few processes. Results depend on actions only, never on timing.

    `slots` are the caller's numbers of episodes. Where environments are deterministic, a Step that
    was seen before is answered from memory (`remember` of them, 0 for none): the environment of
    that slot stays behind, and catches up when a Step is asked for that nobody has seen. A worker
    that hangs for `timeout` seconds or dies is replaced, and its other episodes catch up too.
    Steps are shared: do not change them. Stepping a slot that is not playing raises `EnvError`.
    """

    def __init__(
        self, spec: EnvSpec, workers: int, timeout: float, remember: int = REMEMBERED
    ) -> None:
        self._spec = spec
        self._timeout = timeout
        self._sessions: dict[int, _Session] = {}
        self._questions: dict[int, _Question] = {}
        self._counts: Counter[str] = Counter()
        self._workers: list[_Worker] = []
        try:
            for _ in range(workers):
                self._workers.append(_Worker(self._child()))
            for worker in self._workers:
                worker.child.start()
            self._shared = remember > 0 and self._deterministic()
        except BaseException:
            self.close()
            raise
        self._known = Transitions(remember if self._shared else 0)

    def __enter__(self) -> EnvPool:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    @property
    def counts(self) -> dict[str, int]:
        """Resets and steps that were asked for; those `saved`, known or asked by another slot at
        the same time; and those `repeated` so that an environment caught up, which costs little
        where it can go back to where it was."""
        found = {}
        for name in ("resets", "steps"):
            asked, put = self._counts[name], self._counts[f"{name}_put"]
            again = self._counts[f"{name}_run"] - put
            found |= {name: asked, f"{name}_saved": asked - put, f"{name}_repeated": again}
        return found

    def reset(self, slots: dict[int, Task]) -> dict[int, Step | EnvFailure]:
        """Begins an episode in each slot (whatever it played before) and gives its first Step."""
        self._counts["resets"] += len(slots)
        unknown: dict[Any, _Question] = {}
        results: dict[int, Step | EnvFailure] = {}
        for slot, task in slots.items():
            self._sessions.pop(slot, None)
            known = self._known.start(task)
            if known is not None:
                self._begin(slot, task, known, results)
            else:
                key = task if self._shared else slot
                unknown.setdefault(key, _Question(task, None, [])).slots.append(slot)
        return self._run(unknown.values(), results)

    def step(self, actions: dict[int, str]) -> dict[int, Step | EnvFailure]:
        """One action for each slot named."""
        for slot in actions:
            if slot not in self._sessions:
                raise EnvError(f"Slot {slot} plays no episode: reset it before stepping it.")
        self._counts["steps"] += len(actions)
        unknown: dict[Any, _Question] = {}
        results: dict[int, Step | EnvFailure] = {}
        for slot, action in actions.items():
            session = self._sessions[slot]
            known = session.node.after.get(action)
            if known is not None:
                self._move(slot, action, known, results)
            else:
                key = (session.node, action) if self._shared else slot
                question = unknown.setdefault(key, _Question(session.task, action, []))
                question.slots.append(slot)
        return self._run(unknown.values(), results)

    def release(self, slots: Iterable[int]) -> None:
        """Frees the environments of these slots."""
        for slot in slots:
            self._sessions.pop(slot, None)
            for worker in self._workers:
                if slot in worker.homes:
                    worker.homes.remove(slot)
                    worker.jobs.append(Job(slot))
        self._run([], {})

    def close(self) -> None:
        for worker in self._workers:
            worker.child.kill()
        self._workers.clear()
        self._sessions.clear()

    def _child(self) -> Child:
        return Child("envs.workers:Host", self._spec)

    def _deterministic(self) -> bool:
        child = self._workers[0].child
        try:
            child.send(None)
            return child.receive()[1]
        except ChildDied as died:
            raise EnvError(f"An environment process ended at once: {died}") from died

    def _begin(self, slot: int, task: Task, node: Node, results: dict) -> None:
        self._sessions[slot] = _Session(task, node)
        self._answer(slot, node, results)

    def _move(self, slot: int, action: str, node: Node, results: dict) -> None:
        session = self._sessions[slot]
        session.actions.append(action)
        session.node = node
        self._answer(slot, node, results)

    def _answer(self, slot: int, node: Node, results: dict) -> None:
        if node.step.terminated:
            del self._sessions[slot]
        results[slot] = node.step

    def _run(
        self, questions: Iterable[_Question], results: dict[int, Step | EnvFailure]
    ) -> dict[int, Step | EnvFailure]:
        """Put the questions to the workers and wait until all jobs are done."""
        for question in questions:
            self._put(question)
        for index, worker in enumerate(self._workers):
            resets = sum(job.task is not None for job in worker.jobs)
            if resets and worker.resets + resets > RESETS_BEFORE_RECYCLING:
                self._replace(index)
            if worker.jobs and not worker.child.alive:
                self._replace(index)
        while any(worker.jobs or worker.sent for worker in self._workers):
            for index, worker in enumerate(self._workers):
                if worker.jobs and not worker.sent:
                    self._send(index, results)
            busy = {w.child.connection: i for i, w in enumerate(self._workers) if w.sent}
            if busy:
                self._wait(busy, results)
        return results

    def _wait(self, busy: dict[Any, int], results: dict[int, Step | EnvFailure]) -> None:
        """Until one of the workers has replied, or has taken too long."""
        nearest = min(self._deadline(self._workers[index]) for index in busy.values())
        ready = wait(list(busy), timeout=max(0.0, nearest - time.monotonic()))
        for connection, index in busy.items():
            if connection in ready:
                self._take(index, results)
            elif time.monotonic() >= self._deadline(self._workers[index]):
                message = f"no answer in {self._timeout:g} seconds"
                self._fail(index, EnvFailure("hung", message), results)

    def _put(self, question: _Question) -> None:
        """Into the queue of the worker whose environment has the least to catch up with."""
        if question.action is not None:
            question.slots.sort(key=self._played, reverse=True)
        slot = question.slots[0]
        self._counts["resets_put" if question.action is None else "steps_put"] += 1
        self._questions[slot] = question
        worker = self._home(slot, question.task)
        worker.homes.add(slot)
        worker.jobs.append(self._job(slot))

    def _played(self, slot: int) -> int:
        played = self._sessions[slot].played
        return -1 if played is None else played

    def _home(self, slot: int, task: Task) -> _Worker:
        """Where the slot's environment is or may be; else where its game is played already; else
        the worker with the fewest."""
        for worker in self._workers:
            if slot in worker.homes:
                return worker
        for worker in self._workers:
            if any(
                self._sessions[other].task == task for other in worker.homes & self._sessions.keys()
            ):
                return worker
        return min(self._workers, key=lambda worker: len(worker.homes))

    def _job(self, slot: int) -> Job:
        question = self._questions[slot]
        if question.action is None:
            return Job(slot, question.task)
        session = self._sessions[slot]
        if session.played is None:
            return Job(slot, session.task, (*session.actions, question.action))
        return Job(slot, None, (*session.actions[session.played :], question.action))

    def _send(self, index: int, results: dict[int, Step | EnvFailure]) -> None:
        worker = self._workers[index]
        worker.sent, worker.jobs = worker.jobs, []
        for job in worker.sent:
            worker.resets += job.task is not None
            self._counts["resets_run"] += job.task is not None
            self._counts["steps_run"] += len(job.actions)
        try:
            worker.child.send(worker.sent)
        except ChildDied as died:
            self._fail(index, EnvFailure("died", str(died)), results)

    def _deadline(self, worker: _Worker) -> float:
        number, begun = worker.child.serving
        job = worker.sent[number]
        return begun + self._timeout * max(1, len(job.actions) + (job.task is not None))

    def _take(self, index: int, results: dict[int, Step | EnvFailure]) -> None:
        """The replies to all jobs that a worker was sent."""
        worker = self._workers[index]
        try:
            replies = worker.child.receive()
        except ChildDied as died:
            self._fail(index, EnvFailure("died", str(died)), results)
            return
        sent, worker.sent = worker.sent, []
        for job, (kind, answer) in zip(sent, replies, strict=True):
            if job.slot in self._questions:
                if kind == "ok":
                    before, step = answer
                    self._learn(job.slot, before, step, results)
                else:
                    self._lose(job.slot, EnvFailure("raised", answer), results)

    def _learn(self, slot: int, before: Step | None, step: Step, results: dict) -> None:
        question = self._questions[slot]
        if question.action is None:
            node = self._known.begin(question.task, step)
            for member in question.slots:
                self._begin(member, question.task, node, results)
        else:
            session = self._sessions[slot]
            if before is not None and before != session.node.step:
                failure = EnvFailure("diverged", "the replayed episode was another one")
                self._lose(slot, failure, results)
                return
            node = self._known.learn(question.task, session.node, question.action, step)
            for member in question.slots:
                self._move(member, question.action, node, results)
        del self._questions[slot]
        if slot in self._sessions:
            self._sessions[slot].played = len(self._sessions[slot].actions)

    def _fail(self, index: int, failure: EnvFailure, results: dict[int, Step | EnvFailure]) -> None:
        """A worker hung or died: the job it was at is lost, the others are sent once more."""
        worker = self._workers[index]
        lost = worker.sent.pop(worker.child.serving[0])
        worker.jobs = [*worker.sent, *worker.jobs]
        self._replace(index)
        if lost.slot in self._questions:
            self._lose(lost.slot, failure, results)

    def _lose(self, slot: int, failure: EnvFailure, results: dict[int, Step | EnvFailure]) -> None:
        """The episode of a slot is over; who had asked the same asks for himself."""
        question = self._questions.pop(slot)
        self._sessions.pop(slot, None)
        results[slot] = failure
        others = question.slots[1:]
        if others:
            self._put(_Question(question.task, question.action, others))

    def _replace(self, index: int) -> None:
        """A fresh process in place of the worker's, whose episodes have to be reset in it."""
        worker = self._workers[index]
        worker.child.kill()
        worker.child = self._child()
        worker.child.start()
        worker.sent, worker.resets = [], 0
        for slot in worker.homes & self._sessions.keys():
            self._sessions[slot].played = None
        worker.jobs = [self._job(job.slot) for job in worker.jobs if job.slot in self._questions]
        worker.homes = {job.slot for job in worker.jobs}
