"""One forward pass over new tokens of many conversations: who writes where and sees what."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from rollouts.kv_cache import Region

Prefix = tuple[int, ...]


@dataclass
class Span:
    """New tokens of one conversation, behind what its slot holds already."""

    slot: int
    prefix: Prefix
    ids: list[int]


@dataclass
class Reading:
    """B spans of about T tokens that are attended at once, P + S tokens back.

    places[B, T]: where the queries lie, padded; real[B, T]: which of them are; rows[B] and
    shared[B]: slots of their own and of their prefixes; mask[B, 1, T, P + S].
    """

    places: Tensor
    real: Tensor
    rows: Tensor
    shared: Tensor
    lengths: tuple[int, int]
    mask: Tensor


class Layout:
    """`policies.attention.Attend` over a cache of two regions, for one forward pass.

    The N tokens are laid end to end, without padding: first `opened` prefixes in full, then the
    spans that read an observation, then those of a single token, which decode. A prefix is kept
    once for all the conversations that began with it, and is () for one that is alone. Keys and values are written before they are
    looked at, so a prefix and its conversations may come in one pass.
    """

    def __init__(
        self,
        prefixes: Region[Prefix],
        own: Region[int],
        opened: Sequence[Prefix],
        spans: Sequence[Span],
        device: torch.device,
    ) -> None:
        self._prefixes, self._own, self._device = prefixes, own, device
        reading = sorted((s for s in spans if len(s.ids) > 1), key=lambda span: len(span.ids))
        decoding = [span for span in spans if len(span.ids) == 1]
        self._opened = opened
        self._decoding = decoding
        self.spans = reading + decoding
        self._shared = sum(map(len, opened))
        self._read = self._shared + sum(len(span.ids) for span in reading)
        ids = [token for tokens in (*opened, *(span.ids for span in self.spans)) for token in tokens]
        self.ids = torch.tensor(ids, device=device)
        self._address()
        self._readings = list(self._read_at_once(reading))
        if decoding:
            self._aim()

    @property
    def ends(self) -> Tensor:
        """Places [B] of the last token of each of `spans`."""
        counts = torch.tensor([len(span.ids) for span in self.spans], device=self._device)
        return counts.cumsum(0) + self._shared - 1

    def __call__(
        self, layer: int, query: Tensor, key: Tensor, value: Tensor, scale: float
    ) -> Tensor:
        query, key, value = query[0], key[0], value[0]
        shared = self._shared
        for region, part in ((self._prefixes, slice(shared)), (self._own, slice(shared, None))):
            if len(self._columns[part]):
                region.write(
                    layer,
                    self._slots[part],
                    self._columns[part],
                    key[:, part].transpose(0, 1),
                    value[:, part].transpose(0, 1),
                )
        outs, start = [], 0
        for prefix in self._opened:
            part = slice(start, start + len(prefix))
            outs.append(_causal(query[:, part], key[:, part], value[:, part], scale))
            start = part.stop
        by_token = query.transpose(0, 1)
        outs += [self._look_back(layer, reading, by_token, scale) for reading in self._readings]
        if self._decoding:
            outs.append(self._decode(layer, by_token[self._read :], scale))
        return torch.cat(outs)[None]

    def _address(self) -> None:
        """Position of every token, and the slot and column where its key and value go."""
        slots, columns, positions = [], [], []
        for prefix in self._opened:
            slots += [self._prefixes.place[prefix]] * len(prefix)
            columns += range(len(prefix))
            self._prefixes.filled[prefix] = len(prefix)
        positions += columns
        for span in self.spans:
            held = self._own.filled[span.slot]
            stop = held + len(span.ids)
            slots += [self._own.place[span.slot]] * len(span.ids)
            columns += range(held, stop)
            positions += range(len(span.prefix) + held, len(span.prefix) + stop)
            self._own.filled[span.slot] = stop
        table = torch.tensor([slots, columns, positions], device=self._device)
        self._slots, self._columns, self.positions = table

    def _read_at_once(self, spans: Sequence[Span]) -> Iterator[Reading]:
        """Spans, sorted by length, in parts of which padding makes none twice as long."""
        start, part = self._shared, []
        for span in spans:
            if part and len(span.ids) > 2 * len(part[0].ids):
                yield self._reading(part, start)
                start, part = start + sum(len(one.ids) for one in part), []
            part.append(span)
        if part:
            yield self._reading(part, start)

    def _reading(self, spans: Sequence[Span], start: int) -> Reading:
        counts = torch.tensor([len(span.ids) for span in spans])
        held = torch.tensor([self._own.filled[span.slot] for span in spans])
        behind = torch.tensor([len(span.prefix) for span in spans])
        columns = torch.arange(int(counts.max()))
        real = columns < counts[:, None]
        places = start + (counts.cumsum(0) - counts)[:, None] + columns * real
        prefix, own = torch.arange(int(behind.max())), torch.arange(int(held.max()))
        # Each token sees its prefix, all before its span, and its span up to itself.
        last = (held - counts)[:, None] + columns
        seen = own <= last[:, :, None]
        shared = (prefix < behind[:, None, None]).expand(-1, len(columns), -1)
        rows = torch.tensor([self._own.place[span.slot] for span in spans])
        slots = torch.tensor([self._prefixes.place.get(span.prefix, 0) for span in spans])
        mask = torch.cat([shared, seen], -1)[:, None]
        tensors = [tensor.to(self._device) for tensor in (places, real, rows, slots)]
        return Reading(*tensors, (len(prefix), len(own)), mask.to(self._device))

    def _look_back(self, layer: int, reading: Reading, query: Tensor, scale: float) -> Tensor:
        """Queries [N, H, size] of a reading's tokens -> what they read, [their number, H, size]."""
        shared, own = reading.lengths
        past = [buffer[reading.rows] for buffer in self._own.read(layer, own)]
        if shared:
            before = [buffer[reading.shared] for buffer in self._prefixes.read(layer, shared)]
            past = [torch.cat(parts, 2) for parts in zip(before, past, strict=True)]
        keys, values = past
        out = scaled_dot_product_attention(
            query[reading.places].transpose(1, 2),
            keys,
            values,
            attn_mask=reading.mask,
            scale=scale,
            enable_gqa=query.shape[1] != keys.shape[1],
        )
        return out.transpose(1, 2)[reading.real]

    def _aim(self) -> None:
        """Index tensors of the spans that decode; R slots, of which B decode, over G prefixes.

        `_bias` [R, 1, 1, P + S] hides what a slot does not hold, of its prefix and of its own.
        `_members` [G, M] has the slots that began with each prefix, `_seat` [R] finds a slot in
        it; what is padded there, and slots that do not decode, compute what nobody reads.
        """
        rows = [self._own.place[span.slot] for span in self._decoding]
        self._rows = torch.tensor(rows, device=self._device)
        self._shared_length = max(len(span.prefix) for span in self._decoding)
        self._length = max(self._own.filled[span.slot] for span in self._decoding)
        shared = [0] * len(self._own)
        members: list[list[int]] = [[] for _ in range(len(self._prefixes))]
        for span, row in zip(self._decoding, rows, strict=True):
            shared[row] = len(span.prefix)
            if span.prefix:
                members[self._prefixes.place[span.prefix]].append(row)
        # A slot that is empty yet hides nothing, so that its softmax, which nobody reads, has a sum.
        own = [count or self._length for count in self._own.held()]
        self._bias = torch.cat(
            [self._hide(shared, self._shared_length), self._hide(own, self._length)], -1
        )
        width = max(map(len, members), default=0)
        seat = [0] * len(self._own)
        for place, group in enumerate(members):
            for number, row in enumerate(group):
                seat[row] = place * width + number
            group += [0] * (width - len(group))
        self._members = torch.tensor(members, dtype=torch.long, device=self._device)
        self._seat = torch.tensor(seat, device=self._device)
        self._seated = torch.tensor(shared, device=self._device)[:, None, None, None] > 0

    def _hide(self, held: list[int], length: int) -> Tensor:
        """float [slots, 1, 1, length]: -inf on columns that a slot does not hold."""
        counts = torch.tensor(held, device=self._device)[:, None, None, None]
        hidden = torch.arange(length, device=self._device) >= counts
        return torch.zeros(hidden.shape, device=self._device).masked_fill_(hidden, -torch.inf)

    def _decode(self, layer: int, query: Tensor, scale: float) -> Tensor:
        """[B, H, size] queries of the spans that decode -> what they read, [B, H, size].

        Scores over the shared prefix and over what is a slot's own are softmaxed together; the
        prefix is read once for all its members.
        """
        keys, values = self._own.read(layer, self._length)
        slots, heads, _, size = keys.shape
        spread = query.new_zeros(slots, *query.shape[1:]).index_copy_(0, self._rows, query)
        bias, shared = self._bias.to(query.dtype), self._shared_length
        if not shared:
            out = scaled_dot_product_attention(
                spread[:, :, None],
                keys,
                values,
                attn_mask=bias,
                scale=scale,
                enable_gqa=query.shape[1] != heads,
            )
            return out[self._rows, :, 0]
        asked = spread.view(slots, heads, -1, size) * scale
        queries = asked.shape[2]
        shared_keys, shared_values = self._prefixes.read(layer, shared)
        by_prefix = self._scattered(self._gathered(asked) @ shared_keys.mT, queries)
        weights = (torch.cat([by_prefix, asked @ keys.mT], -1) + bias).softmax(-1)
        read = self._gathered(weights[..., :shared]) @ shared_values
        # A slot without a prefix has no seat of its own, and reads nothing there.
        read = self._scattered(read, queries) * self._seated
        out = weights[..., shared:] @ values + read
        return out.view(slots, -1, size)[self._rows]

    def _gathered(self, by_slot: Tensor) -> Tensor:
        """[R, K, Q, X] of slots -> [G, K, M * Q, X] of prefixes, Q queries a key head."""
        groups, members = self._members.shape
        _, heads, queries, width = by_slot.shape
        taken = by_slot[self._members.flatten()].view(groups, members, heads, queries, width)
        return taken.transpose(1, 2).reshape(groups, heads, members * queries, width)

    def _scattered(self, by_prefix: Tensor, queries: int) -> Tensor:
        """The inverse of `_gathered`."""
        groups, heads, _, width = by_prefix.shape
        split = by_prefix.view(groups, heads, -1, queries, width).transpose(1, 2)
        return split.reshape(-1, heads, queries, width)[self._seat]


def _causal(query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
    """[H, T, size] over [K, T, size] -> [T, H, size]."""
    out = scaled_dot_product_attention(
        query[None],
        key[None],
        value[None],
        is_causal=True,
        scale=scale,
        enable_gqa=query.shape[0] != key.shape[0],
    )
    return out[0].transpose(0, 1)
