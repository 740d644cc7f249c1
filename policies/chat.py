"""How a conversation becomes tokens: a prompt grows by what is new and is never encoded twice.

Sampled ids enter a row as they were sampled. The text around them comes from the model's own chat
template: what the template adds after an answer is found by rendering, and where rendering changes
what came before (a template that strips earlier thinking, say) the prefix is broken and the caller
begins a new row.

Rendering a conversation each turn costs the square of its length. Most templates only ever add, so
they are tried on made-up conversations: where what follows an answer depends on the next message
alone, a short conversation that ends in the same message tells it. That holds for plain text, as in
the trials; a conversation with anything that a template could look for is rendered in full.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from itertools import cycle, islice
from typing import TypedDict

from transformers import PreTrainedTokenizerBase

from runs.errors import PolicyError

# Texts whose ids are kept; observations and answers repeat a lot.
KEPT = 2048
# Markup that templates know (tags, JSON, switches such as /think) needs other characters; what
# some templates strip lies at the ends.
_PLAIN = {
    "user": re.compile(r"(?!\s)[A-Za-z0-9 \n.,;:?!'\"()*&%_+~@$^=-]+(?<!\s)"),
    "assistant": re.compile(r"(?! )[A-Za-z0-9 .,;:?!'-]+(?<! )"),
}
_TRIAL_QUESTIONS = (
    "A",
    '-= Hall =-\nYou see a "type J" key (closed), and  more.\n\nWhat\'s next? 100% & = + * ~ ^ @ $',
    "You can't see any such thing. " * 100 + "End",
    "_ Well: yes; no!",
)
_TRIAL_ANSWERS = ("go", "Take the  Key, 2 of them; now: why? - it's so!", "on and " * 100 + "on")
_TRIAL_TURNS = (1, 2, 3, 4, 5, 6, 7, 8, 13, 34)


class Message(TypedDict):
    role: str
    content: str


def first_message(objective: str, observation: str, admissible: tuple[str, ...] = ()) -> str:
    """The user's first message: the objective, then what is seen."""
    return "\n".join(part for part in (objective, show(observation, admissible)) if part)


def show(observation: str, admissible: tuple[str, ...] = ()) -> str:
    """An observation as a user message; the commands are listed when there are any."""
    if not admissible:
        return observation
    return f"{observation}\nAvailable commands: {', '.join(admissible)}"


class ChatForm:
    """The chat form of one tokenizer.

    Raises:
        PolicyError: the tokenizer has no chat template, or no end-of-turn token.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, name: str, stop_ids: list[int]):
        if not tokenizer.chat_template:
            raise PolicyError(
                f"policy.path: {name} has no chat template; use an instruction-tuned model, or "
                "save a template with its tokenizer (tokenizer.chat_template)"
            )
        self.tokenizer = tokenizer
        self.stop_ids = set(stop_ids)
        self.specials = [token for token in tokenizer.all_special_tokens if len(token) > 1]
        self._text = lru_cache(KEPT)(self._decode)
        self._short_frame = lru_cache(KEPT)(self._frame_after_short)
        self._rest = lru_cache(KEPT)(self._rest_of_frame)
        self._tail = self._tail_after_answer()
        self.only_adds = self._only_adds()

    def user(self, text: str) -> Message:
        """A user message; text that spells a special token is spaced, so that it stays text."""
        for special in self.specials:
            text = text.replace(special, f"{special[0]} {special[1:]}")
        return {"role": "user", "content": text}

    def assistant(self, ids: list[int]) -> Message:
        return {"role": "assistant", "content": self.text(ids)}

    def text(self, ids: list[int]) -> str:
        """The answer as text, without its stop token."""
        return self._text(tuple(ids[:-1] if ids and ids[-1] in self.stop_ids else ids))

    def prompt(self, messages: list[Message]) -> list[int]:
        """Ids of the whole conversation, up to where the assistant speaks."""
        return self._encode(self._render(messages, generate=True))

    def extend(self, messages: list[Message], ids: list[int], answer: Message) -> list[int] | None:
        """What follows the sampled `ids`: the rest of the answer's frame, then `answer`.

        `messages` ends with the user message that was answered. Returns None when the template
        does not keep the conversation so far as a prefix.
        """
        reply = self.assistant(ids)
        if self.only_adds and _plain([*messages, reply, answer]):
            frame = self._short_frame(answer["content"])
        else:
            frame = self._frame(messages, reply, answer)
        if frame is None:
            return None
        return list(self._rest(frame, ids[-1] if ids and ids[-1] in self.stop_ids else None))

    def _frame(self, messages: list[Message], reply: Message, answer: Message) -> str | None:
        """What the template puts between the text of the reply and the assistant's next turn."""
        before = self._render(messages, generate=True) + reply["content"]
        after = self._render([*messages, reply, answer], generate=True)
        return after[len(before) :] if after.startswith(before) else None

    def _frame_after_short(self, text: str) -> str | None:
        question, reply, answer = _alternate([_TRIAL_QUESTIONS[0], _TRIAL_ANSWERS[0], text])
        return self._frame([question], reply, answer)

    def _rest_of_frame(self, frame: str, stop: int | None) -> tuple[int, ...]:
        """Ids of a frame, less the stop token that the answer ended with."""
        ids = self._encode(frame)
        if stop is None:
            return tuple(ids)
        if ids[:1] == [stop]:
            return tuple(ids[1:])
        # Another stop token than the template's own ended the turn; it takes its place.
        sampled = str(self.tokenizer.convert_ids_to_tokens(stop))
        return tuple(self._encode(frame.removeprefix(sampled).removeprefix(self._tail)))

    def _only_adds(self) -> bool:
        """Whether the frame depends on the next message alone, in all trials."""
        for turns in _TRIAL_TURNS:
            for shift in range(len(_TRIAL_QUESTIONS)):
                questions = islice(cycle(_TRIAL_QUESTIONS), shift, None)
                answers = islice(cycle(_TRIAL_ANSWERS), shift, None)
                texts = [next(source) for _ in range(turns) for source in (questions, answers)]
                *messages, reply, answer = _alternate([*texts, next(questions)])
                frame = self._frame(messages, reply, answer)
                if frame is None or frame != self._short_frame(answer["content"]):
                    return False
        return True

    def _tail_after_answer(self) -> str:
        """The template's end-of-turn text, learned by rendering a short conversation."""
        ids = self._encode(self._short_frame(_TRIAL_QUESTIONS[0]) or "")
        if ids and ids[0] in self.stop_ids:
            return str(self.tokenizer.convert_ids_to_tokens(ids[0]))
        return ""

    def _decode(self, ids: tuple[int, ...]) -> str:
        text = self.tokenizer.decode(
            list(ids), skip_special_tokens=False, clean_up_tokenization_spaces=False
        )
        return text if isinstance(text, str) else "".join(text)

    def _render(self, messages: list[Message], generate: bool) -> str:
        text = self.tokenizer.apply_chat_template(
            messages,  # type: ignore[arg-type]
            tokenize=False,
            add_generation_prompt=generate,
        )
        assert isinstance(text, str)
        return text

    def _encode(self, text: str) -> list[int]:
        return list(self.tokenizer(text, add_special_tokens=False)["input_ids"])


def _alternate(texts: Sequence[str]) -> list[Message]:
    roles = cycle(("user", "assistant"))
    return [{"role": role, "content": text} for role, text in zip(roles, texts, strict=False)]


def _plain(messages: Sequence[Message]) -> bool:
    """Whether a template can find nothing in these texts, and nothing but them."""
    roles = cycle(("user", "assistant"))
    return all(
        message["role"] == role and _plain_text(role, message["content"])
        for role, message in zip(roles, messages, strict=False)
    )


@lru_cache(2 * KEPT)
def _plain_text(role: str, text: str) -> bool:
    return _PLAIN[role].fullmatch(text) is not None
