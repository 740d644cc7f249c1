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


class Draws:
    """What a batch of N conversations has sampled in this turn, indexed as the requests."""

    def __init__(
        self, requests: list[Request], max_tokens: int, stop_ids: list[int], device: torch.device
    ) -> None:
        shape = (len(requests), max_tokens)
        self._uniform = uniforms([request.key for request in requests], max_tokens).to(device)
        self._stop = torch.tensor(stop_ids, device=device)
        self._ids = torch.zeros(shape, dtype=torch.long, device=device)
        self._logp = torch.zeros(shape, device=device)
        self._values = torch.zeros(shape, device=device)
        self._count = torch.zeros(len(requests), dtype=torch.long, device=device)
        self._tries = [
            None if request.choices is None else Trie(request.choices, stop_ids, max_tokens)
            for request in requests
        ]
        self._allowed: list[list[list[int]]] = [[] for _ in requests]
        self._constrained = any(trie is not None for trie in self._tries)

    def take(
        self, live: Tensor, step: int, logits: Tensor, values: Tensor | None, temperature: float
    ) -> Tensor:
        """Draw token number `step` of the conversations `live` [B]; returns ids [B]."""
        if self._constrained:
            logits = restrict(logits, self._offer(live))
        ids, logp = draw(logits, self._uniform[live, step], temperature)
        self._ids[live, step], self._logp[live, step] = ids, logp
        if values is not None:
            self._values[live, step] = values.float()
        self._count[live] += 1
        if self._constrained:
            for index, token in zip(live.tolist(), ids.tolist(), strict=True):
                trie = self._tries[index]
                if trie is not None:
                    trie.step(token)
        return ids

    def going(self, ids: Tensor) -> Tensor:
        """bool [B]: not a stop token."""
        return ~torch.isin(ids, self._stop)

    def samples(self, with_values: bool) -> list[Sample]:
        ids, logp, values = self._ids.tolist(), self._logp.tolist(), self._values.tolist()
        stop = set(self._stop.tolist())
        return [
            Sample(
                ids[i][:n],
                logp[i][:n],
                ids[i][n - 1] in stop,
                allowed=None if self._tries[i] is None else self._allowed[i],
                values=values[i][:n] if with_values else None,
            )
            for i, n in enumerate(self._count.tolist())
        ]

    def _offer(self, live: Tensor) -> list[list[int] | None]:
        offers: list[list[int] | None] = []
        for index in live.tolist():
            trie = self._tries[index]
            offers.append(None if trie is None else trie.allowed)
            if trie is not None:
                self._allowed[index].append(trie.allowed)
        return offers
