"""Token sequences laid end to end without padding, what they have in common once.

Members of a group begin with the same prompt, and those that acted alike go on together. The
sequences of a pack are a tree whose paths they are: a token that several share is computed once,
and the sum of what they make of it is its gradient.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from policies.attention import Span

# Tokens in common from which a span of their own pays: each costs a call of attention a layer.
LEAST = 16
# Spans that a path may have before what follows is laid out for each sequence apart.
DEEPEST = 100


@dataclass(frozen=True)
class Pack:
    """N tokens of R sequences.

    ids[N] and positions[N] int64, `spans` as `policies.attention.attend_spans` takes them, and
    where[r], int64 of the length of sequence r: the place of each of its tokens in the pack.
    """

    ids: Tensor
    positions: Tensor
    spans: list[Span]
    where: list[Tensor]


def pack(sequences: Sequence[Tensor]) -> Pack:
    """The pack of sequences of int64 ids, none of them empty, in any order."""
    arrays = [sequence.numpy() for sequence in sequences]
    order = sorted(range(len(arrays)), key=lambda place: as_key(arrays[place]))
    tree = _Tree([arrays[place] for place in order])
    where: list[Tensor] = [torch.empty(0)] * len(order)
    for place, path in zip(order, tree.paths, strict=True):
        where[place] = torch.cat([torch.arange(start, end) for start, end, _ in path])
    return Pack(
        torch.from_numpy(np.concatenate(tree.ids)),
        torch.from_numpy(np.concatenate(tree.positions)),
        tree.spans,
        where,
    )


def as_key(ids: np.ndarray) -> bytes:
    """A key that sorts ids as a dictionary does, so that common beginnings are neighbours."""
    return ids.astype(">u4").tobytes()


def common(one: np.ndarray, other: np.ndarray) -> int:
    """How many ids both begin with."""
    shorter = min(len(one), len(other))
    differ = (one[:shorter] != other[:shorter]).nonzero()[0]
    return int(differ[0]) if len(differ) else shorter


def cut(units: Sequence[Sequence[np.ndarray]], budget: int) -> list[list[int]]:
    """Places of units of sequences, in their order, in parts that make packs of `budget` tokens.

    A unit is never divided: one that is longer than the budget is a part of its own.
    """
    parts: list[list[int]] = []
    spent, last = 0, None
    for place, unit in enumerate(units):
        cost = _cost(unit, last)
        if parts and spent + cost <= budget:
            parts[-1].append(place)
            spent += cost
        else:
            parts.append([place])
            spent = _cost(unit, None)
        last = unit[-1]
    return parts


def _cost(unit: Sequence[np.ndarray], before: np.ndarray | None) -> int:
    """Most tokens that `unit` adds to a pack in which the sequence `before` is already."""
    tokens = 0
    for ids in unit:
        shared = 0 if before is None else common(before, ids)
        # Its span may begin up to LEAST - 1 tokens before the last one that both have.
        tokens += len(ids) - max(0, shared - LEAST + 1)
        before = ids
    return tokens


class _Tree:
    """The spans of sorted sequences, with the ids and positions of their tokens.

    `paths` has for every sequence the spans that it is made of.
    """

    def __init__(self, ordered: list[np.ndarray]) -> None:
        self.ids: list[np.ndarray] = []
        self.positions: list[np.ndarray] = []
        self.spans: list[Span] = []
        self.paths: list[list[Span]] = []
        self._ordered, self._size = ordered, 0
        self._alike = [common(one, other) for one, other in pairwise(ordered)]
        self._grow(0, len(ordered), 0, [])

    def _grow(self, first: int, last: int, depth: int, path: list[Span]) -> None:
        """Add what sequences [first, last), alike up to `depth`, have behind that."""
        apart = len(path) >= DEEPEST
        runs = pairwise(range(first, last + 1)) if apart else self._runs(first, last, depth + LEAST)
        for one, other in runs:
            alone = other - one == 1
            end = len(self._ordered[one]) if alone else min(self._alike[one : other - 1])
            place, longer = len(self.spans), path
            if end > depth:
                longer = [*path, self._add(one, depth, end)]
            if alone:
                self.paths.append(longer)
            else:
                self._grow(one, other, end, longer)
            if end > depth:
                self.spans[place] = self.spans[place]._replace(reach=self._size)

    def _runs(self, first: int, last: int, depth: int) -> Iterator[tuple[int, int]]:
        """Cut [first, last) where neighbours are not alike up to `depth`."""
        start = first
        for place in range(first, last - 1):
            if self._alike[place] < depth:
                yield start, place + 1
                start = place + 1
        yield start, last

    def _add(self, one: int, depth: int, end: int) -> Span:
        span = Span(self._size, self._size + end - depth, 0)
        self._size = span.end
        self.spans.append(span)
        self.ids.append(self._ordered[one][depth:end])
        self.positions.append(np.arange(depth, end))
        return span
