"""A policy plays episodes: the engine goes on while environments answer."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from envs.base import Step, Task
from envs.suites import Suite, make_env_spec
from envs.workers import EnvFailure, EnvPool
from rollouts.conversation import Conversation
from rollouts.engine import Engine, Request
from rollouts.health import Health
from rollouts.rows import check_groups
from rollouts.seat import Seat
from rollouts.torch_engine import TorchEngine
from rollouts.types import Episode, Group
from runs.errors import ConfigError, EnvError, PolicyError

if TYPE_CHECKING:
    from policies.policy import Policy

OPENED = 16  # episodes that may begin at once


@dataclass
class Call:
    """Something asked of the environments, and the tick of the engine at which it is waited for."""

    due: int
    seats: list[Seat]
    answers: Future[dict[int, Step | EnvFailure]]


class Player:
    """Context manager around an engine and environment workers.

    `smallest_group` is the least number of living members a group needs (2 where the algorithm
    compares members); smaller groups are dropped and counted. `health` describes the last
    `play` or `evaluate`. `engine` and `pool` replace what the config names.
    """

    def __init__(
        self,
        config: Any,
        policy: Policy,
        smallest_group: int = 1,
        engine: Engine | None = None,
        pool: EnvPool | None = None,
    ) -> None:
        self.policy, self.health = policy, Health()
        self._config, self._smallest = config, smallest_group
        # Read at every turn, and a config takes its time to answer.
        self._env, self._limits = _plain(config.env), _plain(config.policy)
        self._bootstraps = config.algo.get("truncation") == "bootstrap"
        self._engine = engine or make_engine(config, policy)
        self._pool = pool or make_pool(config)
        self._lost: dict[int, EnvFailure] = {}
        self._commands: dict[str, list[int]] = {}
        self._stepper = ThreadPoolExecutor(1, thread_name_prefix="env")

    def __enter__(self) -> Player:
        return self

    def __exit__(self, *exception: object) -> None:
        # What waits in line is of no use any more; what is being asked ends in its own time.
        self._stepper.shutdown(wait=True, cancel_futures=True)
        self._pool.close()

    def check_context(self, tasks: list[Task]) -> None:
        """Reset every task and see that its first turn fits.

        Raises ConfigError naming `policy.context`, EnvError when a task cannot be reset.
        """
        size = self._config.engine.max_batch
        for start in range(0, len(tasks), size):
            seats = [Seat(task, 0, 0, (), slot) for slot, task in enumerate(tasks[start:][:size])]
            steps = self._pool.reset({seat.slot: seat.task for seat in seats})
            self._pool.release([seat.slot for seat in seats])
            for seat in seats:
                step = steps[seat.slot]
                if isinstance(step, EnvFailure):
                    raise EnvError(f"task {seat.task.id} cannot be reset: {step.message}")
                seat.conversation = self._converse(step)
                if not self._fits(seat.conversation):
                    raise ConfigError(self._too_small(seat))

    def play(self, tasks: list[Task], iteration: int) -> list[Group]:
        """Play `algo.group_size` episodes of every task at the training temperature.

        Groups with errored members shrink, see `Group.alive`; groups below `smallest_group` are
        left out. Raises EnvError when more than half of the episodes error or no group is left.
        """
        size, config = self._config.algo.group_size, self._config
        drawn: Counter[str] = Counter()
        seats = []
        for group, task in enumerate(tasks):
            for member in range(size):
                # A task drawn twice must not be played twice with the same numbers.
                key = ("sample", iteration, task.id, member + size * drawn[task.id])
                seats.append(Seat(task, group, member, (config.seed, *key)))
            drawn[task.id] += 1
        episodes = self._play(seats, config.policy.temperature)
        groups = [
            Group(task, index, episodes[index * size : (index + 1) * size])
            for index, task in enumerate(tasks)
        ]
        kept = [group for group in groups if len(group.alive) >= self._smallest]
        self.health.counts["groups_dropped"] = len(groups) - len(kept)
        self.health.counts["groups_shrunk"] = sum(len(group.alive) < size for group in kept)
        if not kept:
            raise EnvError(f"no group has {self._smallest} episodes left; {_first_error(episodes)}")
        check_groups(kept, size, self._smallest)
        return kept

    def evaluate(
        self, suite: Suite, iteration: int, greedy: bool = False, sample: int = 0
    ) -> list[Episode]:
        """Play each task of the suite once, in order; `sample` numbers independent repetitions.

        Greedy, or at the training temperature. An errored episode stays in the list and is not
        a success. Raises EnvError when more than half of the episodes error.
        """
        seats = [
            Seat(task, index, sample, (self._config.seed, "eval", iteration, task.id, sample))
            for index, task in enumerate(suite.tasks)
        ]
        return self._play(seats, 0.0 if greedy else self._config.policy.temperature)

    def _play(self, seats: list[Seat], temperature: float) -> list[Episode]:
        self.health, fed = Health(), self._engine.prefilled
        known = self._pool.counts
        self._play_out(seats, temperature)
        episodes = [seat.episode(number, self.policy.version) for number, seat in enumerate(seats)]
        self.health.add(episodes)
        self.health.counts["tokens_prefilled"] = self._engine.prefilled - fed
        for name in ("resets_saved", "steps_saved"):
            self.health.counts[name] = self._pool.counts[name] - known[name]
        self.health.counts["errors"] = failed = sum(e.ended == "error" for e in episodes)
        self.health.counts["prefix_breaks"] = sum(
            seat.conversation.prefix_breaks for seat in seats if seat.conversation
        )
        if 2 * failed > len(episodes):
            raise EnvError(f"{failed} of {len(episodes)} episodes failed; {_first_error(episodes)}")
        return episodes

    def _play_out(self, seats: list[Seat], temperature: float) -> None:
        """Play every seat to its end; one that ends leaves its slot to the next in order.

        Time is counted in tokens: while others draw `engine.lag` more, the environment of a
        finished turn answers, and then its answer is waited for. So who is in which batch depends
        on what was sampled and never on how long anything took.
        """
        free, waiting = deque(range(min(len(seats), self._slots))), deque(seats)
        calls: deque[Call] = deque()
        speaking: dict[int, Seat] = {}
        tick, lag = 0, int(self._config.engine.lag)
        while waiting or calls or speaking:
            if opened := self._open(waiting, free):
                asked = {seat.slot: seat.task for seat in opened}
                calls.append(Call(tick + 1 + lag, opened, self._stepper.submit(self._reset, asked)))
            if not speaking:
                tick = max(tick, calls[0].due)
            while calls and calls[0].due <= tick:
                for seat in self._take(calls.popleft()):
                    if seat.ended is None:
                        speaking[seat.slot] = seat
                    else:
                        free.append(seat.slot)
            if actions := self._advance(speaking, temperature):
                acted = [speaking.pop(slot) for slot in actions]
                calls.append(Call(tick + 1 + lag, acted, self._stepper.submit(self._step, actions)))
            tick += 1
        self._pool.release(list(free))

    def _open(self, waiting: deque[Seat], free: deque[int]) -> list[Seat]:
        """The next seats in order, as many as have a slot."""
        opened = []
        while waiting and free and len(opened) < OPENED:
            seat = waiting.popleft()
            seat.slot = free.popleft()
            opened.append(seat)
        return opened

    def _take(self, call: Call) -> list[Seat]:
        """Wait for the answers to a call; its seats, those that go on asked for their next turn."""
        start = time.perf_counter()
        answers = call.answers.result()
        self.health.seconds["wait"] += time.perf_counter() - start
        for seat in call.seats:
            self._take_in(seat, answers[seat.slot])
        self._engine.add(
            [
                Request(
                    seat.slot, seat.prompt, (*seat.key, len(seat.turns)), self._choices(seat.step)
                )
                for seat in call.seats
                if seat.ended is None
            ]
        )
        return call.seats

    def _advance(self, speaking: dict[int, Seat], temperature: float) -> dict[int, str]:
        """A token more for every seat that speaks; the actions that are complete, by slot."""
        start = time.perf_counter()
        samples = self._engine.advance(temperature) if speaking else {}
        self.health.seconds["generation"] += time.perf_counter() - start
        return {slot: speaking[slot].act(sample) for slot, sample in samples.items()}

    @property
    def _slots(self) -> int:
        return int(self._config.engine.max_batch)

    def _reset(self, tasks: dict[int, Task]) -> dict[int, Step | EnvFailure]:
        """Begin episodes, in the stepping thread; what was lost of these slots is forgotten."""
        for slot in tasks:
            self._lost.pop(slot, None)
        return self._ask(self._pool.reset, tasks)

    def _step(self, actions: dict[int, str]) -> dict[int, Step | EnvFailure]:
        """Step episodes, in the stepping thread, but for those that were lost meanwhile."""
        lost = {slot: self._lost.pop(slot) for slot in actions if slot in self._lost}
        left = {slot: action for slot, action in actions.items() if slot not in lost}
        return lost | self._ask(self._pool.step, left)

    def _ask(self, call: Callable[[dict], dict], asked: dict) -> dict[int, Step | EnvFailure]:
        """Call the pool. A worker that is replaced may lose episodes that nobody asked about:
        those failures wait for the next call about them."""
        start = time.perf_counter()
        answers = call(asked)
        self.health.seconds["env"] += time.perf_counter() - start
        self._lost |= {slot: answer for slot, answer in answers.items() if slot not in asked}
        return {slot: answers[slot] for slot in asked}

    def _take_in(self, seat: Seat, step: Step | EnvFailure) -> None:
        """What the environment said to a seat: its next prompt, or the end of its episode."""
        if isinstance(step, EnvFailure):
            seat.end("error", f"{step.kind}: {step.message}")
        elif seat.conversation is None:
            conversation = self._converse(step)
            seat.open(step, conversation)
            if not self._fits(conversation):
                seat.end("error", self._too_small(seat))
        else:
            seat.pay(step)
            if step.won:
                seat.end("won")
            elif step.lost or step.terminated:
                seat.end("lost")
            elif len(seat.turns) >= self._env.max_turns:
                seat.end("turn_limit")
                if self._bootstraps:
                    self._leave_open(seat, step)
            else:
                seat.conversation.observe(step)
                if not self._fits(seat.conversation):
                    seat.end("context")
        if seat.ended is not None:
            self._engine.release([seat.slot])

    def _leave_open(self, seat: Seat, step: Step) -> None:
        """Keep what the seat would have answered next, for the critic to value."""
        assert seat.conversation is not None
        seat.conversation.observe(step)
        if len(seat.prompt) <= self._limits.context:
            seat.unanswered = seat.prompt
        else:
            self.health.counts["not_bootstrapped"] += 1

    def _converse(self, first: Step) -> Conversation:
        env = self._env
        return Conversation(self.policy.chat, first, env.history_window, env.show_admissible)

    def _fits(self, conversation: Conversation) -> bool:
        room = self._limits.context - self._limits.max_tokens
        return len(conversation.prompt) <= room

    def _too_small(self, seat: Seat) -> str:
        assert seat.conversation is not None
        limits = self._limits
        length = len(seat.conversation.prompt)
        return (
            f"policy.context={limits.context} is too small for the first turn of task "
            f"{seat.task.id}: its prompt has {length} tokens, an answer up to "
            f"{limits.max_tokens} (policy.max_tokens); set policy.context to at least "
            f"{length + limits.max_tokens}"
        )

    def _choices(self, step: Step) -> list[list[int]] | None:
        """Token ids of the admissible commands, when decoding is constrained to them."""
        if not self._env.constrain:
            return None
        if not step.admissible:
            raise ConfigError(
                f"env.constrain=true, but env.family={self._env.family} names no admissible "
                "commands here; set env.constrain=false"
            )
        return [self._command_ids(command) for command in step.admissible]

    def _command_ids(self, command: str) -> list[int]:
        if command not in self._commands:
            ids = list(self.policy.tokenizer(command, add_special_tokens=False)["input_ids"])
            if self.policy.chat.text(ids) != command:
                raise PolicyError(
                    f"env.constrain=true, but the tokenizer turns the command {command!r} into "
                    f"{self.policy.chat.text(ids)!r}; set env.constrain=false"
                )
            self._commands[command] = ids
        return self._commands[command]


def make_engine(config: Any, policy: Policy) -> Engine:
    """The engine that `engine.name` names; ConfigError for others."""
    if config.engine.name != "torch":
        raise ConfigError(f"engine={config.engine.name} does not exist; the engine is engine=torch")
    limits = config.policy
    return TorchEngine(
        policy, config.engine.max_batch, limits.context, limits.max_tokens, policy.shares_trunk
    )


def make_pool(config: Any) -> EnvPool:
    """Workers that host environments of `env.family`, with only what is used requested."""
    return EnvPool(make_env_spec(config), config.env.workers, config.env.timeout)


def _plain(group: Any) -> SimpleNamespace:
    return SimpleNamespace(**{name: group[name] for name in group})


def _first_error(episodes: list[Episode]) -> str:
    first = next((e for e in episodes if e.ended == "error"), None)
    return f"the first: task {first.task.id}: {first.error}" if first else "none failed"
