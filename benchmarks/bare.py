"""The yardstick: a token stream that was really played, forwarded in a loop and nothing else.

No environment, no text, no bookkeeping, no group prefixes computed once: for every turn a pass over
what is new, then decode steps of tokens that are known already, with a softmax and a draw each.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import Cache, PreTrainedModel, StaticCache

from benchmarks.peers.serve import Parts
from rollouts.types import Row

CHUNK = 16  # rows read at once: sorted by length, so that little of a chunk is padding


@dataclass
class Turn:
    """What one turn feeds, left-padded: new[B, W], real[B, W], said[B, K]; B have not ended."""

    new: Tensor
    real: Tensor
    said: Tensor

    @property
    def columns(self) -> int:
        """Cache columns that the turn takes; its last token is fed with the next turn."""
        return self.new.shape[1] + self.said.shape[1] - 1


def turns_of(rows: list[Row], reread: bool = False, whole: bool = False) -> list[Turn]:
    """The turns of these rows, which all say the same number of tokens a turn.

    Conversations that end leave the batch from behind: the longest come first. `reread`: every
    turn feeds its conversation from the start. `whole`: ended ones stay, as padding.
    """
    rows = sorted(rows, key=lambda row: -int(row.turn.max()))
    fed = [0] * len(rows)
    turns = []
    for turn in range(int(rows[0].turn.max()) + 1):
        new, said = [], []
        for index, row in enumerate(rows):
            at = (row.turn == turn).nonzero()[:, 0]
            if not len(at):
                new += [row.ids[:0]] * whole
                said += [row.ids[:0]] * whole
                continue
            new.append(row.ids[0 if reread else fed[index] : int(at[0])])
            said.append(row.ids[at])
            fed[index] = int(at[-1])
        real = _left([torch.ones(len(ids), dtype=torch.bool) for ids in new])
        turns.append(Turn(_left(new), real, _left(said)))
    return turns


class Slices(Cache):
    """Preallocated buffers [B, H, max, D]; a pass of `rows` writes and reads slices of columns."""

    def __init__(self, rows: int, columns: int) -> None:
        super().__init__(layers=[])
        self._shape = rows, columns
        self._buffers: list[tuple[Tensor, Tensor]] = []
        self.aim(slice(0, rows), 0, 0)

    def aim(self, rows: slice | Tensor, start: int, stop: int) -> None:
        """Where the next pass writes; what it attends is everything before `stop`."""
        self._rows, self._start, self._stop = rows, start, stop

    def update(self, key_states: Tensor, value_states: Tensor, layer_idx: int, *_: Any, **__: Any):
        if layer_idx == len(self._buffers):
            rows, columns = self._shape
            shape = (rows, key_states.shape[1], columns, key_states.shape[3])
            self._buffers.append((key_states.new_zeros(shape), value_states.new_zeros(shape)))
        keys, values = self._buffers[layer_idx]
        keys[self._rows, :, self._start : self._stop] = key_states
        values[self._rows, :, self._start : self._stop] = value_states
        return keys[self._rows, :, : self._stop], values[self._rows, :, : self._stop]

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return self._start


class Bare:
    """Forwards `turns` with a model of transformers; `static` takes transformers' StaticCache,
    which needs `whole` turns.

    `reread` drops the cache before every turn. `parts` are as those of the other sides.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        turns: list[Turn],
        temperature: float,
        reread: bool = False,
        static: bool = False,
    ) -> None:
        self._model, self._turns, self._temperature = model, turns, temperature
        self._reread, self._static = reread, static
        sizes = [turn.columns for turn in turns]
        self._columns = max(sizes) if reread else sum(sizes)
        self._rows = len(turns[0].new)
        self._slices = Slices(self._rows, self._columns)
        self.parts = Parts(model.base_model, self._rows)

    @torch.no_grad()
    def play(self) -> dict[str, Any]:
        """One round over the whole stream; `units` are the generated tokens of it."""
        self.parts.clear()
        self._restart()
        for turn in self._turns:
            if self._reread:
                self._restart()
            hidden = self._read(turn)
            count, length = turn.said.shape
            for step in range(length):
                logits = self._model.lm_head(hidden)
                weights = torch.softmax(logits.float() / self._temperature, dim=-1)
                torch.multinomial(weights, 1)
                if step + 1 < length:
                    hidden = self._decode(slice(0, count), turn.said[:, step : step + 1])
        units = sum(int(turn.real.any(1).sum()) * turn.said.shape[1] for turn in self._turns)
        return {"units": units, "parts": self.parts.taken()}

    def _restart(self) -> None:
        self._cache: Cache = self._slices
        if self._static:
            self._cache = StaticCache(config=self._model.config, max_cache_len=self._columns)
        self._used = 0
        self._lengths = torch.zeros(self._rows, dtype=torch.long)
        self._valid = torch.zeros((self._rows, self._columns), dtype=torch.bool)

    def _read(self, turn: Turn) -> Tensor:
        """Hidden states [B, D] of the last new tokens."""
        count, width = turn.new.shape
        stop = self._used + width
        if self._static:
            hidden = self._forward(slice(0, count), turn.new, turn.real, stop)[:, -1]
        else:
            hidden = torch.empty((count, self._model.config.hidden_size), dtype=self._model.dtype)
            lengths = turn.real.sum(1)
            for chunk in lengths.argsort(descending=True).split(CHUNK):
                wide = int(lengths[chunk].max())
                ids, real = turn.new[chunk, -wide:], turn.real[chunk, -wide:]
                hidden[chunk] = self._forward(chunk, ids, real, stop)[:, -1]
        self._used = stop
        return hidden

    def _decode(self, rows: slice, ids: Tensor) -> Tensor:
        """Hidden states [B, D] of one more token [B, 1] each."""
        stop = self._used + 1
        hidden = self._forward(rows, ids, torch.ones_like(ids, dtype=torch.bool), stop)[:, -1]
        self._used = stop
        return hidden

    def _forward(self, rows: slice | Tensor, ids: Tensor, real: Tensor, stop: int) -> Tensor:
        """Hidden states [B, W, D] of tokens that take the W columns before `stop`."""
        start = stop - ids.shape[1]
        self._valid[rows, start:stop] = real
        reach = self._columns if self._static else stop
        columns = torch.arange(reach)
        mask = self._valid[rows, None, :reach] & (columns <= columns[start:stop, None])
        if ids.shape[1] > 1:
            # Padding attends itself: a row of nothing but -inf has no softmax.
            mask |= columns == columns[start:stop, None]
        places = (self._lengths[rows, None] + real.cumsum(1) - 1).clamp(min=0)
        self._lengths[rows] += real.sum(1)
        self._slices.aim(rows, start, stop)
        out = self._model.base_model(
            input_ids=ids,
            position_ids=places,
            attention_mask=mask[:, None],
            cache=self._cache,
            use_cache=True,
        )
        return out.last_hidden_state


def _left(rows: list[Tensor]) -> Tensor:
    """Rows of different lengths as one tensor, padded with zeros on the left."""
    width = max(1, *(len(row) for row in rows))
    out = torch.zeros((len(rows), width), dtype=rows[0].dtype)
    for index, row in enumerate(rows):
        out[index, width - len(row) :] = row
    return out
