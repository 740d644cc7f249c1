"""Generation in process: conversations join and leave a batch that never stops decoding."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from rollouts.engine import Request, Sample
from rollouts.kv_cache import Region
from rollouts.layout import Layout, Prefix, Span
from rollouts.sampling import Answer, draw_next
from runs.errors import InvariantError, PolicyError

if TYPE_CHECKING:
    from policies.policy import Policy

PASS_TOKENS = 4096  # tokens of one forward pass that only reads: bounds its memory


@dataclass
class Talk:
    """A conversation: what it shares with others, and what is cached behind that.

    `due` are the tokens that the next pass must feed, at least the last one of what is known.
    """

    prefix: Prefix
    own: list[int]
    due: list[int]


class TorchEngine:
    """`Engine` on a transformers causal LM.

    What conversations that begin alike have in common, the first prompt but for its last token,
    is their prefix and kept once; what follows is a conversation's own. Each pass feeds every
    answer what it lacks, an observation or the token just drawn, and draws one token more.
    """

    def __init__(
        self, policy: Policy, max_batch: int, context: int, max_tokens: int, values: bool = False
    ) -> None:
        """`max_batch` conversations of at most `context` tokens, `max_tokens` sampled a turn;
        `values` reads a critic that shares the trunk. Raises PolicyError for a model whose
        attention keeps no keys and values, or not all of them."""
        _check_attention(policy.model.config, context)
        self.policy, self.max_tokens, self._values = policy, max_tokens, values
        self._rows, self._context = max_batch, context
        self._talks: dict[int, Talk] = {}
        self._answers: dict[int, Answer] = {}
        self._begun: Counter[Prefix] = Counter()
        self._prefixes: Region[Prefix] = Region()
        self._own: Region[int] = Region()
        self._version = policy.version
        self.prefilled = 0

    @property
    def busy(self) -> bool:
        return bool(self._answers)

    def add(self, requests: Sequence[Request]) -> None:
        """Ask for answers. A changed policy version voids every cached conversation."""
        if self.policy.version != self._version:
            if self.busy:
                raise InvariantError("the policy changed while its answers were being generated")
            self._forget()
            self._version = self.policy.version
        alike = Counter(tuple(request.prompt[:-1]) for request in requests)
        for request in requests:
            longest = len(request.prompt) + self.max_tokens
            if longest > self._context:
                raise InvariantError(
                    f"a turn needs {longest} tokens of policy.context={self._context}"
                )
            if request.slot in self._answers:
                raise InvariantError(f"slot {request.slot} is asked while it still answers")
            self._take_up(request, alike[tuple(request.prompt[:-1])] > 1)
            answer = Answer(request, self.max_tokens, self.policy.stop_ids)
            self._answers[request.slot] = answer
        if len(self._talks) > self._rows:
            raise InvariantError(
                f"{len(self._talks)} conversations for the {self._rows} rows of the engine; "
                "play fewer episodes at once (engine.max_batch)"
            )

    def advance(self, temperature: float) -> dict[int, Sample]:
        """One token more for every answer asked for; those that are finished, by slot."""
        if not self._answers:
            return {}
        with torch.no_grad(), _evaluating(self.policy.model):
            hidden = self._feed()
            values = self.policy.values(hidden).tolist() if self._values else [None] * len(hidden)
            answers = list(self._answers.values())
            drawn = draw_next(answers, self.policy.logits(hidden), temperature)
        finished = {}
        for slot, token, logp, value in zip(list(self._answers), *drawn, values, strict=True):
            talk = self._talks[slot]
            talk.own += talk.due
            talk.due = [token]
            sample = self._answers[slot].take(token, logp, value)
            if sample is not None:
                finished[slot] = sample
                del self._answers[slot]
        return finished

    def generate(self, requests: Sequence[Request], temperature: float) -> list[Sample]:
        """Samples in the order of the requests, which run together until the last one ends."""
        self.add(requests)
        samples: dict[int, Sample] = {}
        while self.busy:
            samples |= self.advance(temperature)
        return [samples[request.slot] for request in requests]

    def release(self, slots: Sequence[int]) -> None:
        for slot in slots:
            talk = self._talks.pop(slot, None)
            if talk is None:
                continue
            self._answers.pop(slot, None)
            self._own.leave(slot)
            if talk.prefix:
                self._begun[talk.prefix] -= 1
            if talk.prefix and not self._begun[talk.prefix]:
                del self._begun[talk.prefix]
                self._prefixes.leave(talk.prefix)

    def _take_up(self, request: Request, shared: bool) -> None:
        """The conversation of a request: as it is kept when the prompt extends it, else anew.

        `shared`: others begin with the same prompt, now; those that began earlier are looked up.
        """
        talk, prompt = self._talks.get(request.slot), request.prompt
        if talk is not None:
            known = len(talk.prefix) + len(talk.own)
            if len(prompt) > known and prompt[:known] == [*talk.prefix, *talk.own]:
                talk.due = prompt[known:]
                return
            self.release([request.slot])
        prefix = tuple(prompt[:-1])
        if not shared and prefix not in self._begun:
            prefix = ()
        if prefix and prefix not in self._begun:
            self._prefixes.enter(prefix)
        if prefix:
            self._begun[prefix] += 1
        self._own.enter(request.slot)
        self._talks[request.slot] = Talk(prefix, [], prompt[len(prefix) :])

    def _feed(self) -> Tensor:
        """Compute all that is due, in as few passes as the budget allows.

        Returns the hidden states [B, D] at the last token of every conversation that answers.
        Those that were asked the same, with the same past, are computed once.
        """
        live = {slot: self._talks[slot] for slot in self._answers}
        self._reserve(live)
        fresh = {slot for slot, answer in self._answers.items() if answer.fresh}
        twins = _twins(live, fresh)
        opened = [p for p in self._prefixes.place if not self._prefixes.filled[p]]
        spans = [Span(slot, live[slot].prefix, live[slot].due) for slot in twins]
        read = sum(len(live[slot].due) for slot in twins if slot in fresh)
        self.prefilled += read + sum(map(len, opened))
        if sum(map(len, opened)) + read > PASS_TOKENS:
            for chunk in _chunks(opened):
                self._pass(chunk, [])
            opened = []
            for part in _parts(spans):
                self._pass([], part)
            spans = [Span(span.slot, span.prefix, span.ids[-1:]) for span in spans]
        layout, hidden = self._pass(opened, spans)
        end = {}
        for span, place in zip(layout.spans, layout.ends.tolist(), strict=True):
            end |= dict.fromkeys(twins[span.slot], place)
            if others := twins[span.slot][1:]:
                self._own.copy(span.slot, others, len(live[span.slot].own))
        return hidden[[end[slot] for slot in live]]

    def _pass(self, opened: Sequence[Prefix], spans: Sequence[Span]) -> tuple[Layout, Tensor]:
        layout = Layout(self._prefixes, self._own, opened, spans, self._device)
        return layout, self.policy.packed_hidden(layout.ids, layout.positions, layout)

    def _reserve(self, live: dict[int, Talk]) -> None:
        self._prefixes.reserve(max(map(len, self._prefixes.place), default=0), self._context)
        longest = max(len(talk.own) + len(talk.due) for talk in live.values())
        self._own.reserve(longest, self._context)

    def _forget(self) -> None:
        self._talks.clear()
        self._answers.clear()
        self._begun.clear()
        self._prefixes.clear()
        self._own.clear()

    @property
    def _device(self) -> torch.device:
        return next(self.policy.model.parameters()).device


def _twins(live: dict[int, Talk], fresh: set[int]) -> dict[int, list[int]]:
    """Slots that are to be fed the same behind the same, by the first of them."""
    same: dict[tuple[int, ...], list[int]] = {}
    for slot, talk in live.items():
        # Once they draw they part, or go on alike; telling costs more than it saves. What is the
        # same must also lie in the same columns, behind as long a prefix.
        known = (*talk.prefix, *talk.own, *talk.due) if slot in fresh else (-1 - slot,)
        known = (len(talk.prefix), len(talk.own), *known)
        same.setdefault(known, []).append(slot)
    return {slots[0]: slots for slots in same.values()}


def _chunks(prefixes: Sequence[Prefix]) -> Iterator[list[Prefix]]:
    """Prefixes in order, as many at once as a pass may read."""
    chunk: list[Prefix] = []
    for prefix in prefixes:
        if chunk and sum(map(len, chunk)) + len(prefix) > PASS_TOKENS:
            yield chunk
            chunk = []
        chunk.append(prefix)
    if chunk:
        yield chunk


def _parts(spans: Sequence[Span]) -> Iterator[list[Span]]:
    """All but the last token of every span, in order, as many at once as a pass may read."""
    part: list[Span] = []
    room = PASS_TOKENS
    for span in spans:
        body = span.ids[:-1]
        while body:
            part.append(Span(span.slot, span.prefix, body[:room]))
            body, room = body[room:], room - len(body[:room])
            if room <= 0:
                yield part
                part, room = [], PASS_TOKENS
    if part:
        yield part


@contextmanager
def _evaluating(model: torch.nn.Module) -> Iterator[None]:
    """Without dropout: behaviour and recomputed log-probabilities must be of the same network."""
    training = model.training
    if training:
        model.eval()
    try:
        yield
    finally:
        if training:
            model.train()


def _check_attention(config: Any, context: int) -> None:
    window = getattr(config, "sliding_window", None)
    kinds = set(getattr(config, "layer_types", None) or ["sliding_attention"])
    if kinds - {"full_attention", "sliding_attention"}:
        raise PolicyError(
            f"policy.path: engine=torch keeps keys and values, and this model has layers of "
            f"kind {sorted(kinds)}; use a model with attention in every layer"
        )
    if "sliding_attention" in kinds and window is not None and window < context:
        raise PolicyError(
            f"policy.context={context} is longer than the model's attention window {window}; "
            "engine=torch needs policy.context within the window"
        )
