"""Attention whose layout the caller decides: packed rows in training, a shared cache in play.

transformers hands every keyword of a forward pass down to the attention of each layer. The
function registered here looks for `attend` among them and lets it do the work; without it, this is
transformers' own sdpa.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

from runs.errors import PolicyError

NAME = "trivet"


class Attend(Protocol):
    """What a layer's new tokens look at. H heads, K key/value heads (H a multiple of K), N tokens.

    Called once a layer with query [1, H, N, size], key and value [1, K, N, size], positions
    already applied, and the factor that scores are multiplied by; returns [1, N, H, size].
    """

    def __call__(
        self, layer: int, query: Tensor, key: Tensor, value: Tensor, scale: float
    ) -> Tensor: ...


class Span(NamedTuple):
    """Tokens [start, end) of a pack. They are seen by the later ones among themselves and by all
    of the tokens [end, reach), which go on where these end."""

    start: int
    end: int
    reach: int


def attend_spans(spans: Sequence[Span]) -> Attend:
    """Attention within the paths of a tree, its spans in the order in which their tokens lie.

    A token sees the spans that reach it and, of its own, what is not later than itself: exactly
    the causal attention of the sequences of which the tree holds the common beginnings once.
    """
    spans = list(spans)

    def attend(layer: int, query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
        times = query.shape[1] // key.shape[1]
        if times > 1:
            key, value = (x.repeat_interleave(times, 1) for x in (key, value))
        if query.device.type == "cpu":
            return _Tree.apply(query, key, value, spans, scale)  # type: ignore[return-value]
        return attend_paths(spans, query, key, value, scale)

    return attend


def attend_paths(
    spans: Sequence[Span], query: Tensor, key: Tensor, value: Tensor, scale: float
) -> Tensor:
    """`attend_spans` by public functions alone, a span at a time: every device can do it.

    query, key and value [1, H, N, size] -> [1, N, H, size].
    """
    parts = []
    for start, end, _ in spans:
        path = [s for s in spans if s.start <= start and s.reach >= end]
        seen = torch.cat([torch.arange(s.start, s.end) for s in path]).to(query.device)
        size = end - start
        mask = torch.ones((size, len(seen)), dtype=torch.bool, device=query.device)
        mask = mask.tril(len(seen) - size)
        mine, keys, values = query[:, :, start:end], key[:, :, seen], value[:, :, seen]
        out = scaled_dot_product_attention(mine, keys, values, attn_mask=mask, scale=scale)
        parts.append(out)
    return torch.cat(parts, 2).transpose(1, 2)


_flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
_flash_backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward


class _Tree(torch.autograd.Function):
    """A call of torch's flash kernel for every span: its keys, and every query that sees them.

    Causal from the top left, the kernel gives a query behind the last key all keys, so one call
    serves the span itself and whatever goes on from it. What a query got from several spans is
    put together by their log-sum-exps. The kernel's backward, given the whole's output and
    log-sum-exp, returns just the part of the gradient that went through the keys of that call.
    Slicing under autograd instead would pad every slice's gradient to the whole pack.
    """

    @staticmethod
    def forward(
        ctx: Any, query: Tensor, key: Tensor, value: Tensor, spans: list[Span], scale: float
    ) -> Tensor:
        out = torch.empty_like(query.transpose(1, 2), memory_format=torch.contiguous_format)
        out = out.transpose(1, 2)
        total = out.new_empty(query.shape[:3], dtype=torch.promote_types(out.dtype, torch.float32))
        for start, old, end, reach in _overlaps(spans):
            part, mass = _flash(
                query[:, :, start:reach],
                key[:, :, start:end],
                value[:, :, start:end],
                0.0,
                True,
                scale=scale,
            )
            here, cut = slice(start, old), old - start
            both = torch.logaddexp(total[:, :, here], mass[:, :, :cut])
            share = (mass[:, :, :cut] - both).exp_()[..., None].to(out.dtype)
            out[:, :, here].lerp_(part[:, :, :cut], share)
            total[:, :, here] = both
            out[:, :, old:reach], total[:, :, old:reach] = part[:, :, cut:], mass[:, :, cut:]
        ctx.save_for_backward(query, key, value, out, total)
        ctx.spans, ctx.scale = spans, scale
        return out.transpose(1, 2)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, out, total = ctx.saved_tensors
        grad = grads[0].transpose(1, 2)
        of_query, of_key, of_value = (torch.empty_like(x) for x in (query, key, value))
        for start, old, end, reach in _overlaps(ctx.spans):
            seen, own = slice(start, reach), slice(start, end)
            part, of_key[:, :, own], of_value[:, :, own] = _flash_backward(
                grad[:, :, seen],
                query[:, :, seen],
                key[:, :, own],
                value[:, :, own],
                out[:, :, seen],
                total[:, :, seen],
                0.0,
                True,
                scale=ctx.scale,
            )
            of_query[:, :, start:old] += part[:, :, : old - start]
            of_query[:, :, old:reach] = part[:, :, old - start :]
        return of_query, of_key, of_value, None, None


def _overlaps(spans: Sequence[Span]) -> Iterator[tuple[int, int, int, int]]:
    """start, old, end and reach of every span: tokens [start, old) have seen spans before it."""
    known = 0
    for start, end, reach in spans:
        yield start, max(start, min(known, reach)), end, reach
        known = max(known, reach)


def adopt(model: nn.Module) -> None:
    """Let `attend=` steer the attention of this transformers model.

    Raises PolicyError for a model whose attention is not transformers' sdpa in every layer.
    """
    if not isinstance(model, PreTrainedModel):
        return
    if model.config._attn_implementation not in ("sdpa", NAME):
        raise PolicyError(
            f"policy.path: attention {model.config._attn_implementation!r} of this model cannot be "
            "laid out row by row; load it with attn_implementation='sdpa'"
        )
    model.set_attn_implementation(NAME)


def _attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    attend: Attend | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    if attend is None:
        out, _ = sdpa_attention_forward(module, query, key, value, attention_mask, **kwargs)
        return out, None
    scale = kwargs.get("scaling") or query.shape[-1] ** -0.5
    layer = module.layer_idx
    assert isinstance(layer, int)
    return attend(layer, query, key, value, scale), None


AttentionInterface.register(NAME, _attention)
AttentionMaskInterface.register(NAME, sdpa_mask)
