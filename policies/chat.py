"""How a conversation becomes tokens: a prompt grows by what is new and is never encoded twice.

Sampled ids enter a row as they were sampled. The text around them comes from the model's own chat
template: what the template adds after an answer is found by rendering, and where rendering changes
what came before (a template that strips earlier thinking, say) the prefix is broken and the caller
begins a new row.
"""

from __future__ import annotations

from typing import TypedDict

from transformers import PreTrainedTokenizerBase

from runs.errors import PolicyError


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
        self._tail = self._tail_after_answer()

    def user(self, text: str) -> Message:
        """A user message; text that spells a special token is spaced, so that it stays text."""
        for special in self.specials:
            text = text.replace(special, f"{special[0]} {special[1:]}")
        return {"role": "user", "content": text}

    def assistant(self, ids: list[int]) -> Message:
        return {"role": "assistant", "content": self.text(ids)}

    def text(self, ids: list[int]) -> str:
        """The answer as text, without its stop token."""
        kept = ids[:-1] if ids and ids[-1] in self.stop_ids else ids
        text = self.tokenizer.decode(
            kept, skip_special_tokens=False, clean_up_tokenization_spaces=False
        )
        return text if isinstance(text, str) else "".join(text)

    def prompt(self, messages: list[Message]) -> list[int]:
        """Ids of the whole conversation, up to where the assistant speaks."""
        return self._encode(self._render(messages, generate=True))

    def extend(self, messages: list[Message], ids: list[int], answer: Message) -> list[int] | None:
        """What follows the sampled `ids`: the rest of the answer's frame, then `answer`.

        `messages` ends with the user message that was answered. Returns None when the template
        does not keep the conversation so far as a prefix.
        """
        reply = self.assistant(ids)
        before = self._render(messages, generate=True) + reply["content"]
        after = self._render([*messages, reply, answer], generate=True)
        if not after.startswith(before):
            return None
        frame = after[len(before) :]
        if ids and ids[-1] in self.stop_ids:
            stop = self._encode(frame)[:1]
            sampled = self.tokenizer.convert_ids_to_tokens(ids[-1])
            if stop == [ids[-1]]:
                return self._encode(frame)[1:]
            # Another stop token than the template's own ended the turn; it takes its place.
            return self._encode(frame.removeprefix(str(sampled)).removeprefix(self._tail))
        return self._encode(frame)

    def _tail_after_answer(self) -> str:
        """The template's end-of-turn text, learned by rendering a short conversation."""
        question: Message = {"role": "user", "content": "a"}
        reply: Message = {"role": "assistant", "content": "b"}
        before = self._render([question], generate=True) + "b"
        after = self._render([question, reply, question], generate=True)
        if not after.startswith(before):
            return ""
        ids = self._encode(after[len(before) :])
        if ids and ids[0] in self.stop_ids:
            return str(self.tokenizer.convert_ids_to_tokens(ids[0]))
        return ""

    def _render(self, messages: list[Message], generate: bool) -> str:
        plain = [{"role": message["role"], "content": message["content"]} for message in messages]
        text = self.tokenizer.apply_chat_template(
            plain, tokenize=False, add_generation_prompt=generate
        )
        assert isinstance(text, str)
        return text

    def _encode(self, text: str) -> list[int]:
        return list(self.tokenizer(text, add_special_tokens=False)["input_ids"])
