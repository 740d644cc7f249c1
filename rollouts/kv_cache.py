"""A key/value cache whose rows are conversations of different lengths, kept from turn to turn."""

from __future__ import annotations

import torch
from torch import Tensor
from transformers import Cache


class RowCache(Cache):
    """One row a conversation: buffers [rows, heads, 1 + length, head size] for each layer.

    Before a forward pass `aim` says which rows take part, at which position each new token is
    written and how many positions attention reads. Position p lies in column p + 1; column 0 is
    a waste bin for padding, which no query can attend. Buffers grow with `reserve` and start at
    zero, because attention multiplies what it masks by a weight of 0, and 0 * NaN would spread.
    """

    def __init__(self, context: int) -> None:
        """`context`: tokens the longest conversation may hold."""
        super().__init__(layers=[])
        self._context = context
        self._rows = self._length = 0
        self._keys: list[Tensor] = []
        self._values: list[Tensor] = []

    def reserve(self, rows: int, length: int) -> None:
        """Make room for `rows` conversations of `length` tokens; what is cached stays."""
        if rows <= self._rows and length <= self._length:
            return
        self._rows = max(rows, self._rows)
        # Conversations grow every turn: room for half as much again keeps copying rare.
        self._length = max(min(length * 3 // 2, self._context), self._length)
        self._keys = [self._grown(buffer) for buffer in self._keys]
        self._values = [self._grown(buffer) for buffer in self._values]

    def aim(self, rows: slice | Tensor, write: Tensor, length: int) -> None:
        """Direct the next forward pass of B rows and T tokens.

        rows: a slice (read as a view) or int64 [B] (read as a copy); write: int64 [B, T],
        positions of the new tokens, -1 for padding; length: positions that are read.
        """
        index = torch.arange(self._rows, device=write.device)[rows]
        self._read, self._index, self._column, self._stop = rows, index, write + 1, length + 1

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args, **kwargs
    ) -> tuple[Tensor, Tensor]:
        """Store [B, heads, T, size] of a layer; returns [B, heads, length, size] to attend."""
        if layer_idx == len(self._keys):
            self._keys.append(self._empty(key_states))
            self._values.append(self._empty(value_states))
        return (
            self._stored(self._keys[layer_idx], key_states),
            self._stored(self._values[layer_idx], value_states),
        )

    def swap(self, some: list[int], others: list[int], length: int) -> None:
        """Exchange rows pairwise, up to `length` positions."""
        to, source = some + others, others + some
        for buffer in (*self._keys, *self._values):
            buffer[to, :, : length + 1] = buffer[source, :, : length + 1]

    def copy(self, source: int, targets: list[int], start: int, stop: int) -> None:
        """Give `targets` the positions start:stop of row `source`."""
        for buffer in (*self._keys, *self._values):
            buffer[targets, :, start + 1 : stop + 1] = buffer[source, :, start + 1 : stop + 1]

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return self._stop - 1

    def _stored(self, buffer: Tensor, states: Tensor) -> Tensor:
        _, heads, _, size = states.shape
        row = self._index[:, None] * heads + torch.arange(heads, device=states.device)
        # [B, heads, T]: where each vector lies when the buffer is seen as a list of vectors.
        place = row[:, :, None] * (self._length + 1) + self._column[:, None, :]
        buffer.view(-1, size).index_copy_(0, place.flatten(), states.reshape(-1, size))
        return buffer[self._read, :, 1 : self._stop]

    def _empty(self, states: Tensor) -> Tensor:
        _, heads, _, size = states.shape
        return states.new_zeros(self._rows, heads, self._length + 1, size)

    def _grown(self, buffer: Tensor) -> Tensor:
        rows, heads, columns, size = buffer.shape
        grown = buffer.new_zeros(self._rows, heads, self._length + 1, size)
        grown[:rows, :, :columns] = buffer
        return grown
