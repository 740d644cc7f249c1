"""One forward pass over new tokens of many conversations: who writes where and sees what."""

from __future__ import annotations

from collections.abc import Sequence
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


class Layout:
    """`policies.attention.Attend` over a cache of two regions, for one forward pass.

    The N tokens are laid end to end, without padding: first `opened` prefixes in full, then the
    spans that read an observation, then those of a single token, which decode. A prefix is kept
    once for all the conversations that began with it, and is () for one that is alone. Keys and
    values are written before they are looked at, so a prefix and its conversations may come in
    one pass.
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
        reading = [span for span in spans if len(span.ids) > 1]
        decoding = [span for span in spans if len(span.ids) == 1]
        self._opened = opened
        self._reading, self._decoding = reading, decoding
        self.spans = reading + decoding
        self._shared = sum(map(len, opened))
        ids = [
            token for tokens in (*opened, *(span.ids for span in self.spans)) for token in tokens
        ]
        self.ids = torch.tensor(ids, device=device)
        self._address()
        self._masks = [self._mask(span) for span in reading]
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
            outs.append(_attend(query[:, part], key[:, part], value[:, part], scale))
            start = part.stop
        for span, mask in zip(self._reading, self._masks, strict=True):
            part = slice(start, start + len(span.ids))
            outs.append(_attend(query[:, part], *self._past(layer, span), scale, mask))
            start = part.stop
        if self._decoding:
            outs.append(self._decode(layer, query[:, start:].transpose(0, 1), scale))
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

    def _mask(self, span: Span) -> Tensor:
        """bool [T, S]: each token of a span sees all before the span, and the span up to itself."""
        length = len(span.prefix) + self._own.filled[span.slot]
        count = len(span.ids)
        whole = torch.ones(count, length, dtype=torch.bool, device=self._device)
        return whole.tril_(length - count)

    def _past(self, layer: int, span: Span) -> tuple[Tensor, Tensor]:
        """Keys and values [K, S, size] of a conversation, prefix and own."""
        row = self._own.place[span.slot]
        keys, values = (
            buffer[row] for buffer in self._own.read(layer, self._own.filled[span.slot])
        )
        if span.prefix:
            place = self._prefixes.place[span.prefix]
            shared = self._prefixes.read(layer, len(span.prefix))
            keys = torch.cat([shared[0][place], keys], 1)
            values = torch.cat([shared[1][place], values], 1)
        return keys, values

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
        # A slot that is empty yet hides nothing: its softmax, which nobody reads, needs a sum.
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


def _attend(
    query: Tensor, key: Tensor, value: Tensor, scale: float, mask: Tensor | None = None
) -> Tensor:
    """[H, T, size] over [K, S, size] -> [T, H, size]; causal without a mask."""
    out = scaled_dot_product_attention(
        query[None],
        key[None],
        value[None],
        attn_mask=mask,
        is_causal=mask is None,
        scale=scale,
        enable_gqa=query.shape[0] != key.shape[0],
    )
    return out[0].transpose(0, 1)
