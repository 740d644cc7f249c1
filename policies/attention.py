"""Attention whose layout the caller decides: packed rows in training, a shared cache in play.

transformers hands every keyword of a forward pass down to the attention of each layer. The
function registered here looks for `attend` among them and lets it do the work; without it, this is
transformers' own sdpa.
"""

from __future__ import annotations

from typing import Any, Protocol

from torch import Tensor, nn
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
