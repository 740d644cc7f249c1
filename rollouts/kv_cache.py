"""Keys and values that live across turns; the members of a group share those of their prompt."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Generic, TypeVar

import torch
from torch import Tensor

Key = TypeVar("Key", bound=Hashable)


class Region(Generic[Key]):
    """A line of slots without gaps, [slots, K, length, size] for keys and for values of a layer.

    What is named `key` lies in slot `place[key]`; leaving moves the last slot into the gap, so
    that the slots in use can always be read as one view. Buffers grow with `reserve` and start at
    zero, because attention multiplies what it masks by a weight of 0, and 0 * NaN would spread.
    """

    def __init__(self) -> None:
        self.place: dict[Key, int] = {}
        self.filled: dict[Key, int] = {}
        self._order: list[Key] = []
        self._slots = self._length = 0
        self._buffers: list[tuple[Tensor, Tensor]] = []

    def __len__(self) -> int:
        return len(self._order)

    def held(self) -> list[int]:
        """Tokens in each slot."""
        return [self.filled[key] for key in self._order]

    def enter(self, key: Key) -> None:
        """The next slot becomes that of `key`, empty."""
        self.place[key], self.filled[key] = len(self._order), 0
        self._order.append(key)

    def leave(self, key: Key) -> None:
        hole, last = self.place.pop(key), self._order.pop()
        del self.filled[key]
        if last != key:
            source, count = self.place[last], self.filled[last]
            for layer in self._buffers if count else ():
                for buffer in layer:
                    buffer[hole, :, :count] = buffer[source, :, :count]
            self._order[hole], self.place[last] = last, hole

    def clear(self) -> None:
        self.place.clear()
        self.filled.clear()
        self._order.clear()

    def reserve(self, length: int, limit: int) -> None:
        """Room for `length` tokens, at most `limit`, in every slot in use; nothing is lost."""
        slots = max(len(self._order), self._slots)
        if slots == self._slots and length <= self._length:
            return
        if length > self._length:
            # Conversations grow every turn: room for half as much again keeps copying rare.
            self._length = min(max(length * 3 // 2, 1), limit)
        self._slots = slots
        self._buffers = [(self._grown(keys), self._grown(values)) for keys, values in self._buffers]

    def write(self, layer: int, slots: Tensor, columns: Tensor, key: Tensor, value: Tensor) -> None:
        """Store [N, K, size], token n in its slot and column (int64 [N] each)."""
        heads = key.shape[1]
        if layer == len(self._buffers):
            shape = (self._slots, heads, self._length, key.shape[-1])
            self._buffers.append((key.new_zeros(shape), value.new_zeros(shape)))
        # [N, K]: where each vector lies when the buffer is seen as a list of vectors.
        lane = slots[:, None] * heads + torch.arange(heads, device=slots.device)
        address = (lane * self._length + columns[:, None]).flatten()
        for buffer, states in zip(self._buffers[layer], (key, value), strict=True):
            size = states.shape[-1]
            buffer.view(-1, size).index_copy_(0, address, states.reshape(-1, size))

    def copy(self, source: Key, targets: Sequence[Key], start: int) -> None:
        """Give `targets`, which hold `start` tokens, what `source` holds beyond those."""
        stop = self.filled[source]
        for key in targets:
            for layer in self._buffers:
                for buffer in layer:
                    buffer[self.place[key], :, start:stop] = buffer[
                        self.place[source], :, start:stop
                    ]
        self.filled |= dict.fromkeys(targets, stop)

    def read(self, layer: int, length: int) -> tuple[Tensor, Tensor]:
        """Keys and values [slots in use, K, length, size] of a layer, a view."""
        keys, values = self._buffers[layer]
        count = len(self._order)
        return keys[:count, :, :length], values[:count, :, :length]

    def _grown(self, buffer: Tensor) -> Tensor:
        slots, heads, columns, size = buffer.shape
        grown = buffer.new_zeros(self._slots, heads, self._length, size)
        grown[:slots, :, :columns] = buffer
        return grown
