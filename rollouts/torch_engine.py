"""Generation in process: all conversations as one batch, their KV cache kept between turns."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from rollouts.engine import Request, Sample
from rollouts.kv_cache import RowCache
from rollouts.sampling import Draws
from runs.errors import InvariantError, PolicyError

if TYPE_CHECKING:
    from policies.policy import Policy

PREFILL_TOKENS = 4096  # padded tokens of one prefill pass: bounds its memory


class TorchEngine:
    """`Engine` on a transformers causal LM.

    A conversation owns a row of the cache. The rows of a batch are kept adjacent, so that
    decoding reads the cache as a view; a finished conversation leaves the batch by changing
    places with a live one. Identical prompts, those of a group, are computed once and copied.
    """

    def __init__(
        self, policy: Policy, max_batch: int, context: int, max_tokens: int, values: bool = False
    ) -> None:
        """`max_batch` conversations of at most `context` tokens, `max_tokens` sampled a turn;
        `values` reads a critic that shares the trunk. Raises PolicyError for attention that
        cannot be masked row by row."""
        _check_attention(policy.model.config, context)
        self.policy, self.max_tokens, self._values = policy, max_tokens, values
        self._rows, self._context, self._span = max_batch, context, 0
        self._cache = RowCache(context)
        self._row: dict[int, int] = {}
        self._fed: dict[int, list[int]] = {}
        self._version = policy.version
        self.prefilled = 0

    def generate(self, requests: list[Request], temperature: float) -> list[Sample]:
        """One sample a request. A changed policy version voids every cached conversation."""
        if not requests:
            return []
        if self.policy.version != self._version:
            self.release(list(self._row))
            self._version = self.policy.version
        with torch.no_grad(), _evaluating(self.policy.model):
            base = self._seat(requests)
            hidden = self._prefill(requests)
            return self._decode(requests, base, hidden, temperature)

    def release(self, slots: list[int]) -> None:
        for slot in slots:
            self._row.pop(slot, None)
            self._fed.pop(slot, None)

    def _seat(self, requests: list[Request]) -> int:
        """Give every request a row, in one adjacent block; returns the first row of it."""
        taken = set(self._row.values())
        free = [row for row in range(self._rows) if row not in taken]
        fresh = [request.slot for request in requests if request.slot not in self._row]
        if len(fresh) > len(free):
            raise InvariantError(
                f"{len(fresh)} new conversations for {len(free)} free rows of the engine; "
                "play fewer episodes at once (engine.max_batch)"
            )
        self._row.update(zip(fresh, free, strict=False))
        longest = max(len(request.prompt) for request in requests) + self.max_tokens
        if longest > self._context:
            raise InvariantError(f"a turn needs {longest} tokens of policy.context={self._context}")
        self._span = max(longest, *(len(fed) for fed in self._fed.values()), 0)
        self._cache.reserve(max(self._row.values()) + 1, self._span)
        rows = {self._row[request.slot] for request in requests}
        base = min(rows)
        block = range(base, base + len(rows))
        self._exchange(
            [row for row in block if row not in rows],
            sorted(row for row in rows if row not in block),
        )
        return base

    def _exchange(self, rows: list[int], others: list[int]) -> None:
        """Swap two lists of rows, with the conversations in them."""
        if not rows:
            return
        self._cache.swap(rows, others, self._span)
        place = dict(zip(rows + others, others + rows, strict=True))
        self._row = {slot: place.get(row, row) for slot, row in self._row.items()}

    def _prefill(self, requests: list[Request]) -> Tensor:
        """Feed what each cache lacks of its prompt; hidden state [B, D] at the prompts' ends."""
        same: dict[tuple[int, ...], list[int]] = {}
        for index, request in enumerate(requests):
            same.setdefault(tuple(request.prompt), []).append(index)
        known = [self._known(request) for request in requests]
        twins = {max(indices, key=known.__getitem__): indices for indices in same.values()}
        missing = {i: len(requests[i].prompt) - known[i] for i in twins}
        ends: dict[int, Tensor] = {}
        for chunk in _chunks(missing):
            states = self._read([requests[i] for i in chunk], [known[i] for i in chunk])
            for first, state in zip(chunk, states, strict=True):
                self._share(requests, known, first, twins[first])
                ends.update(dict.fromkeys(twins[first], state))
        for request in requests:
            self._fed[request.slot] = request.prompt
        return torch.stack([ends[index] for index in range(len(requests))])

    def _known(self, request: Request) -> int:
        """Tokens of the prompt that its row holds; the last one is always fed again."""
        fed, prompt = self._fed.get(request.slot, []), request.prompt
        count = min(len(fed), len(prompt) - 1)
        if fed[:count] == prompt[:count]:
            return count
        return next(i for i, (a, b) in enumerate(zip(fed, prompt, strict=False)) if a != b)

    def _read(self, requests: list[Request], known: list[int]) -> Tensor:
        """Feed prompts from `known[b]` on, right-padded; hidden states [B, D] of their ends."""
        fresh = [request.prompt[k:] for request, k in zip(requests, known, strict=True)]
        self.prefilled += sum(map(len, fresh))
        width = max(map(len, fresh))
        ids = torch.zeros((len(fresh), width), dtype=torch.long)
        lengths = torch.tensor([len(tokens) for tokens in fresh])
        for row, tokens in enumerate(fresh):
            ids[row, : len(tokens)] = torch.tensor(tokens)
        offsets = torch.arange(width)
        real = offsets < lengths[:, None]
        places = torch.tensor(known)[:, None] + offsets
        rows = torch.tensor([self._row[request.slot] for request in requests])
        # Padding sits at position 0, so that it attends something, and is written to the bin.
        hidden = self._forward(rows, ids, places * real, torch.where(real, places, -1))
        return hidden[torch.arange(len(fresh)), lengths - 1]

    def _share(
        self, requests: list[Request], known: list[int], first: int, twins: list[int]
    ) -> None:
        """Copy what `first` has computed to the other conversations with the same prompt."""
        others = [index for index in twins if index != first]
        if others:
            self._cache.copy(
                self._row[requests[first].slot],
                [self._row[requests[index].slot] for index in others],
                min(known[index] for index in others),
                len(requests[first].prompt),
            )

    def _decode(
        self, requests: list[Request], base: int, hidden: Tensor, temperature: float
    ) -> list[Sample]:
        """Sample until every conversation has stopped; `hidden` [B, D] in request order."""
        policy, device = self.policy, hidden.device
        draws = Draws(requests, self.max_tokens, policy.stop_ids, device)
        index = {self._row[request.slot]: i for i, request in enumerate(requests)}
        live = torch.tensor([index[base + row] for row in range(len(requests))], device=device)
        hidden = hidden[live]
        lengths = torch.tensor([len(request.prompt) for request in requests], device=device)
        for step in range(self.max_tokens):
            values = policy.values(hidden) if self._values else None
            ids = draws.take(live, step, policy.logits(hidden), values, temperature)
            live, ids = self._drop(base, live, ids, draws.going(ids))
            if step + 1 == self.max_tokens or not len(live):
                break
            places = (lengths[live] + step)[:, None]
            hidden = self._forward(slice(base, base + len(live)), ids[:, None], places, places)[
                :, 0
            ]
        samples = draws.samples(self._values)
        for request, sample in zip(requests, samples, strict=True):
            self._fed[request.slot] = request.prompt + sample.ids[:-1]
        return samples

    def _drop(self, base: int, live: Tensor, ids: Tensor, going: Tensor) -> tuple[Tensor, Tensor]:
        """Move conversations that go on to the front of the block, in place of stopped ones."""
        count = int(going.sum())
        if count == len(live):
            return live, ids
        holes = (~going[:count]).nonzero()[:, 0]
        movers = going[count:].nonzero()[:, 0] + count
        self._exchange((holes + base).tolist(), (movers + base).tolist())
        order = torch.arange(count, device=live.device)
        order[holes] = movers
        return live[order], ids[order]

    def _forward(
        self, rows: slice | Tensor, ids: Tensor, positions: Tensor, write: Tensor
    ) -> Tensor:
        """Hidden states [B, T, D] of new tokens [B, T] that attend everything before them."""
        device = self._device
        ids, positions, write = ids.to(device), positions.to(device), write.to(device)
        length = int(positions.max()) + 1
        self._cache.aim(rows if isinstance(rows, slice) else rows.to(device), write, length)
        mask = torch.arange(length, device=device) <= positions[:, :, None]
        return self.policy.hidden(ids, positions, mask[:, None], cache=self._cache)

    @property
    def _device(self) -> torch.device:
        return next(self.policy.model.parameters()).device


def _chunks(lengths: dict[int, int]) -> Iterator[list[int]]:
    """Keys sorted by length, cut so that a chunk padded to its longest stays within the budget."""
    chunk: list[int] = []
    for key in sorted(lengths, key=lengths.__getitem__):
        if chunk and (len(chunk) + 1) * lengths[key] > PREFILL_TOKENS:
            yield chunk
            chunk = []
        chunk.append(key)
    if chunk:
        yield chunk


@contextmanager
def _evaluating(model: torch.nn.Module) -> Iterator[None]:
    """Without dropout: behaviour and recomputed log-probabilities must be of the same network."""
    training = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(training)


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
