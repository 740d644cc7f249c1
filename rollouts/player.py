"""A policy plays episodes: engine and environments take turns, batch by batch."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
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
        self._engine = engine or make_engine(config, policy)
        self._pool = pool or make_pool(config)
        self._lost: dict[int, EnvFailure] = {}
        self._commands: dict[str, list[int]] = {}
        self._stepper = ThreadPoolExecutor(1, thread_name_prefix="env")

    def __enter__(self) -> Player:
        return self

    def __exit__(self, *exception: object) -> None:
        self._stepper.shutdown(wait=True)
        self._pool.close()

    def check_context(self, tasks: list[Task]) -> None:
        """Reset every task and see that its first turn fits.

        Raises ConfigError naming `policy.context`, EnvError when a task cannot be reset.
        """
        for wave in self._waves([Seat(task, 0, 0, ()) for task in tasks]):
            steps = self._pool.reset({seat.slot: seat.task for seat in wave})
            self._pool.release([seat.slot for seat in wave])
            for seat in wave:
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
        for wave in self._waves(seats):
            self._play_wave(wave, temperature)
        episodes = [seat.episode(number, self.policy.version) for number, seat in enumerate(seats)]
        self.health.add(episodes)
        self.health.counts["tokens_prefilled"] = self._engine.prefilled - fed
        self.health.counts["errors"] = failed = sum(e.ended == "error" for e in episodes)
        self.health.counts["prefix_breaks"] = sum(
            seat.conversation.prefix_breaks for seat in seats if seat.conversation
        )
        if 2 * failed > len(episodes):
            raise EnvError(f"{failed} of {len(episodes)} episodes failed; {_first_error(episodes)}")
        return episodes

    def _play_wave(self, wave: list[Seat], temperature: float) -> None:
        """Two halves take turns: while one generates, the environments of the other step.

        Which episodes make a half depends on their order alone, so timing changes no number.
        """
        halves = _halves(wave)
        waiting: list[Future | None] = [
            self._submit(self._pool.reset, {seat.slot: seat.task for seat in half})
            for half in halves
        ]
        while any(future is not None for future in waiting):
            for number, half in enumerate(halves):
                future = waiting[number]
                if future is None:
                    continue
                start = time.perf_counter()
                steps = future.result()
                self.health.seconds["wait"] += time.perf_counter() - start
                for seat in half:
                    if seat.slot in steps:
                        self._take_in(seat, steps[seat.slot])
                live = [seat for seat in half if seat.ended is None]
                actions = self._generate(live, temperature)
                waiting[number] = self._submit(self._pool.step, actions) if actions else None
        self._pool.release([seat.slot for seat in wave])
        self._lost.clear()

    def _submit(self, call: Callable[[dict], dict], asked: dict) -> Future:
        return self._stepper.submit(self._ask, call, asked)

    def _ask(self, call: Callable[[dict], dict], asked: dict) -> dict[int, Step | EnvFailure]:
        """Call the pool, in the stepping thread, about the slots of one half.

        A worker that is replaced may lose episodes of the other half too: those failures wait
        for the next call about them.
        """
        start = time.perf_counter()
        lost = {slot: self._lost.pop(slot) for slot in asked if slot in self._lost}
        answers = call({slot: what for slot, what in asked.items() if slot not in lost})
        self._lost |= {slot: answer for slot, answer in answers.items() if slot not in asked}
        self.health.seconds["env"] += time.perf_counter() - start
        return {slot: answers.get(slot) or lost[slot] for slot in asked}

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
            elif len(seat.turns) >= self._config.env.max_turns:
                seat.end("turn_limit")
                if self._config.algo.get("truncation") == "bootstrap":
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
        if len(seat.prompt) <= self._config.policy.context:
            seat.unanswered = seat.prompt
        else:
            self.health.counts["not_bootstrapped"] += 1

    def _generate(self, seats: list[Seat], temperature: float) -> dict[int, str]:
        """One action for every seat, by slot."""
        start = time.perf_counter()
        requests = [
            Request(
                seat.slot,
                seat.prompt,
                (*seat.key, len(seat.turns)),
                self._choices(seat.step),
            )
            for seat in seats
        ]
        samples = self._engine.generate(requests, temperature)
        self.health.seconds["generation"] += time.perf_counter() - start
        return {seat.slot: seat.act(sample) for seat, sample in zip(seats, samples, strict=True)}

    def _waves(self, seats: list[Seat]) -> list[list[Seat]]:
        """Seats in order, as many at once as the engine has rows; slots are numbered in a wave."""
        size = self._config.engine.max_batch
        waves = [seats[start : start + size] for start in range(0, len(seats), size)]
        for wave in waves:
            for slot, seat in enumerate(wave):
                seat.slot = slot
        return waves

    def _converse(self, first: Step) -> Conversation:
        env = self._config.env
        return Conversation(self.policy.chat, first, env.history_window, env.show_admissible)

    def _fits(self, conversation: Conversation) -> bool:
        room = self._config.policy.context - self._config.policy.max_tokens
        return len(conversation.prompt) <= room

    def _too_small(self, seat: Seat) -> str:
        assert seat.conversation is not None
        limits = self._config.policy
        length = len(seat.conversation.prompt)
        return (
            f"policy.context={limits.context} is too small for the first turn of task "
            f"{seat.task.id}: its prompt has {length} tokens, an answer up to "
            f"{limits.max_tokens} (policy.max_tokens); set policy.context to at least "
            f"{length + limits.max_tokens}"
        )

    def _choices(self, step: Step) -> list[list[int]] | None:
        """Token ids of the admissible commands, when decoding is constrained to them."""
        if not self._config.env.constrain:
            return None
        if not step.admissible:
            raise ConfigError(
                f"env.constrain=true, but env.family={self._config.env.family} names no admissible "
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


def _halves(wave: list[Seat]) -> list[list[Seat]]:
    """Two halves of a wave, cut between groups so that a group's prompt is computed once."""
    cuts = [i for i in range(1, len(wave)) if wave[i].group != wave[i - 1].group]
    if not cuts:
        return [wave]
    middle = min(cuts, key=lambda i: abs(2 * i - len(wave)))
    return [wave[:middle], wave[middle:]]


def _first_error(episodes: list[Episode]) -> str:
    first = next((e for e in episodes if e.ended == "error"), None)
    return f"the first: task {first.task.id}: {first.error}" if first else "none failed"
