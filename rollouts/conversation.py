"""The token side of an episode: one prompt that grows, or new rows where it cannot."""

from __future__ import annotations

from envs.base import Step
from policies.chat import ChatForm, Message, first_message, show
from rollouts.engine import Sample
from rollouts.rows import RowBuilder
from rollouts.types import Row


class Conversation:
    """Messages of one episode and the rows they become.

    `window` turns of history (None for all) stand before the current observation; when an older
    turn falls out, or the chat template rewrites what came before, a new row begins.
    `listed`: admissible commands are shown with every observation.
    """

    def __init__(self, chat: ChatForm, first: Step, window: int | None, listed: bool) -> None:
        self._chat, self._window, self._listed = chat, window, listed
        self._shown = [first]
        self._messages: list[Message] = [self._opening(first)]
        self._builders = [RowBuilder(chat.prompt(self._messages))]
        self._last: list[int] = []
        self.prefix_breaks = 0

    @property
    def prompt(self) -> list[int]:
        """Ids of the current row up to where the assistant speaks."""
        return self._builders[-1].ids

    def act(self, sample: Sample) -> str:
        """Take in what was sampled this turn; returns it as text."""
        self._builders[-1].act(sample, turn=len(self._shown) - 1)
        self._last = sample.ids
        return self._chat.text(sample.ids)

    def hear(self, ids: list[int]) -> None:
        """Take in an answer that nobody sampled and that is not to be learned."""
        self._builders[-1].extend(ids)
        self._last = ids

    def observe(self, step: Step) -> None:
        """Take in the next observation, so that the assistant can speak again."""
        answer = self._chat.user(show(step.observation, self._commands(step)))
        # A window of N shows N finished turns: the last one counts already.
        full = self._window is None or len(self._shown) <= self._window
        extension = self._chat.extend(self._messages, self._last, answer) if full else None
        self.prefix_breaks += full and extension is None
        self._messages += [self._chat.assistant(self._last), answer]
        self._shown.append(step)
        if extension is None:
            self._builders.append(RowBuilder(self._chat.prompt(self._recent())))
        else:
            self._builders[-1].extend(extension)

    def rows(self, episode: int, group: int, member: int, version: int) -> list[Row]:
        return [
            builder.row(episode, group, member, version)
            for builder in self._builders
            if builder.acted
        ]

    def _opening(self, step: Step) -> Message:
        objective = self._shown[0].objective
        return self._chat.user(first_message(objective, step.observation, self._commands(step)))

    def _commands(self, step: Step) -> tuple[str, ...]:
        return step.admissible if self._listed else ()

    def _recent(self) -> list[Message]:
        """The messages that are still shown; the objective opens the oldest of them."""
        if self._window is None or len(self._shown) <= self._window + 1:
            return self._messages
        start = len(self._shown) - 1 - self._window
        return [self._opening(self._shown[start]), *self._messages[2 * start + 1 :]]
