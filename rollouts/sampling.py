"""Drawing tokens: inverse CDF of counter-based uniforms, and a trie of allowed answers."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from rollouts.engine import Request, Sample
from runs.errors import ConfigError
from runs.rng import generator


def uniforms(keys: list[tuple[int | str, ...]], count: int) -> Tensor:
    """[len(keys), count] float64 in [0, 1); a row depends on its key only."""
    rows = [
        generator(int(seed), str(purpose), *counters).random(count)
        for seed, purpose, *counters in keys
    ]
    return torch.from_numpy(np.stack(rows))


def draw(logits: Tensor, uniform: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    """Ids [B] and their log-probabilities [B] from raw logits [B, V] and uniforms [B].

    The token is the first whose cumulative probability exceeds the uniform, in float64, so a
    token of probability 0 is never drawn. Temperature 0 takes the argmax and reports the
    log-probability at temperature 1.
    """
    logp = torch.log_softmax(logits.float() / (temperature or 1.0), dim=-1)
    if temperature == 0:
        ids = logits.argmax(dim=-1)
    else:
        cdf = logp.double().exp_().cumsum(dim=-1)
        total = cdf[:, -1:].contiguous()
        ids = torch.searchsorted(cdf, uniform[:, None].to(cdf) * total, right=True)
        ids = torch.minimum(ids, torch.searchsorted(cdf, total))[:, 0]
    return ids, logp.gather(-1, ids[:, None])[:, 0]


class Trie:
    """The answers a turn may give, walked token by token; an answer is closed by any stop id."""

    def __init__(self, choices: list[list[int]], stop_ids: list[int], max_tokens: int) -> None:
        """Raises ConfigError when no choice, with its stop token, fits in `max_tokens`."""
        self._root: dict[int, dict] = {}
        fitting = [ids for ids in choices if len(ids) < max_tokens]
        if not fitting:
            raise ConfigError(
                f"env.constrain=true, but none of {len(choices)} admissible commands fits in "
                f"policy.max_tokens={max_tokens}; raise policy.max_tokens or turn env.constrain off"
            )
        for ids in fitting:
            node = self._root
            for token in ids:
                node = node.setdefault(token, {})
            for stop in stop_ids:
                node[stop] = {}
        self._node = self._root

    @property
    def allowed(self) -> list[int]:
        """Ids that may come next, ascending."""
        return sorted(self._node)

    def step(self, token: int) -> None:
        self._node = self._node[token]


def restrict(logits: Tensor, allowed: list[list[int] | None]) -> Tensor:
    """Logits [B, V] with everything but `allowed[b]` at -inf; None leaves a row free."""
    bounded = logits.clone()
    for row, ids in enumerate(allowed):
        if ids is not None:
            bounded[row] = -torch.inf
            bounded[row, ids] = logits[row, ids]
    return bounded


class Answer:
    """What a conversation has sampled in this turn, token by token."""

    def __init__(self, request: Request, max_tokens: int, stop_ids: list[int]) -> None:
        self.request, self._max_tokens, self._stop_ids = request, max_tokens, stop_ids
        self._uniforms = uniforms([request.key], max_tokens)[0].tolist()
        choices = request.choices
        self._trie = None if choices is None else Trie(choices, stop_ids, max_tokens)
        self._sample = Sample([], [], False)
        if self._trie is not None:
            self._sample.allowed = []

    @property
    def fresh(self) -> bool:
        """Nothing has been drawn yet."""
        return not self._sample.ids

    @property
    def uniform(self) -> float:
        """The number that the next token is drawn with."""
        return self._uniforms[len(self._sample.ids)]

    @property
    def allowed(self) -> list[int] | None:
        """What the next token may be, None for anything."""
        return None if self._trie is None else self._trie.allowed

    def take(self, token: int, logp: float, value: float | None) -> Sample | None:
        """Append a drawn token; the sample when it is the last."""
        sample = self._sample
        if self._trie is not None:
            assert sample.allowed is not None
            sample.allowed.append(self._trie.allowed)
            self._trie.step(token)
        sample.ids.append(token)
        sample.logp.append(logp)
        if value is not None:
            sample.values = [*(sample.values or ()), value]
        sample.stopped = token in self._stop_ids
        return sample if sample.stopped or len(sample.ids) == self._max_tokens else None


def draw_next(answers: list[Answer], logits: Tensor, temperature: float) -> tuple[list, list]:
    """The next token of every answer, and its log-probability, from logits [B, V]."""
    allowed = [answer.allowed for answer in answers]
    if any(ids is not None for ids in allowed):
        logits = restrict(logits, allowed)
    uniform = torch.tensor([answer.uniform for answer in answers], dtype=torch.float64)
    ids, logp = draw(logits, uniform.to(logits.device), temperature)
    return ids.tolist(), logp.tolist()
