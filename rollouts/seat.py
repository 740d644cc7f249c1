"""One episode while it is played."""

from __future__ import annotations

from dataclasses import dataclass, field

from envs.base import Step, Task
from rollouts.conversation import Conversation
from rollouts.engine import Sample
from rollouts.rows import check_rewards, check_tokens
from rollouts.types import Ended, Episode, Turn
from runs.errors import InvariantError


@dataclass
class Seat:
    """`slot` is its name for engine and environments, `key` seeds the draws of its turns."""

    task: Task
    group: int
    member: int
    key: tuple[int | str, ...]
    slot: int = 0
    turns: list[Turn] = field(default_factory=list)
    paid: float = 0.0
    ended: Ended | None = None
    error: str | None = None
    conversation: Conversation | None = None
    step: Step = field(default_factory=lambda: Step("", ""))
    unanswered: list[int] | None = None

    def open(self, step: Step, conversation: Conversation) -> None:
        self.step, self.conversation = step, conversation
        self.paid = step.reward

    @property
    def prompt(self) -> list[int]:
        """Ids of the current row up to where the assistant speaks, a copy."""
        assert self.conversation is not None
        return list(self.conversation.prompt)

    def act(self, sample: Sample) -> str:
        """Record what was sampled as a turn; returns the action as text."""
        assert self.conversation is not None
        action = self.conversation.act(sample)
        self.turns.append(
            Turn(
                self.step.observation,
                action,
                sample.ids,
                sample.logp,
                stopped=sample.stopped,
                allowed=sample.allowed,
                values=sample.values,
                potential=self.step.potential,
            )
        )
        return action

    def pay(self, step: Step) -> None:
        """Record what the environment answered to the last turn."""
        turn = self.turns[-1]
        turn.reward, turn.invalid = step.reward, step.invalid
        turn.cut = bool(step.events.get("cut", False))
        self.paid += step.reward
        self.step = step

    def end(self, ended: Ended, error: str | None = None) -> None:
        if self.ended is not None:
            raise InvariantError(
                f"task {self.task.id}: an episode that ended as {self.ended} ends as {ended}"
            )
        self.ended, self.error = ended, error

    def episode(self, number: int, version: int) -> Episode:
        """The finished episode; rules 1 and 2 are asserted. An errored one has no rows."""
        if self.ended is None:
            raise InvariantError(f"task {self.task.id}: the episode has not ended")
        episode = Episode(
            self.task,
            self.member,
            self.turns,
            self.ended,
            objective=self.step.objective,
            paid=self.paid,
            error=self.error,
            final_observation=self.step.observation,
            unanswered=self.unanswered,
            final_potential=self.step.potential,
        )
        if self.ended != "error":
            assert self.conversation is not None
            episode.rows = self.conversation.rows(number, self.group, self.member, version)
            check_tokens(episode)
            check_rewards(episode)
        return episode
