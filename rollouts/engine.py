"""What a player asks of a generation engine: `Request` in, `Sample` out, behind `Engine`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass
class Request:
    """One turn of one conversation.

    `slot` names the conversation: an engine may keep its key/value cache until `release(slot)`.
    `prompt` is the whole row so far, up to where the assistant speaks; engines compare it with
    what they have cached, so a rewritten history costs time and never correctness.
    `key` seeds the draws, `(seed, purpose, counters…)` of `runs.rng.key`.
    `choices` are the only answers allowed (token ids without a stop token), None for free text.
    """

    slot: int
    prompt: list[int]
    key: tuple[int | str, ...]
    choices: list[list[int]] | None = None


@dataclass
class Sample:
    """What was sampled; `ids` end with the stop token when `stopped`.

    `logp[i]` is the log-probability of `ids[i]` at the sampling temperature (at temperature 1
    when greedy), over `allowed[i]` when decoding was constrained. `values[i]` is the critic read
    before token i, None unless critic and actor share their trunk.
    """

    ids: list[int]
    logp: list[float]
    stopped: bool
    allowed: list[list[int]] | None = None
    values: list[float] | None = None


class Engine(Protocol):
    """Generates assistant messages, as many conversations at once as are asked for.

    `prefilled` counts the prompt tokens that were computed so far, cached ones left out.
    """

    prefilled: int

    def add(self, requests: Sequence[Request]) -> None:
        """Ask for answers, beside those that are still being generated."""
        ...

    def advance(self, temperature: float) -> dict[int, Sample]:
        """Go on generating until at least a token later; what has ended by then, by slot.

        Temperature 0 is greedy. What one call does depends on requests and token counts alone,
        never on time (design, rule 11).
        """
        ...

    def release(self, slots: Sequence[int]) -> None:
        """Forget these conversations; unknown slots are ignored."""
        ...
